//! The stacks and thread-local variables of the threads that glibc made.
//!
//! glibc puts a thread's stack, its thread-local storage and its control block (`struct pthread`, nptl/descr.h)
//! into one block, and writes the start and size of that block into the control block. Their offset depends on
//! the release, so it is derived: it is the pair of words that describes, in every thread, a block around that
//! thread's stack pointer and control block. Adjacent mappings merge in /proc/PID/maps, so nothing is inferred
//! from mappings.

use std::collections::BTreeSet;
use std::ops::Range;

use capture::{Address, Image, Memory, PAGE_SIZE, ProcessState, Thread, intersection, length};

use crate::HeapMap;

/// More bytes than `struct pthread` has in any release.
const MAX_DESCRIPTOR: u64 = 4 << 10;
/// The offset of a control block's second pointer to itself (`tcbhead_t.self`); the first is at its beginning.
const CONTROL_SELF: u64 = 16;
/// The maximum size of the thread-local variables below a control block: the dynamic linker reserves a few KiB for
/// all libraries together.
const MAX_LOCALS: u64 = 4 << 10;

/// The machine stacks of the threads of `image`, and stacks of ended threads that glibc keeps; ascending and
/// disjoint.
#[must_use]
pub fn thread_stacks(image: &Image<'_>) -> Vec<Range<Address>> {
    let state = &image.state;
    let mut stacks = Vec::new();
    if let Some(main) = state.threads.iter().find(|thread| thread.tid == state.process.pid) {
        // The main thread's stack is the kernel's [stack]; its control block and thread-local variables are in a
        // page or two that the dynamic linker obtained.
        let start = main.pthread().align_down(PAGE_SIZE);
        stacks.push(start..main.pthread().offset(MAX_DESCRIPTOR / 2).align_up(PAGE_SIZE));
    }
    let others: Vec<&Thread> =
        state.threads.iter().filter(|thread| thread.tid != state.process.pid).collect();
    let all_blocks = |offset| -> Option<Vec<_>> {
        others.iter().map(|thread| block_of(image, thread, offset)).collect()
    };
    let mut offsets = (0..MAX_DESCRIPTOR).step_by(8);
    let found = offsets.find_map(|offset| Some((offset, all_blocks(offset)?)));
    if let Some((offset, living)) = found
        && let (Some(block), Some(thread)) = (living.first(), others.first())
    {
        let tail = block.end - thread.pthread();
        stacks.extend(cached_stacks(image, &living, tail, offset));
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
    let block = described_block(image, thread.pthread(), offset)?;
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
    let encloses = start < control && control < end && end - control <= MAX_DESCRIPTOR;
    let is_block = encloses && start.is_aligned(PAGE_SIZE) && end.is_aligned(PAGE_SIZE);
    let is_mapped = state.mappings.find(start).is_some();
    (is_block && is_mapped).then_some(start..end)
}

/// The stacks of ended threads: glibc keeps up to 40 MiB of them for new threads. Such a block begins with a
/// mapping (its guard pages) or behind another block, is as long as a living thread's, and its control block
/// still points to itself.
fn cached_stacks(
    image: &Image<'_>,
    living: &[Range<Address>],
    tail: u64,
    offset: u64,
) -> Vec<Range<Address>> {
    let sizes: BTreeSet<u64> = living.iter().map(length).collect();
    let mappings = image.state.mappings.iter();
    let mut starts: Vec<Address> = mappings.map(|mapping| mapping.range.start).collect();
    starts.extend(living.iter().map(|block| block.end));
    let mut stacks = Vec::new();
    while let Some(start) = starts.pop() {
        for size in &sizes {
            let control = start.offset(size - tail);
            let points_to_itself = |at| image.read_address(at) == Ok(control);
            let block = start..start.offset(*size);
            if points_to_itself(control)
                && points_to_itself(control.offset(CONTROL_SELF))
                && described_block(image, control, offset) == Some(block.clone())
                && !living.contains(&block)
                && !stacks.contains(&block)
            {
                starts.push(block.end);
                stacks.push(block);
            }
        }
    }
    stacks
}

/// The memory of thread-local variables, below each thread's control block, and the control blocks. `stacks` are
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
        let block = stacks.iter().find(|stack| stack.contains(&thread.pthread()));
        let mapping = &state.mappings.find(thread.pthread())?.range;
        let end = block.map_or(mapping.end, |block| block.end);
        let all = thread.pthread().before(MAX_LOCALS)..thread.pthread().offset(MAX_DESCRIPTOR);
        let locals = between_extents(thread.pthread(), &intersection(&all, &(mapping.start..end)));
        Some(locals.start.align_up(8)..locals.end)
    };
    let mut locals: Vec<_> = state.threads.iter().filter_map(around).collect();
    locals.sort_by_key(|range| range.start);
    locals
}
