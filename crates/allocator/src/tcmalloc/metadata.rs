use std::ops::Range;

use linux::Address;

use crate::candidate_mappings::is_candidate;
use crate::structures::Structures;

/// The allocator obtains memory for its structures in pieces of this size (`kMetadataAllocChunkSize`, src/common.cc). The first
/// structure is at the beginning.
const CHUNK: u64 = 8 << 20;

/// The memory with the structures of the allocator, ascending and disjoint. `known` are structures, ascending.
pub(super) fn chunks(structures: &Structures<'_>, known: &[Address]) -> Vec<Range<Address>> {
    let image = structures.image;
    let mut chunks: Vec<Range<Address>> = Vec::new();
    for at in known {
        if chunks.last().is_some_and(|last| *at < last.end) {
            continue;
        }
        let around = image.state.mappings.contiguous(*at, is_candidate);
        let start = at.align_down(image.page_size());
        let end = start.offset(CHUNK).min(around.end);
        if start < end {
            chunks.push(start..end);
        }
    }
    chunks
}
