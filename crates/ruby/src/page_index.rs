use capture::Address;

use crate::object_space::HeapPage;

/// Finds the heap page of an address in constant time: a hash table of open addresses, since pages
/// lie strewn over the address space, and a tracer asks for every word of malloc's memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageIndex {
    page_log2: u32,
    /// What is outside is on no page.
    bounds: (u64, u64),
    /// How far hashes are shifted to be indices into `entries`.
    shift: u32,
    /// A power of two of them, at least half of them empty.
    entries: Vec<Entry>,
}

/// What is known of a page; empty where it has no slots.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Its address in units of pages.
    number: u64,
    first_slot: u64,
    slot_bytes: u32,
    slot_count: u32,
    slots_before: u32,
    /// 2^32 / `slot_bytes`, rounded up: a product is cheaper than a division, and exact for offsets
    /// within a page.
    reciprocal: u32,
}

impl PageIndex {
    /// The index of `pages`, each of which lies in 2^`page_log2` bytes of its own.
    pub(crate) fn new(page_log2: u32, pages: &[HeapPage]) -> Self {
        let with_slots = || pages.iter().filter(|page| !page.slots.is_empty());
        let size = (with_slots().count() * 2).next_power_of_two().max(2);
        let mut index = Self {
            page_log2,
            bounds: (u64::MAX, 0),
            shift: 64 - size.trailing_zeros(),
            entries: vec![Entry::default(); size],
        };
        for page in with_slots() {
            index.bounds.0 = index.bounds.0.min(page.range.start.0);
            index.bounds.1 = index.bounds.1.max(page.range.end.0);
            index.insert(page);
        }
        index
    }

    fn insert(&mut self, page: &HeapPage) {
        let number = page.range.start.0 >> self.page_log2;
        let mut at = self.first_guess(number);
        while self.entries[at].slot_count > 0 {
            at = (at + 1) % self.entries.len();
        }
        self.entries[at] = Entry {
            number,
            first_slot: page.first_slot.0,
            slot_bytes: page.slot_bytes,
            slot_count: page.slots.len() as u32,
            slots_before: page.slots.start as u32,
            reciprocal: ((1_u64 << 32).div_ceil(u64::from(page.slot_bytes.max(2)))) as u32,
        };
    }

    fn first_guess(&self, number: u64) -> usize {
        // Fibonacci hashing: neighbours are spread, whatever the distance between them is.
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The slot that begins at `at`.
    #[inline]
    pub(crate) fn slot_at(&self, at: Address) -> Option<u32> {
        self.page_of(at)?.slot_at(at.0)
    }

    /// The slot that begins at `at`, and its bytes.
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
            if entry.slot_count == 0 {
                return None;
            }
            if entry.number == number {
                return Some(entry);
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
        (number < self.slot_count && begins_there).then(|| self.slots_before + number)
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
                }
            })
            .collect()
    }

    #[test]
    fn slots_are_found_at_their_first_byte_and_nowhere_else() {
        for page_log2 in [14, 16, 17] {
            let pages = pages(page_log2);
            let index = PageIndex::new(page_log2, &pages);
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
        assert_eq!(PageIndex::default().slot_at(Address(0)), None);
        assert_eq!(PageIndex::new(16, &[]).slot_at(Address(8)), None);
    }
}
