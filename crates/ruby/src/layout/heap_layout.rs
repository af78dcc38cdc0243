use std::ops::Range;

use linux::Address;

use crate::layout::page_descriptor::{DescriptorLayout, SlotMembers};
use crate::model::heap_page::{self, HeapPage};

/// The heap pages of a process, and the layout that they were read with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeapLayout {
    pub(crate) descriptor: DescriptorLayout,
    pub(crate) members: SlotMembers,
    /// Ascending by address.
    pub(crate) pages: Vec<HeapPage>,
    /// The addresses of the descriptors (`struct heap_page`), by page.
    pub(crate) descriptors: Vec<Address>,
    /// The first has the class `Object`: it is the main Ractor's, if there are several.
    pub(crate) spaces: Vec<SpaceMembers>,
}

/// Members of an object space (`rb_objspace_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpaceMembers {
    /// The address of the head of the list of pages.
    pub(crate) list_head: Address,
    /// The part in use of the array of all pages (`heap_pages.sorted`), with the header that it has from 3.4 on.
    pub(crate) page_array: Range<Address>,
}

impl HeapLayout {
    /// The alignment of heap pages as a power of two.
    pub(crate) fn page_log2(&self) -> u32 {
        self.descriptor.page_log2
    }

    /// Returns true if both have the same slots. Only the tails of pages may differ then.
    pub(crate) fn has_slots_of(&self, other: &Self) -> bool {
        let slots = |page: &HeapPage| {
            (page.range.start, page.first_slot, page.slot_bytes, page.slots.clone())
        };
        self.pages.iter().map(slots).eq(other.pages.iter().map(slots))
    }

    /// The address of the slot with this index.
    pub(crate) fn slot_address(&self, slot: u32) -> Option<Address> {
        heap_page::slot_address(&self.pages, slot as usize)
    }

    /// The number of slots of all pages.
    pub(crate) fn slot_count(&self) -> usize {
        self.pages.last().map_or(0, |page| page.slots.end)
    }

    /// The first page; failures that concern all pages name it.
    pub(crate) fn start(&self) -> Address {
        self.pages.first().map_or(Address(0), |page| page.range.start)
    }
}

/// The bytes of a page of 2^`page_log2` bytes that its header and slots may take. Up to 3.0, whose
/// descriptors do not have the slot size, malloc keeps 5 words of each page (gc.c,
/// `REQUIRED_SIZE_BY_MALLOC`).
pub(crate) fn page_bytes(page_log2: u32, members: SlotMembers) -> u64 {
    let left_to_malloc = if members.slot_bytes.is_none() { 40 } else { 0 };
    (1 << page_log2) - left_to_malloc
}
