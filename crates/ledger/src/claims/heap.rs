use std::ops::Range;

use allocator::{BlockState, HeapMap};
use capture::{Address, intersection};

use crate::Cause;
use crate::claims::Span;

/// The claims of malloc, ascending and disjoint. `cause_of` returns the cause of a block in use, by its number.
pub(crate) fn heap_spans<'a>(
    heap: &'a HeapMap,
    cause_of: impl Fn(usize) -> Cause + 'a,
) -> impl Iterator<Item = Span> + 'a {
    let mut trimmable = Ahead { ranges: &heap.trimmable };
    heap.extents.iter().filter(|extent| !extent.blocks.is_empty()).flat_map(move |extent| {
        let mut spans = Vec::with_capacity(extent.blocks.len() + 2);
        let mut push = |range: Range<Address>, cause| {
            let range = range.start..range.end.min(extent.range.end);
            if range.start < range.end {
                spans.push(Span { range, cause, arena: extent.arena });
            }
        };
        // Memory between blocks is a structure of the allocator, or padding.
        let mut end = extent.range.start;
        for (number, block) in heap.blocks_of(extent) {
            let all = heap.header.footprint(block);
            push(end..all.start, Cause::MallocOverhead);
            end = all.end;
            let kept = match block.state() {
                BlockState::InUse | BlockState::Mmapped => {
                    let pointer = heap.header.pointer(block);
                    push(all.start..pointer, Cause::MallocOverhead);
                    push(pointer..all.end, cause_of(number));
                    continue;
                }
                BlockState::Overhead => {
                    push(all, Cause::MallocOverhead);
                    continue;
                }
                BlockState::Tcache => {
                    push(all, Cause::MallocCached);
                    continue;
                }
                BlockState::Fastbin => Cause::MallocCached,
                BlockState::Top => Cause::MallocTop,
                BlockState::Free => Cause::MallocFragmented,
            };
            let trim = trimmable.within(&all);
            push(all.start..trim.start, kept);
            push(trim.clone(), Cause::MallocUnreturned);
            push(trim.end..all.end, kept);
        }
        push(end..extent.range.end, Cause::MallocOverhead);
        spans
    })
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
