use std::ops::Range;

use allocator::glibc::{Chunk, ChunkState, Malloc, Region};
use capture::{Address, intersection};

use crate::{Cause, owners::Owners, span::Span};

/// Bytes of a chunk's header before the program's pointer: the size of the chunk before it, if
/// that is free, and its own.
const HEADER: u64 = 16;
/// The first word of a chunk's header belongs to the chunk before it as long as that is in use.
const SHARED: u64 = 8;

/// What malloc claims, ascending and disjoint.
pub(crate) fn malloc_spans<'a>(
    malloc: &'a Malloc,
    owners: &'a Owners<'a>,
) -> impl Iterator<Item = Span> + 'a {
    let mut trimmable = Ahead { ranges: &malloc.trimmable };
    malloc.regions.iter().filter(|region| !region.chunks.is_empty()).flat_map(move |region| {
        let chunks = malloc.chunks.get(region.chunks.clone()).unwrap_or_default();
        let mut spans = Vec::with_capacity(chunks.len() + 2);
        let mut push = |range: Range<Address>, cause| {
            if range.start < range.end {
                spans.push(Span { range, cause, arena: region.arena });
            }
        };
        let first = chunks.first().map_or(region.range.end, |chunk| chunk.address);
        push(region.range.start..first.offset(SHARED), Cause::MallocOverhead);
        for (index, chunk) in chunks.iter().enumerate() {
            let all = extent(*chunk, region);
            match chunk.state() {
                ChunkState::InUse | ChunkState::Mmapped => {
                    let pointer = chunk.address.offset(HEADER);
                    push(all.start..pointer, Cause::MallocOverhead);
                    push(pointer..all.end, owners.cause(region.chunks.start + index));
                }
                ChunkState::Fencepost => push(all, Cause::MallocOverhead),
                ChunkState::Tcache => push(all, Cause::MallocCached),
                free @ (ChunkState::Free | ChunkState::Fastbin | ChunkState::Top) => {
                    let trim = trimmable.within(&all);
                    let kept = match free {
                        ChunkState::Fastbin => Cause::MallocCached,
                        ChunkState::Top => Cause::MallocTop,
                        _ => Cause::MallocFragmented,
                    };
                    push(all.start..trim.start, kept);
                    push(trim.clone(), Cause::MallocUnreturned);
                    push(trim.end..all.end, kept);
                }
            }
        }
        spans
    })
}

/// The bytes that are a chunk's own: from its size word on, and the first word of the next
/// chunk's header, as far as its region goes.
fn extent(chunk: Chunk, region: &Region) -> Range<Address> {
    let end = match chunk.state() {
        ChunkState::Mmapped => chunk.end(),
        _ => chunk.end().offset(SHARED),
    };
    let start = chunk.address.offset(SHARED);
    start..end.min(region.range.end).max(start)
}

/// Ranges that are asked for in ascending order.
struct Ahead<'a> {
    ranges: &'a [Range<Address>],
}

impl Ahead<'_> {
    /// The part of `range` that the ranges cover; empty, at its end, where they cover none.
    fn within(&mut self, range: &Range<Address>) -> Range<Address> {
        while let Some((first, rest)) = self.ranges.split_first() {
            if first.end > range.start {
                break;
            }
            self.ranges = rest;
        }
        match self.ranges.first() {
            Some(first) if first.start < range.end => intersection(first, range),
            _ => range.end..range.end,
        }
    }
}
