//! The booking of all claims of a process, portion by portion.

use std::ops::Range;

use allocator::{Extent, HeapMap};
use image::ProcessState;
use linux::{Address, Pages, each, intersection};
use ruby::{HeapPage, ObjectSpace};

use crate::claims::{Booking, Overlay, Span, book, heap_spans, lies_in, ruby_spans};
use crate::ownership::{Owners, Parts};
use crate::{Cause, Facts, Finding};

/// The maximum number of portions. Threads that take small portions end at about the same time.
const MAX_PORTIONS: usize = 16;
/// The minimum number of blocks of a portion, unless there is only one portion.
const MIN_BLOCKS: usize = 4096;
/// The maximum number of blocks before which a cut is tried.
const MAX_TRIED: usize = 4096;

/// Books every resident byte of `pages`, and reports memory that is claimed twice. With `parts`, the interpreter's memory is
/// also booked by its parts.
pub(crate) fn book_all(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    pages: &Pages,
    parts: Option<&Parts<'_>>,
    findings: &mut Vec<Finding>,
) -> Booking {
    Bookings::of(state, facts, owners, pages, parts).booking(findings)
}

/// The claims on some of a process's resident pages, in portions of its address space that can be booked at the same time.
struct Bookings<'a> {
    state: &'a ProcessState,
    heap: &'a HeapMap,
    objects: &'a ObjectSpace,
    owners: &'a Owners<'a>,
    parts: Option<&'a Parts<'a>>,
    pages: &'a Pages,
    /// The ranges of ELF modules, ascending.
    libraries: Vec<Range<Address>>,
    /// The claims that take precedence: stacks and compiled code.
    carved: Vec<Span>,
    /// Those among them that overlap.
    overlaps: Clashes,
    /// The beginning of each portion, and the end of the last one.
    cuts: Vec<Cut>,
}

/// The beginning of a portion.
#[derive(Debug, Clone, Copy)]
struct Cut {
    at: Address,
    /// The number of its first block.
    block: usize,
}

/// A portion's booking, and the clashes in it.
#[derive(Default)]
struct BookedPortion {
    booking: Booking,
    clashes: Clashes,
    carved_clashes: Clashes,
}

impl BookedPortion {
    /// The sum with the portion that follows.
    fn and(mut self, more: Self) -> Self {
        self.booking.add(more.booking);
        Self {
            booking: self.booking,
            clashes: self.clashes.and(more.clashes),
            carved_clashes: self.carved_clashes.and(more.carved_clashes),
        }
    }
}

impl<'a> Bookings<'a> {
    /// Finds the claims that take precedence, and the portions.
    fn of(
        state: &'a ProcessState,
        facts: &'a Facts,
        owners: &'a Owners<'_>,
        pages: &'a Pages,
        parts: Option<&'a Parts<'_>>,
    ) -> Self {
        let (heap, objects) = (facts.heap(), facts.objects());
        let of = |ranges: &[Range<Address>], cause| {
            ranges.iter().map(|range| Span::new(range.clone(), cause)).collect::<Vec<_>>()
        };
        let mut carved = of(&facts.stacks, Cause::StackThreads);
        carved.extend(of(&objects.fiber_stacks, Cause::StackFibers));
        carved.extend(of(&objects.jit_code, Cause::RubyJit));
        // Small arrays, hashes and structs up to Ruby 3.2.
        carved.extend(of(&objects.transient_free, Cause::RubyTransient));
        let used =
            objects.transient_heap.iter().flat_map(|heap| without(heap, &objects.transient_free));
        carved.extend(used.map(|range| Span::new(range, Cause::RubyMalloc)));
        carved.extend(of(&objects.free_pages, Cause::RubyFreeSlots));
        carved.sort_by_key(|span| span.range.start);
        let mut overlaps = Clashes::default();
        let carved = disjoint(carved, &mut overlaps);
        let libraries: Vec<_> = facts.modules.iter().map(|module| module.range.clone()).collect();
        let cuts = find_cuts(state, heap, &objects.pages, &carved, &libraries);
        Self { state, heap, objects, owners, parts, pages, libraries, carved, overlaps, cuts }
    }

