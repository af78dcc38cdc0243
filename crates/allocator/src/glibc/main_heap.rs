//! The memory of the main arena: obtained by brk(2), or by mmap(2) if brk fails.
//!
//! As long as brk extends the arena, its memory is one segment, from `sbrk_base` to the end of its top. If other
//! code called sbrk in between, the segment ends in fenceposts and a new one begins behind the foreign bytes,
//! at a multiple of 16 that nothing points to. If brk failed, a new segment begins with a mapping, and from
//! then on the arena is marked as not contiguous. Such segments have to be searched for: a segment begins at an
//! address from which chunks lead to fenceposts or to the top.

use std::ops::Range;

use image::{Image, Memory, Window};
use linux::{Address, Backing, length};

use crate::candidate_mappings::{is_candidate, mmapped_memory, touched_pages};
use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::{HEADER, MINSIZE, PREV_INUSE};
use crate::glibc::parameters::{MainStart, Parameters};
use crate::glibc::segment::{Segment, bytes_of};
use crate::glibc::segment_walk::{Bounds, Kind, walk_segment, walk_trial};
use crate::glibc::state::State;

/// The maximum number of steps of all trials together that find no segment. Foreign bytes rarely look like a
/// chunk for even one step, but hostile ones must not keep rbloat busy.
const MAX_TRIAL_STEPS: u64 = 1 << 18;

/// Memory of brk(2) between segments, which other code obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) first: Address,
    pub(crate) bytes: u64,
}

/// The beginning of its memory, by its own figures.
pub(crate) fn start(memory: &dyn Memory, state: &State) -> MainStart {
    if state.is_empty() {
        return MainStart::Nowhere;
    }
    match top_end(memory, state) {
        Some(end) if state.contiguous => MainStart::At(end.before(state.system_bytes)),
        _ => MainStart::Unknown,
    }
}

fn top_end(memory: &dyn Memory, state: &State) -> Option<Address> {
    let size = memory.read_u64(state.top.offset(8)).ok()?;
    Some(state.top.offset(size & !7))
}

/// Finds and walks the memory of the main arena, and returns the foreign memory in it. `segments` receives each
/// segment, even if the rest turns out to be inconsistent.
pub(crate) fn walk(
    image: &Image<'_>,
    window: &mut Window<'_>,
    state: &State,
    parameters: Option<&Parameters>,
    segments: &mut Vec<Segment>,
) -> Result<Option<Foreign>, Inconsistency> {
    let own_start = start(image, state);
    let start = match (own_start, parameters) {
        (MainStart::Nowhere, _) if state.system_bytes == 0 => return Ok(None),
        (_, Some(parameters)) => parameters.sbrk_base,
        (MainStart::At(start), None) => start,
        _ => return Err(Inconsistency::new(state.address, "where its memory begins is unknown")),
    };
    let mut search = Search { image, window, state, start, steps_left: MAX_TRIAL_STEPS, segments };
    search.walk_break(own_start)?;
    let is_whole = search.found_top() && search.adds_up();
    if !state.contiguous && !is_whole {
        search.find_mmapped();
    }
    if !search.found_top() {
        return Err(Inconsistency::new(state.top, "its chunks do not lead to its top"));
    }
    if !search.adds_up() {
        let bytes = bytes_of(search.segments);
        let what = format!("its chunks have {bytes} bytes where it counts {}", state.system_bytes);
        return Err(Inconsistency::new(state.address, what));
    }
    let gaps = search.gaps();
    let bytes = gaps.iter().map(length).sum();
    Ok(gaps.first().map(|gap| Foreign { first: gap.start, bytes }))
}

struct Search<'s, 'w, 'm> {
    image: &'s Image<'m>,
    window: &'s mut Window<'w>,
    state: &'s State,
    start: Address,
    steps_left: u64,
    segments: &'s mut Vec<Segment>,
}

