//! The tables of a JIT compiler: its data on the code that it made, in malloc's memory.

use ruby::{ClassKind, ImemoType, ObjectSpace};

use crate::ownership::graph::PointerGraph;

/// The maximum number of pointers from the table that bytecode names to a block of code: a list by instruction,
/// a list of versions, the block.
const MAX_HOPS: u32 = 3;
/// The maximum number of blocks of memory that are examined behind one pointer.
const MAX_VISITS: u32 = 256;

/// The blocks from which the tables of a JIT compiler are reached; none if no code of a JIT compiler exists.
///
/// Compiled bytecode (an iseq) names the compiler's data on it, in which each block of code names the bytecode
/// (`Block` in yjit/src/core.rs, `block_t` in yjit_core.h of 3.1). No other memory behind bytecode does that, so
/// no offset is needed.
pub(crate) fn tables(blocks: usize, space: &ObjectSpace, graph: &PointerGraph) -> Vec<u32> {
    if space.jit_code.is_empty() {
        return Vec::new();
    }
    let is_iseq: Vec<bool> =
        space.classes.iter().map(|class| class.kind == ClassKind::Imemo(ImemoType::Iseq)).collect();
    let mut tables = Vec::new();
    for (slot, bodies) in graph.of_slots.iter() {
        let class = space.slots.get(slot as usize).map_or(u32::MAX, |slot| slot.class());
        if is_iseq.get(class as usize) != Some(&true) {
            continue;
        }
        let bodies = bodies.iter().filter_map(|edge| graph.block(*edge));
        // The pointer may be in the last words of the bytecode's block, which an allocator with large steps between its
        // sizes makes uncertain. That the memory names the bytecode proves it.
        for (body, edge) in
            bodies.flat_map(|body| graph.edges(body).iter().map(move |edge| (body, edge)))
        {
            let mut search = SlotSearch { blocks, graph, slot, visits_left: MAX_VISITS };
            if edge.to() != body && search.is_named_from(edge.to(), MAX_HOPS) {
                tables.push(edge.to());
            }
        }
    }
    tables
}

/// A search for memory that names an object's slot.
struct SlotSearch<'a> {
    blocks: usize,
    graph: &'a PointerGraph,
    slot: u32,
    visits_left: u32,
}

impl SlotSearch<'_> {
    fn is_named_from(&mut self, node: u32, hops: u32) -> bool {
        if self.visits_left == 0 || node as usize >= self.blocks {
            return false;
        }
        self.visits_left -= 1;
        let graph = self.graph;
        graph.slots(node).iter().any(|slot| slot.to() == self.slot)
            || hops > 0
                && graph.edges(node).iter().any(|edge| self.is_named_from(edge.to(), hops - 1))
    }
}
