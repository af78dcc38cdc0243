//! Finds all arenas, starting in the data of a C library that was stripped of its symbols.
//!
//! The main arena is recognised by its bins: 127 pairs of pointers, each of which points to itself if the bin is empty,
//! and otherwise to chunks that point back. Each known layout then gives the address of the arena and of its link to
//! the next arena. The list is circular, and the heaps of the other arenas refer to their arenas, so only the right
//! layout leads back to the main arena.

use std::collections::HashSet;

use image::elf::Module;
use image::{Image, Memory};
use linux::Address;
use linux::arch::USER_SPACE_END;

use crate::candidate_mappings::mmapped_memory;
use crate::glibc::Error;
use crate::glibc::layout::{BINS, HEAP_ALIGNMENTS, HeapLayout, Layouts, StateLayout};
use crate::module_data::ModuleData;

/// More arenas than any process has: by default glibc makes eight per processor.
const MAX_ARENAS: usize = 1 << 16;
/// The number of bins that may be in disorder, since a thread may have been stopped while it linked a chunk.
const MAX_BROKEN_BINS: u64 = 2;
/// Less than the alignment of any heap.
pub(crate) const MIN_HEAP_ALIGNMENT: u64 = 1 << 20;

/// The arenas of a process, and the layouts that fit them.
#[derive(Debug, Clone)]
pub(crate) struct ArenaList {
    /// The addresses of the arenas, the main one first.
    pub(crate) arenas: Vec<Address>,
    /// The layout of an arena.
    pub(crate) state: StateLayout,
    /// The layout of the heaps of the other arenas; unknown if there is only the main arena.
    pub(crate) heap: Option<HeapLayout>,
}

/// Finds all arenas.
pub(crate) fn find_arenas(
    memory: &dyn Memory,
    data: &ModuleData,
    layouts: &Layouts,
    glibc: &Module,
) -> Result<ArenaList, Error> {
    let bins = data.positions(2 * BINS).filter(|(at, words)| are_bins(memory, *at, words));
    bins.flat_map(|(bins, _)| layouts.states.iter().map(move |state| (bins, state)))
        .find_map(|(bins, state)| {
            let main = bins.before(state.bins);
            data.contains(main).then(|| read_list(memory, main, state, layouts)).flatten()
        })
        .ok_or_else(|| Error::NoMainArena {
            module: glibc.name.clone(),
            start: glibc.writable.first().map_or(glibc.range.start, |range| range.start),
            end: glibc.writable.last().map_or(glibc.range.end, |range| range.end),
        })
}

/// Returns true if the bins of an arena begin at `at`; `words` are the words there.
fn are_bins(memory: &dyn Memory, at: Address, words: &[u64]) -> bool {
    let mut broken = 0;
    for (index, pair) in (0..BINS).zip(words.as_chunks::<2>().0) {
        // glibc addresses a bin as if it were a chunk whose links are the bin.
        let bin = at.offset(16 * index).before(16);
        let [fd, bk] = pair.map(Address);
        broken += u64::from(!is_bin(memory, bin, fd, bk));
        if broken > MAX_BROKEN_BINS {
            return false;
        }
    }
    true
}

fn is_bin(memory: &dyn Memory, bin: Address, fd: Address, bk: Address) -> bool {
    if (fd, bk) == (bin, bin) {
        return true;
    }
    let could_be_chunk = |at: Address| at != bin && at.0 != 0 && at.is_aligned(16);
    could_be_chunk(fd)
        && could_be_chunk(bk)
        && memory.read_address(fd.offset(24)) == Ok(bin)
        && memory.read_address(bk.offset(16)) == Ok(bin)
}

/// Follows the list of arenas from `main`; `None` if it does not lead back there in this layout.
fn read_list(
    memory: &dyn Memory,
    main: Address,
    state: &StateLayout,
    layouts: &Layouts,
) -> Option<ArenaList> {
    let mut list = ArenaList { arenas: vec![main], state: *state, heap: None };
    let next = |arena: Address| memory.read_address(arena.offset(state.next)).ok();
    let mut arena = next(main)?;
    while arena != main {
        if list.arenas.len() == MAX_ARENAS {
            return None;
        }
        let heap = match &list.heap {
            Some(heap) => is_first_heap(memory, arena, heap).then_some(*heap),
            None => {
                let mut known = layouts.heaps.iter();
                known.find(|heap| is_first_heap(memory, arena, heap)).copied()
            }
        };
        list.heap = Some(heap?);
        list.arenas.push(arena);
        arena = next(arena)?;
    }
    Some(list)
}

/// Returns true if `arena` lies right behind a `heap_info` that names it.
fn is_first_heap(memory: &dyn Memory, arena: Address, heap: &HeapLayout) -> bool {
    let start = arena.before(heap.bytes);
    start.is_aligned(MIN_HEAP_ALIGNMENT)
        && memory.read_address(start.offset(heap.arena)) == Ok(arena)
}

/// Finds arenas that are not in the list: it is damaged, or a thread was stopped while it added one.
///
/// Heaps are aligned, and the first heap of an arena names the arena right behind its `heap_info`.
pub(crate) fn find_unlinked(
    image: &Image<'_>,
    list: &ArenaList,
    layouts: &Layouts,
) -> Vec<Address> {
    let [alignment, ..] = HEAP_ALIGNMENTS;
    let starts = mmapped_memory(image).into_iter().flat_map(|memory| {
        let first = memory.start.align_up(alignment);
        // A damaged core may have a mapping of any size.
        let end = memory.end.min(Address(USER_SPACE_END));
        (0..(end - first).div_ceil(alignment)).map(move |index| first.offset(index * alignment))
    });
    let arenas = starts.filter_map(|start| {
        let layout = layouts.heaps.iter().find(|layout| {
            let arena = start.offset(layout.bytes);
            image.read_address(start.offset(layout.arena)) == Ok(arena)
        })?;
        Some(start.offset(layout.bytes))
    });
    let linked: HashSet<Address> = list.arenas.iter().copied().collect();
    arenas.filter(|arena| !linked.contains(arena)).collect()
}
