//! Books spans against resident pages. The books balance by construction, since this walks the pages, not the
//! claims.

use std::ops::Range;
use std::path::Path;

use linux::{Address, Backing, Mapping, PageState, Pages, intersection};

use crate::claims::Span;
use crate::files::Files;
use crate::unknown::Unknown;
use crate::{Cause, Causes};

/// Resident bytes by cause: of the whole process, of each arena, of files, and of each part of the interpreter's
/// memory. Parts are numbered from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Booking {
    pub(crate) causes: Causes,
    pub(crate) arenas: Vec<Causes>,
    pub(crate) files: Files,
    pub(crate) unknown: Unknown,
    pub(crate) parts: Vec<u64>,
}

/// Books every resident byte of `mappings` that lies `within` a range under exactly one cause: the cause of its span, or of
/// its mapping. The ends of that range may divide mappings, but none of a file or that begins in a library.
///
/// `spans` must be ascending and disjoint; their parts that are not resident do not count. `libraries` are the ranges
/// of ELF modules, ascending.
pub(crate) fn book(
    mappings: &[Mapping],
    within: &Range<Address>,
    pages: &Pages,
    libraries: &[Range<Address>],
    spans: impl Iterator<Item = Span>,
    arenas: usize,
    parts: usize,
) -> Booking {
    let mut booking = Booking {
        arenas: vec![Causes::default(); arenas],
        parts: vec![0; parts],
        ..Booking::default()
    };
    let mut spans = Ahead { current: None, rest: spans };
    let mut library: Option<&Path> = None;
    for mapping in mappings {
        let own = intersection(&mapping.range, within);
        if own.is_empty() {
            continue;
        }
        library = mapping.file().or(library.filter(|_| lies_in(mapping, libraries)));
        if within.contains(&mapping.range.start) {
            booking.files.map(mapping);
        }
        for run in pages.runs_in(&own).filter(|run| run.state.is_resident()) {
            let range = intersection(&run.range, &own);
            let unclaimed = unclaimed(mapping, run.state, libraries);
            let before = booking.causes[unclaimed];
            booking.book_run(&range, unclaimed, &mut spans);
            let bytes = booking.causes[unclaimed] - before;
            if unclaimed == Cause::Unknown {
                booking.unknown.book(mapping, bytes, run.huge);
            } else if let Some(path) = library {
                booking.files.book(path, mapping, &range, unclaimed, bytes);
            }
        }
    }
    // Whether spans clash does not depend on pages.
    spans.rest.for_each(drop);
    booking
}

impl Booking {
    /// Adds the booking of another portion of the same process.
    pub(crate) fn add(&mut self, more: Self) {
        self.causes.add(&more.causes);
        self.arenas.iter_mut().zip(&more.arenas).for_each(|(arena, more)| arena.add(more));
        self.parts.iter_mut().zip(&more.parts).for_each(|(part, more)| *part += more);
        self.files.add(more.files);
        self.unknown.add(&more.unknown);
    }

    /// Books resident bytes of one mapping; `unclaimed` is the cause of the bytes in no span.
    fn book_run(
        &mut self,
        range: &Range<Address>,
        unclaimed: Cause,
        spans: &mut Ahead<impl Iterator<Item = Span>>,
    ) {
        let mut at = range.start;
        while at < range.end {
            let Some(span) = spans.behind(at).filter(|span| span.range.start < range.end) else {
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
            if let Some(part) = span.part.and_then(|it| self.parts.get_mut(it.get() as usize - 1)) {
                *part += end - at;
            }
            at = end;
        }
    }
}

/// Spans that are looked up in ascending order.
struct Ahead<S> {
    current: Option<Span>,
    rest: S,
}

impl<S: Iterator<Item = Span>> Ahead<S> {
    /// The first span that ends behind `at`.
    fn behind(&mut self, at: Address) -> Option<&Span> {
        if self.current.as_ref().is_none_or(|span| span.range.end <= at) {
            self.current = self.rest.find(|span| at < span.range.end);
        }
        self.current.as_ref()
    }
}

/// The cause of a mapping's resident bytes that no span claims.
fn unclaimed(mapping: &Mapping, state: PageState, libraries: &[Range<Address>]) -> Cause {
    match (&mapping.backing, state) {
        (Backing::File(_), PageState::File) if mapping.is_in_memory => Cause::FileShmem,
        (Backing::File(_) | Backing::Kernel(_), PageState::File) => Cause::FileShared,
        (Backing::File(_), _) => Cause::FilePrivate,
        (Backing::Kernel(_), _) => Cause::FileShared,
        (Backing::Stack, _) => Cause::StackThreads,
        // The zero-initialised variables of a library (.bss) are anonymous pages behind its data.
        (Backing::Anonymous, _) if lies_in(mapping, libraries) => Cause::FilePrivate,
        (Backing::Anonymous, PageState::File) => Cause::FileShared,
        (Backing::Anonymous | Backing::Heap, _) => Cause::Unknown,
    }
}

/// Returns true if a mapping begins in one of these libraries, which are ascending.
pub(super) fn lies_in(mapping: &Mapping, libraries: &[Range<Address>]) -> bool {
    let after = libraries.partition_point(|library| library.start <= mapping.range.start);
    let library = after.checked_sub(1).and_then(|index| libraries.get(index));
    library.is_some_and(|library| mapping.range.start < library.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ProcessState;
    use linux::{Mappings, PageRun};
    use proptest::prelude::*;

    const PAGE: u64 = linux::MIN_PAGE_SIZE;

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
            claims in prop::collection::vec((0_u64..9000, 1_u64..9000, 0..16_usize), 0..40),
            cut in 0_u64..40 * PAGE,
        ) {
            let (state, pages) = process(&kinds);
            let mut at = 0;
            let spans: Vec<_> = claims.iter().map(|(gap, length, cause)| {
                let start = at + gap;
                at = start + length;
                Span {
                    range: Address(start)..Address(at),
                    cause: Cause::ALL[*cause],
                    arena: Some(*cause as u32 % 3),
                    part: std::num::NonZero::new(1 + *cause as u32 % 5),
                }
            }).collect();
            let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
            let claimed: u64 = spans.iter().map(|span| pages.resident_bytes(&span.range)).sum();

            let mappings = state.mappings.iter().as_slice();
            let book = |within: Range<Address>| {
                book(mappings, &within, &pages, &[], spans.clone().into_iter(), 3, 5)
            };
            let booking = book(Address(0)..Address(u64::MAX));
            let mapping = state.mappings.find(Address(cut)).filter(|it| it.file().is_some());
            let cut = mapping.map_or(Address(cut), |mapping| mapping.range.start);
            let mut portions = book(Address(0)..cut);
            portions.add(book(cut..Address(u64::MAX)));
            prop_assert_eq!(&portions, &booking);
            prop_assert_eq!(booking.causes.total(), resident);
            let by_arena: u64 = booking.arenas.iter().map(Causes::total).sum();
            prop_assert_eq!(by_arena, claimed);
            let files = booking.files.accounts();
            let by_file: u64 = files.iter().map(|file| file.resident_bytes()).sum();
            prop_assert!(by_file <= resident);
            prop_assert_eq!(booking.parts.iter().sum::<u64>(), claimed);
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
