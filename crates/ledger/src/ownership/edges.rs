//! The edges of the pointer graph, in parts that were each read from one end to the other.

use std::ops::Range;

use allocator::HeapMap;
use image::SparseRows;
use linux::Address;
use linux::arch::USER_SPACE_END;
use ruby::Form;

use crate::ownership::address_index::{AddressIndex, Referent};

/// Programs have no memory below this address: the kernel refuses it (vm.mmap_min_addr).
const MIN_ADDRESS: u64 = 1 << 16;
/// The words that may be addresses.
const ADDRESSES: Range<u64> = MIN_ADDRESS..USER_SPACE_END;

/// The sizes up to which owners are traced. They are far beyond the memory of most machines, but indices must never
/// wrap around.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// An edge has 31 bits for the node or slot that it leads to.
    pub(crate) nodes: usize,
    /// If a part has this many edges or slots, the next node begins a new one.
    pub(crate) full_part: usize,
    /// The maximum number of edges or slots in a part, whose last node may exceed [`Limits::full_part`].
    pub(crate) part: usize,
}

/// Nodes, slots and roots together have numbers of 32 bits. No program has as many roots.
const MAX_ROOTS: usize = 1 << 23;

pub(crate) const LIMITS: Limits =
    Limits { nodes: (1 << 31) - MAX_ROOTS, full_part: 1 << 31, part: u32::MAX as usize };

/// The blocks to which edges certainly lead, without their headers.
pub(crate) fn certain_memory<'a>(
    heap: &'a HeapMap,
    edges: &'a [Edge],
) -> impl Iterator<Item = Range<Address>> + 'a {
    let certain = edges.iter().filter(|edge| !edge.is_uncertain());
    let blocks = certain.filter_map(|edge| heap.block(edge.to() as usize));
    blocks.map(|block| heap.header.usable(block))
}

/// An edge to a node, or a reference to a slot.
///
/// It is *uncertain* if the word may be no pointer: a word that points into the middle of a block may be a number, and
/// the last word of a block may be an earlier owner's, since malloc rounds sizes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge(u32);

impl Edge {
    const UNCERTAIN: u32 = 1 << 31;

    pub(crate) fn new(node: u32, is_uncertain: bool) -> Self {
        Self(node & !Self::UNCERTAIN | if is_uncertain { Self::UNCERTAIN } else { 0 })
    }

    /// The edge with this [number](Self::number).
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// A number for the edge, which is below 2^32 - 1.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// The node or slot that it leads to.
    pub(crate) fn to(self) -> u32 {
        self.0 & !Self::UNCERTAIN
    }

    pub(crate) fn is_uncertain(self) -> bool {
        self.0 & Self::UNCERTAIN != 0
    }
}

/// The edges of adjacent nodes.
#[derive(Debug, Default)]
pub(crate) struct Adjacency {
    first: u32,
    edges: SparseRows<Edge>,
    slots: SparseRows<Edge>,
    pub(crate) unread_bytes: u64,
    /// Words that are pointers, but did not fit in.
    pub(crate) dropped_words: u64,
}

impl Adjacency {
    /// The edges of the node with this number in any of the parts.
    #[inline]
    pub(crate) fn edges(parts: &[Self], node: u32) -> &[Edge] {
        Self::find(parts, node).map_or(&[], |(part, row)| part.edges.of(row))
    }

    /// The slots that the node with this number refers to.
    #[inline]
    pub(crate) fn slots(parts: &[Self], node: u32) -> &[Edge] {
        Self::find(parts, node).map_or(&[], |(part, row)| part.slots.of(row))
    }

    /// Returns true if the node with this number has edges, and true if it refers to slots.
    #[inline]
    pub(crate) fn has(parts: &[Self], node: u32) -> (bool, bool) {
        let found = Self::find(parts, node);
        found.map_or((false, false), |(part, row)| (part.edges.has(row), part.slots.has(row)))
    }

    /// The part that has the node with this number, and the node's row there.
    #[inline]
    fn find(parts: &[Self], node: u32) -> Option<(&Self, u32)> {
        let part = parts.iter().rfind(|part| part.first <= node)?;
        Some((part, node - part.first))
    }
}

/// The bits of a pointer to a block of malloc that are free for other uses.
const TAG: u64 = 7;

/// The bits that all floating-point numbers have set that are none. Engines of scripts, such as those of Lua and JavaScript, keep a pointer
/// in the others ("NaN boxing"), of which the highest ones are the type.
const NAN: u64 = 0x7ff << 52;
/// The bits of the pointer: x86 has 47 bits, which allows one more bit of type, and aarch64 has 48 bits.
const NAN_ADDRESSES: [u64; 2] = [(1 << 47) - 1, (1 << 48) - 1];

