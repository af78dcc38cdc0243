use std::collections::BTreeMap;

use image::{Image, Memory};
use linux::Address;

use crate::allocation::free_lists::{List, Pages, read_words};
use crate::layout::page_finder::{words_around, words_around_start};

/// The words of a cursor: the next slot, the end of its region, the next region, and the descriptor of the page.
const WORDS: usize = 4;
/// The cursors that are needed: a process that allocates has those of several sizes.
const MIN_CURSORS: usize = 2;

/// Finds the places from which slots are taken from 4.1 on (`rb_heap_newobj_t` in gc/default/default.c): one for each size of slots, side by
/// side in the object space of a Ractor. A page's free slots are regions there, whose slots are taken in the order of their addresses.
#[derive(Debug, Clone)]
pub(super) struct CursorSearch {
    start: Address,
    bytes: usize,
    /// The places where a cursor was, and the size of its slots.
    seen: BTreeMap<Address, u64>,
}

impl CursorSearch {
    /// Begins with an address inside the object space.
    pub(super) fn begin(image: &Image<'_>, space: Address) -> Option<Self> {
        let start = words_around_start(image, space)?;
        let bytes = words_around(image, space).len() * 8;
        Some(Self { start, bytes, seen: BTreeMap::new() })
    }

    /// Looks at the process once more.
    pub(super) fn look(&mut self, memory: &dyn Memory, pages: &Pages) {
        let words = read_words(memory, self.start, self.bytes);
        for (index, words) in words.windows(WORDS).enumerate() {
            if let Some(slot_bytes) = slot_bytes(pages, words) {
                self.seen.insert(self.start.offset(index as u64 * 8), slot_bytes);
            }
        }
    }

    /// The address of the first cursor, and the offsets of all from there on. `None` if their distances are not multiples of one, or their slots
    /// do not become larger: then some are none.
    pub(super) fn found(&self) -> Option<(Address, Vec<List>)> {
        let (&first, _) = self.seen.first_key_value()?;
        let list = |(&at, &slot_bytes): (&Address, &u64)| List { at: at - first, slot_bytes };
        let lists: Vec<List> = self.seen.iter().map(list).collect();
        let distances = || lists.windows(2).map(|pair| pair[1].at - pair[0].at);
        let step = distances().min()?;
        let are_steps = distances().all(|distance| distance % step == 0);
        let grow = lists.windows(2).all(|pair| pair[0].slot_bytes < pair[1].slot_bytes);
        (lists.len() >= MIN_CURSORS && are_steps && grow).then_some((first, lists))
    }
}

/// The size of slots if these words are a cursor. Its region may be used up.
fn slot_bytes(pages: &Pages, words: &[u64]) -> Option<u64> {
    let &[next, end, region, descriptor] = words else { return None };
    let page = pages.of(end.checked_sub(8)?)?;
    let is_end = end.checked_sub(page.slot_bytes).is_some_and(|last| page.has(last));
    let is_next = next == end || next < end && page.has(next);
    let is_region = region == 0 || page.has(region);
    (page.descriptor.0 == descriptor && is_end && is_next && is_region).then_some(page.slot_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::free_lists::Page;

    struct Words(Vec<u64>);

    const SPACE: u64 = 0x1000;

    impl Memory for Words {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let bytes: Vec<u8> = self.0.iter().flat_map(|it| it.to_le_bytes()).collect();
            let from = (at.0 - SPACE) as usize;
            into.copy_from_slice(&bytes[from..from + into.len()]);
            into.len()
        }
    }

    /// Pages of 64 KiB: the page with this number has slots of so many bytes, and fills up.
    fn pages(slot_bytes: &[u64]) -> Pages {
        let page = |(number, &slot_bytes): (u64, &u64)| {
            let start = number << 16;
            let first_slot = Address(start + slot_bytes);
            let slots = 0x1_0000 / slot_bytes - 1;
            (start, Page { descriptor: Address(number), first_slot, slot_bytes, slots })
        };
        Pages { pages: (1..).zip(slot_bytes).map(page).collect(), bytes: 1 << 16 }
    }

    fn found(words: &[u64], pages: &Pages) -> Option<(Address, Vec<List>)> {
        let mut search =
            CursorSearch { start: Address(SPACE), bytes: words.len() * 8, seen: BTreeMap::new() };
        search.look(&Words(words.to_vec()), pages);
        search.found()
    }

    /// The cursor of a page from the slot with this number to that one.
    fn cursor(page: u64, slot_bytes: u64, next: u64, end: u64) -> [u64; WORDS] {
        let at = |slot: u64| (page << 16) + (slot + 1) * slot_bytes;
        [at(next), at(end), at(end + 3), page]
    }

    #[test]
    fn cursors_are_found_by_the_pages_that_they_point_into() {
        let pages = pages(&[32, 64, 128]);
        let used_up = [0x2_0000, 0x2_0000, 0, 1];
        let words = [
            vec![7, 32],
            used_up.to_vec(),
            vec![9, 64],
            cursor(2, 64, 5, 9).to_vec(),
            vec![9, 96, 0, 0, 0, 0],
            vec![9, 128],
            cursor(3, 128, 0, 1).to_vec(),
        ];
        let (first, lists) = found(&words.concat(), &pages).unwrap();
        let at = |number: u64, slot_bytes| List { at: number * 48, slot_bytes };
        assert_eq!((first, lists), (Address(SPACE + 16), vec![at(0, 32), at(1, 64), at(3, 128)]));
    }

    #[test]
    fn words_that_are_no_cursors_are_not_believed() {
        let pages = pages(&[32, 64, 128]);
        let [small, large] = [cursor(1, 32, 1, 4), cursor(2, 64, 1, 4)];
        assert!(found(&[small, large].concat(), &pages).is_some());
        // One alone, sizes that fall, and distances that are no multiples.
        assert_eq!(found(&small, &pages), None);
        assert_eq!(found(&[large, small].concat(), &pages), None);
        let uneven = [&small[..], &large, &[0], &cursor(3, 128, 0, 1)].concat();
        assert_eq!(found(&uneven, &pages), None);
        // Of another page, behind its end, within a slot, and behind the last slot.
        for wrong in [
            [large[0], large[1], 0, 3],
            [large[1] + 64, large[1], 0, 2],
            [large[0] + 8, large[1], 0, 2],
            [large[0], large[1] + 8, 0, 2],
            [large[0], large[1], large[1] + 8, 2],
            [0x3_0000, 0x3_0040, 0, 2],
            [0, 0, 0, 2],
            [u64::MAX, u64::MAX, u64::MAX, 2],
            [8, 4, 0, 2],
        ] {
            assert_eq!(found(&[small, wrong].concat(), &pages), None, "{wrong:x?}");
        }
    }
}