    /// Books all portions, and reports memory that is claimed twice.
    fn booking(self, findings: &mut Vec<Finding>) -> Booking {
        let count = self.cuts.len() - 1;
        let book = |portion| self.book(portion);
        // With owners, the second processor is busy with paths.
        let all = if self.parts.is_some() {
            (0..count).map(book).reduce(BookedPortion::and)
        } else {
            each(count, book).into_iter().reduce(BookedPortion::and)
        };
        let BookedPortion { booking, clashes, carved_clashes } = all.unwrap_or_default();
        findings.extend(clashes.finding());
        findings.extend(self.overlaps.and(carved_clashes).finding());
        booking
    }

    /// Books the portion with this number.
    fn book(&self, portion: usize) -> BookedPortion {
        let (heap, objects, parts) = (self.heap, self.objects, self.parts);
        let (start, end) = (self.cuts[portion], self.cuts[portion + 1]);
        let within = start.at..end.at;
        let extents = overlapping(&heap.extents, &within, |extent| &extent.range);
        let extents: Vec<_> = extents.iter().map(|extent| part_of(extent, start, end)).collect();
        let heap_pages = overlapping(&objects.pages, &within, |page| &page.range);
        let carved = overlapping(&self.carved, &within, |span| &span.range);
        let mappings = self.state.mappings.iter().as_slice();
        let mappings = overlapping(mappings, &within, |mapping| &mapping.range);

        let (mut clashes, mut carved_clashes) = (Clashes::default(), Clashes::default());
        let blocks = heap_spans(heap, &extents, |block| match (self.owners.cause(block), parts) {
            (Cause::RubyVm, Some(parts)) => (Cause::RubyVm, parts.of(block)),
            (cause, _) => (cause, None),
        });
        let slots = ruby_spans(objects, heap_pages);
        let spans = Overlay::new(slots, blocks, |upper, lower| {
            // Up to 2.7 Ruby has its heap pages from malloc.
            if !is_in_use(lower.cause) {
                clashes.note(upper, lower);
            }
        });
        let spans = Overlay::new(carved.iter().cloned(), spans, |upper, lower| {
            // Up to 2.7 Ruby has its transient heap from malloc.
            let is_transient = matches!(upper.cause, Cause::RubyMalloc | Cause::RubyTransient);
            if !is_transient || !is_in_use(lower.cause) {
                carved_clashes.note(upper, lower);
            }
        });
        let (arenas, parts) = (heap.arenas.len(), parts.map_or(0, Parts::count));
        let booking = book(mappings, &within, self.pages, &self.libraries, spans, arenas, parts);
        BookedPortion { booking, clashes, carved_clashes }
    }
}

/// Cuts between portions with about as many blocks each. They may divide extents, but no block, heap page, library, other
/// claim, or mapping of a file.
fn find_cuts(
    state: &ProcessState,
    heap: &HeapMap,
    heap_pages: &[HeapPage],
    carved: &[Span],
    libraries: &[Range<Address>],
) -> Vec<Cut> {
    let is_apart = |at: Address| {
        !cuts(heap_pages, at, |page| &page.range)
            && !cuts(carved, at, |span| &span.range)
            && !cuts(libraries, at, |range| range)
            && state.mappings.find(at).is_some_and(|mapping| {
                // The mapping behind a library's data may also be malloc's.
                mapping.file().is_none() && !lies_in(mapping, libraries)
            })
    };
    let blocks = heap.block_count();
    let count = (blocks / MIN_BLOCKS).clamp(1, MAX_PORTIONS);
    let mut cuts = vec![Cut { at: Address(0), block: 0 }];
    for portion in 1..count {
        let first = blocks / count * portion;
        let mut tried = (first..first + MAX_TRIED).filter_map(|block| cut_before(heap, block));
        cuts.extend(tried.find(|cut| is_apart(cut.at)));
    }
    cuts.push(Cut { at: Address(u64::MAX), block: blocks });
    cuts
}