/// Collects the edges of nodes, one node after the other.
pub(crate) struct Collector<'a> {
    addresses: &'a AddressIndex<'a>,
    limits: Limits,
    full: Vec<Adjacency>,
    part: Adjacency,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(addresses: &'a AddressIndex<'a>, first: u32, limits: Limits) -> Self {
        let part = Adjacency { first, ..Adjacency::default() };
        Self { addresses, limits, full: Vec::new(), part }
    }

    pub(crate) fn parts(self) -> Vec<Adjacency> {
        let Self { mut full, part, .. } = self;
        full.push(part);
        full.iter_mut().for_each(|part| {
            part.edges.shrink();
            part.slots.shrink();
        });
        full
    }

    /// Adds the edge for a word, if it is a pointer.
    pub(crate) fn take(&mut self, word: u64, is_uncertain: bool) {
        if !ADDRESSES.contains(&word) {
            return self.take_number(word);
        }
        // Some keep a number in the lowest bits of a pointer to a block, such as the colour of a node of a tree (glibc's
        // misc/tsearch.c, which keeps all values that setenv(3) has ever got) or a type (upb). Others are numbers. Pointers into the
        // middle of a block lead to parts of structures, which are aligned (SQLite adds 4 to one of its pointers).
        if !word.is_multiple_of(4) {
            let referent = self.addresses.at(Address(word & !TAG));
            return match referent {
                Referent::Block { number, is_start: true } => {
                    self.add_edge(Edge::new(number, true))
                }
                _ => self.take_number(word),
            };
        }
        let edge = match self.addresses.at(Address(word)) {
            Referent::Block { number, is_start } => Edge::new(number, is_uncertain || !is_start),
            Referent::Slot(slot) => return self.add_slot(Edge::new(slot, is_uncertain)),
            Referent::Area(area) => Edge::new(self.addresses.block_count() + area, is_uncertain),
            Referent::Nothing => return,
        };
        self.add_edge(edge);
    }

    /// Adds the block whose address is an Integer of Ruby's, as Fiddle.malloc returns it, or a part of a NaN.
    fn take_number(&mut self, word: u64) {
        let of_nan =
            NAN_ADDRESSES.iter().filter(|_| word & NAN == NAN).map(|bits| Address(word & bits));
        let found = of_nan.chain(ruby::address_of_integer(word)).find_map(|address| {
            match self.addresses.at(address) {
                Referent::Block { number, is_start: true } if ADDRESSES.contains(&address.0) => {
                    Some(number)
                }
                _ => None,
            }
        });
        if let Some(number) = found {
            self.add_edge(Edge::new(number, true));
        }
    }

    /// Adds the block with the variables of the outer block, to which an environment refers by a tagged address.
    pub(crate) fn take_outer(&mut self, word: u64) {
        let address = word.wrapping_sub(Form::OUTER_TAG);
        if ADDRESSES.contains(&address)
            && address.is_multiple_of(8)
            && let Referent::Block { number, .. } = self.addresses.at(Address(address))
        {
            self.add_edge(Edge::new(number, false));
        }
    }

    /// Adds the slot that a value refers to, or the block whose address it is as an Integer.
    pub(crate) fn take_value(&mut self, word: u64) {
        if ADDRESSES.contains(&word)
            && word.is_multiple_of(8)
            && let Referent::Slot(slot) = self.addresses.at(Address(word))
        {
            self.add_slot(Edge::new(slot, false));
        } else {
            self.take_number(word);
        }
    }

    pub(crate) fn count_unread(&mut self, bytes: u64) {
        self.part.unread_bytes += bytes;
    }

    /// Forgets the slots that the node refers to.
    pub(crate) fn drop_slots(&mut self) {
        self.part.slots.clear_row();
    }

    pub(crate) fn end_node(&mut self) {
        let Adjacency { first, edges, slots, .. } = &mut self.part;
        edges.end_row();
        slots.end_row();
        if edges.values().len().max(slots.values().len()) >= self.limits.full_part {
            let first = *first + edges.rows();
            self.full.push(std::mem::replace(
                &mut self.part,
                Adjacency { first, ..Adjacency::default() },
            ));
        }
    }

    fn add_edge(&mut self, edge: Edge) {
        let is_added = add(&mut self.part.edges, edge, self.limits);
        self.part.dropped_words += u64::from(!is_added);
    }

    fn add_slot(&mut self, slot: Edge) {
        let is_added = add(&mut self.part.slots, slot, self.limits);
        self.part.dropped_words += u64::from(!is_added);
    }
}

/// Adds an edge to those of the node that is being read, unless it repeats the last one. Returns false if there is no room.
fn add(edges: &mut SparseRows<Edge>, edge: Edge, limits: Limits) -> bool {
    edges.open_row().last() == Some(&edge) || edges.values().len() < limits.part && edges.push(edge)
}
