//! Chunks that are too large for an arena and have a mapping each.
//!
//! Only the program points to them. Each begins with a header at the beginning of a page, which is marked as such and
//! has the size; so all pages that may be such a beginning are read. glibc's count of these chunks shows if all of
//! them, and nothing else, were found. Other memory may look like such a chunk. It is left out if glibc's counts allow
//! only one choice. Otherwise nothing is left out, and a finding gives the differences.
//!
//! A chunk that was allocated with an alignment has its header just before the aligned address, with the distance
//! from the beginning of the mapping. The header that the mapping was made with stays at its beginning.

use std::collections::BTreeMap;
use std::ops::Range;

use image::{Image, Window};
use linux::{Address, MIN_PAGE_SIZE, length};

use crate::candidate_mappings::{mmapped_memory, touched_pages};
use crate::glibc::layout::{HEADER, IS_MMAPPED, MINSIZE};
use crate::glibc::parameters::Parameters;
use crate::{Block, BlockState, Finding};

/// The maximum number of ways to leave out chunks that are tried.
const MAX_WAYS: u32 = 1 << 18;
/// The maximum number of chunks that are left out.
const MAX_SURPLUS: u64 = 64;

/// An mmapped chunk and its mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mmapped {
    pub(crate) range: Range<Address>,
    pub(crate) chunk: Block,
}

/// Finds the mmapped chunks outside of `taken`, which is the arenas' memory, ascending.
pub(crate) fn find(
    image: &Image<'_>,
    parameters: &Parameters,
    taken: &[Range<Address>],
    findings: &mut Vec<Finding>,
) -> Vec<Mmapped> {
    if (parameters.mmapped_chunks, parameters.mmapped_bytes) == (0, 0) {
        return Vec::new();
    }
    let memory = mmapped_memory(image);
    let gaps: Vec<_> =
        memory.iter().flat_map(|memory| gaps(memory, taken, image.page_size())).collect();
    let window = Window::new(image, MIN_PAGE_SIZE as usize);
    let mut search = Search { image, window, tail: parameters.mmapped_tail, everywhere: false };
    let mut found = search.by_mappings(&gaps);
    if !is_complete(parameters, &found) {
        found = search.by_pages(&gaps);
    }
    if !is_complete(parameters, &found) {
        search.everywhere = true;
        found = search.by_pages(&gaps);
        reconcile(parameters, &mut found, findings);
    }
    findings.extend(drift(parameters, &found, image.page_size()));
    found
}

/// The parts of `memory` that lie in none of `taken`, which is ascending.
fn gaps(memory: &Range<Address>, taken: &[Range<Address>], page_size: u64) -> Vec<Range<Address>> {
    let mut gaps = Vec::new();
    let mut start = memory.start;
    let first = taken.partition_point(|range| range.end <= memory.start);
    for range in taken[first..].iter().take_while(|range| range.start < memory.end) {
        gaps.push(start..range.start.max(start));
        start = range.end.align_up(page_size).max(start);
    }
    gaps.push(start..memory.end.max(start));
    gaps.retain(|gap| length(gap) > 0);
    gaps
}

/// A search for mmapped chunks.
struct Search<'s, 'm> {
    image: &'s Image<'m>,
    window: Window<'s>,
    /// See [`crate::glibc::layout::ParametersLayout::mmapped_tail`].
    tail: u64,
    /// True if the header of a chunk with an alignment is searched at the end of every page.
    everywhere: bool,
}

impl Search<'_, '_> {
    /// Finds the chunks at the beginning of a mapping or right behind another chunk. Often these are all, and not
    /// every page has to be read.
    fn by_mappings(&mut self, gaps: &[Range<Address>]) -> Vec<Mmapped> {
        let mappings = self.image.state.mappings.iter();
        let starts: Vec<_> = mappings.map(|mapping| mapping.range.start).collect();
        let mut found: Vec<Mmapped> = Vec::new();
        for gap in gaps {
            let within = starts.partition_point(|start| *start <= gap.start);
            let within = starts[within..].iter().take_while(|start| **start < gap.end);
            for &start in std::iter::once(&gap.start).chain(within) {
                let mut at = found.last().map_or(start, |last| last.range.end.max(start));
                while let Some(mmapped) = self.read_at(at, gap.end) {
                    at = mmapped.range.end;
                    found.push(mmapped);
                }
            }
        }
        found
    }

