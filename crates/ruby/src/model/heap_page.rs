use std::ops::Range;

use image::Memory;
use linux::Address;

/// A heap page: a header, slots of one size, and the remainder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapPage {
    /// All of it.
    pub range: Range<Address>,
    /// Where its first slot is; the page's beginning if it has no slots.
    pub first_slot: Address,
    /// The size of each of its slots, in bytes; 0 if it has none. From 3.4 on Ruby keeps empty
    /// pages, for slots of any size.
    pub slot_bytes: u32,
    /// Its slots, indices into [`ObjectSpace::slots`](crate::ObjectSpace::slots).
    pub slots: Range<usize>,
    /// Its object space: the first is the main Ractor's. From 4.1 on each Ractor has one.
    pub space: u32,
}

impl HeapPage {
    /// The address of the collector's descriptor, which has the page's marks; `None` if `memory` cannot be read. It is the first
    /// word of the page (`struct heap_page_header`).
    pub fn descriptor(&self, memory: &dyn Memory) -> Option<Address> {
        memory.read_address(self.range.start).ok()
    }

    /// The bytes of all of its slots.
    pub(crate) fn slots_bytes(&self) -> usize {
        self.slots.len() * self.slot_bytes as usize
    }
}

/// The address of the slot with this index; `pages` are in the order of their slots.
pub(crate) fn slot_address(pages: &[HeapPage], slot: usize) -> Option<Address> {
    let after = pages.partition_point(|page| page.slots.end <= slot);
    let page = pages.get(after).filter(|page| page.slots.contains(&slot))?;
    let within = (slot - page.slots.start) as u64 * u64::from(page.slot_bytes);
    Some(page.first_slot.offset(within))
}
