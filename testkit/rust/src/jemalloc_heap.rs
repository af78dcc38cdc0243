//! A writer of synthetic jemalloc heaps: a small allocator of its own chooses the addresses, and the result is written
//! as jemalloc of a given release and height of tree would write it.
//!
//! Offsets and rules were taken from jemalloc's sources and debug information, not from the reader, so an error in
//! either one makes them disagree.

mod release;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use release::JemallocRelease;
use release::{NBINS, size_class, size_of_class, slab_bytes};

const PAGE: u64 = 4096;
/// Bytes behind each large allocation, so that its pointer may begin at any cache line of its first page.
const PAD: u64 = PAGE;
const GROWTH: u64 = 512 << 10;
const BASE_BLOCK: u64 = 2 << 20;
/// The largest size that thread caches hold, and the number of regions of one size in each.
const MAX_CACHED: u64 = 32 << 10;
const CACHE_SLOTS: usize = 8;
/// The size of a thread cache's stacks of pointers.
const STACK_BYTES: u64 = 28_672;

const BASES_START: u64 = 0x7c00_0000_0000;
/// Arenas alternate between addresses so far apart that every level of the tree branches.
const EXTENTS_START: [u64; 2] = [0x7a00_0000_0000, 0x7e00_0000_0000];
const EXTENTS_STEP: u64 = 3 << 29;

/// The purpose of an extent in a synthetic heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PagesUse {
    /// A slab or a large allocation.
    Active,
    /// Free, its pages kept.
    Dirty,
    /// Free, its pages released by MADV_FREE.
    Muzzy,
    /// Free, its pages returned.
    Retained,
    /// A block of jemalloc's own structures.
    Base,
}

/// The purpose of a region in a synthetic heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegionUse {
    /// Allocated by the program.
    InUse,
    /// Free.
    Free,
    /// In a thread's cache.
    Cached,
    /// Allocated by jemalloc for itself.
    Own,
}

/// A region of a slab, a large allocation, or all of an extent that is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyntheticRegion {
    /// The pointer to it.
    pub address: u64,
    /// Its usable size.
    pub bytes: u64,
    /// Its purpose.
    pub usage: RegionUse,
}

/// An extent of a synthetic heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntheticExtent {
    /// Its pages.
    pub range: Range<u64>,
    /// The index of its arena in [`JemallocTruth::arenas`].
    pub arena: u32,
    /// The purpose of its pages.
    pub usage: PagesUse,
    /// The size of its regions, if it is a slab.
    pub region_bytes: Option<u64>,
    /// Its regions, ascending.
    pub regions: Vec<SyntheticRegion>,
}

/// An arena of a synthetic heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticArena {
    /// The address of its structure.
    pub address: u64,
    /// jemalloc's number for it.
    pub number: u64,
    /// The bytes that jemalloc counts as mapped.
    pub mapped: u64,
    /// The number of its threads.
    pub threads: u32,
    /// The addresses of its counts of pages that are active, dirty, muzzy and retained.
    pub counts: [u64; 4],
}

/// The facts that a reader of a synthetic heap must find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JemallocTruth {
    /// All extents, ascending.
    pub extents: Vec<SyntheticExtent>,
    /// The arenas.
    pub arenas: Vec<SyntheticArena>,
    /// The addresses of all words that the writer wrote for jemalloc, without the contents of the program's memory.
    pub words: BTreeSet<u64>,
}

/// Parts of jemalloc's structures that can be written to a wrong place on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JemallocPart {
    /// The counts of pages in an arena.
    Counts,
    /// The bitmap of a slab.
    Bitmap,
    /// The address and size in an extent's structure.
    Pages,
    /// An arena's pointer to its base.
    Base,
}