    /// Finds all chunks, by reading the beginning of every page.
    fn by_pages(&mut self, gaps: &[Range<Address>]) -> Vec<Mmapped> {
        let mut found = Vec::new();
        for gap in gaps {
            let mut from = gap.start;
            for page in touched_pages(self.image, gap) {
                // Of most pages no more is read than the word that would be a size.
                let size = |page: Address| self.image.peek_u64(page.offset(8)).unwrap_or(0);
                if page < from || size(page) & 0xf != IS_MMAPPED {
                    continue;
                }
                if let Some(mmapped) = self.read_at(page, gap.end) {
                    from = mmapped.range.end;
                    found.push(mmapped);
                }
            }
        }
        found
    }

    /// The mmapped chunk whose mapping begins at `base`, if one does.
    fn read_at(&mut self, base: Address, limit: Address) -> Option<Mmapped> {
        let first = self.read_header(base).filter(|first| first.distance == 0)?;
        let end = first.end.min(limit);
        let page_size = self.image.page_size();
        let is_whole = |header: &Header| {
            header.distance == header.at - base
                && header.end.is_aligned(page_size)
                && (base.offset(1)..=limit).contains(&header.end)
        };
        let aligned = self.places_of_aligned_header(base, end);
        let aligned = aligned.into_iter().filter_map(|at| self.read_header(at)).find(is_whole);
        let header = aligned.or_else(|| is_whole(&first).then_some(first))?;
        Some(Mmapped {
            range: base..header.end,
            chunk: Block::new(header.at, header.end - header.at, BlockState::Mmapped),
        })
    }

    /// The addresses where the header of a chunk that was allocated with an alignment can be, in the mapping that
    /// begins at `base`.
    ///
    /// With an alignment of less than a page it is in the first page. Otherwise it ends the page before the first
    /// aligned address, unless mremap(2) has moved the mapping since. But usually it is the first memory behind
    /// the first page that was written to. Exceptions are huge pages, and `glibc.malloc.perturb`, which makes
    /// glibc fill the memory that it hands out.
    fn places_of_aligned_header(&self, base: Address, end: Address) -> Vec<Address> {
        let page_size = self.image.page_size();
        let behind = base.offset(page_size)..end.max(base.offset(page_size));
        let touched = touched_pages(self.image, &behind).map(|page| page.offset(page_size));
        (MINSIZE.ilog2()..=page_size.ilog2())
            .map(|bits| base.offset(1 << bits))
            .chain(
                (page_size.ilog2() + 1..u64::BITS - 1)
                    .map(|bits| base.offset(HEADER).align_up(1 << bits)),
            )
            .chain(touched.take(if self.everywhere { usize::MAX } else { 1 }))
            .map(|pointer| pointer.before(HEADER))
            .filter(|at| (base..end).contains(at))
            .collect()
    }

    fn read_header(&mut self, at: Address) -> Option<Header> {
        let previous = self.window.word(at).ok()?;
        let size = self.window.word(at.offset(8)).ok()?;
        // If the size does not include the tail of the mapping, the lowest bit of the distance is set for a
        // mapping with huge pages.
        let distance = if self.tail == 0 { previous } else { previous & !1 };
        let bytes = size & !7;
        let is_header = size & 7 == IS_MMAPPED && bytes.is_multiple_of(16) && bytes >= MINSIZE;
        is_header.then(|| Header { at, distance, end: at.offset(bytes).offset(self.tail) })
    }
}

/// The header of a chunk that is marked as mmapped.
#[derive(Debug, Clone, Copy)]
struct Header {
    at: Address,
    /// The distance from the beginning of the mapping.
    distance: u64,
    /// The end of the mapping.
    end: Address,
}

fn bytes_of(found: &[Mmapped]) -> u64 {
    found.iter().map(|mmapped| length(&mmapped.range)).sum()
}

