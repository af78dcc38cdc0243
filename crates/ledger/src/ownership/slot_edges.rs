//! The edges from slots to blocks, and the contents of blocks as objects describe them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use allocator::HeapMap;
use image::SparseRows;
use linux::Address;
use ruby::{Content, ObjectSpace, References};

use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::edges::{Edge, LIMITS};

/// The alignment of malloc's blocks, except regions of 8 bytes.
const MALLOC_ALIGNMENT: u64 = 16;

/// The edges from slots to blocks.
pub(crate) fn slot_edges(
    heap: &HeapMap,
    space: &ObjectSpace,
    references: References,
) -> SparseRows<Edge> {
    // Edges cannot distinguish more blocks.
    if heap.block_count() > LIMITS.nodes {
        return SparseRows::default();
    }
    let addresses = AddressIndex::new(heap, space, &[]);
    let edge = |address, content| edge_of_slot(&addresses, address, content).map(Edge::number);
    references.resolve(edge).map(Edge::from_number)
}

/// The edges from slots to nodes, and the content of each block that is known from its object. `of_code` is the content of memory
/// behind the structures of bytecode and classes. Content that does not fit into its block is ignored.
pub(crate) fn edges_and_contents(
    heap: &HeapMap,
    space: &ObjectSpace,
    references: References,
    addresses: &AddressIndex<'_>,
    of_code: &[(Address, Content)],
) -> (SparseRows<Edge>, Vec<Content>) {
    let unknown = || AtomicU32::new(Content::UNKNOWN.number());
    let contents: Vec<AtomicU32> = (0..heap.block_count()).map(|_| unknown()).collect();
    let note = |block: u32, content| note(heap, &contents[block as usize], block, content);
    let edges = references.resolve(|address, content| {
        let edge = edge_of_slot(addresses, address, content)?;
        if edge.to() < addresses.block_count() && !edge.is_uncertain() {
            note(edge.to(), content);
        }
        Some(edge.number())
    });
    for &(address, content) in space.contents.iter().chain(of_code) {
        if let Some(block) = addresses.block_at(address) {
            note(block, content);
        }
    }
    let contents = contents.into_iter().map(|it| Content::from_number(it.into_inner()));
    (edges.map(Edge::from_number), contents.collect())
}

/// Notes the content of a block, if it fits into the block. Several threads note blocks at a time.
fn note(heap: &HeapMap, known: &AtomicU32, block: u32, content: Content) {
    let fits = || content.used_words().is_some_and(|words| words * 8 <= heap.usable_bytes(block));
    if !is_more(content, Content::from_number(known.load(Relaxed))) || !fits() {
        return;
    }
    let more = |known| is_more(content, Content::from_number(known)).then(|| content.number());
    _ = known.fetch_update(Relaxed, Relaxed, more);
}

/// Returns true if `content` is a larger part of a block. Arrays that share elements may each use a part of them; the
/// largest one counts. The order of the calls makes no difference.
fn is_more(content: Content, known: Content) -> bool {
    // Unknown content ranks below every known content.
    let rank = |content: Content| content.used_words().map(|words| (words, content.number()));
    rank(content) > rank(known)
}

/// The edge for a word of a slot, if it is a pointer.
fn edge_of_slot(addresses: &AddressIndex<'_>, address: Address, content: Content) -> Option<Edge> {
    let is_integer = content == Content::AT_INTEGER;
    match addresses.at(address) {
        Referent::Block { number, is_start: true } => Some(Edge::new(number, is_integer)),
        _ if is_integer => None,
        // Only a region of 8 bytes begins there: other such words are hardly ever pointers.
        _ if !address.is_aligned(MALLOC_ALIGNMENT) => None,
        Referent::Block { number, is_start: false } => Some(Edge::new(number, true)),
        Referent::Area(area) => Some(Edge::new(addresses.block_count() + area, false)),
        Referent::Slot(_) | Referent::Nothing => None,
    }
}