/// The cut before the block with this number.
fn cut_before(heap: &HeapMap, block: usize) -> Option<Cut> {
    let own = heap.extents.partition_point(|extent| extent.blocks.end <= block);
    let extent = heap.extents.get(own).filter(|extent| extent.blocks.contains(&block))?;
    let at = if extent.blocks.start == block {
        extent.range.start
    } else {
        heap.header.footprint(heap.blocks.get(block)?).start
    };
    extent.range.contains(&at).then_some(Cut { at, block })
}

/// The part of an extent between two cuts.
fn part_of(extent: &Extent, start: Cut, end: Cut) -> Extent {
    let first = extent.blocks.start.max(start.block);
    Extent {
        range: intersection(&extent.range, &(start.at..end.at)),
        blocks: first..extent.blocks.end.min(end.block).max(first),
        ..extent.clone()
    }
}

/// The parts of a range around these, which are ascending and disjoint, and lie in it.
fn without(
    range: &Range<Address>,
    parts: &[Range<Address>],
) -> impl Iterator<Item = Range<Address>> {
    let ends = std::iter::once(range.start).chain(parts.iter().map(|part| part.end));
    let starts = parts.iter().map(|part| part.start).chain([range.end]);
    ends.zip(starts).map(|(end, start)| end..start).filter(|part| part.start < part.end)
}

/// Those of `all`, which are ascending and disjoint, that overlap `within`.
fn overlapping<'a, T>(
    all: &'a [T],
    within: &Range<Address>,
    range_of: impl Fn(&T) -> &Range<Address>,
) -> &'a [T] {
    let first = all.partition_point(|it| range_of(it).end <= within.start);
    let end = all.partition_point(|it| range_of(it).start < within.end);
    &all[first..end.max(first)]
}

/// Returns true if a range of these, which are ascending, begins before `at` and ends behind it.
fn cuts<T>(ranges: &[T], at: Address, range_of: impl Fn(&T) -> &Range<Address>) -> bool {
    let before = ranges.partition_point(|it| range_of(it).start < at);
    before.checked_sub(1).is_some_and(|last| range_of(&ranges[last]).end > at)
}

fn is_in_use(cause: Cause) -> bool {
    use Cause::{
        MallocInUse, NativeGlobal, NativeHeld, NativeUnreachable, RubyJit, RubyMalloc, RubyVm,
    };
    matches!(
        cause,
        MallocInUse | RubyMalloc | RubyVm | RubyJit | NativeHeld | NativeGlobal | NativeUnreachable
    )
}

/// The spans, ascending, without spans that overlap the one before.
fn disjoint(mut spans: Vec<Span>, clashes: &mut Clashes) -> Vec<Span> {
    spans.dedup_by(|next, last| {
        let overlap = next.range.start < last.range.end;
        if overlap {
            clashes.note(last, next);
        }
        overlap
    });
    spans
}

/// Bytes that two parts claim. They are never given to one of them without a finding.
#[derive(Debug, Clone, Default)]
struct Clashes {
    count: u64,
    first: Option<(Span, Span)>,
}

impl Clashes {
    fn note(&mut self, upper: &Span, lower: &Span) {
        self.count += 1;
        self.first.get_or_insert_with(|| (upper.clone(), lower.clone()));
    }

    /// These clashes, and those at higher addresses.
    fn and(self, more: Self) -> Self {
        Self { count: self.count + more.count, first: self.first.or(more.first) }
    }

    fn finding(self) -> Option<Finding> {
        let (upper, lower) = self.first?;
        Some(Finding::ClaimedTwice {
            at: upper.range.start.max(lower.range.start),
            ranges: self.count,
            cause: upper.cause,
            other: lower.cause,
        })
    }
}

#[cfg(test)]
mod tests {

    use allocator::{Block, BlockState, Blocks, Header};
    use linux::{Mapping, Mappings, PageRun, PageState};
    use proptest::prelude::*;

    use super::*;
    use crate::ownership::{Bits, ObjectCode, Trace};

    const PAGE: u64 = linux::MIN_PAGE_SIZE;
    const START: u64 = 1 << 30;
    const STATES: &[BlockState] = &[
        BlockState::InUse,
        BlockState::Free,
        BlockState::Fastbin,
        BlockState::Tcache,
        BlockState::Overhead,
    ];

