use std::collections::BTreeMap;

use image::{Image, Memory};
use linux::Address;

use crate::allocation::free_lists::{List, Pages, read_words};
use crate::layout::page_finder::{words_around, words_around_start};

/// The words of a cursor: the next slot, the end of its region, the next region, and the descriptor of the page.
const WORDS: usize = 4;
/// The bytes of a heap (`rb_heap_t`), at most.
const MAX_HEAP_BYTES: u64 = 512;
/// The least number of sizes whose words tell the distance of two cursors.
const MIN_SIZES: usize = 3;
/// The cursors that tell the distance of two. After a collection some have no page until the next object of their size is made.
const MIN_CURSORS: usize = 3;

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
        let start = self.start;
        self.seen.retain(|&at, &mut size| {
            let words = words.get((at - start) as usize / 8..).and_then(|it| it.get(..WORDS));
            words.is_some_and(|words| is_cursor_of(memory, pages, words, size))
        });
        for (index, words) in words.windows(WORDS).enumerate() {
            if let Some(slot_bytes) = slot_bytes(pages, words) {
                self.seen.insert(self.start.offset(index as u64 * 8), slot_bytes);
            }
        }
    }

    /// The address of the first cursor, and the offsets of all from there on: one for each of these sizes of slots, ascending. `None` if the
    /// distances do not agree with that, or there is no cursor at one of these places; unless all were seen, with others between them, whose
    /// sizes have no pages. A program that takes slots of one size only shows one cursor; then the sizes in front of them tell the distance.
    pub(super) fn found(
        &self,
        memory: &dyn Memory,
        pages: &Pages,
        sizes: &[u64],
    ) -> Option<(Address, Vec<List>)> {
        if self.seen.values().eq(sizes) {
            let (&first, _) = self.seen.first_key_value()?;
            let list = |(&at, &slot_bytes): (&Address, &u64)| List { at: at - first, slot_bytes };
            return Some((first, self.seen.iter().map(list).collect()));
        }
        self.found_by_cursors(memory, pages, sizes)
            .or_else(|| self.found_by_sizes(memory, pages, sizes))
    }

    /// The same by the cursors that were seen, if they are enough.
    fn found_by_cursors(
        &self,
        memory: &dyn Memory,
        pages: &Pages,
        sizes: &[u64],
    ) -> Option<(Address, Vec<List>)> {
        let number = |size: &u64| sizes.iter().position(|it| it == size).map(|it| it as u64);
        let seen: Vec<(Address, u64)> =
            self.seen.iter().map(|(&at, size)| Some((at, number(size)?))).collect::<Option<_>>()?;
        let (&(first, first_number), &(last, last_number)) = (seen.first()?, seen.last()?);
        let step = (last - first).checked_div(last_number.checked_sub(first_number)?)?;
        let start = Address(first.0.checked_sub(first_number.checked_mul(step)?)?);
        let at = |number: u64| start.0.checked_add(number.checked_mul(step)?);
        let agree = seen.iter().all(|(place, number)| at(*number) == Some(place.0));
        let is_cursor = |(number, &size): (u64, &u64)| {
            let words = read_words(memory, Address(at(number)?), WORDS * 8);
            is_cursor_of(memory, pages, &words, size)
                .then_some(List { at: number * step, slot_bytes: size })
        };
        let lists: Vec<List> = (0..).zip(sizes).map(is_cursor).collect::<Option<_>>()?;
        let is_enough = seen.len() >= MIN_CURSORS.min(sizes.len());
        (agree && step > 0 && is_enough).then_some((start, lists))
    }

    /// The same by one cursor and the size of its slots, a number of 16 bits somewhere in front of it: the sizes of other heaps are at equal
    /// distances. `None` if more than one distance is possible.
    fn found_by_sizes(
        &self,
        memory: &dyn Memory,
        pages: &Pages,
        sizes: &[u64],
    ) -> Option<(Address, Vec<List>)> {
        let (&at, &size) = self.seen.first_key_value()?;
        let words = read_words(memory, self.start, self.bytes);
        let index = (at - self.start) as usize / 8;
        let with_step = |step: usize| {
            let befores = 1..=index.min(step - 1);
            befores.filter_map(move |before| Some((before, step, index.checked_sub(before)?)))
        };
        let steps = 2..=(MAX_HEAP_BYTES / 8) as usize;
        let mut found: Vec<(Address, Vec<List>)> = steps
            .flat_map(with_step)
            .filter_map(|(before, step, index)| {
                let at_sizes = sizes_around(&words, index, step, size)?;
                let cursor = |size: &u64| {
                    let place = self.start.offset((*at_sizes.get(size)? + before) as u64 * 8);
                    let words = read_words(memory, place, WORDS * 8);
                    is_cursor_of(memory, pages, &words, *size).then_some((place, *size))
                };
                let cursors: Vec<(Address, u64)> =
                    sizes.iter().map(cursor).collect::<Option<_>>()?;
                let first = cursors.first()?.0;
                let list = |&(at, slot_bytes): &(Address, u64)| List { at: at - first, slot_bytes };
                Some((first, cursors.iter().map(list).collect()))
            })
            .collect();
        found.dedup();
        let only = found.pop().filter(|_| found.is_empty());
        only.filter(|_| sizes.len() >= MIN_SIZES)
    }
}

