//! The segments of v2 (`mi_segment_t`, include/mimalloc/types.h): 32 MiB each, or one huge block, with the structures of their
//! pages at their beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use image::Memory;
use linux::Address;

use super::pages::{Page, SLICE, WORDS};
use crate::structures::Structures;

/// The alignment of segments (`MI_SEGMENT_SIZE`), and the slices of one that is not huge. Up to 2.0.7 they were larger.
const SEGMENT: u64 = 32 << 20;
const SLICES: u64 = SEGMENT / SLICE;

/// The segments that decide about the layout.
const SAMPLE: usize = 64;
/// More bytes than there are before the first slice's structure, and what such a structure (`mi_slice_t`, `mi_page_t`) has: 80 up to
/// 2.1.2, 96 since then; 16 more where lists are encoded.
const MAX_HEADER: u64 = 1024;
const MIN_HEADER: u64 = 40;
const SLICE_BYTES: [u64; 5] = [80, 88, 96, 104, 112];

/// More bytes than a heap's structure has (`mi_heap_t`).
const MAX_HEAP: usize = 4096;

/// The segments of a process.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The pages, ascending by their areas.
    pub(super) pages: Vec<Page>,
    /// For each page, the thread that its segment belongs to (`thread_id`, the word before the first slice's structure); 0 for none.
    threads: Vec<u64>,
    /// The memory of free slices.
    pub(super) free: Vec<Range<Address>>,
    /// The memory of the segments' structures.
    pub(super) info: Vec<Range<Address>>,
    /// The end of the last segment.
    end: Address,
}

/// Where the structures of slices are.
#[derive(Debug, Clone, Copy)]
struct SliceLayout {
    /// The bytes before the first one.
    first: u64,
    /// The bytes of each.
    bytes: u64,
}

/// Slices that belong together: a page, free ones, or those with the segment's structures.
struct Span {
    /// The address of its structure.
    at: Address,
    slices: Range<u64>,
}

impl Segments {
    pub(super) fn find(structures: &mut Structures<'_>, memory: &[Range<Address>]) -> Option<Self> {
        let layouts = SLICE_BYTES.into_iter().flat_map(|bytes| {
            let firsts = (MIN_HEADER..MAX_HEADER).step_by(8);
            firsts.map(move |first| SliceLayout { first, bytes })
        });
        let segments: Vec<Address> = addresses(structures, memory).collect();
        let judged = layouts.map(|layout| {
            let is_one = |at: &&Address| layout.spans(structures, **at).is_some();
            (segments.iter().take(SAMPLE).filter(is_one).count(), layout)
        });
        let (count, layout) = judged.max_by_key(|(count, _)| *count)?;
        if count == 0 {
            return None;
        }
        let mut found = Self::default();
        for at in segments {
            if at < found.end {
                continue;
            }
            if let Some(spans) =
                layout.spans(structures, at).or_else(|| layout.huge(structures, at))
            {
                found.add(structures, layout, at, &spans)?;
            }
        }
        Some(found)
    }

    /// Adds the spans of a segment.
    fn add(
        &mut self,
        structures: &mut Structures<'_>,
        layout: SliceLayout,
        segment: Address,
        spans: &[Span],
    ) -> Option<()> {
        let thread = structures.word(segment.offset(layout.first - 8)).ok()?;
        for (number, span) in spans.iter().enumerate() {
            let at = |slice: u64| segment.offset(slice * SLICE);
            let area = at(span.slices.start)..at(span.slices.end);
            self.end = area.end;
            if number == 0 {
                self.info.push(area);
                continue;
            }
            let page = Page::read(structures, span.at, layout.bytes, area).ok()?;
            if page.is_used() {
                self.pages.push(page);
                self.threads.push(thread);
            } else {
                self.free.push(page.area);
            }
        }
        Some(())
    }

