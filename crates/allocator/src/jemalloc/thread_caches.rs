//! Thread caches: each thread keeps some free regions of each size class. Slabs count them as in use.

use image::Unreadable;
use linux::Address;

use crate::jemalloc::layout::{ArenaLayout, CacheBins, NO_CLASS, class_bytes};
use crate::structures::Structures;
use crate::{Block, BlockState, Finding, HeapMap};

/// More caches than any process has: one for each thread.
const MAX_CACHES: usize = 1 << 17;
/// The bytes of a `cache_bin_t`.
const BIN_BYTES: u64 = 24;
/// Of the regions in thread caches, at most one in this many may contradict its slab: a thread was inside malloc.
const MAX_CONTRADICTIONS: usize = 20;

/// The regions in thread caches.
#[derive(Debug)]
struct Cached {
    /// The number of regions that there are: caches cannot hold more.
    max_regions: usize,
    /// The regions, with the index of their size class.
    regions: Vec<(u64, Address)>,
    /// For each cache, the addresses of its lists of regions. They all lie in one allocation.
    lists: Vec<Vec<Address>>,
    /// The lists, and the links between caches, that contradict themselves.
    contradictions: usize,
}

impl Cached {
    /// Creates an empty collection for a heap with `max_regions` regions.
    fn new(max_regions: usize) -> Self {
        Self { max_regions, regions: Vec::new(), lists: Vec::new(), contradictions: 0 }
    }

    /// Adds the regions of a list; their addresses are at `places`.
    fn add_regions(
        &mut self,
        structures: &mut Structures<'_>,
        class: u64,
        places: impl Iterator<Item = Address>,
    ) -> Result<(), Unreadable> {
        for place in places {
            if self.regions.len() >= self.max_regions {
                self.contradictions += 1;
                return Ok(());
            }
            self.regions.push((class, structures.pointer(place)?));
        }
        Ok(())
    }

    /// Adds a list to the last cache.
    fn add_list(&mut self, at: Address) {
        if let Some(lists) = self.lists.last_mut() {
            lists.push(at);
        }
    }
}

/// Marks the regions in the thread caches of these arenas, and the regions that contain the lists of such regions.
pub(crate) fn mark(
    structures: &mut Structures<'_>,
    layout: &ArenaLayout,
    arenas: impl Iterator<Item = Address>,
    heap: &mut HeapMap,
) {
    let mut cached = Cached::new(heap.blocks.len());
    let mut unreadable = None;
    for arena in arenas {
        let read = read(structures, layout, arena, &mut cached);
        unreadable = unreadable.or(read.err());
    }
    let (mut marked, mut strangers) = (Vec::new(), 0);
    for &(class, pointer) in &cached.regions {
        let number = heap.block_of(pointer);
        let block = number.and_then(|number| heap.block(number));
        let is_of_class = |block: &Block| {
            block.state() == BlockState::InUse && block.bytes() == class_bytes(class)
        };
        match number.zip(block.filter(is_of_class)) {
            Some(found) => marked.push(found),
            None if is_unwalked(heap, pointer) => {}
            None => strangers += 1,
        }
    }
    if unreadable.is_some() || strangers > cached.regions.len() / MAX_CONTRADICTIONS {
        let regions = cached.regions.len() as u64;
        heap.findings.push(Finding::CachedRegionsFree { free: strangers as u64, regions });
        return;
    }
    if strangers > 0 {
        heap.findings.push(Finding::RegionsChanging { regions: strangers as u64 });
    }
    for (number, _) in marked {
        heap.blocks.set_state(number, BlockState::Tcache);
    }
    let contradictions = cached.contradictions + mark_lists(&cached.lists, heap);
    if contradictions > 0 {
        heap.findings.push(Finding::ListsChanging { lists: contradictions as u64 });
    }
}