/// The indices of the sizes of slots, ascending numbers of 16 bits in every so many words. One of them has this index and size.
fn sizes_around(
    words: &[u64],
    index: usize,
    step: usize,
    size: u64,
) -> Option<BTreeMap<u64, usize>> {
    let size_at = |index: usize| Some(u64::from(*words.get(index)? as u16)).filter(|it| *it > 0);
    (size_at(index)? == size).then_some(())?;
    let mut found = BTreeMap::from([(size, index)]);
    let mut last = (size, index);
    while let Some(above) = size_at(last.1 + step).filter(|&it| it > last.0) {
        last = (above, last.1 + step);
        found.insert(last.0, last.1);
    }
    last = (size, index);
    while let Some(below) = last.1.checked_sub(step).and_then(size_at).filter(|&it| it < last.0) {
        last = (below, last.1 - step);
        found.insert(last.0, last.1);
    }
    Some(found)
}

/// Returns true if these words are the cursor of slots of this size, which may have no page, or one that is newer than the capture.
fn is_cursor_of(memory: &dyn Memory, pages: &Pages, words: &[u64], size: u64) -> bool {
    let &[next, end, _, descriptor] = words else { return false };
    match end.checked_sub(8) {
        None => next == 0,
        Some(last) if pages.of(last).is_some() => slot_bytes(pages, words) == Some(size),
        Some(last) => memory.read_u64(Address(last).align_down(pages.bytes)) == Ok(descriptor),
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
            let from = at.0.checked_sub(SPACE).map(|it| it as usize);
            let found = from.and_then(|from| bytes.get(from..from + into.len()));
            found.map_or(0, |bytes| {
                into.copy_from_slice(bytes);
                bytes.len()
            })
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

    fn found(words: &[u64], pages: &Pages, sizes: &[u64]) -> Option<(Address, Vec<List>)> {
        let mut search =
            CursorSearch { start: Address(SPACE), bytes: words.len() * 8, seen: BTreeMap::new() };
        let memory = Words(words.to_vec());
        search.look(&memory, pages);
        search.found(&memory, pages, sizes)
    }

    /// The cursor of a page from the slot with this number to that one.
    fn cursor(page: u64, slot_bytes: u64, next: u64, end: u64) -> [u64; WORDS] {
        let at = |slot: u64| (page << 16) + (slot + 1) * slot_bytes;
        [at(next), at(end), at(end + 3), page]
    }

    #[test]
    fn cursors_are_found_by_the_pages_that_they_point_into() {
        let pages = pages(&[32, 64, 128, 512]);
        let used_up = [0x2_0000, 0x2_0000, 0, 1];
        let heap = |slot_bytes: u64, cursor: [u64; WORDS]| [&[7, slot_bytes], &cursor[..]].concat();
        // After a collection that of 96 bytes has no page, and that of 256 bytes one that is newer than the capture.
        let words = [
            heap(32, used_up),
            heap(64, cursor(2, 64, 5, 9)),
            heap(96, [0; WORDS]),
            heap(128, cursor(3, 128, 0, 1)),
        ];
        let sizes = [32, 64, 96, 128];
        let (first, lists) = found(&words.concat(), &pages, &sizes).unwrap();
        let list = |(number, slot_bytes): (u64, u64)| List { at: number * 48, slot_bytes };
        assert_eq!(first, Address(SPACE + 16));
        assert_eq!(lists, (0..).zip(sizes).map(list).collect::<Vec<_>>());
        // "744 seen and 1 kept": without the places of other sizes only garbage was seen.
        assert_eq!(found(&words[..2].concat(), &pages, &sizes), None);
        assert_eq!(found(&words.concat(), &pages, &[32, 64, 128, 512]), None, "not all were seen");
        let all = found(&words.concat(), &pages, &[32, 64, 128]).unwrap();
        let offsets: Vec<u64> = all.1.iter().map(|list| list.at).collect();
        assert_eq!(offsets, [0, 48, 144], "a size without pages lies between");
        let mut other = words.clone();
        other[2][3] = 0x2_0040;
        assert_eq!(found(&other.concat(), &pages, &sizes), None, "of another size");
    }

    /// "Its lists of free slots were not found", of a program that takes slots of one size only: others have a cursor when they are taken.
    #[test]
    fn one_cursor_is_enough_if_the_sizes_of_slots_are_in_front_of_all() {
        let pages = pages(&[32, 64, 128, 512]);
        // Memory that was not cleared may be above the 16 bits.
        let heap = |slot_bytes: u64, cursor: [u64; WORDS]| {
            [&[7, slot_bytes | 0x5_0000, 0, 9, 0], &cursor[..], &[3]].concat()
        };
        let words = [
            heap(32, [0; WORDS]),
            heap(64, cursor(2, 64, 5, 9)),
            heap(96, [0; WORDS]),
            heap(128, [0; WORDS]),
            heap(512, [0; WORDS]),
        ];
        let sizes = [32, 64, 128, 512];
        let (first, lists) = found(&words.concat(), &pages, &sizes).unwrap();
        let offsets: Vec<u64> = lists.iter().map(|list| list.at).collect();
        assert_eq!((first, &offsets[..]), (Address(SPACE + 40), &[0, 80, 240, 320][..]));
        // The place of a cursor has other words.
        let mut other = words.clone();
        other[3][5] = 8;
        assert_eq!(found(&other.concat(), &pages, &sizes), None);
        // Sizes do not ascend, one is missing, and there are too few.
        let mut other = words.clone();
        other[2][1] = 60;
        assert_eq!(found(&other.concat(), &pages, &sizes), None);
        assert_eq!(found(&words.concat(), &pages, &[32, 64, 128, 640]), None);
        assert_eq!(found(&words[..2].concat(), &pages, &[32, 64]), None);
        // Words of a hostile process.
        assert_eq!(found(&vec![u64::MAX; 4096], &pages, &sizes), None);
        assert_eq!(found(&vec![64; 4096], &pages, &sizes), None);
    }

    #[test]
    fn words_that_are_no_cursors_are_not_believed() {
        let pages = pages(&[32, 64, 128]);
        let [small, large] = [cursor(1, 32, 1, 4), cursor(2, 64, 1, 4)];
        let found = |words: &[u64]| found(words, &pages, &[32, 64]);
        assert!(found(&[small, large].concat()).is_some());
        // One alone, and sizes that fall.
        assert_eq!(found(&small), None);
        assert_eq!(found(&[large, small].concat()), None);
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
            assert_eq!(found(&[small, wrong].concat()), None, "{wrong:x?}");
        }
    }
}
