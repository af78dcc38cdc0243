//! The edges from slots to blocks, and the contents of blocks as objects describe them.

use std::ops::Range;

use allocator::HeapMap;
use capture::{Address, SparseRows, both};
use ruby::{Content, ObjectSpace};

use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::edges::{Edge, LIMITS};
use crate::ownership::graph::usable_bytes;

/// The alignment of malloc's blocks, except regions of 8 bytes.
const MALLOC_ALIGNMENT: u64 = 16;

/// The edges from slots to blocks.
pub(crate) fn slot_edges(heap: &HeapMap, space: &ObjectSpace) -> SparseRows<Edge> {
    // Edges cannot distinguish more blocks.
    if heap.block_count() > LIMITS.nodes {
        return SparseRows::default();
    }
    let addresses = AddressIndex::new(heap, space, &[]);
    let [first, second] = halves_of_slots(space);
    let edges = |slots: &Range<u32>| edges_of_slots(space, &addresses, slots, |_, _| {});
    let (mut edges, more) = both(|| edges(&first), || edges(&second));
    edges.append(more);
    edges
}

/// The edges from slots to nodes, and the content of each block that is known from its object. Content that does not fit
/// into its block is ignored.
pub(crate) fn edges_and_contents(
    heap: &HeapMap,
    space: &ObjectSpace,
    addresses: &AddressIndex<'_>,
) -> (SparseRows<Edge>, Vec<Content>) {
    let [first, second] = halves_of_slots(space);
    let of_half = |slots: &Range<u32>| {
        let mut contents = vec![Content::UNKNOWN; heap.block_count()];
        let note_content = |block, content| note(heap, &mut contents, block, content);
        let edges = edges_of_slots(space, addresses, slots, note_content);
        (edges, contents)
    };
    let ((mut edges, mut contents), (more_edges, more_contents)) =
        both(|| of_half(&first), || of_half(&second));
    edges.append(more_edges);
    for (known, content) in contents.iter_mut().zip(more_contents) {
        if is_more(content, *known) {
            *known = content;
        }
    }
    for &(address, content) in &space.collector_memory {
        if let Some(block) = addresses.block_at(address) {
            note(heap, &mut contents, block, content);
        }
    }
    (edges, contents)
}

/// Two ranges of slots with about the same number of references.
fn halves_of_slots(space: &ObjectSpace) -> [Range<u32>; 2] {
    let slots = space.slots.len() as u32;
    // Tables of rows are joined at multiples of 64.
    let half = space.references.middle().next_multiple_of(64).min(slots);
    [0..half, half..slots]
}

/// The edges from these slots to nodes. `note` is called with each block that a slot refers to, and its content.
fn edges_of_slots(
    space: &ObjectSpace,
    addresses: &AddressIndex<'_>,
    slots: &Range<u32>,
    mut note: impl FnMut(u32, Content),
) -> SparseRows<Edge> {
    let mut edges = SparseRows::default();
    for (slot, address, content) in space.references.with_contents(slots.clone()) {
        let Some(edge) = edge_of_slot(addresses, address) else { continue };
        if edge.to() < addresses.block_count() && !edge.is_uncertain() {
            note(edge.to(), content);
        }
        edges.end_rows(slot - slots.start);
        edges.push(edge);
    }
    edges.end_rows(slots.end - slots.start);
    edges.shrink();
    edges
}

/// Notes the content of a block, if it fits into the block.
fn note(heap: &HeapMap, contents: &mut [Content], block: u32, content: Content) {
    let known = &mut contents[block as usize];
    let fits = |content: Content| {
        content.used_words().is_some_and(|words| words * 8 <= usable_bytes(heap, block))
    };
    if is_more(content, *known) && fits(content) {
        *known = content;
    }
}

/// Returns true if `content` is a larger part of a block. Arrays that share elements may each use a part of them; the
/// largest one counts.
fn is_more(content: Content, known: Content) -> bool {
    // Unknown is less than nothing.
    content.used_words() > known.used_words()
}

/// The edge for a word of a slot, if it is a pointer.
fn edge_of_slot(addresses: &AddressIndex<'_>, address: Address) -> Option<Edge> {
    match addresses.at(address) {
        Referent::Block { number, is_start: true } => Some(Edge::new(number, false)),
        // Only a region of 8 bytes begins there: other such words are hardly ever pointers.
        _ if !address.is_aligned(MALLOC_ALIGNMENT) => None,
        Referent::Block { number, is_start: false } => Some(Edge::new(number, true)),
        Referent::Area(area) => Some(Edge::new(addresses.block_count() + area, false)),
        Referent::Slot(_) | Referent::Nothing => None,
    }
}
