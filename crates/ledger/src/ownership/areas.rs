//! Memory that may have an owner, but is neither a block nor a slot: areas, and the stacks in use.

use std::collections::HashSet;
use std::ops::Range;

use allocator::HeapMap;
use image::Image;
use image::elf::Module;
use linux::{Address, Backing, Mapping, Thread, range_at};
use ruby::ObjectSpace;

/// Memory that the process may write, or execute as anonymous memory, and that nothing else claims: tables of libraries may be in mapped files
/// or in shared memory, too. `locals` are the thread-local variables.
pub(crate) fn areas(
    image: &Image<'_>,
    modules: &[Module],
    heap: &HeapMap,
    space: &ObjectSpace,
    stacks: &[Range<Address>],
    locals: &[Range<Address>],
) -> Vec<Range<Address>> {
    let mut claimed: Vec<Range<Address>> = Vec::new();
    claimed.extend(heap.extents.iter().map(|extent| extent.range.clone()));
    claimed.extend(space.pages.iter().map(|page| page.range.clone()));
    claimed.extend(modules.iter().map(|module| module.range.clone()));
    claimed.extend(space.free_pages.iter().cloned());
    claimed.extend(space.fiber_stacks.iter().cloned());
    claimed.extend(space.transient_heap.iter().cloned());
    claimed.extend(space.jit_code.iter().cloned());
    claimed.extend(stacks.iter().cloned());
    // The main thread's variables may begin in a page before that of its control block.
    claimed.extend(locals.iter().cloned());
    claimed.sort_by_key(|range| range.start);
    let mut areas = Vec::new();
    let mut claims = claimed.iter().peekable();
    let is_in_use = |mapping: &&Mapping| {
        let is_kernels = matches!(mapping.backing, Backing::Stack | Backing::Kernel(_));
        let may_hold = mapping.writable || mapping.executable && mapping.is_private_anonymous();
        mapping.readable && may_hold && !is_kernels && !mapping.is_device()
    };
    for mapping in image.state.mappings.iter().filter(is_in_use) {
        let mut at = mapping.range.start;
        while claims.next_if(|claim| claim.end <= at).is_some() {}
        // A claim may reach into the next mapping, which then needs it again.
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

/// A part of a stack that is in use.
#[derive(Debug, Clone)]
pub(crate) struct LiveStack {
    pub(crate) range: Range<Address>,
    /// The stack of a thread or fiber that it belongs to.
    pub(crate) stack: Range<Address>,
    /// The index of the thread that runs on it; `None` for fibers that do not run.
    pub(crate) thread: Option<usize>,
}

/// The parts of stacks that are in use, without the thread-local variables (`locals`) at their ends.
pub(crate) fn live_stacks(
    image: &Image<'_>,
    space: &ObjectSpace,
    stacks: &[Range<Address>],
    locals: &[Range<Address>],
) -> Vec<LiveStack> {
    let state = &image.state;
    let of_thread = |(index, thread): (usize, &Thread)| {
        let at = thread.stack_pointer;
        let own = range_at(stacks, at).or_else(|| range_at(&space.fiber_stacks, at));
        let all = own.or_else(|| state.mappings.find(at).map(|mapping| &mapping.range))?;
        let end = range_at(locals, thread.descriptor_base()).filter(|it| all.contains(&it.start));
        let end = end.map_or(all.end, |locals| locals.start);
        let start = thread.stack_floor().align_down(8).max(all.start);
        Some(LiveStack { range: start.min(end)..end, stack: all.clone(), thread: Some(index) })
    };
    let mut live: Vec<_> = state.threads.iter().enumerate().filter_map(of_thread).collect();
    // The stack pointer of a fiber that does not run is not known, so all of its stack may be in use.
    let running: HashSet<Range<Address>> = live.iter().map(|it| it.stack.clone()).collect();
    let waiting = space.fiber_stacks.iter().filter(|stack| !running.contains(stack));
    // So is that of a thread that shares native threads with others.
    let of_threads = space.mn_stacks.iter().filter(|stack| space.is_in_use(stack));
    let of_threads = of_threads.map(|stack| &stack.machine).filter(|it| !running.contains(it));
    live.extend(waiting.chain(of_threads).map(|stack| LiveStack {
        range: stack.clone(),
        stack: stack.clone(),
        thread: None,
    }));
    live
}
