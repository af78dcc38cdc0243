//! Where the machine stacks of threads are.
//!
//! glibc puts a thread's stack, its thread-local storage and its control block (`struct pthread`,
//! nptl/descr.h) into one block, and writes the block's start and size into the control block.
//! Where in it depends on the release, so the place is derived: it is the pair of words that
//! describes, in every thread, a block around that thread's stack pointer and control block.
//! Neighbouring mappings merge in /proc/PID/maps, so nothing is inferred from mappings.

use std::collections::BTreeSet;
use std::ops::Range;

use capture::{Address, Image, Memory, PAGE_SIZE, ProcessState, Thread, length};

/// More bytes than any release's `struct pthread` has.
const DESCRIPTOR: u64 = 0x1000;
/// Where a control block has its second pointer to itself (`tcbhead_t.self`); the first stands at
/// its beginning.
const CONTROL_SELF: u64 = 16;

/// The machine stacks of the image's threads, and such as glibc keeps of threads that have ended;
/// ascending and disjoint.
pub(crate) fn find_stacks(image: &Image<'_>) -> Vec<Range<Address>> {
    let state = &image.state;
    let mut stacks = Vec::new();
    if let Some(main) = state.threads.iter().find(|thread| thread.tid == state.process.pid) {
        // The main thread's stack is the kernel's [stack]; its control block and thread-local
        // variables are in a page or two that the dynamic linker obtained.
        let start = main.fs_base.align_down(PAGE_SIZE);
        stacks.push(start..main.fs_base.offset(DESCRIPTOR / 2).align_up(PAGE_SIZE));
    }
    let others: Vec<&Thread> =
        state.threads.iter().filter(|thread| thread.tid != state.process.pid).collect();
    let all_blocks = |place| -> Option<Vec<_>> {
        others.iter().map(|thread| block_of(image, thread, place)).collect()
    };
    let mut places = (0..DESCRIPTOR).step_by(8);
    let found = places.find_map(|place| Some((place, all_blocks(place)?)));
    if let Some((place, living)) = found
        && let (Some(block), Some(thread)) = (living.first(), others.first())
    {
        let tail = block.end - thread.fs_base;
        stacks.extend(kept_stacks(image, &living, tail, place));
        stacks.extend(living);
    }
    stacks.sort_by_key(|stack| stack.start);
    stacks.dedup();
    // A thread may stand on a stack that is none of its own; what overlaps is claimed once.
    stacks.dedup_by(|next, last| next.start < last.end);
    stacks
}

/// The block that the words at `place` of the thread's control block describe, if it is one that
/// this thread runs on.
fn block_of(image: &Image<'_>, thread: &Thread, place: u64) -> Option<Range<Address>> {
    let block = described_block(image, thread.fs_base, place)?;
    // A thread may run on another stack for a while: a fiber's, a signal's.
    let own_page = block.start <= thread.stack_pointer && thread.stack_pointer < block.end;
    (own_page || !is_near(&block, thread.stack_pointer)).then_some(block)
}

/// Whether `at` lies so near to the block's start that the block seems to begin too late.
fn is_near(block: &Range<Address>, at: Address) -> bool {
    at < block.start && block.start - at < length(block)
}

fn described_block(image: &Image<'_>, control: Address, place: u64) -> Option<Range<Address>> {
    let start = image.read_address(control.offset(place)).ok()?;
    let bytes = image.read_u64(control.offset(place + 8)).ok()?;
    check_block(&image.state, control, start, bytes)
}

fn check_block(
    state: &ProcessState,
    control: Address,
    start: Address,
    bytes: u64,
) -> Option<Range<Address>> {
    let end = Address(start.0.checked_add(bytes)?);
    let encloses = start < control && control < end && end - control <= DESCRIPTOR;
    let is_block = encloses && start.is_aligned(PAGE_SIZE) && end.is_aligned(PAGE_SIZE);
    let is_mapped = state.mappings.find(start).is_some();
    (is_block && is_mapped).then_some(start..end)
}

/// The stacks of ended threads: glibc keeps up to 40 MB of them for the next threads. Such a block
/// begins with a mapping (its guard pages) or behind another block, is as long as one of the
/// living, and its control block still points to itself.
fn kept_stacks(
    image: &Image<'_>,
    living: &[Range<Address>],
    tail: u64,
    place: u64,
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
                && described_block(image, control, place) == Some(block.clone())
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