/// A heap to be written. Two threads share each arena.
#[derive(Debug, Clone)]
pub struct JemallocHeap {
    release: JemallocRelease,
    lg_vaddr: u32,
    arenas: Vec<Arena>,
    threads: Vec<Cache>,
    /// The allocations of jemalloc itself.
    own: BTreeSet<u64>,
    next_base: u64,
    random: u64,
    shifted: Option<(JemallocPart, u64)>,
}

/// The cached pointers of a thread by size class, newest last, and the allocation that holds their stacks.
#[derive(Debug, Clone)]
struct Cache {
    stacks: u64,
    bins: BTreeMap<usize, Vec<u64>>,
}

#[derive(Debug, Clone)]
struct Arena {
    number: u64,
    address: u64,
    base: Base,
    extents: BTreeMap<u64, Extent>,
    /// The mappings that its extents lie in.
    mappings: Vec<Range<u64>>,
    next_mapping: u64,
    /// Structures of extents that were merged.
    spare: Vec<u64>,
}

#[derive(Debug, Clone, Default)]
struct Base {
    /// The address of its structure.
    address: u64,
    /// The blocks, and the first byte of each that is not used.
    blocks: Vec<(Range<u64>, u64)>,
}

#[derive(Debug, Clone)]
struct Extent {
    bytes: u64,
    /// The address of its structure.
    structure: u64,
    /// True for the first extent of a mapping, which is not merged with the one before it.
    is_head: bool,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Slab { class: usize, allocated: Vec<bool> },
    Large { class: usize, pointer: u64, bytes: u64 },
    Free(PagesUse),
}

impl JemallocHeap {
    /// A heap of a process with `threads` threads, written by a build of `release` for addresses of `lg_vaddr` bits (48
    /// or 57).
    #[must_use]
    pub fn new(release: JemallocRelease, lg_vaddr: u32, threads: usize) -> Self {
        let mut heap = Self {
            release,
            lg_vaddr,
            arenas: Vec::new(),
            threads: Vec::new(),
            own: BTreeSet::new(),
            next_base: BASES_START,
            random: 1,
            shifted: None,
        };
        let arenas = threads.max(1).div_ceil(2);
        for index in 0..arenas {
            // The number of the arena for huge requests is behind the numbers of all arenas that threads may use.
            let is_last = index > 1 && index + 1 == arenas;
            heap.add_arena(index, if is_last { index as u64 + 3 } else { index as u64 });
        }
        for _ in 0..threads.max(1) {
            let stacks = heap.take(0, STACK_BYTES);
            heap.own.insert(stacks);
            heap.threads.push(Cache { stacks, bins: BTreeMap::new() });
        }
        heap
    }

    fn add_arena(&mut self, index: usize, number: u64) {
        let start = EXTENTS_START[index % 2] + index as u64 * EXTENTS_STEP;
        self.arenas.push(Arena {
            number,
            address: 0,
            base: Base::default(),
            extents: BTreeMap::new(),
            mappings: Vec::new(),
            next_mapping: start,
            spare: Vec::new(),
        });
        let arena_bytes = self.release.arena_bytes();
        self.arenas[index].base.address = self.take_base(index, self.release.base_bytes(), 64);
        self.arenas[index].address = self.take_base(index, arena_bytes, 64);
    }

    /// Writes a part `bytes` behind its place from now on, as a release with another layout would.
    pub fn shift(&mut self, part: JemallocPart, bytes: u64) {
        self.shifted = Some((part, bytes));
    }

    /// Allocates as `thread` and returns the pointer.
    pub fn malloc(&mut self, thread: usize, bytes: u64) -> u64 {
        let cached = self.threads[thread].bins.get_mut(&size_class(bytes)).and_then(Vec::pop);
        cached.unwrap_or_else(|| self.take(thread % self.arenas.len(), bytes))
    }

