//! The process whose objects are read.

use std::ops::Range;

use allocator::HeapMap;
use image::{Image, SparseRows};
use linux::Address;
use ruby::ObjectSpace;

use crate::ownership::edges::{Edge, certain_memory};

/// The number of portions in which objects are read, so that threads end at about the same time.
pub(super) const PORTIONS: usize = 16;

/// The slots of a portion.
pub(super) fn portion(slots: usize, number: usize) -> Range<u32> {
    (slots * number / PORTIONS) as u32..(slots * (number + 1) / PORTIONS) as u32
}

/// An object, with the memory to which it certainly refers.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) slot: u32,
    pub(super) memory: &'a [Range<Address>],
}

/// The process that is read.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) image: &'a Image<'a>,
    pub(super) heap: &'a HeapMap,
    pub(super) space: &'a ObjectSpace,
    /// The blocks to which objects refer.
    pub(super) of_slots: &'a SparseRows<Edge>,
}

impl Subject<'_> {
    /// The memory to which an object certainly refers.
    pub(super) fn memory_of(&self, slot: u32) -> impl Iterator<Item = Range<Address>> {
        certain_memory(self.heap, self.of_slots.of(slot))
    }

    /// The memory in use that starts at an address.
    pub(super) fn block_at(&self, at: Address) -> Option<Range<Address>> {
        let block = self.heap.block(self.heap.block_of(at)?)?;
        let usable = self.heap.header.usable(block);
        (block.state().is_in_use() && usable.start == at).then_some(usable)
    }

    /// The slot with this number.
    pub(super) fn slot(&self, slot: u32) -> Option<Range<Address>> {
        let at = self.space.slot_address(slot as usize)?;
        Some(at..at.offset(self.space.slot_bytes(slot)))
    }
}
