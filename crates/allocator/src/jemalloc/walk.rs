use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use image::elf::Module;
use image::{Image, Unreadable};
use linux::{Address, length};

use crate::jemalloc::arena::{self, ArenaRecord, PageCounts};
use crate::jemalloc::bins::{self, Bin};
use crate::jemalloc::descriptor::Descriptor;
use crate::jemalloc::layout::{ARENAS, ArenaLayout, NO_CLASS, OwnPages, class_bytes};
use crate::jemalloc::thread_caches;
use crate::jemalloc::tree::{Damage, Tree};
use crate::jemalloc::{Error, version};
use crate::module_data::ModuleData;
use crate::structures::Structures;
use crate::{
    Arena, ArenaProblem, Block, BlockState, Decay, Extent, ExtentState, Finding, HeapMap, Totals,
    Tuning,
};

/// The name of jemalloc's background threads.
const BACKGROUND_THREAD: &str = "jemalloc_bg_thd";
/// Large allocations begin at a cache line: at the first one of their extent, or at a random one of its first page.
const CACHE_LINE: u64 = 64;

/// Walks the heap of the jemalloc in `module`.
///
/// # Errors
/// If no known layout fits.
pub(crate) fn walk(image: &Image<'_>, module: &Module) -> Result<HeapMap, Error> {
    walk_with(image, module, &ARENAS)
}

/// Walks with the layouts given.
pub(crate) fn walk_with(
    image: &Image<'_>,
    module: &Module,
    layouts: &[ArenaLayout],
) -> Result<HeapMap, Error> {
    let version = version::find(image, module);
    let jemalloc =
        version.as_ref().map_or("jemalloc".to_owned(), |version| format!("jemalloc {version}"));
    let unreadable = |source: Unreadable| Error::Unreadable { jemalloc: jemalloc.clone(), source };
    let structures = &mut Structures::new(image);
    let data = ModuleData::read(image, module).map_err(unreadable)?;
    let tree = Tree::find(structures, module, &data)
        .ok_or_else(|| Error::NoTree { jemalloc: jemalloc.clone() })?;
    let extents = tree.extents(structures).map_err(|damage| match damage {
        Damage::Unreadable(source) => unreadable(source),
        Damage::Overlap(at) => Error::Damaged { jemalloc: jemalloc.clone(), at },
    })?;
    let pages = tree.layout.pages;
    let bins =
        bins::find(&data, pages).ok_or_else(|| Error::NoBins { jemalloc: jemalloc.clone() })?;
    let counted = Counted::by_arena(&extents.descriptors);
    let layouts =
        layouts.iter().filter(|it| it.generation == tree.layout.generation && it.pages == pages);
    let Some((layout, arenas)) = judge(structures, &data, layouts, &counted) else {
        let extents = extents.descriptors.len();
        return Err(Error::NoArenas { jemalloc: jemalloc.clone(), extents });
    };

    let mut walk = Walk {
        bins,
        pages,
        pad: pad(&extents.descriptors, pages),
        heap: HeapMap { lookup_span: Some(tree.layout.leaf_span()), ..HeapMap::default() },
    };
    walk.heap.walker = match version {
        Some(_) => jemalloc.clone(),
        None => format!("jemalloc with the layout of {}", layout.release),
    };
    walk.heap.tuning = arenas.first().map(|first| tuning(image, &first.record));
    if extents.contradictions > 0 {
        let entries = extents.contradictions;
        walk.heap.findings.push(Finding::EntriesChanging { entries });
    }
    walk.heap.size_classes = (0..NO_CLASS).map(class_bytes).collect();
    walk.add_arenas(&arenas, &counted);
    walk.add_extents(structures, extents.descriptors, &arenas).map_err(unreadable)?;
    let walked = arenas.iter().filter(|arena| arena.agrees).map(|arena| arena.record.at);
    thread_caches::mark(structures, &layout, walked, &mut walk.heap);
    walk.count();
    Ok(walk.heap)
}

/// The pages of an arena, counted by its extents.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    pages: PageCounts,
    /// Pages of extents that are changing hands. They may count as active already.
    moving: u64,
}

impl Counted {
    fn by_arena(descriptors: &[Descriptor]) -> BTreeMap<u64, Self> {
        let mut arenas = BTreeMap::<u64, Self>::new();
        for descriptor in descriptors {
            let counted = arenas.entry(u64::from(descriptor.arena)).or_default();
            match descriptor.state {
                Some(state) if !is_moving(descriptor) => counted.pages.add(state, descriptor.pages),
                _ => counted.moving += descriptor.pages,
            }
        }
        arenas
    }