impl Search<'_, '_, '_> {
    /// Walks the segment at the beginning of the arena, and the later ones that brk extended.
    fn walk_break(&mut self, own_start: MainStart) -> Result<(), Inconsistency> {
        let is_break = self.is_break(self.start);
        let memory = self.image.state.mappings.contiguous(self.start, |mapping| {
            is_candidate(mapping) && is_break == (mapping.backing == Backing::Heap)
        });
        let first = self.start.align_up(HEADER);
        let walked = match own_start {
            MainStart::At(start) if start != self.start => {
                Err(Inconsistency::new(self.state.top, "its top does not end where it counts"))
            }
            _ => walk_segment(self.window, self.bounds(first, memory.end)),
        };
        match walked {
            Ok(segment) => self.segments.push(segment),
            Err(problem) => {
                if first < memory.end {
                    self.segments.push(Segment::unwalked(first..memory.end));
                }
                return Err(problem);
            }
        }
        if is_break {
            self.find_behind_foreign(memory.end);
        }
        Ok(())
    }

    /// Finds the segments behind memory that other code obtained by sbrk.
    fn find_behind_foreign(&mut self, limit: Address) {
        while !self.found_top() {
            let Some(last) = self.segments.last() else { return };
            let from = last.range.end;
            let page_size = self.image.page_size();
            let rest = from.align_down(page_size)..limit;
            let pages = touched_pages(self.image, &rest);
            let starts = pages.flat_map(|page| {
                (0..page_size / HEADER).map(move |index| page.offset(index * HEADER))
            });
            let mut starts = starts.filter(|&start| start >= from);
            let Some(segment) = starts.find_map(|start| self.try_at(start, limit)) else { return };
            self.segments.push(segment);
        }
    }

    /// Finds the segments that the arena obtained by mmap, until all bytes that it counts are found.
    fn find_mmapped(&mut self) {
        for memory in mmapped_memory(self.image) {
            let mut from = memory.start;
            for page in touched_pages(self.image, &memory) {
                if let Some(known) = self.segments.iter().find(|it| it.range.contains(&page)) {
                    from = known.range.end;
                }
                // No chunk is before the first one, so its `mchunk_prev_size` was never written to. Few pages
                // begin with a zero, so no more than this word is read of most pages.
                if page < from || self.image.read_u64(page) != Ok(0) {
                    continue;
                }
                let Some(segment) = self.try_at(page, memory.end) else { continue };
                self.segments.push(segment);
                if self.found_top() && self.adds_up() {
                    return;
                }
            }
        }
    }

    /// The segment that begins at `first`, if one does.
    fn try_at(&mut self, first: Address, limit: Address) -> Option<Segment> {
        let size = self.window.word(first.offset(8)).ok()?;
        let bytes = size & !7;
        let could_begin = size & 7 == PREV_INUSE
            && bytes.is_multiple_of(16)
            && (MINSIZE..=limit - first).contains(&bytes);
        if !could_begin {
            return None;
        }
        let mut steps_left = self.steps_left;
        let bounds = self.bounds(first, limit);
        let walked = walk_trial(self.window, bounds, &mut steps_left);
        if walked.is_err() {
            self.steps_left = steps_left;
        }
        walked.ok()
    }

    fn bounds(&self, first: Address, limit: Address) -> Bounds {
        Bounds { first, limit, top: self.state.top, kind: Kind::Main }
    }

    fn found_top(&self) -> bool {
        self.segments.iter().any(Segment::ends_in_top)
    }

    /// Returns true if the segments have as many bytes as the arena counts. The arena counts foreign bytes between
    /// segments of brk, but only while it is contiguous.
    fn adds_up(&self) -> bool {
        let skipped = self.start.align_up(HEADER) - self.start;
        let own = bytes_of(self.segments) + skipped;
        let sums = self.gaps().into_iter().scan(own, |sum, gap| {
            *sum = sum.saturating_add(length(&gap));
            Some(*sum)
        });
        std::iter::once(own).chain(sums).any(|sum| sum == self.state.system_bytes)
    }

    /// The memory of brk between segments, ascending.
    fn gaps(&self) -> Vec<Range<Address>> {
        let mut ranges: Vec<_> = self.segments.iter().map(|segment| &segment.range).collect();
        ranges.sort_by_key(|range| range.start);
        let gaps = ranges.windows(2).map(|pair| pair[0].end..pair[1].start);
        gaps.filter(|gap| length(gap) > 0 && self.is_break(gap.start) && self.is_break(gap.end))
            .collect()
    }

    /// Returns true if `at` lies in the kernel's heap mapping, which brk extends.
    fn is_break(&self, at: Address) -> bool {
        let mapping = self.image.state.mappings.find(at);
        mapping.is_some_and(|mapping| mapping.backing == Backing::Heap)
    }
}