/// Returns a finding if the excess of glibc's count of bytes is large enough to hide another chunk.
fn drift(parameters: &Parameters, found: &[Mmapped], page_size: u64) -> Option<Finding> {
    let drift = parameters.mmapped_bytes.saturating_sub(bytes_of(found));
    let is_worth_telling = is_complete(parameters, found) && drift >= page_size;
    is_worth_telling.then_some(Finding::MmappedDrift {
        bytes: drift,
        chunks: found.len() as u64,
        step_bytes: parameters.mmapped_tail,
    })
}

/// Returns true if glibc's counts agree with the chunks found.
fn is_complete(parameters: &Parameters, found: &[Mmapped]) -> bool {
    let drift = parameters.mmapped_bytes.checked_sub(bytes_of(found));
    let agrees = match parameters.mmapped_tail {
        0 => drift == Some(0),
        // glibc counts the tail of a chunk once more each time that it is resized.
        tail => drift.is_some_and(|drift| drift.is_multiple_of(tail)),
    };
    agrees && found.len() as u64 == parameters.mmapped_chunks
}

/// Leaves out memory that only looks like an mmapped chunk, and reports if the rest still disagrees with glibc's
/// counts.
fn reconcile(parameters: &Parameters, found: &mut Vec<Mmapped>, findings: &mut Vec<Finding>) {
    if let Some(lengths) = surplus(parameters, found) {
        found.retain(|mmapped| !lengths.contains(&length(&mmapped.range)));
    }
    if !is_complete(parameters, found) {
        findings.push(Finding::MmappedMiscounted {
            counted_chunks: parameters.mmapped_chunks,
            counted_bytes: parameters.mmapped_bytes,
            found_chunks: found.len() as u64,
            found_bytes: bytes_of(found),
        });
    }
}

/// The lengths of the chunks that must be left out of `found` for glibc's counts to be right; `None` if there is no
/// way to do that, more than one, or too many to try.
fn surplus(parameters: &Parameters, found: &[Mmapped]) -> Option<Vec<u64>> {
    // A count of bytes that drifts proves nothing about a chunk.
    if parameters.mmapped_tail != 0 {
        return None;
    }
    let chunks = (found.len() as u64).checked_sub(parameters.mmapped_chunks)?;
    let bytes = bytes_of(found).checked_sub(parameters.mmapped_bytes)?;
    if !(1..=MAX_SURPLUS).contains(&chunks) {
        return None;
    }
    let mut counts = BTreeMap::<u64, u64>::new();
    found.iter().for_each(|mmapped| *counts.entry(length(&mmapped.range)).or_default() += 1);
    let counts: Vec<_> = counts.into_iter().rev().collect();
    let mut ways = Ways { counts: &counts, left: MAX_WAYS, taken: Vec::new(), found: Vec::new() };
    ways.find(0, chunks, bytes);
    let [way] = &ways.found[..] else { return None };
    // Among several chunks of one length, each may be the wrong one.
    let are_all = way.iter().all(|taken| counts.contains(taken));
    (ways.left > 0 && are_all).then(|| way.iter().map(|(length, _)| *length).collect())
}

/// Finds the ways to choose a number of chunks with a given sum of bytes.
struct Ways<'c> {
    /// Lengths with the number of chunks that have each, the greatest length first.
    counts: &'c [(u64, u64)],
    /// The number of steps that are left.
    left: u32,
    /// The choice so far: lengths with the number of chunks of each.
    taken: Vec<(u64, u64)>,
    /// Up to two ways.
    found: Vec<Vec<(u64, u64)>>,
}

impl Ways<'_> {
    /// Chooses `chunks` more chunks with `bytes` bytes together, among the lengths from the index `from`.
    fn find(&mut self, from: usize, chunks: u64, bytes: u64) {
        if (chunks, bytes) == (0, 0) {
            self.found.push(self.taken.clone());
            return;
        }
        for index in from..self.counts.len() {
            let (length, count) = self.counts[index];
            self.left = self.left.saturating_sub(1);
            // No remaining length is longer than this one.
            if self.left == 0 || self.found.len() > 1 || bytes > length.saturating_mul(chunks) {
                return;
            }
            for taken in 1..=count.min(chunks).min(bytes / length) {
                self.taken.push((length, taken));
                self.find(index + 1, chunks - taken, bytes - taken * length);
                self.taken.pop();
            }
        }
    }
}