    /// Frees a pointer as `thread`.
    ///
    /// # Panics
    /// If it is not in use.
    pub fn free(&mut self, thread: usize, pointer: u64) {
        assert!(!self.own.contains(&pointer) && !self.is_cached(pointer), "{pointer:#x}");
        let (_, _, bytes) = self.find(pointer).expect("it is in use");
        let cached = self.threads[thread].bins.entry(size_class(bytes)).or_default();
        if bytes <= MAX_CACHED && cached.len() < CACHE_SLOTS {
            cached.push(pointer);
        } else {
            self.release(pointer);
        }
    }

    /// Returns all that `thread` has cached to the arenas.
    pub fn flush(&mut self, thread: usize) {
        for pointer in std::mem::take(&mut self.threads[thread].bins).into_values().flatten() {
            self.release(pointer);
        }
    }

    /// Makes the free extents of an arena that are `from` into `to`: its pages decay.
    pub fn decay(&mut self, thread: usize, from: PagesUse, to: PagesUse) {
        let index = thread % self.arenas.len();
        let arena = &mut self.arenas[index];
        let is_from =
            |extent: &Extent| matches!(extent.content, Content::Free(usage) if usage == from);
        let found: Vec<u64> =
            arena.extents.iter().filter(|(_, it)| is_from(it)).map(|(at, _)| *at).collect();
        for at in found {
            // It may have been merged with the one before it.
            if let Some(extent) = arena.extents.get_mut(&at) {
                extent.content = Content::Free(to);
                arena.merge(at);
            }
        }
    }

    fn is_cached(&self, pointer: u64) -> bool {
        self.threads.iter().flat_map(|it| it.bins.values()).any(|bin| bin.contains(&pointer))
    }

    /// The arena, the extent and the usable size of an allocated pointer.
    fn find(&self, pointer: u64) -> Option<(usize, u64, u64)> {
        self.arenas.iter().enumerate().find_map(|(index, arena)| {
            let (&at, extent) = arena.extents.range(..=pointer).next_back()?;
            match &extent.content {
                Content::Large { pointer: own, bytes, .. } if *own == pointer => {
                    Some((index, at, *bytes))
                }
                Content::Slab { class, allocated } => {
                    let bytes = size_of_class(*class);
                    let region = usize::try_from((pointer - at) / bytes).ok()?;
                    let is_start = (pointer - at).is_multiple_of(bytes);
                    (is_start && *allocated.get(region)?).then_some((index, at, bytes))
                }
                _ => None,
            }
        })
    }

    /// Allocates from an arena.
    fn take(&mut self, index: usize, bytes: u64) -> u64 {
        let class = size_class(bytes);
        if class < NBINS {
            return self.take_region(index, class);
        }
        let bytes = self.release.large_bytes(bytes);
        let at = self.take_pages(index, bytes + PAD);
        let pointer = at + self.next_random() % (PAGE / 64) * 64;
        self.set_content(index, at, Content::Large { class, pointer, bytes });
        pointer
    }

    fn take_region(&mut self, index: usize, class: usize) -> u64 {
        let bytes = size_of_class(class);
        for (at, extent) in &mut self.arenas[index].extents {
            if let Content::Slab { class: own, allocated } = &mut extent.content
                && *own == class
                && let Some(region) = allocated.iter().position(|it| !it)
            {
                allocated[region] = true;
                return at + region as u64 * bytes;
            }
        }
        let at = self.take_pages(index, slab_bytes(class));
        let mut allocated = vec![false; (slab_bytes(class) / bytes) as usize];
        allocated[0] = true;
        self.set_content(index, at, Content::Slab { class, allocated });
        at
    }

    fn set_content(&mut self, index: usize, at: u64, content: Content) {
        self.arenas[index].extents.get_mut(&at).expect("it was just taken").content = content;
    }

