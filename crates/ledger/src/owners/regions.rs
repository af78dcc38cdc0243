//! Memory that may hold pointers, but is neither a chunk nor a slot: areas, thread-local variables and
//! stacks.

use std::ops::Range;

use allocator::glibc::Malloc;
use capture::elf::Module;
use capture::{Address, Image, intersection};
use ruby::ObjectSpace;

/// Thread-local variables lie at most this far below a thread's control block: the dynamic linker
/// sets a few kilobytes aside for all libraries together.
const LOCALS: u64 = 4 << 10;
/// More bytes than any release's control block of a thread has.
const CONTROL: u64 = 4 << 10;
/// What a function may use below its stack pointer (System V ABI, AMD64).
const RED_ZONE: u64 = 128;

/// Private anonymous memory that nobody else claims.
pub(crate) fn areas(
    image: &Image<'_>,
    modules: &[Module],
    malloc: &Malloc,
    space: &ObjectSpace,
    stacks: &[Range<Address>],
) -> Vec<Range<Address>> {
    let mut claimed: Vec<Range<Address>> = Vec::new();
    claimed.extend(malloc.regions.iter().map(|region| region.range.clone()));
    claimed.extend(space.pages.iter().map(|page| page.range.clone()));
    claimed.extend(modules.iter().map(|module| module.range.clone()));
    claimed.extend(space.fiber_stacks.iter().cloned());
    claimed.extend(space.transient_heap.iter().cloned());
    claimed.extend(stacks.iter().cloned());
    claimed.sort_by_key(|range| range.start);
    let mut areas = Vec::new();
    let mut claims = claimed.iter().peekable();
    let may_point = |mapping: &&capture::Mapping| {
        mapping.readable
            && mapping.writable
            && mapping.is_private_anonymous()
            && mapping.backing != capture::Backing::Stack
    };
    for mapping in image.state.mappings.iter().filter(may_point) {
        let mut at = mapping.range.start;
        while claims.next_if(|claim| claim.end <= at).is_some() {}
        // A claim may reach into the next mapping: it is looked at again there.
        for claim in claims.clone().take_while(|claim| claim.start < mapping.range.end) {
            if at < claim.start {
                areas.push(at..claim.start);
            }
            at = at.max(claim.end);
        }
        if at < mapping.range.end {
            areas.push(at..mapping.range.end);
        }
    }
    areas
}

/// Where thread-local variables are: below each thread's control block; and that block itself.
pub(crate) fn locals(
    image: &Image<'_>,
    malloc: &Malloc,
    stacks: &[Range<Address>],
) -> Vec<Range<Address>> {
    let state = &image.state;
    // The main thread's may lie where the main arena begins, since the dynamic linker takes them
    // from brk, too.
    let between_regions = |at: Address, all: &Range<Address>| {
        let after = malloc.regions.partition_point(|region| region.range.start <= at);
        let before =
            after.checked_sub(1).map_or(all.start, |index| malloc.regions[index].range.end);
        let behind = malloc.regions.get(after).map_or(all.end, |region| region.range.start);
        // Chunks have the last word of the region before, and the first of theirs.
        all.start.max(before)..all.end.min(behind)
    };
    let around = |thread: &capture::Thread| {
        // Behind a thread's block may be the next one's, in the same mapping.
        let block = stacks.iter().find(|stack| stack.contains(&thread.fs_base));
        let mapping = &state.mappings.find(thread.fs_base)?.range;
        let end = block.map_or(mapping.end, |block| block.end);
        let all = thread.fs_base.before(LOCALS)..thread.fs_base.offset(CONTROL);
        let locals = between_regions(thread.fs_base, &intersection(&all, &(mapping.start..end)));
        Some(locals.start.align_up(8)..locals.end)
    };
    let mut locals: Vec<_> = state.threads.iter().filter_map(around).collect();
    locals.sort_by_key(|range| range.start);
    locals
}

/// The parts of stacks that are in use.
pub(crate) fn live_stacks(
    image: &Image<'_>,
    space: &ObjectSpace,
    stacks: &[Range<Address>],
) -> Vec<Range<Address>> {
    let state = &image.state;
    let of_thread = |thread: &capture::Thread| {
        let at = thread.stack_pointer;
        let own = stacks.iter().chain(&space.fiber_stacks).find(|stack| stack.contains(&at));
        let all = own.or_else(|| state.mappings.find(at).map(|mapping| &mapping.range))?;
        Some(at.before(RED_ZONE).align_down(8).max(all.start)..all.end)
    };
    let mut live: Vec<_> = state.threads.iter().filter_map(of_thread).collect();
    // Where a fiber stands that does not run is not known: its whole stack may be in use.
    live.extend(space.fiber_stacks.iter().cloned());
    live
}
