//! Booking spans against resident pages: the place where the books balance.

use std::iter::Peekable;
use std::ops::Range;

use capture::{Address, Backing, Mapping, PageState, Pages, ProcessState, intersection, length};

use crate::{Cause, Causes, span::Span};

/// Resident bytes by cause, of the whole process and of each arena.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) causes: Causes,
    pub(crate) arenas: Vec<Causes>,
}

/// Books every resident byte of every mapping for exactly one cause: that of the span that it
/// lies in, or that of its mapping.
///
/// `spans` must be ascending and disjoint; the parts of them that are not resident do not count.
/// `libraries` are the ranges of ELF modules, ascending.
pub(crate) fn book(
    state: &ProcessState,
    pages: &Pages,
    libraries: &[Range<Address>],
    spans: impl Iterator<Item = Span>,
    arenas: usize,
) -> Books {
    let mut books = Books { causes: Causes::default(), arenas: vec![Causes::default(); arenas] };
    let mut spans = spans.peekable();
    for mapping in &state.mappings {
        for run in pages.runs_in(&mapping.range).filter(|run| run.state.is_resident()) {
            let range = intersection(&run.range, &mapping.range);
            let unclaimed = unclaimed(mapping, run.state, libraries);
            books.book_run(&range, unclaimed, &mut spans);
        }
    }
    books
}

/// Books like [`book`] where the states of pages are not known, but the kernel's count of residents
/// is: each mapping's residents are shared out among its claims by their sizes. Exact for a mapping
/// that is resident as a whole, or not at all; an estimate for the others.
pub(crate) fn book_estimated(
    state: &ProcessState,
    libraries: &[Range<Address>],
    spans: impl Iterator<Item = Span>,
    arenas: usize,
) -> Books {
    let new = || Books { causes: Causes::default(), arenas: vec![Causes::default(); arenas] };
    let mut books = new();
    let mut spans = spans.peekable();
    for mapping in &state.mappings {
        let resident = mapping.kernel_rss_bytes.unwrap_or(0);
        let state = if mapping.writable && !mapping.shared {
            PageState::Anonymous
        } else {
            PageState::File
        };
        let mut whole = new();
        whole.book_run(&mapping.range, unclaimed(mapping, state, libraries), &mut spans);
        let shared_out = whole.causes.share_out(resident);
        books.causes.add(&shared_out);
        for (arena, claims) in books.arenas.iter_mut().zip(&whole.arenas) {
            let span = u128::from(length(&mapping.range)).max(1);
            let bytes = u128::from(claims.total()) * u128::from(resident) / span;
            arena.add(&claims.share_out(bytes as u64));
        }
    }
    books
}

impl Books {
    /// Books resident bytes of one mapping; `unclaimed` is the cause of those in no span.
    fn book_run(
        &mut self,
        range: &Range<Address>,
        unclaimed: Cause,
        spans: &mut Peekable<impl Iterator<Item = Span>>,
    ) {
        let mut at = range.start;
        while at < range.end {
            while spans.next_if(|span| span.range.end <= at).is_some() {}
            let Some(span) = spans.peek().filter(|span| span.range.start < range.end) else {
                self.causes[unclaimed] += range.end - at;
                return;
            };
            if at < span.range.start {
                self.causes[unclaimed] += span.range.start - at;
                at = span.range.start;
            }
            let end = span.range.end.min(range.end);
            self.causes[span.cause] += end - at;
            if let Some(arena) = span.arena.and_then(|arena| self.arenas.get_mut(arena as usize)) {
                arena[span.cause] += end - at;
            }
            at = end;
        }
    }
}

/// The cause of a mapping's resident bytes that nothing claims.
fn unclaimed(mapping: &Mapping, state: PageState, libraries: &[Range<Address>]) -> Cause {
    match (&mapping.backing, state) {
        (Backing::File(_) | Backing::Kernel(_), PageState::File) => Cause::FileShared,
        (Backing::File(_), _) => Cause::FilePrivate,
        (Backing::Kernel(_), _) => Cause::FileShared,
        (Backing::Stack, _) => Cause::StackThreads,
        // Variables that a library starts with zeros (.bss) are anonymous pages behind its data.
        (Backing::Anonymous, _) if lies_in(mapping, libraries) => Cause::FilePrivate,
        (Backing::Anonymous, PageState::File) => Cause::FileShared,
        (Backing::Anonymous | Backing::Heap, _) => Cause::Unknown,
    }
}

