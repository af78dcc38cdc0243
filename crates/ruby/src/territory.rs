use std::ops::Range;

use capture::{Address, AddressMap, Mapping, Mappings};

use crate::page::Page;

/// 64 MiB of them: more than a process needs that is not made to exhaust us.
const MOST_TABLES: usize = 1024;

/// What a granule is; other values are heap pages.
const ELSEWHERE: u32 = 0;
const PRIVATE: u32 = 1;
const MIXED: u32 = 2;
const FIRST_PAGE: u32 = 3;

/// What lies at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The heap page with this index.
    HeapPage(u32),
    /// Private writable memory that no file backs: malloc's, or a stack.
    Private,
    /// Anything else.
    Elsewhere,
}

/// Tells in constant time what lies at an address: millions of words of slots are looked up.
///
/// Memory is cut into granules as large as a heap page, on a heap page's boundaries.
pub(crate) struct Territory<'a> {
    granule_log2: u32,
    /// Bytes of a granule that its heap page takes; Ruby up to 3.0 leaves some to malloc.
    page_span: u64,
    /// What each granule is: one of the numbers above.
    map: AddressMap,
    pages: &'a [Page],
    mappings: &'a Mappings,
}

pub(crate) fn is_private(mapping: &Mapping) -> bool {
    mapping.readable && mapping.writable && mapping.is_private_anonymous()
}

impl<'a> Territory<'a> {
    /// A territory of `pages`, ascending and of 2^`page_log2` bytes, within `mappings`.
    pub(crate) fn new(
        page_log2: u32,
        page_span: u64,
        pages: &'a [Page],
        mappings: &'a Mappings,
    ) -> Self {
        let mut map = AddressMap::new(page_log2, MOST_TABLES, MIXED);
        for mapping in mappings.iter().filter(|mapping| is_private(mapping)) {
            let Range { start, end } = mapping.range;
            map.set(&mapping.range, MIXED);
            map.set(&(start.align_up(1 << page_log2)..end.align_down(1 << page_log2)), PRIVATE);
        }
        for (index, page) in pages.iter().enumerate() {
            map.set(&(page.base..page.base.offset(1)), FIRST_PAGE + index as u32);
        }
        Self { granule_log2: page_log2, page_span, map, pages, mappings }
    }

    /// What lies at `at`.
    pub(crate) fn at(&self, at: u64) -> Place {
        match self.map.get(Address(at)) {
            ELSEWHERE => Place::Elsewhere,
            PRIVATE => Place::Private,
            MIXED => self.search(at),
            page if at & ((1 << self.granule_log2) - 1) < self.page_span => {
                Place::HeapPage(page - FIRST_PAGE)
            }
            _ => Place::Private,
        }
    }

    /// The slow way, for granules at the ends of mappings.
    fn search(&self, at: u64) -> Place {
        let at = Address(at);
        let base = at.align_down(1 << self.granule_log2);
        if let Ok(index) = self.pages.binary_search_by_key(&base, |page| page.base)
            && at - base < self.page_span
        {
            return Place::HeapPage(index as u32);
        }
        match self.mappings.find(at) {
            Some(mapping) if is_private(mapping) => Place::Private,
            _ => Place::Elsewhere,
        }
    }

    /// The heap pages, ascending.
    pub(crate) fn pages(&self) -> &'a [Page] {
        self.pages
    }

    /// The slot that begins exactly at `at`, as its index among the slots of all pages.
    pub(crate) fn slot_at(&self, at: u64) -> Option<u32> {
        let Place::HeapPage(index) = self.at(at) else { return None };
        self.slot_on(index, at)
    }

    /// The same, where it is known that `at` is on the heap page with this index.
    pub(crate) fn slot_on(&self, index: u32, at: u64) -> Option<u32> {
        let page = &self.pages[index as usize];
        let offset = u32::try_from(at.checked_sub(page.first_slot.0)?).ok()?;
        let slot = offset / page.slot_bytes.max(1);
        (slot < page.slot_count && slot * page.slot_bytes == offset)
            .then(|| page.slots_before + slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(base: u64) -> Page {
        Page {
            descriptor: Address(0),
            base: Address(base),
            first_slot: Address(base + 40),
            slot_bytes: 40,
            slot_count: 400,
            slots_before: 7,
        }
    }

    #[test]
    fn places_are_told_apart_to_the_byte() {
        let pages = [page(0x7f00_0000_4000), page(0x7f00_0001_0000)];
        let private = Mapping::anonymous(Address(0x7f00_0000_1000)..Address(0x7f00_0001_5000));
        let mut locked = Mapping::anonymous(Address(0x7f00_0001_5000)..Address(0x7f00_0002_0000));
        locked.writable = false;
        let mappings = Mappings::new(vec![private, locked]);
        let territory = Territory::new(14, (1 << 14) - 40, &pages, &mappings);
        for (at, place) in [
            (0x7f00_0000_0fff, Place::Elsewhere),
            (0x7f00_0000_1000, Place::Private),
            (0x7f00_0000_4000, Place::HeapPage(0)),
            (0x7f00_0000_7fd7, Place::HeapPage(0)),
            (0x7f00_0000_7fd8, Place::Private),
            (0x7f00_0000_8000, Place::Private),
            (0x7f00_0001_0000, Place::HeapPage(1)),
            (0x7f00_0001_4fff, Place::Private),
            (0x7f00_0001_5000, Place::Elsewhere),
            (0, Place::Elsewhere),
            (u64::MAX, Place::Elsewhere),
        ] {
            assert_eq!(territory.at(at), place, "{at:#x}");
        }
        assert_eq!(territory.slot_at(0x7f00_0001_0000 + 40 + 80), Some(9));
        assert_eq!(territory.slot_at(0x7f00_0001_0000 + 40 + 81), None);
        assert_eq!(territory.slot_at(0x7f00_0001_0000), None);
    }

    #[test]
    fn a_mapping_of_terabytes_is_private_to_its_end() {
        let all = Mapping::anonymous(Address(0x1000)..Address(1 << 46));
        let mappings = Mappings::new(vec![all]);
        let territory = Territory::new(14, 1 << 14, &[], &mappings);
        assert_eq!(territory.at(1 << 45), Place::Private);
        assert_eq!(territory.at(1 << 46), Place::Elsewhere);
    }
}