    /// Takes pages: dirty ones first, then muzzy, retained and new ones.
    fn take_pages(&mut self, index: usize, bytes: u64) -> u64 {
        let found =
            [PagesUse::Dirty, PagesUse::Muzzy, PagesUse::Retained].into_iter().find_map(|usage| {
                let fits = |extent: &Extent| {
                    matches!(extent.content, Content::Free(own) if own == usage)
                        && extent.bytes >= bytes
                };
                self.arenas[index].extents.iter().find(|(_, it)| fits(it)).map(|(at, _)| *at)
            });
        let at = found.unwrap_or_else(|| self.grow(index, bytes));
        let spare = self.arenas[index].extents[&at].bytes - bytes;
        if spare > 0 {
            let structure = self.take_structure(index);
            let extents = &mut self.arenas[index].extents;
            let extent = extents.get_mut(&at).expect("it was found");
            extent.bytes = bytes;
            let content = extent.content.clone();
            extents.insert(at + bytes, Extent { bytes: spare, structure, is_head: false, content });
        }
        at
    }

    /// Maps memory; sometimes right behind the mapping before it.
    fn grow(&mut self, index: usize, bytes: u64) -> u64 {
        let bytes = bytes.max(GROWTH);
        let gap = self.next_random() % 2 * PAGE;
        let structure = self.take_structure(index);
        let arena = &mut self.arenas[index];
        let at = arena.next_mapping + gap;
        arena.next_mapping = at + bytes;
        arena.mappings.push(at..at + bytes);
        let content = Content::Free(PagesUse::Retained);
        arena.extents.insert(at, Extent { bytes, structure, is_head: true, content });
        at
    }

    fn release(&mut self, pointer: u64) {
        let (index, at, bytes) = self.find(pointer).expect("it is in use");
        let arena = &mut self.arenas[index];
        let extent = arena.extents.get_mut(&at).expect("it was found");
        if let Content::Slab { allocated, .. } = &mut extent.content {
            allocated[((pointer - at) / bytes) as usize] = false;
            if allocated.contains(&true) {
                return;
            }
        }
        extent.content = Content::Free(PagesUse::Dirty);
        arena.merge(at);
    }

    fn take_structure(&mut self, index: usize) -> u64 {
        let spare = self.arenas[index].spare.pop();
        spare.unwrap_or_else(|| self.take_base(index, 128, self.release.extent_alignment()))
    }

    /// Takes memory for a structure from the base of an arena.
    fn take_base(&mut self, index: usize, bytes: u64, alignment: u64) -> u64 {
        let base = &mut self.arenas[index].base;
        if let Some((block, used)) = base.blocks.last_mut() {
            let at = used.next_multiple_of(alignment);
            if at + bytes <= block.end {
                *used = at + bytes;
                return at;
            }
        }
        let header = self.release.base_block_bytes();
        let start = self.next_base;
        let at = (start + header).next_multiple_of(alignment);
        let end = (at + bytes).next_multiple_of(BASE_BLOCK);
        self.next_base = end + BASE_BLOCK;
        base.blocks.push((start..end, at + bytes));
        at
    }

    fn next_random(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.random >> 33
    }
}

impl Arena {
    /// Merges a free extent with its neighbours of the same state.
    fn merge(&mut self, at: u64) {
        let usage = |extent: &Extent| match extent.content {
            Content::Free(usage) => Some(usage),
            _ => None,
        };
        let own = usage(&self.extents[&at]);
        let next = at + self.extents[&at].bytes;
        let mergeable = |extent: &Extent| !extent.is_head && usage(extent) == own;
        if self.extents.get(&next).is_some_and(mergeable) {
            let next = self.extents.remove(&next).expect("it was found");
            self.spare.push(next.structure);
            self.extents.get_mut(&at).expect("it is there").bytes += next.bytes;
        }
        if self.extents[&at].is_head {
            return;
        }
        let before = self.extents.range_mut(..at).next_back();
        if let Some((start, before)) = before
            && start + before.bytes == at
            && usage(before) == own
        {
            let start = *start;
            let extent = self.extents.remove(&at).expect("it is there");
            self.spare.push(extent.structure);
            self.extents.get_mut(&start).expect("it was found").bytes += extent.bytes;
        }
    }
}