fn lies_in(mapping: &Mapping, libraries: &[Range<Address>]) -> bool {
    let after = libraries.partition_point(|library| library.start <= mapping.range.start);
    let library = after.checked_sub(1).and_then(|index| libraries.get(index));
    library.is_some_and(|library| mapping.range.start < library.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use capture::{Mappings, PageRun};
    use proptest::prelude::*;

    const PAGE: u64 = capture::PAGE_SIZE;

    /// Mappings and pages of all kinds, resident or not, out of a list of page kinds.
    fn process(kinds: &[u8]) -> (ProcessState, Pages) {
        let page = |index: usize| Address(index as u64 * PAGE)..Address((index as u64 + 1) * PAGE);
        let mut mappings = Vec::new();
        let mut runs = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            let mut mapping = Mapping::anonymous(page(index));
            match kind % 5 {
                0 => continue,
                1 => mapping.backing = Backing::File("/lib/libfoo.so".into()),
                2 => mapping.backing = Backing::Stack,
                3 => mapping.backing = Backing::Heap,
                _ => {}
            }
            mappings.push(mapping);
            let state = match kind / 5 % 4 {
                0 => continue,
                1 => PageState::File,
                2 => PageState::Swapped,
                _ => PageState::Anonymous,
            };
            runs.push(PageRun { range: page(index), state, huge: false });
        }
        let state = ProcessState { mappings: Mappings::new(mappings), ..ProcessState::default() };
        (state, Pages::new(runs))
    }

    proptest! {
        #[test]
        fn the_books_balance_whatever_claims_there_are(
            kinds in prop::collection::vec(0_u8..20, 1..40),
            cuts in prop::collection::vec((0_u64..9000, 1_u64..9000, 0..16_usize), 0..40),
        ) {
            let (state, pages) = process(&kinds);
            let mut at = 0;
            let spans: Vec<_> = cuts.iter().map(|(gap, length, cause)| {
                let start = at + gap;
                at = start + length;
                Span {
                    range: Address(start)..Address(at),
                    cause: Cause::ALL[*cause],
                    arena: Some(*cause as u32 % 3),
                }
            }).collect();
            let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
            let claimed: u64 = spans.iter().map(|span| pages.resident_bytes(&span.range)).sum();

            let books = book(&state, &pages, &[], spans.into_iter(), 3);
            prop_assert_eq!(books.causes.total(), resident);
            let by_arena: u64 = books.arenas.iter().map(Causes::total).sum();
            prop_assert_eq!(by_arena, claimed);
        }

        #[test]
        fn the_books_balance_without_page_states_too(
            kinds in prop::collection::vec(0_u8..20, 1..40),
            cuts in prop::collection::vec((0_u64..9000, 1_u64..9000, 0..16_usize), 0..40),
            residents in prop::collection::vec(0_u64..=PAGE, 40),
        ) {
            let (mut state, _) = process(&kinds);
            let counted: Vec<_> = state.mappings.iter().zip(residents).map(|(mapping, bytes)| {
                Mapping { kernel_rss_bytes: Some(bytes), ..mapping.clone() }
            }).collect();
            state.mappings = Mappings::new(counted);
            let mut at = 0;
            let spans: Vec<_> = cuts.iter().map(|(gap, length, cause)| {
                let start = at + gap;
                at = start + length;
                Span::new(Address(start)..Address(at), Cause::ALL[*cause])
            }).collect();

            let books = book_estimated(&state, &[], spans.into_iter(), 3);
            prop_assert_eq!(Some(books.causes.total()), state.mappings.kernel_rss_bytes());
        }
    }

    #[test]
    fn what_nothing_claims_goes_by_its_mapping() {
        let mut library = Mapping::anonymous(Address(PAGE)..Address(2 * PAGE));
        library.backing = Backing::File("/lib/libfoo.so".into());
        let bss = Mapping::anonymous(Address(2 * PAGE)..Address(3 * PAGE));
        let other = Mapping::anonymous(Address(8 * PAGE)..Address(9 * PAGE));
        let libraries = [Address(PAGE)..Address(3 * PAGE)];
        let of = |mapping, state| unclaimed(mapping, state, &libraries);
        assert_eq!(of(&library, PageState::File), Cause::FileShared);
        assert_eq!(of(&library, PageState::Anonymous), Cause::FilePrivate);
        assert_eq!(of(&bss, PageState::Anonymous), Cause::FilePrivate);
        assert_eq!(of(&other, PageState::Anonymous), Cause::Unknown);
    }
}
