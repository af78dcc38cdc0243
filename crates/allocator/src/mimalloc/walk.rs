use std::ops::Range;

use image::Image;
use image::elf::Module;
use linux::{Address, length};

use super::Error;
use super::arenas::MemoryArena;
use super::page_layout::{PageBlocks, PageLayout, number_of};
use super::page_map::PageMap;
use super::pages::{Page, SLICE};
use super::segments::Segments;
use crate::candidate_mappings::mmapped_memory;
use crate::module_data::ModuleData;
use crate::structures::Structures;
use crate::{Arena, Block, BlockState, Extent, ExtentState, Finding, HeapMap, Totals};

/// Fewer bytes than a page's structure has.
const MIN_PAGE: u64 = 64;
/// The largest size class.
const MAX_CLASS: u64 = 16 << 20;

/// Walks the heap of the mimalloc in `module`.
///
/// # Errors
/// If no layout is consistent.
pub(crate) fn walk(image: &Image<'_>, module: &Module) -> Result<HeapMap, Error> {
    let structures = &mut Structures::new(image);
    let data = ModuleData::read(image, module)?;
    let memory = mmapped_memory(image);
    // Each thread may have been stopped while it changed a page.
    let changing = image.state.threads.len();
    let written = written_bytes(image, &memory);
    let max_pages = written / MIN_PAGE;
    let mut found = None;
    for mut map in PageMap::candidates(structures, &data, &memory, max_pages) {
        let arenas = MemoryArena::all(structures, &mut map.pages);
        found = found.max(Some(map.pages.len()));
        if let Some(layout) = PageLayout::find(structures, &map.pages, changing) {
            return Walk::new("mimalloc 3", changing, written)
                .of_map(structures, &map, &arenas, &layout);
        }
    }
    if let Some(segments) = Segments::find(structures, &memory) {
        found = found.max(Some(segments.pages.len()));
        if let Some(layout) = PageLayout::find(structures, &segments.pages, changing) {
            return Walk::new("mimalloc 2", changing, written)
                .of_segments(structures, &segments, &layout);
        }
    }
    Err(found.map_or(Error::NoPages, |pages| Error::NoLayout { pages }))
}

/// The use of a part of mimalloc's memory.
enum Part {
    /// The page with this number, and its blocks if they agree with its counts.
    Page(Option<PageBlocks>),
    Free,
    Structures,
}

struct Walk {
    heap: HeapMap,
    parts: Vec<(Range<Address>, Part)>,
    /// The pages that may have been stopped while they changed.
    changing: usize,
    /// The bytes of memory that were ever written to.
    written: u64,
}

impl Walk {
    fn new(walker: &str, changing: usize, written: u64) -> Self {
        let heap = HeapMap { walker: walker.into(), ..HeapMap::default() };
        Self { heap, parts: Vec::new(), changing, written }
    }

    /// Reads the blocks of all pages. None of a page that does not agree with its counts.
    fn read(
        &self,
        structures: &mut Structures<'_>,
        pages: &[Page],
        layout: &PageLayout,
    ) -> Result<Vec<Option<PageBlocks>>, Error> {
        let (mut all, mut changed, mut made) = (Vec::new(), 0, 0);
        for page in pages {
            let blocks = layout.read(structures, page);
            changed += usize::from(blocks.is_none());
            made += blocks.as_ref().map_or(0, |blocks| blocks.is_free.len() as u64);
            // Each block was once on a list.
            if changed > self.changing || made > self.written / Block::MIN_BYTES {
                return Err(Error::NoLayout { pages: pages.len() });
            }
            all.push(blocks);
        }
        Ok(all)
    }

    fn of_map(
        mut self,
        structures: &mut Structures<'_>,
        map: &PageMap,
        arenas: &[MemoryArena],
        layout: &PageLayout,
    ) -> Result<HeapMap, Error> {
        for arena in arenas {
            let gaps = arena.gaps(&map.pages).into_iter();
            self.parts.extend(gaps.map(|(range, is_free)| {
                (range, if is_free { Part::Free } else { Part::Structures })
            }));
        }
        self.parts.extend(map.parts.iter().map(|range| (range.clone(), Part::Structures)));
        let all = self.read(structures, &map.pages, layout)?;
        Ok(self.finish(&map.pages, all))
    }

    fn of_segments(
        mut self,
        structures: &mut Structures<'_>,
        segments: &Segments,
        layout: &PageLayout,
    ) -> Result<HeapMap, Error> {
        let free = segments.free.iter().map(|range| (range.clone(), Part::Free));
        self.parts.extend(free);
        let info = segments.info.iter().map(|range| (range.clone(), Part::Structures));
        self.parts.extend(info);
        let pages = &segments.pages;
        let mut all = self.read(structures, pages, layout)?;
        let lists = segments
            .delayed(structures, |at| in_use(pages, &all, at).is_some())
            .ok_or(Error::NoLayout { pages: pages.len() })?;
        for list in lists {
            free_list(structures, pages, &mut all, list);
        }
        Ok(self.finish(pages, all))
    }