/// Marks the regions that hold these lists. Returns the number of lists that lie in other regions than the rest of their
/// cache.
fn mark_lists(caches: &[Vec<Address>], heap: &mut HeapMap) -> usize {
    let mut contradictions = 0;
    for lists in caches {
        let mut holder = None;
        for &at in lists {
            let number = heap.blocks.count_to(at).checked_sub(1);
            let is_in = |block: Block| at < block.end();
            let number = number.filter(|&number| heap.block(number).is_some_and(is_in));
            contradictions += usize::from(holder.is_some_and(|holder| holder != number));
            holder = holder.or(Some(number));
        }
        if let Some(number) = holder.flatten()
            && heap.block(number).is_some_and(|block| block.state() == BlockState::InUse)
        {
            heap.blocks.set_state(number, BlockState::Overhead);
        }
    }
    contradictions
}

/// Returns true if `at` lies in an extent whose blocks are not known.
fn is_unwalked(heap: &HeapMap, at: Address) -> bool {
    heap.extent_at(at).is_some_and(|extent| extent.blocks.is_empty())
}

/// Reads the caches of the arena at `arena`. What was read before memory turned out to be unreadable is kept in `cached`.
fn read(
    structures: &mut Structures<'_>,
    layout: &ArenaLayout,
    arena: Address,
    cached: &mut Cached,
) -> Result<(), Unreadable> {
    let first = structures.pointer(arena.offset(layout.caches))?;
    let mut at = first;
    while cached.lists.len() < MAX_CACHES {
        if at.0 == 0 {
            // Only a list without any cache ends like this: it is a ring.
            cached.contradictions += usize::from(first.0 != 0);
            return Ok(());
        }
        cached.lists.push(Vec::new());
        match layout.cache_bins {
            CacheBins::Pointers(count) => {
                let bins = structures.pointer(at.offset(16))?;
                for class in 0..count {
                    read_by_pointers(structures, bins.offset(class * BIN_BYTES), class, cached)?;
                }
            }
            CacheBins::Counted => {
                let (small, large) =
                    (structures.pointer(at.offset(16))?, structures.pointer(at.offset(24))?);
                let count = layout.pages.bins();
                for (bins, first, end) in [(small, 0, count), (large, count, NO_CLASS)] {
                    for class in first..end {
                        let bin = bins.offset((class - first) * BIN_BYTES);
                        read_counted(structures, bin, class, cached)?;
                    }
                }
            }
        }
        let next = structures.pointer(at)?;
        if next.0 != 0 && structures.pointer(next.offset(8))? != at {
            cached.contradictions += 1;
        }
        at = next;
        if at == first {
            return Ok(());
        }
    }
    Ok(())
}

/// `cache_bin_s` of 5.3: the first region's place, and the low halves of the addresses where the list is full and empty.
fn read_by_pointers(
    structures: &mut Structures<'_>,
    bin: Address,
    class: u64,
    cached: &mut Cached,
) -> Result<(), Unreadable> {
    let head = structures.pointer(bin)?;
    let full = u16::from_le_bytes(structures.bytes(bin.offset(18))?);
    let empty = u16::from_le_bytes(structures.bytes(bin.offset(20))?);
    if head.0 == 0 {
        cached.contradictions += usize::from(empty != 0);
        return Ok(());
    }
    // The slabs' classes above the largest that is cached have a list without room, anywhere.
    if full == empty && head.0 as u16 == empty {
        return Ok(());
    }
    let count = u64::from(empty.wrapping_sub(head.0 as u16)) / 8;
    cached.add_list(if count > 0 { head } else { head.before(8) });
    cached.add_regions(structures, class, (0..count).map(|index| head.offset(8 * index)))
}

/// `cache_bin_s` of 5.2: a count, and the address behind the regions.
fn read_counted(
    structures: &mut Structures<'_>,
    bin: Address,
    class: u64,
    cached: &mut Cached,
) -> Result<(), Unreadable> {
    let count = structures.half(bin.offset(4))?.cast_signed();
    let end = structures.pointer(bin.offset(16))?;
    if end.0 == 0 {
        cached.contradictions += usize::from(count != 0);
        return Ok(());
    }
    cached.add_list(end.before(8));
    cached.contradictions += usize::from(count < 0);
    let count = u64::try_from(count).unwrap_or(0);
    cached.add_regions(structures, class, (1..=count).map(|index| end.before(8 * index)))
}