    /// Chunks of these sizes and states, over and over, in two extents, one of which is not resident everywhere.
    fn heap(kinds: &[(u64, BlockState)]) -> (ProcessState, Pages, HeapMap) {
        let mut heap = HeapMap { header: Header { bytes: 16, lent: 8 }, ..HeapMap::default() };
        let (mut mappings, mut runs) = (Vec::new(), Vec::new());
        let mut at = START;
        let mut kinds = kinds.iter().cycle();
        let mut blocks = Vec::new();
        for arena in 0..2 {
            let (start, first) = (at, blocks.len());
            for &(units, state) in kinds.by_ref().take(5 * MIN_BLOCKS) {
                // Some are larger than a page.
                let units = if units == 39 { 1200 } else { units };
                blocks.push(Block::new(Address(at), units * 16, state));
                if state == BlockState::Free {
                    let inner =
                        Address(at + 16).align_up(PAGE)..Address(at + units * 16).align_down(PAGE);
                    heap.trimmable.extend((inner.start < inner.end).then_some(inner));
                }
                at += units * 16;
            }
            let range = Address(start)..Address(at + 64).align_up(PAGE);
            heap.extents.push(Extent::new(range.clone(), Some(arena), first..blocks.len()));
            mappings.push(Mapping::anonymous(range.clone()));
            let mut page = range.start;
            while page < range.end {
                let run = page..page.offset(3 * PAGE).min(range.end);
                runs.push(PageRun { range: run, state: PageState::Anonymous, huge: false });
                page = page.offset(if arena == 0 { 3 } else { 4 } * PAGE);
            }
            at = range.end.0 + 16 * PAGE;
        }
        heap.blocks = Blocks::from_iter(blocks);
        let state = ProcessState { mappings: Mappings::new(mappings), ..ProcessState::default() };
        (state, Pages::new(runs), heap)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(testkit::cases(8)))]
        #[test]
        fn portions_add_up_to_the_whole(
            kinds in prop::collection::vec((2_u64..40, prop::sample::select(STATES)), 1..30),
            stacks in prop::collection::vec((0_u64..4000, 1_u64..40), 0..8),
        ) {
            let (state, pages, heap) = heap(&kinds);
            let objects = ObjectSpace::default();
            let trace = Trace::find(
                &heap,
                &objects,
                &[],
                None,
                &image::SparseRows::default(),
                &Bits::new(0),
            );
            let code = ObjectCode::default();
            let owners = Owners::new(&heap, &objects, &[], None, &trace, &[], &code);
            let mut stacks: Vec<_> = stacks
                .into_iter()
                .map(|(page, count)| {
                    let start = Address(START + page * PAGE);
                    Span::new(start..start.offset(count * PAGE), Cause::StackThreads)
                })
                .collect();
            stacks.sort_by_key(|span| span.range.start);
            let mut overlaps = Clashes::default();
            let carved = disjoint(stacks, &mut overlaps);
            let cuts = find_cuts(&state, &heap, &objects.pages, &carved, &[]);
            prop_assert!(cuts.len() > 8, "{}", cuts.len());
            // A library that ends in the first extent, which begins with its variables then.
            let library = [Address(START - PAGE)..Address(START + PAGE)];
            let behind = find_cuts(&state, &heap, &objects.pages, &carved, &library);
            let first = &heap.extents[0].range;
            prop_assert!(behind.iter().all(|cut| cut.at <= first.start || first.end <= cut.at));
            let whole = vec![cuts[0], cuts[cuts.len() - 1]];
            let book = |cuts| {
                let mut findings = Vec::new();
                let bookings = Bookings {
                    state: &state,
                    heap: &heap,
                    objects: &objects,
                    owners: &owners,
                    parts: None,
                    pages: &pages,
                    libraries: Vec::new(),
                    carved: carved.clone(),
                    overlaps: overlaps.clone(),
                    cuts,
                };
                (bookings.booking(&mut findings), findings)
            };
            let (portions, whole) = (book(cuts), book(whole));
            prop_assert_eq!(portions, whole);
        }
    }
}