    fn finish(mut self, pages: &[Page], all: Vec<Option<PageBlocks>>) -> HeapMap {
        for (page, blocks) in pages.iter().zip(all) {
            let end = blocks
                .as_ref()
                .map_or(page.area.end, |blocks| blocks.end().align_up(SLICE).max(page.area.end));
            self.parts.push((page.area.start..end, Part::Page(blocks)));
        }
        // What lies within a page of one large block comes behind it.
        self.parts.sort_by_key(|(range, part)| (range.start, !matches!(part, Part::Page(_))));
        self.add_parts();
        self.count();
        self.heap
    }

    fn add_parts(&mut self) {
        let heap = &mut self.heap;
        let mut end = Address(0);
        let (mut extents, mut bytes) = (0, 0);
        for (range, part) in self.parts.drain(..) {
            let range = range.start.max(end)..range.end;
            if range.start >= range.end {
                continue;
            }
            end = range.end;
            let first = heap.blocks.len();
            let mut extent = Extent::new(range.clone(), Some(0), first..first);
            match part {
                Part::Page(blocks) if blocks.as_ref().is_none_or(|it| it.start < range.start) => {
                    extents += 1;
                    bytes += length(&range);
                }
                Part::Page(Some(blocks)) if blocks.has_any() => {
                    let room = (range.end - blocks.start) / blocks.bytes;
                    if room > 1 {
                        extent.region_bytes = Some(blocks.bytes);
                    }
                    let state =
                        |is_free| if is_free { BlockState::Free } else { BlockState::InUse };
                    let states = blocks.is_free.iter().copied().map(state);
                    heap.blocks.push_row(blocks.start, blocks.bytes, states);
                    // Blocks that were never made.
                    let rest = blocks.bytes * room.saturating_sub(blocks.is_free.len() as u64);
                    if rest > 0 {
                        heap.blocks.push(Block::new(blocks.end(), rest, BlockState::Top));
                    }
                }
                // mimalloc keeps pages in which nothing is in use for a while.
                Part::Page(_) | Part::Free => {
                    extent.state = ExtentState::Dirty;
                    let block = Block::new(range.start, length(&range), BlockState::Top);
                    heap.blocks.push(block);
                }
                Part::Structures => {
                    extent.state = ExtentState::Metadata;
                    let block = Block::new(range.start, length(&range), BlockState::Overhead);
                    heap.blocks.push(block);
                }
            }
            extent.blocks = first..heap.blocks.len();
            heap.extents.push(extent);
        }
        if extents > 0 {
            heap.findings.push(Finding::ExtentsChanging { extents, bytes });
        }
    }

    fn count(&mut self) {
        let heap = &mut self.heap;
        let mut totals = Totals::default();
        for (_, block) in heap.all_blocks() {
            totals.add(block);
        }
        totals.system_bytes = heap.extents.iter().map(|it| length(&it.range)).sum();
        heap.arenas.push(Arena {
            is_main: true,
            heaps: heap.extents.iter().filter(|it| it.state == ExtentState::Active).count() as u32,
            system_bytes: totals.system_bytes,
            walked: true,
            totals,
            ..Arena::default()
        });
        heap.totals = totals;
        heap.size_classes = size_classes();
    }
}

impl PageBlocks {
    /// Returns true if a block is in use.
    fn has_any(&self) -> bool {
        self.is_free.contains(&false)
    }

    fn end(&self) -> Address {
        self.start.offset(self.bytes * self.is_free.len() as u64)
    }
}

/// The bytes of memory that were ever written to. No heap has more structures and blocks than that.
fn written_bytes(image: &Image<'_>, memory: &[Range<Address>]) -> u64 {
    let Some(pages) = &image.state.pages else { return memory.iter().map(length).sum() };
    let parts = memory.iter().flat_map(|range| pages.parts_in(range));
    parts.map(|part| length(&part)).sum()
}

/// The page and the number of the block in use that begins at `at`.
fn in_use(pages: &[Page], all: &[Option<PageBlocks>], at: Address) -> Option<(usize, usize)> {
    let page = pages.partition_point(|page| page.area.start <= at).checked_sub(1)?;
    let blocks = all[page].as_ref()?;
    let number = number_of(at.0, blocks.start, blocks.bytes)? as usize;
    blocks.is_free.get(number).is_some_and(|is_free| !is_free).then_some((page, number))
}

/// Marks the blocks of a list that leads from page to page as free, up to a word that is no block in use.
fn free_list(
    structures: &mut Structures<'_>,
    pages: &[Page],
    all: &mut [Option<PageBlocks>],
    list: Address,
) {
    let mut next = list;
    // No block is twice on it, so this ends.
    while let Some((page, number)) = in_use(pages, all, next) {
        if let Some(blocks) = &mut all[page] {
            blocks.is_free[number] = true;
        }
        next = structures.pointer(next).unwrap_or(Address(0));
    }
}

/// The sizes of blocks (`_mi_bin`): up to 128 bytes multiples of 16, then four for each power of two.
fn size_classes() -> Vec<u64> {
    let mut classes: Vec<u64> = [8].into_iter().chain((1..=8).map(|it| it * 16)).collect();
    let mut power = 128;
    while power < MAX_CLASS {
        classes.extend((5..=8).map(|quarter| power / 4 * quarter));
        power *= 2;
    }
    classes
}
