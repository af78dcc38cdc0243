//! Chunks that are too large for an arena and have a mapping each.
//!
//! Nothing points to them but the program. Each begins with a header at the beginning of a page,
//! which says that it is one and how long; so all pages that may be such a beginning are looked
//! at. glibc counts them, which tells whether they are all found and nothing else is.
//!
//! A chunk that was allocated with an alignment has its header further on: just before the aligned
//! address, and in it the distance from the beginning of the mapping. The header at that beginning
//! stays behind, as it was when the mapping was made.

use std::ops::Range;

use target::{Address, Finding, Image, Memory, PAGE_SIZE, Severity, Window, length};

use crate::find::Parameters;
use crate::ground::{mmapped_memory, touched_pages};
use crate::layout::{HEADER, IS_MMAPPED, LEAST_CHUNK};
use crate::{Chunk, ChunkState};

/// The smallest mmapped chunk by default (DEFAULT_MMAP_THRESHOLD_MIN).
const USUAL_LEAST: u64 = 128 << 10;

/// An mmapped chunk and the mapping that it has for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mmapped {
    pub(crate) range: Range<Address>,
    pub(crate) chunk: Chunk,
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
    let gaps: Vec<_> = memory.iter().flat_map(|memory| gaps(memory, taken)).collect();
    let mut found = find_by_mappings(image, parameters, &gaps);
    if !is_complete(parameters, &found) {
        found = find_by_pages(image, parameters, &gaps, Search::Usual);
    }
    if !is_complete(parameters, &found) {
        found = find_by_pages(image, parameters, &gaps, Search::Everywhere);
        reconcile(parameters, &mut found, findings);
    }
    found
}

/// Where to look for the header of a chunk that was allocated with an alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Where it is in all but rare cases.
    Usual,
    /// At the end of each page.
    Everywhere,
}

/// Finds the chunks that begin with a mapping, as the kernel tells them apart, and those right
/// behind another one. Often that is all of them, and spares us to look at every page.
fn find_by_mappings(
    image: &Image<'_>,
    parameters: &Parameters,
    gaps: &[Range<Address>],
) -> Vec<Mmapped> {
    let mut window = Window::new(image, PAGE_SIZE as usize);
    let mut found: Vec<Mmapped> = Vec::new();
    let starts: Vec<_> = image.outline.mappings.iter().map(|mapping| mapping.range.start).collect();
    for gap in gaps {
        let within = starts.partition_point(|start| *start <= gap.start);
        let within = starts[within..].iter().take_while(|start| **start < gap.end);
        for &start in std::iter::once(&gap.start).chain(within) {
            let mut at = start.max(found.last().map_or(start, |last| last.range.end));
            while let Some(mmapped) =
                read_at(&mut place, at, gap.end)
            {
                at = mmapped.range.end;
                found.push(mmapped);
            }
        }
    }
    found
}

/// Finds all chunks, by looking at the beginning of every page.
fn find_by_pages(
    image: &Image<'_>,
    parameters: &Parameters,
    gaps: &[Range<Address>],
) -> Vec<Mmapped> {
    let mut window = Window::new(image, PAGE_SIZE as usize);
    let mut found = Vec::new();
    for gap in gaps {
        let mut from = gap.start;
        for page in touched_pages(image, gap) {
            if page < from || !may_begin(image, page) {
                continue;
            }
            let tail = parameters.mmapped_tail;
            if let Some(mmapped) = read_at(image, &mut window, page, gap.end, tail) {
                from = mmapped.range.end;
                found.push(mmapped);
            }
        }
    }
    found
}

/// Whether the size of an mmapped chunk can be at the beginning of `page`. It reads no more than
/// that, for nearly all pages are something else.
fn may_begin(memory: &dyn Memory, page: Address) -> bool {
    memory.read_u64(page.offset(8)).is_ok_and(|size| size & 0xf == IS_MMAPPED)
}

/// What of `memory` lies in none of `taken`, which ascend.
fn gaps(memory: &Range<Address>, taken: &[Range<Address>]) -> Vec<Range<Address>> {
    let mut gaps = Vec::new();
    let mut start = memory.start;
    let first = taken.partition_point(|range| range.end <= memory.start);
    for range in taken[first..].iter().take_while(|range| range.start < memory.end) {
        gaps.push(start..range.start.max(start));
        start = range.end.align_up(PAGE_SIZE).max(start);
    }
    gaps.push(start..memory.end.max(start));
    gaps.retain(|gap| length(gap) > 0);
    gaps
}

