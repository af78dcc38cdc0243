//! Classifies the words of slots by the kind of memory that they may point to.

use std::ops::Range;

use linux::{Address, AddressMap, Mapping, Mappings};

use crate::model::heap_page::HeapPage;
use crate::model::slot_index::SlotIndex;

/// 64 MiB of tables: more than a process needs that does not try to exhaust our memory.
const MAX_TABLES: usize = 1024;

/// The values of granules.
const ELSEWHERE: u32 = 0;
const PRIVATE: u32 = 1;
/// Not all of the granule is the same.
const MIXED: u32 = 2;
const HEAP_PAGE: u32 = 3;

/// The kind of memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A heap page.
    HeapPage,
    /// Private writable memory without a file: malloc's, or a stack.
    Private,
    /// Anything else.
    Elsewhere,
}

/// Finds in constant time the kind of memory at an address: millions of words of slots are looked up.
///
/// The address space is cut into granules of the size and alignment of heap pages.
pub(crate) struct AddressClassifier<'a> {
    granule_log2: u32,
    /// The part of a granule that its heap page takes: up to 3.0, malloc has the rest.
    page_bytes: u64,
    granules: AddressMap,
    index: SlotIndex,
    pages: &'a [HeapPage],
    mappings: &'a Mappings,
}

/// Returns true for mappings that malloc's memory, heap pages and stacks can be in.
pub(crate) fn is_private(mapping: &Mapping) -> bool {
    mapping.readable && mapping.writable && mapping.is_private_anonymous()
}

impl<'a> AddressClassifier<'a> {
    /// Classifies addresses in `mappings`, among which there are `pages`, ascending, of one size and
    /// aligned to 2^`page_log2` bytes.
    pub(crate) fn new(page_log2: u32, pages: &'a [HeapPage], mappings: &'a Mappings) -> Self {
        let mut granules = AddressMap::new(page_log2, MAX_TABLES, MIXED);
        for mapping in mappings.iter().filter(|mapping| is_private(mapping)) {
            let Range { start, end } = mapping.range;
            granules.set(&mapping.range, MIXED);
            let whole = start.align_up(1 << page_log2)..end.align_down(1 << page_log2);
            granules.set(&whole, PRIVATE);
        }
        for page in pages {
            granules.set(&(page.range.start..page.range.start.offset(1)), HEAP_PAGE);
        }
        let page_bytes = pages.first().map_or(0, |page| linux::length(&page.range));
        let index = SlotIndex::new(page_log2, pages);
        Self { granule_log2: page_log2, page_bytes, granules, index, pages, mappings }
    }

    /// The index of the pages' slots.
    pub(crate) fn index(&self) -> &SlotIndex {
        &self.index
    }

    pub(crate) fn into_index(self) -> SlotIndex {
        self.index
    }

    /// The kind of memory at `at`.
    pub(crate) fn at(&self, at: u64) -> Place {
        match self.granules.get(Address(at)) {
            ELSEWHERE => Place::Elsewhere,
            PRIVATE => Place::Private,
            HEAP_PAGE if at & ((1 << self.granule_log2) - 1) < self.page_bytes => Place::HeapPage,
            HEAP_PAGE => Place::Private,
            _ => self.search(at),
        }
    }

    /// Returns true for addresses in private memory, where no slot is.
    pub(crate) fn is_private(&self, at: u64) -> bool {
        self.at(at) == Place::Private
    }

    /// The slow way, for granules at the ends of mappings.
    fn search(&self, at: u64) -> Place {
        let at = Address(at);
        let base = at.align_down(1 << self.granule_log2);
        if at - base < self.page_bytes
            && self.pages.binary_search_by_key(&base, |page| page.range.start).is_ok()
        {
            return Place::HeapPage;
        }
        match self.mappings.find(at) {
            Some(mapping) if is_private(mapping) => Place::Private,
            _ => Place::Elsewhere,
        }
    }

    /// The slot that begins exactly at `at`.
    #[inline]
    pub(crate) fn slot_at(&self, at: u64) -> Option<u32> {
        self.index.slot_at(Address(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(base: u64) -> HeapPage {
        HeapPage {
            range: Address(base)..Address(base + (1 << 14) - 40),
            first_slot: Address(base + 40),
            slot_bytes: 40,
            slots: 7..407,
            space: 0,
        }
    }

    #[test]
    fn places_are_told_apart_to_the_byte() {
        let pages = [page(0x7f00_0000_4000), page(0x7f00_0001_0000)];
        let private = Mapping::anonymous(Address(0x7f00_0000_1000)..Address(0x7f00_0001_5000));
        let mut locked = Mapping::anonymous(Address(0x7f00_0001_5000)..Address(0x7f00_0002_0000));
        locked.writable = false;
        let mappings = Mappings::new(vec![private, locked]);
        let classifier = AddressClassifier::new(14, &pages, &mappings);
        for (at, place) in [
            (0x7f00_0000_0fff, Place::Elsewhere),
            (0x7f00_0000_1000, Place::Private),
            (0x7f00_0000_4000, Place::HeapPage),
            (0x7f00_0000_7fd7, Place::HeapPage),
            (0x7f00_0000_7fd8, Place::Private),
            (0x7f00_0000_8000, Place::Private),
            (0x7f00_0001_0000, Place::HeapPage),
            (0x7f00_0001_4fff, Place::Private),
            (0x7f00_0001_5000, Place::Elsewhere),
            (0, Place::Elsewhere),
            (u64::MAX, Place::Elsewhere),
        ] {
            assert_eq!(classifier.at(at), place, "{at:#x}");
        }
        assert_eq!(classifier.slot_at(0x7f00_0001_0000 + 40 + 80), Some(9));
        assert_eq!(classifier.slot_at(0x7f00_0001_0000 + 40 + 81), None);
        assert_eq!(classifier.slot_at(0x7f00_0001_0000), None);
    }

    #[test]
    fn a_mapping_of_terabytes_is_private_to_its_end() {
        let all = Mapping::anonymous(Address(0x1000)..Address(1 << 46));
        let mappings = Mappings::new(vec![all]);
        let classifier = AddressClassifier::new(14, &[], &mappings);
        assert_eq!(classifier.at(1 << 45), Place::Private);
        assert_eq!(classifier.at(1 << 46), Place::Elsewhere);
    }
}
