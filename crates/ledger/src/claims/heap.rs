use std::num::NonZero;
use std::ops::Range;

use allocator::{Block, BlockState, Extent, ExtentState, HeapMap};
use linux::{Address, intersection};

use crate::Cause;
use crate::claims::Span;

/// The blocks whose claims are kept at a time.
const BATCH: usize = 1024;

/// The claims of malloc on some of its extents, ascending and disjoint. `claim_of` returns the cause of a block in use, by
/// its number, and the part of the interpreter's memory that it belongs to.
pub(crate) fn heap_spans<'a>(
    heap: &'a HeapMap,
    extents: &'a [Extent],
    claim_of: impl Fn(usize) -> (Cause, Option<NonZero<u32>>) + 'a,
) -> impl Iterator<Item = Span> + 'a {
    let start = extents.first().map_or(Address(0), |extent| extent.range.start);
    let first = heap.trimmable.partition_point(|range| range.end <= start);
    let mut trimmable = Ahead { ranges: &heap.trimmable[first..] };
    let mut end = Address(0);
    let walked = extents.iter().filter(|extent| !extent.blocks.is_empty());
    let batches = walked.flat_map(|extent| {
        let starts = extent.blocks.clone().step_by(BATCH);
        starts.map(move |start| (extent, start..extent.blocks.end.min(start + BATCH)))
    });
    batches.flat_map(move |(extent, blocks)| {
        if blocks.start == extent.blocks.start {
            end = extent.range.start;
        }
        let is_last = blocks.end == extent.blocks.end;
        let mut spans = Spans { extent, end, all: Vec::with_capacity(3 * blocks.len() + 1) };
        for (number, block) in heap.blocks.range(blocks) {
            spans.claim(heap, block, || claim_of(number), &mut trimmable);
        }
        end = spans.end;
        if is_last {
            spans.push(end..extent.range.end, Cause::MallocOverhead);
        }
        spans.all
    })
}

/// The spans of adjacent blocks of an extent.
struct Spans<'a> {
    extent: &'a Extent,
    /// The end of the last block.
    end: Address,
    all: Vec<Span>,
}

impl Spans<'_> {
    fn claim(
        &mut self,
        heap: &HeapMap,
        block: Block,
        claim: impl Fn() -> (Cause, Option<NonZero<u32>>),
        trimmable: &mut Ahead<'_>,
    ) {
        let all = heap.header.footprint(block);
        // Memory between blocks is a structure of the allocator, or padding.
        self.push(self.end..all.start, Cause::MallocOverhead);
        self.end = all.end;
        let kept = match block.state() {
            BlockState::InUse | BlockState::Mmapped => {
                let pointer = heap.header.pointer(block);
                self.push(all.start..pointer, Cause::MallocOverhead);
                return self.push_part(pointer..all.end, claim());
            }
            BlockState::Overhead => return self.push(all, Cause::MallocOverhead),
            BlockState::Tcache => return self.push(all, Cause::MallocCached),
            BlockState::Fastbin => Cause::MallocCached,
            BlockState::Top => Cause::MallocTop,
            BlockState::Free if self.extent.state == ExtentState::Muzzy => {
                return self.push(all, Cause::MallocMuzzy);
            }
            BlockState::Free => Cause::MallocFragmented,
        };
        let trim = trimmable.within(&all);
        self.push(all.start..trim.start, kept);
        self.push(trim.clone(), Cause::MallocUnreturned);
        self.push(trim.end..all.end, kept);
    }

    fn push(&mut self, range: Range<Address>, cause: Cause) {
        self.push_part(range, (cause, None));
    }

    fn push_part(&mut self, range: Range<Address>, (cause, part): (Cause, Option<NonZero<u32>>)) {
        let range = range.start..range.end.min(self.extent.range.end);
        if range.start < range.end {
            self.all.push(Span { range, cause, arena: self.extent.arena, part });
        }
    }
}

/// Ranges that are looked up in ascending order.
struct Ahead<'a> {
    ranges: &'a [Range<Address>],
}

impl Ahead<'_> {
    /// The part of `range` that the ranges cover; empty, at its end, if they cover none.
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

#[cfg(test)]
mod tests {
    use super::*;
    use allocator::{Blocks, Header};

    fn spans(header: Header, trimmable: Option<Range<u64>>) -> Vec<(Range<u64>, Cause)> {
        let blocks = [
            (0x1000, 0x40, BlockState::InUse),
            (0x1040, 0x2fc0, BlockState::Free),
            (0x4000, 0x20, BlockState::Tcache),
            (0x4020, 0x100, BlockState::InUse),
        ];
        let blocks = blocks.map(|(at, bytes, state)| Block::new(Address(at), bytes, state));
        let blocks = Blocks::from_iter(blocks);
        let range = Address(0x1000)..Address(0x4200);
        let extents = vec![Extent::new(range, Some(0), 0..blocks.len())];
        let addresses = |range: Range<u64>| Address(range.start)..Address(range.end);
        let trimmable = trimmable.into_iter().map(addresses).collect();
        let heap = HeapMap { extents, blocks, header, trimmable, ..HeapMap::default() };
        let of_block =
            |number| (if number == 0 { Cause::RubyMalloc } else { Cause::NativeHeld }, None);
        let spans = heap_spans(&heap, &heap.extents, of_block);
        spans.map(|span| (span.range.start.0..span.range.end.0, span.cause)).collect()
    }

    #[test]
    fn a_block_in_use_reaches_into_the_header_of_the_next_one() {
        let expected = [
            (0x1000..0x1008, Cause::MallocOverhead),
            (0x1008..0x1010, Cause::MallocOverhead),
            (0x1010..0x1048, Cause::RubyMalloc),
            (0x1048..0x2000, Cause::MallocFragmented),
            (0x2000..0x4000, Cause::MallocUnreturned),
            (0x4000..0x4008, Cause::MallocFragmented),
            (0x4008..0x4028, Cause::MallocCached),
            (0x4028..0x4030, Cause::MallocOverhead),
            (0x4030..0x4128, Cause::NativeHeld),
            (0x4128..0x4200, Cause::MallocOverhead),
        ];
        assert_eq!(spans(Header { bytes: 16, lent: 8 }, Some(0x2000..0x4000)), expected);
    }

    #[test]
    fn blocks_without_headers_are_claimed_as_a_whole_and_padding_is_overhead() {
        let expected = [
            (0x1000..0x1040, Cause::RubyMalloc),
            (0x1040..0x4000, Cause::MallocFragmented),
            (0x4000..0x4020, Cause::MallocCached),
            (0x4020..0x4120, Cause::NativeHeld),
            (0x4120..0x4200, Cause::MallocOverhead),
        ];
        assert_eq!(spans(Header::default(), None), expected);
    }
}