    /// Returns true if an arena counts the same pages itself.
    fn agrees(self, own: PageCounts) -> bool {
        let with_moving = PageCounts { active: self.pages.active + self.moving, ..self.pages };
        own == self.pages || own == with_moving
    }
}

/// Returns true for an extent that is neither free nor handed out yet, such as one that is being purged.
fn is_moving(descriptor: &Descriptor) -> bool {
    descriptor.state.is_none() || descriptor.is_active() && u64::from(descriptor.class) >= NO_CLASS
}

/// An arena, and whether its own counts agree with the walk.
struct Judged {
    record: ArenaRecord,
    agrees: bool,
}

/// Finds the arenas with the layout under which most arenas' counts agree with the walk. `None` if no layout leads to
/// arenas.
fn judge<'l>(
    structures: &mut Structures<'_>,
    data: &ModuleData,
    layouts: impl Iterator<Item = &'l ArenaLayout>,
    counted: &BTreeMap<u64, Counted>,
) -> Option<(ArenaLayout, Vec<Judged>)> {
    let mut best: Option<((usize, usize), ArenaLayout, Vec<Judged>)> = None;
    for layout in layouts {
        for found in arena::find(structures, data, layout) {
            let mut arenas = Vec::new();
            for (number, at) in found {
                let Ok(record) = ArenaRecord::read(structures, layout, number, at) else {
                    continue;
                };
                let own = counted.get(&number).copied().unwrap_or_default();
                let base = record.blocks.iter().map(length).sum::<u64>();
                let is_base = record.blocks.iter().any(|block| block.contains(&record.base));
                let agrees = own.agrees(record.pages) && is_base && base == record.mapped;
                arenas.push(Judged { record, agrees });
            }
            let is_evidence = |it: &&Judged| it.agrees && !it.record.pages.is_empty();
            let score = (arenas.iter().filter(is_evidence).count(), arenas.len());
            if !arenas.is_empty() && best.as_ref().is_none_or(|(most, ..)| score > *most) {
                best = Some((score, *layout, arenas));
            }
        }
    }
    best.map(|(_, layout, arenas)| (layout, arenas))
}

/// The bytes of padding behind each large allocation, which lets its beginning vary (`opt.cache_oblivious`).
fn pad(descriptors: &[Descriptor], pages: OwnPages) -> u64 {
    let is_padded = |it: &Descriptor| {
        it.is_active()
            && !it.is_slab
            && (pages.bins()..NO_CLASS).contains(&u64::from(it.class))
            && (!it.pointer.is_aligned(pages.bytes())
                || length(&it.range) > class_bytes(it.class.into()))
    };
    if descriptors.iter().any(is_padded) { pages.bytes() } else { 0 }
}

fn tuning(image: &Image<'_>, first: &ArenaRecord) -> Tuning {
    let names = &image.state.process.thread_names;
    Tuning {
        arena_max: None,
        tcache_count: None,
        decay: Some(Decay {
            dirty_ms: first.dirty_decay_ms,
            muzzy_ms: first.muzzy_decay_ms,
            in_background: names.iter().any(|name| name.starts_with(BACKGROUND_THREAD)),
        }),
        thresholds: None,
    }
}

struct Walk {
    pages: OwnPages,
    bins: Vec<Bin>,
    pad: u64,
    heap: HeapMap,
}

/// A part of the heap.
enum Part {
    Extent(Descriptor),
    /// A block in which the arena with this index keeps its own structures.
    Base(Range<Address>, usize),
}

impl Part {
    fn range(&self) -> &Range<Address> {
        match self {
            Self::Extent(descriptor) => &descriptor.range,
            Self::Base(range, _) => range,
        }
    }
}

/// Merges extents and the blocks of bases. Each ascend.
fn by_address(
    descriptors: Vec<Descriptor>,
    bases: Vec<(Range<Address>, usize)>,
) -> impl Iterator<Item = Part> {
    let mut descriptors = descriptors.into_iter().peekable();
    let mut bases = bases.into_iter().peekable();
    std::iter::from_fn(move || {
        let extent = descriptors.peek().map(|it| it.range.start);
        if let Some((range, index)) =
            bases.next_if(|(base, _)| extent.is_none_or(|extent| base.start < extent))
        {
            return Some(Part::Base(range, index));
        }
        descriptors.next().map(Part::Extent)
    })
}

