//! The pool of heap pages from 4.1 on: Ruby maps many at a time, and keeps those that it freed.

use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::is_private;
use crate::interpreter::Interpreter;
use crate::layout::heap_layout::HeapLayout;
use crate::model::heap_page::HeapPage;
use crate::word::words;

/// `HEAP_PAGE_SIZE`.
const PAGE_BYTES: u64 = 64 << 10;
/// More bytes than the part of an `rb_global_objspace` up to its index of pages has (gc/default/default.c).
const STRUCTURE_BYTES: usize = 512;
/// `struct page_arena`: the next one, the beginning and the size of its pages.
const ARENA_BYTES: usize = 24;
/// `PAGE_POOL_ARENA_SIZE` is 2 MiB.
const MAX_ARENA_BYTES: u64 = 64 << 20;
/// The part of an object space that has its lists of pages, at most.
pub(crate) const MAX_LISTS_BYTES: u64 = 4 << 10;
/// `false` and `nil`.
const FALSE: [u64; 2] = [0, 4];
/// Words that lead to no arena are tried, too.
const SPARE_ARENAS: u64 = 1 << 16;

/// The pool of heap pages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PagePool {
    /// The memory of pages that no object space has, ascending.
    pub(crate) free: Vec<Range<Address>>,
    /// The array of all pages of all object spaces.
    pub(crate) index: Address,
    /// True after `GC.stress = true`, which holds for all of them; `None` if it was not found.
    pub(crate) is_stressed: Option<bool>,
}

impl PagePool {
    /// The pool to which all pages, ascending, belong; `None` if the release has none, or it was not found.
    pub(crate) fn find(
        image: &Image<'_>,
        interpreter: &Interpreter,
        heap: &HeapLayout,
    ) -> Option<Self> {
        if !interpreter.has_page_pool() {
            return None;
        }
        let mappings = &image.state.mappings;
        let private = mappings.iter().filter(|it| is_private(it));
        let bytes: u64 = private.map(|it| linux::length(&it.range)).sum();
        let mut budget = bytes / PAGE_BYTES + SPARE_ARENAS;
        let main = heap.spaces.first().map(|space| space.list_head);
        let structures = interpreter.variable_words(image).map(|it| Address(it.1));
        structures
            .filter(|at| at.is_aligned(8) && mappings.find(*at).is_some_and(is_private))
            .find_map(|at| Self::at(image, at, &heap.pages, main, &mut budget))
    }

    /// The pool in the structure at this address, if all of the pages lie in its arenas, and it has no others. Each arena that is tried is
    /// taken from `budget`: a list may be a circle, and many words may lead to one.
    fn at(
        image: &Image<'_>,
        at: Address,
        pages: &[HeapPage],
        main: Option<Address>,
        budget: &mut u64,
    ) -> Option<Self> {
        let mut bytes = [0; STRUCTURE_BYTES];
        let read = image.read(at, &mut bytes);
        let words: Vec<u64> = words(&bytes[..read]).collect();
        // `arenas`, `arena_cursor`, `arena_end`, and `arena_current`, which is the newest one unless that is gone.
        let arenas = words.windows(4).find_map(|it| {
            let [first, cursor, end, current] = it.try_into().ok()?;
            let is_end = cursor <= end && end.is_multiple_of(PAGE_BYTES) && end - cursor < 1 << 32;
            let is_cursor = cursor.is_multiple_of(PAGE_BYTES) && (current == 0 || cursor != 0);
            (first != 0 && is_end && is_cursor)
                .then(|| arenas(image, Address(first), cursor..end, budget))
                .flatten()
        })?;
        let free = without(&arenas, pages)?;
        let index = words.windows(3).find_map(|it| {
            let [at, count, room] = it.try_into().ok()?;
            let is_index = count == pages.len() as u64 && room >= count && at != 0;
            (is_index && image.read_u64(Address(at)).is_ok()).then_some(Address(at))
        })?;
        let is_stressed = main.and_then(|main| stress(&words, main));
        Some(Self { free, index, is_stressed })
    }
}

/// `gc_stressful` and `gc_stress_mode` follow the pointer to the main object space, which has a list of pages at `list`. The second one is
/// what the program assigned, so both must agree.
fn stress(words: &[u64], list: Address) -> Option<bool> {
    words.windows(3).find_map(|it| {
        let [space, is_stressed, mode] = it.try_into().ok()?;
        let is_space = space.is_multiple_of(8)
            && list.0.checked_sub(space).is_some_and(|bytes| bytes < MAX_LISTS_BYTES);
        let is_true = !FALSE.contains(&mode);
        (is_space && is_stressed == u64::from(is_true)).then_some(is_true)
    })
}

/// The pages of all arenas of a list, ascending; without those that were never in use, if they lie at the end of an arena.
fn arenas(
    image: &Image<'_>,
    first: Address,
    new: Range<u64>,
    budget: &mut u64,
) -> Option<Vec<Range<Address>>> {
    let is_mapped = |at: u64| image.state.mappings.find(Address(at)).is_some_and(is_private);
    let mut found = Vec::new();
    let mut next = first;
    while next.0 != 0 {
        *budget = budget.checked_sub(1)?;
        let mut bytes = [0; ARENA_BYTES];
        image.read_exact(next, &mut bytes).ok()?;
        let mut words = words(&bytes);
        let [behind, start, size] = [words.next()?, words.next()?, words.next()?];
        let end = start.checked_add(size)?;
        let is_arena = start.is_multiple_of(PAGE_BYTES)
            && size.is_multiple_of(PAGE_BYTES)
            && (PAGE_BYTES..=MAX_ARENA_BYTES).contains(&size)
            && is_mapped(start)
            && is_mapped(end - 1);
        if !is_arena {
            return None;
        }
        let end = if end == new.end && new.start >= start { new.start } else { end };
        found.push(Address(start)..Address(end));
        next = Address(behind);
    }
    found.sort_by_key(|range| range.start);
    let are_apart = found.windows(2).all(|pair| pair[0].end <= pair[1].start);
    (are_apart && !found.is_empty()).then_some(found)
}

