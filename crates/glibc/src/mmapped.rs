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

use target::{Address, Finding, Image, Memory, PAGE_SIZE, Severity, length};

use crate::find::Parameters;
use crate::ground::{mmapped_memory, touched_pages};
use crate::layout::{HEADER, IS_MMAPPED, LEAST_CHUNK};
use crate::{Chunk, ChunkState};

/// The smallest mmapped chunk by default: half of what is otherwise asked for at once (128 KB).
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
    if parameters.mmapped_chunks == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    for memory in mmapped_memory(image) {
        for gap in gaps(&memory, taken) {
            find_in(image, parameters, &gap, &mut found);
        }
    }
    reconcile(parameters, &mut found, findings);
    found
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

fn find_in(
    image: &Image<'_>,
    parameters: &Parameters,
    memory: &Range<Address>,
    found: &mut Vec<Mmapped>,
) {
    let mut from = memory.start;
    for page in touched_pages(image, memory) {
        if is_complete(parameters, found) {
            return;
        }
        if page < from {
            continue;
        }
        if let Some(mmapped) = read_at(image, page, memory.end, parameters.mmapped_tail) {
            from = mmapped.range.end;
            found.push(mmapped);
        }
    }
}

/// The mmapped chunk whose mapping begins at `base`, if one does.
fn read_at(image: &Image<'_>, base: Address, limit: Address, tail: u64) -> Option<Mmapped> {
    let first = Header::read(image, base, tail)?;
    if first.distance != 0 {
        return None;
    }
    let (at, header) = aligned_header(image, base, limit, first, tail).unwrap_or((base, first));
    let end = at.offset(header.bytes).offset(tail);
    let fits = base < end && end <= limit && end.is_aligned(PAGE_SIZE);
    fits.then(|| Mmapped {
        range: base..end,
        chunk: Chunk::new(at, end - at, ChunkState::Mmapped),
    })
}

/// The header of the chunk that was allocated with an alignment in the mapping at `base`, whose
/// header of old is `first`.
fn aligned_header(
    image: &Image<'_>,
    base: Address,
    limit: Address,
    first: Header,
    tail: u64,
) -> Option<(Address, Header)> {
    let end = base.offset(first.bytes).min(limit);
    let mut tried = base;
    for bits in LEAST_CHUNK.ilog2()..u64::BITS - 1 {
        let alignment = 1 << bits;
        // The first aligned pointer behind a header; up to 2.42 the bytes before its own header
        // had to suffice for a chunk.
        let header = base.offset(HEADER).align_up(alignment).before(HEADER);
        for at in [header, header.offset(alignment)] {
            if at <= tried {
                continue;
            }
            if at >= end {
                return None;
            }
            tried = at;
            let found = Header::read(image, at, tail).filter(|header| {
                let end = at.offset(header.bytes).offset(tail);
                header.distance == at - base && end.is_aligned(PAGE_SIZE) && end <= limit
            });
            if let Some(header) = found {
                return Some((at, header));
            }
            if at - base >= LEAST_CHUNK {
                break;
            }
        }
    }
    None
}

/// The header of a chunk that says that it is mmapped.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// From the beginning of the mapping.
    distance: u64,
    bytes: u64,
}

impl Header {
    fn read(memory: &dyn Memory, at: Address, tail: u64) -> Option<Self> {
        let mut bytes = [0; HEADER as usize];
        memory.read_exact(at, &mut bytes).ok()?;
        let &[previous, size] = bytes.as_chunks::<8>().0 else { return None };
        let (previous, size) = (u64::from_le_bytes(previous), u64::from_le_bytes(size));
        // Where a size does not count its mapping's tail, the lowest bit of the distance says
        // whether the mapping has huge pages.
        let distance = if tail == 0 { previous } else { previous & !1 };
        let bytes = size & !7;
        let is_header = size & 7 == IS_MMAPPED && bytes % 16 == 0 && bytes >= LEAST_CHUNK;
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
        let Some(index) = smallest.filter(|&i| length(&found[i].range) < USUAL_LEAST) else { break };
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
