//! The pool of heap pages from 4.1 on: Ruby maps many at a time, and keeps those that it freed.

use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::is_private;
use crate::interpreter::Interpreter;
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
/// Words that lead to no arena are tried, too.
const SPARE_ARENAS: u64 = 1 << 16;

/// The pool of heap pages.
#[derive(Debug, Default)]
pub(crate) struct PagePool {
    /// The memory of pages that no object space has, ascending.
    pub(crate) free: Vec<Range<Address>>,
    /// The array of all pages of all object spaces, and their number.
    pub(crate) index: Option<(Address, u64)>,
}

impl PagePool {
    /// The pool to which all of these pages belong, ascending; an empty one if the release has none, or it was not found.
    pub(crate) fn find(image: &Image<'_>, interpreter: &Interpreter, pages: &[HeapPage]) -> Self {
        if !interpreter.has_page_pool() {
            return Self::default();
        }
        let is_memory = |at: Address| {
            at.is_aligned(8)
                && image.state.mappings.find(at).is_some_and(|it| it.is_private_anonymous())
        };
        let structures =
            interpreter.variable_words(image).map(|it| Address(it.1)).filter(|at| is_memory(*at));
        // No list may make the search endless, nor may many.
        let private = image.state.mappings.iter().filter(|it| is_private(it));
        let bytes: u64 = private.map(|it| linux::length(&it.range)).sum();
        let mut budget = bytes / PAGE_BYTES + SPARE_ARENAS;
        let mut found = structures
            .into_iter()
            .map_while(|at| (budget > 0).then(|| Self::at(image, at, pages, &mut budget)));
        found.find_map(|it| it).unwrap_or_default()
    }

    /// The pool in the structure at this address, if all of the pages lie in its arenas, and it has no others.
    fn at(image: &Image<'_>, at: Address, pages: &[HeapPage], budget: &mut u64) -> Option<Self> {
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
            (is_index && image.read_u64(Address(at)).is_ok()).then_some((Address(at), count))
        })?;
        Some(Self { free, index: Some(index) })
    }
}

/// The pages of all arenas of a list, ascending; without those that were never in use, if they lie at the end of an arena.
fn arenas(
    image: &Image<'_>,
    first: Address,
    new: Range<u64>,
    budget: &mut u64,
) -> Option<Vec<Range<Address>>> {
    let mut found = Vec::new();
    let mut next = first;
    while next.0 != 0 {
        *budget = budget.checked_sub(1)?;
        let mut bytes = [0; ARENA_BYTES];
        image.read_exact(next, &mut bytes).ok()?;
        let mut words = words(&bytes);
        let [behind, start, size] = [words.next()?, words.next()?, words.next()?];
        let end = start.checked_add(size)?;
        let is_mapped = |at: u64| image.state.mappings.find(Address(at)).is_some_and(is_private);
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
    use super::*;

    fn page(start: u64) -> HeapPage {
        let range = Address(start)..Address(start + PAGE_BYTES);
        HeapPage { first_slot: range.start, range, slot_bytes: 0, slots: 0..0 }
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