/// The parts of these arenas that no page has; `None` if a page does not lie in one.
fn without(arenas: &[Range<Address>], pages: &[HeapPage]) -> Option<Vec<Range<Address>>> {
    let mut free = Vec::new();
    let mut pages = pages.iter().map(|page| &page.range).peekable();
    for arena in arenas {
        let mut at = arena.start;
        while let Some(page) = pages.next_if(|page| page.start < arena.end) {
            if page.start < at {
                return None;
            }
            if at < page.start {
                free.push(at..page.start);
            }
            at = page.end;
        }
        if at < arena.end {
            free.push(at..arena.end);
        }
    }
    pages.next().is_none().then_some(free)
}

#[cfg(test)]
mod tests {
    use testkit::SyntheticMemory;

    use super::*;

    /// The image of a process with an arena of four pages, and the address of its pool. The arena's list goes on at `behind`.
    fn with_pool(behind: impl Fn(u64) -> u64) -> (Image<'static>, Address) {
        const POOL: u64 = 0x5555_0000_0000;
        const ARENA: u64 = POOL + 0x400;
        const START: u64 = 0x7f00_0000_0000;
        let mut memory = SyntheticMemory::default();
        memory.map(POOL, 0x1000);
        memory.map(START, 4 * PAGE_BYTES);
        let end = START + 4 * PAGE_BYTES;
        // The list, the first page that was never in use, the end of the arena, and the arena; then the index.
        let pool = [ARENA, end - PAGE_BYTES, end, ARENA, 0, POOL + 0x800, 1, 8];
        let arena = [behind(ARENA), START, 4 * PAGE_BYTES];
        for (at, words) in [(POOL + 0x10, &pool[..]), (ARENA, &arena)] {
            (0..).zip(words).for_each(|(index, word)| memory.write_u64(at + 8 * index, *word));
        }
        (memory.image(), Address(POOL))
    }

    #[test]
    fn a_pool_has_the_pages_of_all_spaces_and_no_others() {
        let (image, pool) = with_pool(|_| 0);
        let start = 0x7f00_0000_0000;
        let own = page(start + PAGE_BYTES);
        let read = |pages: &[HeapPage]| PagePool::at(&image, pool, pages, None, &mut 100);
        let free = [start..start + PAGE_BYTES, start + 2 * PAGE_BYTES..start + 3 * PAGE_BYTES];
        let free = free.map(|it| Address(it.start)..Address(it.end)).to_vec();
        assert_eq!(
            read(std::slice::from_ref(&own)),
            Some(PagePool { free, index: Address(pool.0 + 0x800), is_stressed: None })
        );
        // The index has one page.
        assert_eq!(read(&[own, page(start + 2 * PAGE_BYTES)]), None);
    }

    #[test]
    fn stress_is_known_if_both_words_agree() {
        let list = Address(0x5_0178);
        let stress = |is_stressed, mode| stress(&[7, 0x5_0000, is_stressed, mode, 0], list);
        // `true`, a number of modes, `false` and `nil`.
        assert_eq!([stress(1, 0x14), stress(1, 3)], [Some(true); 2]);
        assert_eq!([stress(0, 0), stress(0, 4)], [Some(false); 2]);
        assert_eq!([stress(1, 0), stress(0, 0x14), stress(2, 3)], [None; 3]);
        assert_eq!(super::stress(&[0x4_0000, 1, 0x14], list), None);
    }

    #[test]
    fn arenas_in_a_circle_end_with_the_budget() {
        let (image, pool) = with_pool(|own| own);
        let mut budget = 1000;
        assert_eq!(PagePool::at(&image, pool, &[], None, &mut budget), None);
        assert_eq!(budget, 0);
    }

    fn page(start: u64) -> HeapPage {
        let range = Address(start)..Address(start + PAGE_BYTES);
        HeapPage { first_slot: range.start, range, slot_bytes: 0, slots: 0..0, space: 0 }
    }

    #[test]
    fn what_no_page_has_is_free_if_all_pages_lie_in_arenas() {
        let arena = |start: u64, pages: u64| {
            Address(start * PAGE_BYTES)..Address((start + pages) * PAGE_BYTES)
        };
        let pages =
            |numbers: &[u64]| numbers.iter().map(|it| page(it * PAGE_BYTES)).collect::<Vec<_>>();
        let arenas = [arena(4, 4), arena(16, 4)];
        assert_eq!(
            without(&arenas, &pages(&[5, 6, 16])),
            Some(vec![arena(4, 1), arena(7, 1), arena(17, 3)])
        );
        assert_eq!(without(&arenas, &pages(&[])), Some(arenas.to_vec()));
        for outside in [&[3, 5][..], &[5, 9], &[20], &[5, 5]] {
            assert_eq!(without(&arenas, &pages(outside)), None, "{outside:?}");
        }
    }
}
