//! The stacks and thread-local variables of threads. musl's control block describes a thread's block in the same way as glibc's.
//!
//! glibc puts a thread's stack, its thread-local storage and its control block (`struct pthread`, nptl/descr.h)
//! into one block, and writes the start and size of that block into the control block. Their offset depends on
//! the release, so it is derived: it is the pair of words that describes, in every thread, a block around that
//! thread's stack pointer and control block. Adjacent mappings merge in /proc/PID/maps, so nothing is inferred
//! from mappings.

use std::collections::BTreeSet;
use std::ops::Range;

use image::elf::Module;
use image::{Image, Memory, ProcessState};
use linux::{Address, Mapping, Thread, intersection, length, range_at};

use crate::HeapMap;

/// The maximum size of the thread-local variables beside a control block: the dynamic linker reserves a few KiB for
/// all libraries together.
const MAX_LOCALS: u64 = 4 << 10;

/// More bytes than the descriptor of the main thread has, and fewer than its thread-local variables have.
const MAX_MAIN_DESCRIPTOR: u64 = 2 << 10;
const MIN_MAIN_LOCALS: u64 = 64;

/// More stacks of ended threads than glibc keeps.
const MAX_CACHED_STACKS: usize = 10_000;

/// The machine stacks of the threads of `image`, and stacks of ended threads that glibc keeps; ascending and
/// disjoint. `modules` are all of the process.
#[must_use]
pub fn thread_stacks(image: &Image<'_>, modules: &[Module]) -> Vec<Range<Address>> {
    let state = &image.state;
    let page_size = image.page_size();
    let mut stacks = Vec::new();
    if let Some(main) = state.threads.iter().find(|thread| thread.tid == state.process.pid) {
        // The main thread's stack is the kernel's [stack]; its control block and thread-local variables are in a
        // page or two that the dynamic linker obtained.
        let start = main.descriptor_base();
        let end = start.offset(MAX_MAIN_DESCRIPTOR).max(main.locals(MIN_MAIN_LOCALS).end);
        // musl has them among its own variables, if they are small.
        let mut variables = modules.iter().flat_map(|module| &module.variables);
        if !variables.any(|range| range.contains(&start)) {
            stacks.push(start.align_down(page_size)..end.align_up(page_size));
        }
    }
    let others: Vec<&Thread> =
        state.threads.iter().filter(|thread| thread.tid != state.process.pid).collect();
    let all_blocks = |offset| -> Option<Vec<_>> {
        others.iter().map(|thread| block_of(image, thread, offset)).collect()
    };
    let mut offsets = (0..image.state.machine.cpu.pthread_bytes()).step_by(8);
    let living = offsets.find_map(all_blocks).unwrap_or_default();
    if living.len() == others.len() {
        stacks.extend(cached_stacks(image, &living));
        stacks.extend(living);
    }
    stacks.sort_by_key(|stack| stack.start);
    stacks.dedup();
    // A thread may run on a stack that is not its own; memory that overlaps is claimed once.
    stacks.dedup_by(|next, last| next.start < last.end);
    stacks
}

/// The block that the words at `offset` of the thread's control block describe, if the thread runs on it.
fn block_of(image: &Image<'_>, thread: &Thread, offset: u64) -> Option<Range<Address>> {
    let block = described_block(image, thread.descriptor_base(), offset)?;
    // A thread may run on another stack for a while: a fiber's or a signal's.
    let is_own = block.start <= thread.stack_pointer && thread.stack_pointer < block.end;
    (is_own || !is_right_below(&block, thread.stack_pointer)).then_some(block)
}

/// Returns true if `at` lies so closely below the block that the block seems to begin too late.
fn is_right_below(block: &Range<Address>, at: Address) -> bool {
    at < block.start && block.start - at < length(block)
}

fn described_block(image: &Image<'_>, control: Address, offset: u64) -> Option<Range<Address>> {
    let start = image.read_address(control.offset(offset)).ok()?;
    let bytes = image.read_u64(control.offset(offset + 8)).ok()?;
    check_block(&image.state, control, start, bytes)
}

fn check_block(
    state: &ProcessState,
    control: Address,
    start: Address,
    bytes: u64,
) -> Option<Range<Address>> {
    let end = Address(start.0.checked_add(bytes)?);
    let encloses =
        start < control && control < end && end - control <= state.machine.cpu.pthread_bytes();
    let page_size = state.machine.page_size;
    let is_block = encloses && start.is_aligned(page_size) && end.is_aligned(page_size);
    let is_mapped = state.mappings.find(start).is_some();
    (is_block && is_mapped).then_some(start..end)
}