impl Walk {
    fn add_arenas(&mut self, arenas: &[Judged], counted: &BTreeMap<u64, Counted>) {
        for Judged { record, agrees } in arenas {
            self.heap.arenas.push(Arena {
                address: record.at,
                is_main: record.number == 0,
                threads: Some(record.threads),
                walked: *agrees,
                ..Arena::default()
            });
            if !agrees {
                self.heap.findings.push(Finding::ArenaUnread {
                    arena: record.at,
                    is_main: record.number == 0,
                    at: record.at,
                    cause: ArenaProblem::Changing,
                    error: "it counts other pages than its extents have".into(),
                });
            }
            if record.used_hpa {
                self.heap.findings.push(Finding::HugePages { arena: record.at });
            }
        }
        let known: BTreeSet<_> = arenas.iter().map(|arena| arena.record.number).collect();
        let unlisted = counted.keys().filter(|number| !known.contains(number));
        let findings = unlisted.map(|&arena| Finding::ExtentsUnlisted { arena });
        self.heap.findings.extend(findings);
    }

    fn add_extents(
        &mut self,
        structures: &mut Structures<'_>,
        descriptors: Vec<Descriptor>,
        arenas: &[Judged],
    ) -> Result<(), Unreadable> {
        let index_of: BTreeMap<u64, usize> =
            arenas.iter().enumerate().map(|(index, it)| (it.record.number, index)).collect();
        let bases = arenas.iter().enumerate().flat_map(|(index, arena)| {
            arena.record.blocks.iter().map(move |block| (block.clone(), index))
        });
        let mut bases: Vec<_> = bases.collect();
        bases.sort_by_key(|(range, _)| range.start);
        let blocks: usize = descriptors.iter().map(|it| self.block_count(it)).sum();
        self.heap.blocks.reserve_exact(blocks + bases.len());
        self.heap.extents.reserve_exact(descriptors.len() + bases.len());
        let mut end = Address(0);
        let mut moving = (0_u64, 0_u64);
        for part in by_address(descriptors, bases) {
            let range = part.range().clone();
            let index = match &part {
                Part::Extent(descriptor) => index_of.get(&u64::from(descriptor.arena)).copied(),
                Part::Base(_, index) => Some(*index),
            };
            if range.start < end {
                let (at, error) = (range.start, "it overlaps another one");
                self.heap.findings.push(Finding::ExtentUnread { at, error });
                continue;
            }
            end = range.end;
            let is_walked = index.is_some_and(|index| arenas[index].agrees);
            let first = self.heap.blocks.len();
            let (state, region_bytes) = match part {
                Part::Base(..) => {
                    self.push(range.start, length(&range), BlockState::Overhead);
                    (ExtentState::Metadata, None)
                }
                Part::Extent(descriptor) => {
                    let is_cached = index.is_some_and(|index| arenas[index].record.used_hpa);
                    if is_walked
                        && let Err(problem) = self.add_blocks(structures, &descriptor, is_cached)?
                    {
                        self.heap.blocks.truncate(first);
                        match problem {
                            Problem::Moving => {
                                moving = (moving.0 + 1, moving.1 + length(&descriptor.range));
                            }
                            Problem::Contradiction(error) => {
                                let at = descriptor.at;
                                self.heap.findings.push(Finding::ExtentUnread { at, error });
                            }
                        }
                    }
                    let bin = self.bins.get(usize::from(descriptor.class));
                    let region = bin.filter(|_| descriptor.is_slab && descriptor.is_active());
                    // While it is purged, an extent is neither dirty nor returned yet.
                    let state = descriptor.state.unwrap_or(ExtentState::Active);
                    (state, region.map(|bin| bin.region_bytes))
                }
            };
            if is_walked && matches!(state, ExtentState::Dirty | ExtentState::Muzzy) {
                self.heap.trimmable.push(range.clone());
            }
            let arena = index.and_then(|index| u32::try_from(index).ok());
            let blocks = first..self.heap.blocks.len();
            self.heap.extents.push(Extent { range, arena, blocks, state, region_bytes });
        }
        if moving.0 > 0 {
            let (extents, bytes) = moving;
            self.heap.findings.push(Finding::ExtentsChanging { extents, bytes });
        }
        Ok(())
    }

    fn block_count(&self, descriptor: &Descriptor) -> usize {
        if descriptor.is_slab && descriptor.is_active() {
            return self
                .bins
                .get(usize::from(descriptor.class))
                .map_or(0, |bin| bin.regions as usize);
        }
        1
    }

