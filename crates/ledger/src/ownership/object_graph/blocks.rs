//! The blocks of objects.

use std::collections::VecDeque;
use std::ops::Range;

use linux::Address;
use ruby::SlotSizes;

use crate::ownership::bits::Bits;
use crate::ownership::edges::{Edge, certain_memory};

use super::{ObjectGraph, Paths};

impl ObjectGraph<'_> {
    /// The resident bytes that each of the `wanted` objects has beyond its slot: the object's slot, and the bytes of one block that it
    /// [owns](Self::own_blocks), of an allocation on the transient heap, or of the stack of a Fiber.
    pub(crate) fn bytes_beyond_slots(
        &self,
        paths: &Paths,
        wanted: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (u32, u64)> {
        let transient = self.space.transient.iter();
        let transient = transient.filter(|it| wanted(it.0));
        let transient: Vec<_> = transient.map(|&(slot, bytes)| (slot, u64::from(bytes))).collect();
        let stacks = self.pointers.fiber_stacks().iter().filter(|stack| wanted(stack.fiber));
        let stacks: Vec<_> = stacks.map(|stack| (stack.fiber, stack.resident_bytes)).collect();
        let blocks = self.own_blocks(paths, wanted);
        blocks.map(|(slot, block)| (slot, self.block_bytes(block))).chain(transient).chain(stacks)
    }

    /// The blocks that each of the `wanted` objects owns, each with the object's slot. Of two objects that refer to a block, both have it.
    /// A block behind these belongs to the object that is the fewest pointers away, and to garbage only if no certain pointer leads to it
    /// from an object that is retained: what a dead object referred to is often freed, and in use again.
    pub(crate) fn own_blocks(
        &self,
        paths: &Paths,
        wanted: impl Fn(u32) -> bool,
    ) -> impl Iterator<Item = (u32, u32)> {
        let is_retained = |slot: u32| paths.root(self.slot(slot)).is_some();
        let further = self.further_blocks(is_retained, &wanted);
        let of_slots = self.pointers.of_slots.iter().filter(move |&(slot, _)| wanted(slot));
        let edges = of_slots.flat_map(|(slot, edges)| edges.iter().map(move |edge| (slot, *edge)));
        let first = edges.filter(|&(slot, edge)| !edge.is_uncertain() && self.is_own(slot, edge));
        first
            .map(|(slot, edge)| (slot, edge.to()))
            .chain(further)
            .filter(|&(_, block)| self.heap.block(block as usize).is_some())
    }

    /// The blocks to which an object certainly refers, without their headers.
    pub(crate) fn memory_of(&self, slot: u32) -> impl Iterator<Item = Range<Address>> {
        certain_memory(self.heap, self.pointers.of_slots.of(slot))
    }

    /// The resident bytes of an object: its slot, its memory on the transient heap, its stack if it is a Fiber, and the blocks that it
    /// refers to and owns. `sizes` finds the bytes of slots in their order.
    pub(crate) fn bytes_of(&self, slot: u32, sizes: &mut SlotSizes<'_>) -> u64 {
        let edges = self.pointers.of_slots.of(slot).iter();
        let own = edges.filter(|edge| !edge.is_uncertain() && self.is_own(slot, **edge));
        let blocks = own.filter(|edge| self.heap.block(edge.to() as usize).is_some());
        let bytes = blocks.map(|edge| self.block_bytes(edge.to())).fold(0, u64::saturating_add);
        let own = sizes.of(slot) + sizes.transient_of(slot);
        let own = own.saturating_add(self.pointers.stack_bytes_of(slot));
        bytes.saturating_add(own)
    }

    /// Returns true if an object like the one in a slot owns the block to which it refers.
    fn is_own(&self, slot: u32, edge: Edge) -> bool {
        let its = self.space.slots.get(slot as usize);
        its.is_some_and(|its| self.trace.is_of_slot(edge.to(), *its))
    }

    /// The blocks behind those that the `wanted` objects refer to, each with the slot of its object. An uncertain reference of an
    /// object leads to them, too.
    fn further_blocks(
        &self,
        is_retained: impl Fn(u32) -> bool,
        wanted: impl Fn(u32) -> bool,
    ) -> Vec<(u32, u32)> {
        // A block that an object refers to is not behind another object.
        let mut reached = Bits::new(self.pointers.len());
        for (slot, edges) in self.pointers.of_slots.iter() {
            let first = edges.iter().filter(|it| !it.is_uncertain() && self.is_own(slot, **it));
            first.for_each(|edge| _ = reached.insert(edge.to()));
        }
        let mut found = Vec::new();
        // As in the trace, uncertain pointers count for what no other pointer reaches.
        let (mut exact, mut of_garbage, mut uncertain) =
            (VecDeque::new(), VecDeque::new(), VecDeque::new());
        // Many objects may share one block.
        let mut queued = Bits::new(self.pointers.len());
        for retained in [true, false] {
            let is_its = |slot| wanted(slot) && is_retained(slot) == retained;
            for (slot, edges) in self.pointers.of_slots.iter().filter(|&(slot, _)| is_its(slot)) {
                for edge in edges.iter().filter(|edge| self.is_own(slot, **edge)) {
                    if edge.is_uncertain() {
                        uncertain.push_back((slot, edge.to()));
                    } else if self.pointers.has_edges(edge.to()) && queued.insert(edge.to()) {
                        let queue = if retained { &mut exact } else { &mut of_garbage };
                        queue.push_back((slot, edge.to()));
                    }
                }
            }
        }
        loop {
            if exact.is_empty() {
                std::mem::swap(&mut exact, &mut of_garbage);
            }
            let (slot, from) = match exact.pop_front() {
                Some(next) => next,
                None => match uncertain.pop_front() {
                    Some((slot, node)) if reached.insert(node) => {
                        found.push((slot, node));
                        (slot, node)
                    }
                    Some(_) => continue,
                    None => return found,
                },
            };
            let owner = self.trace.code_of(from as usize);
            for edge in self.pointers.edges(from) {
                let to = edge.to();
                if self.trace.code_of(to as usize) != owner || reached.contains(to) {
                    continue;
                }
                if edge.is_uncertain() || self.pointers.is_old_pointer_to_table(from, to) {
                    uncertain.push_back((slot, to));
                } else {
                    reached.insert(to);
                    found.push((slot, to));
                    exact.push_back((slot, to));
                }
            }
        }
    }
}