    /// The lists of blocks that threads freed for another one (`thread_delayed_free` of `mi_heap_t`): they still count as in use in
    /// their pages. Each page has the address of its heap, and the list is the word before the thread of that heap. `None` if the
    /// lists are not found.
    pub(super) fn delayed(
        &self,
        structures: &Structures<'_>,
        is_block: impl Fn(Address) -> bool,
    ) -> Option<Vec<Address>> {
        if self.threads.iter().all(|thread| *thread == 0) {
            return Some(Vec::new());
        }
        let mut found = Vec::new();
        for word in 0..WORDS {
            let heaps: BTreeSet<(u64, u64)> = self
                .pages
                .iter()
                .zip(&self.threads)
                .map(|(page, thread)| (page.words[word], *thread))
                .filter(|(heap, thread)| *heap != 0 && *thread != 0)
                .collect();
            let mut by_distance = BTreeMap::<usize, Vec<Address>>::new();
            for (heap, thread) in &heaps {
                let mut bytes = vec![0; MAX_HEAP];
                let read = structures.image.read(Address(*heap), &mut bytes);
                bytes.truncate(read);
                let words: Vec<u64> =
                    bytes.as_chunks::<8>().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
                for (distance, pair) in words.windows(2).enumerate() {
                    if pair[1] == *thread {
                        by_distance.entry(distance).or_default().push(Address(pair[0]));
                    }
                }
            }
            found.extend(by_distance.into_values().filter(|lists| lists.len() * 2 > heaps.len()));
        }
        let [lists] = &found[..] else { return None };
        lists.iter().all(|list| list.0 == 0 || is_block(*list)).then(|| lists.clone())
    }
}

impl Page {
    /// Returns true for a page with blocks: a page that was made has some (`capacity`). The structures of free slices have none.
    fn is_used(&self) -> bool {
        self.quarter(5) > 0
    }
}

/// The addresses at which segments may begin: multiples of their size, where something was written.
fn addresses(
    structures: &Structures<'_>,
    memory: &[Range<Address>],
) -> impl Iterator<Item = Address> {
    let pages = structures.image.state.pages.as_ref();
    let is_written = move |at: &Address| {
        pages.is_none_or(|pages| pages.parts_in(&(*at..at.offset(SLICE))).next().is_some())
    };
    let starts = memory.iter().flat_map(move |range| {
        let starts = range.start.align_up(SEGMENT).0..range.end.0;
        starts.step_by(SEGMENT as usize).map(Address)
    });
    starts.filter(is_written)
}

impl SliceLayout {
    /// The spans of the segment at `at`, if they take up its slices exactly. Its first one has its structures.
    fn spans(self, structures: &mut Structures<'_>, at: Address) -> Option<Vec<Span>> {
        let mut spans = Vec::new();
        let mut number = 0;
        while number < SLICES {
            let span = self.span(structures, at, number)?;
            number = span.slices.end;
            spans.push(span);
        }
        let is_whole = number == SLICES && spans.len() > 1 && self.counts(structures, at, SLICES);
        is_whole.then_some(spans)
    }

    /// The spans of a segment of one huge block.
    fn huge(self, structures: &mut Structures<'_>, at: Address) -> Option<Vec<Span>> {
        let info = self.span(structures, at, 0)?;
        let page = self.span(structures, at, info.slices.end)?;
        let end = page.slices.end;
        let range = at..at.offset(end * SLICE);
        let is_whole = structures.lies_in_memory(&range) && self.counts(structures, at, end);
        is_whole.then_some(vec![info, page])
    }

    /// Returns true if the segment counts so many slices itself (`segment_slices`, five words before the first slice's structure).
    fn counts(self, structures: &mut Structures<'_>, at: Address, slices: u64) -> bool {
        structures.word(at.offset(self.first - 40)).is_ok_and(|count| count == slices)
    }

    fn span(self, structures: &mut Structures<'_>, segment: Address, number: u64) -> Option<Span> {
        if number >= SLICES {
            return None;
        }
        let at = segment.offset(self.first + number * self.bytes);
        let [count, offset] = [0, 4].map(|part| structures.half(at.offset(part)));
        let (count, offset) = (u64::from(count.ok()?), offset.ok()?);
        (count > 0 && offset == 0).then_some(Span { at, slices: number..number + count })
    }
}