/// The mmapped chunk whose mapping begins at `base`, if one does.
fn read_at(
    image: &Image<'_>,
    window: &mut Window<'_>,
    base: Address,
    limit: Address,
    tail: u64,
) -> Option<Mmapped> {
    let first = Header::read(window, base, tail).filter(|first| first.distance == 0)?;
    let is_whole = |at: Address, header: Header| {
        let end = at.offset(header.bytes).offset(tail);
        header.distance == at - base && end.is_aligned(PAGE_SIZE) && base < end && end <= limit
    };
    let end = base.offset(first.bytes).min(limit);
    let aligned = places_of_aligned_header(image, base, end).find_map(|at| {
        let header = Header::read(window, at, tail)?;
        is_whole(at, header).then_some((at, header))
    });
    let (at, header) = aligned.unwrap_or((base, first));
    let end = at.offset(header.bytes).offset(tail);
    is_whole(at, header)
        .then(|| Mmapped { range: base..end, chunk: Chunk::new(at, end - at, ChunkState::Mmapped) })
}

/// Where the header of a chunk that was allocated with an alignment can be, in the mapping that
/// begins at `base`.
///
/// With an alignment of less than a page it is in the first page. Otherwise it ends a page: the one
/// before the first aligned address, unless mremap(2) has moved the mapping since. But it is always
/// the first thing that was written to behind the first page; only huge pages hide that.
fn places_of_aligned_header(
    image: &Image<'_>,
    base: Address,
    end: Address,
) -> impl Iterator<Item = Address> {
    let in_page = move |bits: u32| base.offset(1 << bits);
    let by_address = move |bits: u32| base.offset(HEADER).align_up(1 << bits);
    let behind = base.offset(PAGE_SIZE)..end.max(base.offset(PAGE_SIZE));
    let first_touched = touched_pages(image, &behind).next();
    (LEAST_CHUNK.ilog2()..=PAGE_SIZE.ilog2())
        .map(in_page)
        .chain(first_touched.map(|page| page.offset(PAGE_SIZE)))
        .chain((PAGE_SIZE.ilog2() + 1..u64::BITS - 1).map(by_address))
        .map(|pointer| pointer.before(HEADER))
        .filter(move |at| (base..end).contains(at))
}

/// The header of a chunk that says that it is mmapped.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// From the beginning of the mapping.
    distance: u64,
    bytes: u64,
}

impl Header {
    fn read(window: &mut Window<'_>, at: Address, tail: u64) -> Option<Self> {
        let (previous, size) = (window.word(at).ok()?, window.word(at.offset(8)).ok()?);
        // Where a size does not count its mapping's tail, the lowest bit of the distance says
        // whether the mapping has huge pages.
        let distance = if tail == 0 { previous } else { previous & !1 };
        let bytes = size & !7;
        let is_header = size & 7 == IS_MMAPPED && bytes.is_multiple_of(16) && bytes >= LEAST_CHUNK;
        is_header.then_some(Self { distance, bytes })
    }
}

fn bytes_of(found: &[Mmapped]) -> u64 {
    found.iter().map(|mmapped| length(&mmapped.range)).sum()
}

/// Whether what was found is what glibc counts. Where its count of bytes drifts, that of chunks
/// must do.
fn is_complete(parameters: &Parameters, found: &[Mmapped]) -> bool {
    found.len() as u64 == parameters.mmapped_chunks
        && (parameters.mmapped_tail != 0 || bytes_of(found) == parameters.mmapped_bytes)
}

/// Drops what looks like an mmapped chunk and is none, as far as that can be told, and says where
/// the rest is still not what glibc counts.
fn reconcile(parameters: &Parameters, found: &mut Vec<Mmapped>, findings: &mut Vec<Finding>) {
    while found.len() as u64 > parameters.mmapped_chunks {
        let smallest = (0..found.len()).min_by_key(|&index| length(&found[index].range));
        let Some(index) = smallest.filter(|&i| length(&found[i].range) < USUAL_LEAST) else {
            break;
        };
        found.remove(index);
    }
    if !is_complete(parameters, found) {
        let what = format!(
            "glibc counts {} mmapped chunks of {} bytes, but {} of {} bytes were found",
            parameters.mmapped_chunks,
            parameters.mmapped_bytes,
            found.len(),
            bytes_of(found),
        );
        findings.push(Finding::general(Severity::Warning, what));
    }
}
