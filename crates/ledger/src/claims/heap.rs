use std::num::NonZero;
use std::ops::Range;

use allocator::{BlockState, Extent, ExtentState, HeapMap};
use capture::{Address, intersection};

use crate::Cause;
use crate::claims::Span;

/// The claims of malloc, ascending and disjoint. `claim_of` returns the cause of a block in use, by its number, and
/// the part of the interpreter's memory that it belongs to.
pub(crate) fn heap_spans<'a>(
    heap: &'a HeapMap,
    claim_of: impl Fn(usize) -> (Cause, Option<NonZero<u32>>) + 'a,
) -> impl Iterator<Item = Span> + 'a {
    let mut trimmable = Ahead { ranges: &heap.trimmable };
    heap.extents.iter().filter(|extent| !extent.blocks.is_empty()).flat_map(move |extent| {
        let mut spans = Spans { extent, all: Vec::with_capacity(extent.blocks.len() + 2) };
        // Memory between blocks is a structure of the allocator, or padding.
        let mut end = extent.range.start;
        for (number, block) in heap.blocks_of(extent) {
            let all = heap.header.footprint(block);
            spans.push(end..all.start, Cause::MallocOverhead);
            end = all.end;
            let kept = match block.state() {
                BlockState::InUse | BlockState::Mmapped => {
                    let pointer = heap.header.pointer(block);
                    spans.push(all.start..pointer, Cause::MallocOverhead);
                    spans.push_part(pointer..all.end, claim_of(number));
                    continue;
                }
                BlockState::Overhead => {
                    spans.push(all, Cause::MallocOverhead);
                    continue;
                }
                BlockState::Tcache => {
                    spans.push(all, Cause::MallocCached);
                    continue;
                }
                BlockState::Fastbin => Cause::MallocCached,
                BlockState::Top => Cause::MallocTop,
                BlockState::Free if extent.state == ExtentState::Muzzy => {
                    spans.push(all, Cause::MallocMuzzy);
                    continue;
                }
                BlockState::Free => Cause::MallocFragmented,
            };
            let trim = trimmable.within(&all);
            spans.push(all.start..trim.start, kept);
            spans.push(trim.clone(), Cause::MallocUnreturned);
            spans.push(trim.end..all.end, kept);
        }
        spans.push(end..extent.range.end, Cause::MallocOverhead);
        spans.all
    })
}

/// The spans of one extent.
struct Spans<'a> {
    extent: &'a Extent,
    all: Vec<Span>,
}

impl Spans<'_> {
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
    use allocator::{Block, Header};

    fn spans(header: Header, trimmable: Option<Range<u64>>) -> Vec<(Range<u64>, Cause)> {
        let blocks = [
            (0x1000, 0x40, BlockState::InUse),
            (0x1040, 0x2fc0, BlockState::Free),
            (0x4000, 0x20, BlockState::Tcache),
            (0x4020, 0x100, BlockState::InUse),
        ];
        let blocks =
            blocks.map(|(at, bytes, state)| Block::new(Address(at), bytes, state)).to_vec();
        let range = Address(0x1000)..Address(0x4200);
        let extents = vec![Extent::new(range, Some(0), 0..blocks.len())];
        let addresses = |range: Range<u64>| Address(range.start)..Address(range.end);
        let trimmable = trimmable.into_iter().map(addresses).collect();
        let heap = HeapMap { extents, blocks, header, trimmable, ..HeapMap::default() };
        let of_block =
            |number| (if number == 0 { Cause::RubyMalloc } else { Cause::NativeHeld }, None);
        let spans = heap_spans(&heap, of_block);
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
