use linux::Address;

use crate::model::heap_page::HeapPage;

/// Finds the slot and the heap page of an address in constant time.
///
/// It is a hash table with open addressing: pages are scattered over the address space, and tracing
/// looks up every word of malloc's memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotIndex {
    page_log2: u32,
    /// Addresses outside are on no page.
    bounds: (u64, u64),
    /// Turns a hash into an index into `entries`.
    shift: u32,
    /// A power of two, at least half of them empty.
    entries: Vec<Entry>,
}

/// A page; empty entries have number 0, where no process has memory.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Its address in units of pages.
    number: u64,
    first_slot: u64,
    slot_bytes: u32,
    slot_count: u32,
    /// The index of its first slot.
    first_index: u32,
    /// 2^32 / `slot_bytes`, rounded up: multiplying is faster than dividing, and exact for offsets
    /// within a page.
    reciprocal: u32,
}

impl SlotIndex {
    /// The index of `pages`, each of which lies in 2^`page_log2` bytes of its own.
    pub(crate) fn new(page_log2: u32, pages: &[HeapPage]) -> Self {
        let size = (pages.len() * 2).next_power_of_two().max(2);
        let mut index = Self {
            page_log2,
            bounds: (u64::MAX, 0),
            shift: 64 - size.trailing_zeros(),
            entries: vec![Entry::default(); size],
        };
        for page in pages {
            index.bounds.0 = index.bounds.0.min(page.range.start.0);
            index.bounds.1 = index.bounds.1.max(page.range.end.0);
            index.insert(page);
        }
        index
    }

    fn insert(&mut self, page: &HeapPage) {
        let number = page.range.start.0 >> self.page_log2;
        let mut at = self.first_guess(number);
        while self.entries[at].number != 0 {
            at = (at + 1) % self.entries.len();
        }
        self.entries[at] = Entry {
            number,
            first_slot: page.first_slot.0,
            slot_bytes: page.slot_bytes,
            slot_count: page.slots.len() as u32,
            first_index: page.slots.start as u32,
            reciprocal: ((1_u64 << 32).div_ceil(u64::from(page.slot_bytes.max(2)))) as u32,
        };
    }

    fn first_guess(&self, number: u64) -> usize {
        // Fibonacci hashing spreads neighbours at any distance.
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The slot that begins at `at`.
    #[inline]
    pub(crate) fn slot_at(&self, at: Address) -> Option<u32> {
        self.page_of(at)?.slot_at(at.0)
    }

    /// The slot that begins at `at`, and its size in bytes.
    pub(crate) fn slot_and_bytes_at(&self, at: Address) -> Option<(u32, u32)> {
        let page = self.page_of(at)?;
        Some((page.slot_at(at.0)?, page.slot_bytes))
    }

    #[inline]
    fn page_of(&self, at: Address) -> Option<&Entry> {
        if at.0 < self.bounds.0 || at.0 >= self.bounds.1 {
            return None;
        }
        let number = at.0 >> self.page_log2;
        let mut place = self.first_guess(number);
        loop {
            let entry = self.entries.get(place)?;
            if entry.number == number {
                return Some(entry);
            }
            if entry.number == 0 {
                return None;
            }
            place = (place + 1) & (self.entries.len() - 1);
        }
    }
}

impl Entry {
    #[inline]
    fn slot_at(&self, at: u64) -> Option<u32> {
        let offset = at.checked_sub(self.first_slot)?;
        let number = ((offset * u64::from(self.reciprocal)) >> 32) as u32;
        let begins_there = u64::from(number) * u64::from(self.slot_bytes) == offset;
        (number < self.slot_count && begins_there).then(|| self.first_index + number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of all sizes of slots that can be, every third one's neighbour far away.
    fn pages(page_log2: u32) -> Vec<HeapPage> {
        let mut before = 0;
        (0..300_u64)
            .map(|number| {
                let base = 0x7f00_0000_0000 + ((number + number / 3 * 1000) << page_log2);
                let slot_bytes = 32 + number as u32 * 8 % 2024;
                let count = ((1 << page_log2) - 64) / slot_bytes as usize;
                let slots = before..if number % 10 == 9 { before } else { before + count };
                before = slots.end;
                HeapPage {
                    range: Address(base)..Address(base + (1 << page_log2)),
                    first_slot: Address(base + 64),
                    slot_bytes,
                    slots,
                    space: 0,
                }
            })
            .collect()
    }

    #[test]
    fn slots_are_found_at_their_first_byte_and_nowhere_else() {
        for page_log2 in [14, 16, 17] {
            let pages = pages(page_log2);
            let index = SlotIndex::new(page_log2, &pages);
            for page in &pages {
                let mut slot = page.slots.clone();
                let mut at = page.range.start;
                while at < page.range.end {
                    let offset = at.0.checked_sub(page.first_slot.0);
                    let begins = offset.is_some_and(|it| it % u64::from(page.slot_bytes) == 0);
                    let expected = if begins { slot.next() } else { None };
                    assert_eq!(index.slot_at(at), expected.map(|it| it as u32), "{at}");
                    at = at.offset(4);
                }
                assert_eq!(slot.next(), None, "all of its slots were met");
            }
            for at in [0, 8, 0x7eff_ffff_fff8, u64::MAX, pages[299].range.end.0] {
                assert_eq!(index.slot_at(Address(at)), None);
            }
        }
        assert_eq!(SlotIndex::default().slot_at(Address(0)), None);
        assert_eq!(SlotIndex::new(16, &[]).slot_at(Address(8)), None);
    }
}