/// The stacks of ended threads: glibc keeps up to 40 MiB of them for new threads. Such a block ends with a mapping, or
/// where another block begins, and its control block still describes the block. It is in a list, too: libffi's allocator ends the
/// memory of closures with its address and size.
fn cached_stacks(image: &Image<'_>, living: &[Range<Address>]) -> Vec<Range<Address>> {
    let may_be_stack =
        |mapping: &&Mapping| mapping.readable && mapping.writable && mapping.is_private_anonymous();
    let mappings = image.state.mappings.iter().filter(may_be_stack);
    let mut ends: Vec<Address> = mappings.map(|mapping| mapping.range.end).collect();
    ends.extend(living.iter().map(|block| block.start));
    // The main thread's control block may follow in the same mapping.
    let main = image.state.threads.iter().find(|thread| thread.tid == image.state.process.pid);
    ends.extend(main.map(|thread| thread.descriptor_base().align_down(image.page_size())));
    let mut stacks: Vec<Range<Address>> = Vec::new();
    let mut starts = BTreeSet::new();
    let living = merged(living);
    while let Some(end) = ends.pop() {
        if stacks.len() < MAX_CACHED_STACKS
            && let Some(block) = block_before(image, end)
            && is_stack(&image.state, &block)
            && !touches(&living, &block)
            && starts.insert(block.start)
        {
            ends.push(block.start);
            stacks.push(block);
        }
    }
    stacks
}

/// The ranges in ascending order. Overlapping ranges are merged.
fn merged(ranges: &[Range<Address>]) -> Vec<Range<Address>> {
    let mut ranges = ranges.to_vec();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let overlaps = next.start < last.end;
        if overlaps {
            last.end = last.end.max(next.end);
        }
        overlaps
    });
    ranges
}

/// Returns true if one of the ranges, which are disjoint and ascending, overlaps `range`.
fn touches(ranges: &[Range<Address>], range: &Range<Address>) -> bool {
    let after = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(after).is_some_and(|other| other.start < range.end)
}

/// Returns true if a block is in one mapping, or begins with a mapping that cannot be read: its guard.
fn is_stack(state: &ProcessState, block: &Range<Address>) -> bool {
    let (Some(first), Some(last)) =
        (state.mappings.find(block.start), state.mappings.find(block.end.before(1)))
    else {
        return false;
    };
    first.range == last.range || !first.readable && first.range.end == last.range.start
}

/// The block of a thread that ends at `end`.
fn block_before(image: &Image<'_>, end: Address) -> Option<Range<Address>> {
    let mut bytes = vec![0; image.state.machine.cpu.pthread_bytes() as usize];
    let start = end.before(bytes.len() as u64);
    image.read_exact(start, &mut bytes).ok()?;
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(word).collect();
    let pairs = || words.windows(2).zip((start.0..).step_by(8));
    let mut blocks = pairs()
        .filter_map(|(pair, at)| check_block(&image.state, Address(at), Address(pair[0]), pair[1]));
    let block = blocks.find(|block| block.end == end)?;
    pairs().any(|(pair, at)| is_in_list(image, Address(at), pair)).then_some(block)
}

/// Returns true if the words at `node` are the addresses of the next and of the previous node of a list (`list_t` of glibc's
/// include/list.h), which refer to it.
fn is_in_list(image: &Image<'_>, node: Address, words: &[u64]) -> bool {
    let [next, previous] = [0, 1].map(|index| Address(words[index]));
    let refers = |at: Address| image.read_address(at).is_ok_and(|it| it == node);
    let may_be = |at: &Address| at.0 != 0 && at.is_aligned(8);
    [next, previous].iter().all(may_be) && refers(next.offset(8)) && refers(previous)
}

/// The memory of thread-local variables, beside each thread's control block, and the control blocks. `stacks` are
/// the [`thread_stacks`].
#[must_use]
pub fn thread_locals(
    image: &Image<'_>,
    heap: &HeapMap,
    stacks: &[Range<Address>],
) -> Vec<Range<Address>> {
    let state = &image.state;
    // The main thread's variables may lie where the main arena begins, since the dynamic linker takes them from
    // brk, too.
    let between_extents = |at: Address, all: &Range<Address>| {
        let after = heap.extents.partition_point(|extent| extent.range.start <= at);
        let before = after.checked_sub(1).map_or(all.start, |index| heap.extents[index].range.end);
        let behind = heap.extents.get(after).map_or(all.end, |extent| extent.range.start);
        all.start.max(before)..all.end.min(behind)
    };
    let around = |thread: &Thread| {
        // The next thread's block may follow in the same mapping.
        let block = range_at(stacks, thread.descriptor_base());
        let mapping = &state.mappings.find(thread.descriptor_base())?.range;
        let end = block.map_or(mapping.end, |block| block.end);
        let (control, locals) = (thread.descriptor_base(), thread.locals(MAX_LOCALS));
        let all =
            locals.start.min(control)..locals.end.max(control.offset(thread.cpu.pthread_bytes()));
        let locals =
            between_extents(thread.descriptor_base(), &intersection(&all, &(mapping.start..end)));
        Some(locals.start.align_up(8)..locals.end)
    };
    let mut locals: Vec<_> = state.threads.iter().filter_map(around).collect();
    locals.sort_by_key(|range| range.start);
    locals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_found_as_by_looking_at_all() {
        let range = |(start, end)| Address(start)..Address(end);
        let ranges = [(9, 12), (2, 4), (3, 7), (4, 5), (20, 30), (10, 11)].map(range);
        let merged = merged(&ranges);
        assert_eq!(merged, [(2, 7), (9, 12), (20, 30)].map(range));
        for block in (0..32).flat_map(|start| (start + 1..34).map(move |end| range((start, end)))) {
            let expected = ranges.iter().any(|other| !intersection(other, &block).is_empty());
            assert_eq!(touches(&merged, &block), expected, "{block:?}");
        }
    }
}
