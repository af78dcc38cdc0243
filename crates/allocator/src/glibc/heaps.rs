//! The memory of the arenas other than the main one: heaps, each of which names the one before.

use std::collections::BTreeSet;

use capture::{Address, Image, Memory, PAGE_SIZE, Window};

use crate::glibc::find::{LEAST_HEAP_ALIGNMENT, Ring};
use crate::glibc::ground::lies_in_memory;
use crate::glibc::layout::{HEAP_ALIGNMENTS, HeapLayout};
use crate::glibc::piece::{Piece, bytes_of};
use crate::glibc::state::State;
use crate::glibc::stretch::{Bounds, Broken, Kind, Stretch, walk_stretch};

/// Finds an arena's heaps and walks them. `pieces` receives each heap, also where a later one, or
/// the chunks in it, turn out to be broken.
pub(crate) fn walk(
    image: &Image<'_>,
    window: &mut Window<'_>,
    ring: &Ring,
    state: &State,
    pieces: &mut Vec<Piece>,
) -> Result<(), Broken> {
    let Some(layout) = &ring.heap else {
        return Err(Broken::new(state.address, "its heaps have an unknown layout"));
    };
    find(image, layout, state, pieces)?;
    let bytes = bytes_of(pieces);
    if bytes != state.system_bytes {
        let what = format!("its heaps have {bytes} bytes where it counts {}", state.system_bytes);
        return Err(Broken::new(state.address, what));
    }
    let own_heap = state.address.before(layout.bytes);
    for piece in pieces.iter_mut() {
        let start = piece.range.start;
        let first =
            if start == own_heap { state.end.align_up(16) } else { start.offset(layout.bytes) };
        let bounds = Bounds { first, limit: piece.range.end, top: state.top, kind: Kind::Heap };
        piece.stretch = walk_stretch(window, bounds)?;
    }
    if !pieces.iter().any(|piece| piece.stretch.ends_in_top()) {
        return Err(Broken::new(state.top, "its chunks do not lead to its top"));
    }
    Ok(())
}

fn find(
    image: &Image<'_>,
    layout: &HeapLayout,
    state: &State,
    pieces: &mut Vec<Piece>,
) -> Result<(), Broken> {
    let names_arena =
        |heap: Address| image.read_address(heap.offset(layout.arena)) == Ok(state.address);
    let has_top = |heap: Address| {
        let bytes = image.read_u64(heap.offset(layout.size));
        names_arena(heap) && bytes.is_ok_and(|bytes| state.top - heap < bytes)
    };
    // The alignment that one heap happens to have need not be that of all.
    let mut starts = HEAP_ALIGNMENTS.iter().map(|alignment| state.top.align_down(*alignment));
    let Some(mut heap) = starts.find(|heap| has_top(*heap)) else {
        return Err(Broken::new(state.top, "its top lies in no heap of its own"));
    };
    let mut seen = BTreeSet::new();
    loop {
        if !names_arena(heap) || !heap.is_aligned(LEAST_HEAP_ALIGNMENT) || !seen.insert(heap) {
            return Err(Broken::new(heap, "this is no heap of its own"));
        }
        let bytes = image.read_u64(heap.offset(layout.size))?;
        let range = heap..heap.offset(bytes);
        if !bytes.is_multiple_of(PAGE_SIZE) || !lies_in_memory(image, &range) {
            return Err(Broken::new(heap, format!("a heap of {bytes:#x} bytes cannot be here")));
        }
        pieces.push(Piece { range, stretch: Stretch::default() });
        let previous = image.read_address(heap.offset(layout.previous))?;
        if previous == Address(0) {
            break;
        }
        heap = previous;
    }
    if heap != state.address.before(layout.bytes) {
        return Err(Broken::new(heap, "its first heap is not the one that it lies in"));
    }
    Ok(())
}

/// How many heaps of arenas other than the main one a process has, told from its mappings alone: none of its
/// memory is read. Some other large mappings may count too.
#[must_use]
pub fn count_heaps(mappings: &capture::Mappings) -> usize {
    let is_heap = |mapping: &&capture::Mapping| {
        let is_aligned = mapping.range.start.is_aligned(HEAP_ALIGNMENTS[0]);
        is_aligned && mapping.writable && mapping.is_private_anonymous()
    };
    mappings.iter().filter(is_heap).count()
}
