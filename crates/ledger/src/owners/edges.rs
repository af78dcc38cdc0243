//! The edges of the graph of pointers, in parts that were each read from one end to the other.

use capture::Address;

use crate::places::{Place, Places};

/// Programs have no memory below: the kernel refuses it (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;

/// The sizes up to which owners can be looked for. Both are far beyond the memory of most machines,
/// but none may make an index mean another thing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// An edge has 31 bits for the node, or the slot, that it leads to.
    pub(crate) nodes: usize,
    /// Where a part has so many edges or slots, the next node begins a new one ...
    pub(crate) full_part: usize,
    /// ... and a single node has at most so many in a part that was not full.
    pub(crate) part: usize,
}

pub(crate) const LIMITS: Limits =
    Limits { nodes: 1 << 31, full_part: 1 << 31, part: u32::MAX as usize };

/// An edge to a node, or a reference to a slot.
///
/// It is *weak* if the word may be none: if it points into the middle of a chunk, it may be a number;
/// if it is the last word of a chunk, it may be an earlier owner's, since malloc rounds sizes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge(u32);

impl Edge {
    const WEAK: u32 = 1 << 31;

    pub(crate) fn new(node: u32, is_weak: bool) -> Self {
        Self(node & !Self::WEAK | if is_weak { Self::WEAK } else { 0 })
    }

    /// The node, or the slot.
    pub(crate) fn to(self) -> u32 {
        self.0 & !Self::WEAK
    }

    pub(crate) fn is_weak(self) -> bool {
        self.0 & Self::WEAK != 0
    }
}

/// Neighbouring nodes and what they point to.
#[derive(Debug, Default)]
pub(crate) struct Part {
    first: u32,
    /// For each node where its edges and its slots end; they begin where those of the node before end.
    ends: Vec<(u32, u32)>,
    edges: Vec<Edge>,
    slots: Vec<Edge>,
    /// Where the edges and the slots of the node begin that is being read.
    begun: (usize, usize),
    pub(crate) unread_bytes: u64,
    /// Words that point somewhere, but did not fit in.
    pub(crate) dropped_words: u64,
}

impl Part {
    /// Edges of the node with this number in any of the parts, and slots that it names.
    pub(crate) fn of(parts: &[Self], node: u32) -> (&[Edge], &[Edge]) {
        let Some(part) = parts.iter().rfind(|part| part.first <= node) else { return (&[], &[]) };
        let index = (node - part.first) as usize;
        let Some(&(edges, slots)) = part.ends.get(index) else { return (&[], &[]) };
        let before = index.checked_sub(1).and_then(|before| part.ends.get(before));
        let &(first_edge, first_slot) = before.unwrap_or(&(0, 0));
        (
            part.edges.get(first_edge as usize..edges as usize).unwrap_or_default(),
            part.slots.get(first_slot as usize..slots as usize).unwrap_or_default(),
        )
    }
}

/// Collects the edges of nodes, one node after the other.
pub(crate) struct Collector<'a> {
    places: &'a Places<'a>,
    limits: Limits,
    full: Vec<Part>,
    part: Part,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(places: &'a Places<'a>, first: u32, limits: Limits) -> Self {
        let part = Part { first, ..Part::default() };
        Self { places, limits, full: Vec::new(), part }
    }

    pub(crate) fn parts(self) -> Vec<Part> {
        let Self { mut full, part, .. } = self;
        full.push(part);
        full
    }

    /// Notes what a word points to, if anything.
    pub(crate) fn take(&mut self, word: u64, is_weak: bool) {
        // Pointers to the middle of a chunk are to parts of structures: aligned, though SQLite adds 4
        // to one that it keeps. Odd words are numbers.
        if word < LOWEST || word >> 47 != 0 || !word.is_multiple_of(4) {
            return;
        }
        let edge = match self.places.at(Address(word)) {
            Place::Chunk { index, is_start } => Edge::new(index, is_weak || !is_start),
            Place::Slot(slot) => return self.add_slot(Edge::new(slot, is_weak)),
            Place::Area(area) => Edge::new(self.places.chunk_count() + area, is_weak),
            Place::Nothing => return,
        };
        let Part { edges, begun, dropped_words, .. } = &mut self.part;
        add(edges, begun.0, edge, self.limits, dropped_words);
    }

    /// Notes the object that a value refers to, if any.
    pub(crate) fn take_value(&mut self, word: u64) {
        if word >= LOWEST
            && word >> 47 == 0
            && word.is_multiple_of(8)
            && let Place::Slot(slot) = self.places.at(Address(word))
        {
            self.add_slot(Edge::new(slot, false));
        }
    }

    pub(crate) fn count_unread(&mut self, bytes: u64) {
        self.part.unread_bytes += bytes;
    }

    /// Forgets the slots that the node names.
    pub(crate) fn drop_slots(&mut self) {
        self.part.slots.truncate(self.part.begun.1);
    }

    pub(crate) fn end_node(&mut self) {
        let (edges, slots) = (self.part.edges.len(), self.part.slots.len());
        self.part.ends.push((edges as u32, slots as u32));
        self.part.begun = (edges, slots);
        if edges.max(slots) >= self.limits.full_part {
            let first = self.part.first + self.part.ends.len() as u32;
            self.full.push(std::mem::replace(&mut self.part, Part { first, ..Part::default() }));
        }
    }

    fn add_slot(&mut self, slot: Edge) {
        let Part { slots, begun, dropped_words, .. } = &mut self.part;
        add(slots, begun.1, slot, self.limits, dropped_words);
    }
}

/// Adds an edge to those of a node, which begin at `begun`, unless it is the last one already.
fn add(edges: &mut Vec<Edge>, begun: usize, edge: Edge, limits: Limits, dropped_words: &mut u64) {
    if edges[begun..].last() == Some(&edge) {
        return;
    }
    match edges.len() < limits.part {
        true => edges.push(edge),
        false => *dropped_words += 1,
    }
}
