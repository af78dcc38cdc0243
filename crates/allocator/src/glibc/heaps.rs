//! The memory of the arenas other than the main one: heaps, each of which names the one before.

use std::collections::BTreeSet;

use image::{Image, Memory, Window};
use linux::Address;

use crate::candidate_mappings::lies_in_memory;
use crate::glibc::arena_list::{ArenaList, MIN_HEAP_ALIGNMENT};
use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::{HEAP_ALIGNMENTS, HeapLayout};
use crate::glibc::segment::{Segment, bytes_of};
use crate::glibc::segment_walk::{Bounds, Kind, walk_segment};
use crate::glibc::state::State;

/// Finds an arena's heaps and walks them. `segments` receives each heap, even if a later one, or its chunks,
/// turn out to be inconsistent.
pub(crate) fn walk(
    image: &Image<'_>,
    window: &mut Window<'_>,
    list: &ArenaList,
    state: &State,
    segments: &mut Vec<Segment>,
) -> Result<(), Inconsistency> {
    let Some(layout) = &list.heap else {
        return Err(Inconsistency::new(state.address, "its heaps have an unknown layout"));
    };
    find(image, layout, state, segments)?;
    let bytes = bytes_of(segments);
    if bytes != state.system_bytes {
        let what = format!("its heaps have {bytes} bytes where it counts {}", state.system_bytes);
        return Err(Inconsistency::new(state.address, what));
    }
    let own_heap = state.address.before(layout.bytes);
    for segment in segments.iter_mut() {
        let range = segment.range.clone();
        let first = if range.start == own_heap {
            state.end.align_up(16)
        } else {
            range.start.offset(layout.bytes)
        };
        let bounds = Bounds { first, limit: range.end, top: state.top, kind: Kind::Heap };
        *segment = Segment { range, ..walk_segment(window, bounds)? };
    }
    if !segments.iter().any(Segment::ends_in_top) {
        return Err(Inconsistency::new(state.top, "its chunks do not lead to its top"));
    }
    Ok(())
}

fn find(
    image: &Image<'_>,
    layout: &HeapLayout,
    state: &State,
    segments: &mut Vec<Segment>,
) -> Result<(), Inconsistency> {
    let names_arena =
        |heap: Address| image.read_address(heap.offset(layout.arena)) == Ok(state.address);
    let has_top = |heap: Address| {
        let bytes = image.read_u64(heap.offset(layout.size));
        names_arena(heap) && bytes.is_ok_and(|bytes| state.top - heap < bytes)
    };
    // One heap may have a larger alignment than all others by chance.
    let mut starts = HEAP_ALIGNMENTS.iter().map(|alignment| state.top.align_down(*alignment));
    let Some(mut heap) = starts.find(|heap| has_top(*heap)) else {
        return Err(Inconsistency::new(state.top, "its top lies in no heap of its own"));
    };
    let mut seen = BTreeSet::new();
    loop {
        if !names_arena(heap) || !heap.is_aligned(MIN_HEAP_ALIGNMENT) || !seen.insert(heap) {
            return Err(Inconsistency::new(heap, "this is no heap of its own"));
        }
        let bytes = image.read_u64(heap.offset(layout.size))?;
        let range = heap..heap.offset(bytes);
        if !bytes.is_multiple_of(image.page_size()) || !lies_in_memory(image, &range) {
            return Err(Inconsistency::new(
                heap,
                format!("a heap of {bytes:#x} bytes cannot be here"),
            ));
        }
        segments.push(Segment::unwalked(range));
        let previous = image.read_address(heap.offset(layout.previous))?;
        if previous == Address(0) {
            break;
        }
        heap = previous;
    }
    if heap != state.address.before(layout.bytes) {
        return Err(Inconsistency::new(heap, "its first heap is not the one that it lies in"));
    }
    Ok(())
}

/// The number of heaps of arenas other than the main one, estimated from mappings alone. Other large mappings
/// may count too.
#[must_use]
pub fn count_heaps(mappings: &linux::Mappings) -> usize {
    let is_heap = |mapping: &&linux::Mapping| {
        let is_aligned = mapping.range.start.is_aligned(HEAP_ALIGNMENTS[0]);
        is_aligned && mapping.writable && mapping.is_private_anonymous()
    };
    mappings.iter().filter(is_heap).count()
}

/// Returns true if `at` seems to lie in a heap of an arena other than the main one: the first word of a heap points to its
/// arena, which lies right behind the head of the same heap or of another one.
#[must_use]
pub fn is_in_heap(memory: &dyn Memory, at: Address) -> bool {
    const MAX_HEAD_BYTES: u64 = 0x40;
    HEAP_ALIGNMENTS.into_iter().any(|alignment| {
        let heap = at.align_down(alignment);
        let arena = memory.read_address(heap).unwrap_or_default();
        let behind_head = arena - arena.align_down(alignment);
        heap.0 != 0 && arena.is_aligned(16) && (1..=MAX_HEAD_BYTES).contains(&behind_head)
    })
}