    /// Adds the blocks of an extent. If the inner result is an error, some may have been added.
    fn add_blocks(
        &mut self,
        structures: &mut Structures<'_>,
        descriptor: &Descriptor,
        is_cached: bool,
    ) -> Result<Result<(), Problem>, Unreadable> {
        let (start, bytes) = (descriptor.range.start, length(&descriptor.range));
        match descriptor.state {
            None => Ok(Err(Problem::Moving)),
            Some(ExtentState::Active) if u64::from(descriptor.class) >= NO_CLASS => {
                if !is_cached {
                    return Ok(Err(Problem::Moving));
                }
                // The cache of the allocator of huge pages (`sec_t`) keeps extents without a class, former slabs among them.
                self.push(start, bytes, BlockState::Tcache);
                Ok(Ok(()))
            }
            Some(ExtentState::Active) if descriptor.is_slab => Ok(match self.bin_of(descriptor) {
                Ok(bin) => {
                    let bitmap = descriptor.bitmap(structures, bin.regions)?;
                    self.add_regions(descriptor, bin, &bitmap)
                }
                Err(problem) => Err(problem),
            }),
            Some(ExtentState::Active) => Ok(self.add_large(descriptor)),
            Some(_) => {
                self.push(start, bytes, BlockState::Free);
                Ok(Ok(()))
            }
        }
    }

    fn bin_of(&self, slab: &Descriptor) -> Result<Bin, Problem> {
        let bin = self.bins.get(usize::from(slab.class)).copied();
        bin.filter(|bin| bin.slab_bytes == length(&slab.range))
            .ok_or(Problem::Contradiction("it does not have the size of its class"))
    }

    fn add_regions(&mut self, slab: &Descriptor, bin: Bin, bitmap: &[u64]) -> Result<(), Problem> {
        let is_free = |region: u64| bitmap[region as usize / 64] >> (region % 64) & 1 == 1;
        let free = (0..bin.regions).filter(|&region| is_free(region)).count() as u64;
        let state = |region| if is_free(region) { BlockState::Free } else { BlockState::InUse };
        let states = (0..bin.regions).map(state);
        self.heap.blocks.push_row(slab.range.start, bin.region_bytes, states);
        if free != u64::from(slab.free_regions) {
            return Err(Problem::Contradiction("it counts other free regions than it has"));
        }
        Ok(())
    }

    fn add_large(&mut self, large: &Descriptor) -> Result<(), Problem> {
        let class = u64::from(large.class);
        let usable = if class < self.pages.bins() {
            // A small allocation that the profiler samples has an extent of its own.
            class_bytes(class)
        } else {
            length(&large.range).saturating_sub(self.pad)
        };
        let end = large.pointer.0.checked_add(usable);
        if usable == 0
            || end.is_none_or(|end| end > large.range.end.0)
            || !large.pointer.is_aligned(CACHE_LINE)
        {
            return Err(Problem::Contradiction("its allocation exceeds it"));
        }
        self.push(large.pointer, usable, BlockState::InUse);
        Ok(())
    }

    fn push(&mut self, address: Address, bytes: u64, state: BlockState) {
        self.heap.blocks.push(Block::new(address, bytes, state));
    }

    /// Sets the totals.
    fn count(&mut self) {
        let heap = &mut self.heap;
        let mut all = Totals::default();
        let mut arenas = vec![(Totals::default(), 0_u32); heap.arenas.len()];
        for extent in &heap.extents {
            let Some((totals, heaps)) =
                extent.arena.and_then(|arena| arenas.get_mut(arena as usize))
            else {
                continue;
            };
            if extent.state != ExtentState::Retained {
                totals.system_bytes += length(&extent.range);
            }
            *heaps += u32::from(extent.state == ExtentState::Active);
            for (_, block) in heap.blocks_of(extent) {
                totals.add(block);
            }
        }
        for (arena, (totals, heaps)) in heap.arenas.iter_mut().zip(arenas) {
            all.add_all(&totals);
            (arena.totals, arena.heaps, arena.system_bytes) = (totals, heaps, totals.system_bytes);
        }
        heap.totals = all;
    }
}

/// The reason why an extent has no blocks.
enum Problem {
    /// It is changing hands.
    Moving,
    /// The records of the extent contradict each other, as this message states.
    Contradiction(&'static str),
}
