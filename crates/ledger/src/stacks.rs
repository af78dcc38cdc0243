//! Stacks that no thread and no fiber has, which are kept for new ones.

use std::collections::HashSet;
use std::ops::Range;

use image::ProcessState;
use linux::{Address, Backing};
use ruby::MnStack;

use crate::cause::{Cause, Causes};
use crate::facts::Facts;
use crate::ownership::{FiberStack, PointerGraph};
use crate::pages::pages_of;
use crate::threads::ThreadGroup;

/// The stacks that are kept for new threads and fibers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptStacks {
    /// The bytes of stacks that the C library keeps, resident or not: those of threads that have ended and, in a forked process, those
    /// of its parent's threads, which do not run here.
    pub thread_bytes: u64,
    /// The resident ones of these bytes.
    pub resident_thread_bytes: u64,
    /// The threads that native threads run in turn (M:N threads, from Ruby 3.3 on), each of which has a stack of its own.
    pub mn_threads: u64,
    /// The resident bytes of stacks that no such thread has any more. Ruby keeps them for new ones.
    pub resident_mn_bytes: u64,
    /// The resident bytes of the main thread's stack that no call uses any more: a recursion was deep, and the kernel keeps them.
    pub main_bytes: u64,
    /// The same bytes of the stacks of other threads that run.
    pub unused_thread_bytes: u64,
    /// The same bytes of the stacks of fibers; `None` as for `fibers`.
    pub unused_fiber_bytes: Option<u64>,
    /// The resident bytes of the VM stacks of threads between the values and the frames.
    pub unused_vm_bytes: u64,
    /// The fibers that have a stack; `None` if owners were not traced, or fibers are not recognized.
    pub fibers: Option<u64>,
    /// The resident bytes of stacks that no fiber has any more, because it has ended or was collected; `None` as for `fibers`.
    pub resident_fiber_bytes: Option<u64>,
    /// The bytes that are free, but only for threads of these stacks, which the process does not have because it was forked: they stay
    /// in the caches of these threads.
    pub cached_bytes: u64,
    /// The native threads that run no thread of Ruby: C code has started them, or Ruby keeps them. `None` if threads are unknown, or if native
    /// threads run those of [`KeptStacks::mn_threads`] in turn.
    pub other_threads: Option<u64>,
}

impl KeptStacks {
    /// Finds the stacks that are not in use. `causes` and `threads` are those of the same ledger.
    pub(crate) fn find(
        state: &ProcessState,
        facts: &Facts,
        causes: &Causes,
        threads: Option<&[ThreadGroup]>,
    ) -> Self {
        let pages = pages_of(state);
        let mut running: Vec<Address> =
            state.threads.iter().map(linux::Thread::descriptor_base).collect();
        running.sort_unstable();
        let space = facts.objects();
        let of_ruby = space.mn_stacks.iter();
        let of_ruby: HashSet<Address> =
            of_ruby.flat_map(|stack| [stack.vm.start, stack.machine.start]).collect();
        // Each block has the control block of its thread at its end.
        let kept = facts.stacks.iter().filter(|stack| {
            let after = running.partition_point(|at| *at < stack.start);
            running.get(after).is_none_or(|at| *at >= stack.end) && !of_ruby.contains(&stack.start)
        });
        let kept: Vec<_> = kept.cloned().collect();
        let (in_use, free): (Vec<_>, Vec<_>) =
            space.mn_stacks.iter().partition(|stack| space.is_in_use(stack));
        let of_mn = |it: &MnStack| pages.resident_bytes(&it.vm) + pages.resident_bytes(&it.machine);
        // Without them no object is known to be a Fiber.
        let knows_types = !space.data_types.is_empty();
        let graph = facts.graph.as_ref().filter(|_| knows_types);
        let of_fibers = graph.map(PointerGraph::fiber_stacks);
        let resident = kept.iter().map(|stack| pages.resident_bytes(stack)).sum::<u64>();
        let mn_threads = in_use.len() as u64;
        let of_ruby = |groups: &[ThreadGroup]| groups.iter().map(|it| it.threads).sum();
        let kept_by_ruby = |stacks: &[FiberStack]| {
            let in_use =
                stacks.iter().map(|stack| stack.resident_bytes).fold(0, u64::saturating_add);
            causes[Cause::StackFibers].saturating_sub(in_use)
        };
        Self {
            thread_bytes: kept.iter().map(|stack| stack.end - stack.start).sum(),
            // Stacks that overlap others are booked once.
            resident_thread_bytes: resident.min(causes[Cause::StackThreads]),
            mn_threads,
            resident_mn_bytes: free.into_iter().map(of_mn).sum(),
            main_bytes: unused_main_stack(state).map_or(0, |unused| pages.resident_bytes(&unused)),
            unused_thread_bytes: unused_stacks(state, &facts.stacks)
                .map(|unused| pages.resident_bytes(&unused))
                .fold(0, u64::saturating_add)
                .min(causes[Cause::StackThreads]),
            unused_fiber_bytes: of_fibers.map(|stacks| {
                stacks.iter().map(|stack| stack.unused_bytes).fold(0, u64::saturating_add)
            }),
            unused_vm_bytes: space
                .vm_stacks
                .iter()
                .map(|stack| pages.resident_bytes(&stack.unused))
                .fold(0, u64::saturating_add),
            fibers: of_fibers.map(|stacks| stacks.len() as u64),
            resident_fiber_bytes: of_fibers.map(kept_by_ruby),
            cached_bytes: facts.heap().abandoned_bytes.min(causes[Cause::MallocCached]),
            other_threads: threads
                .filter(|_| mn_threads == 0)
                .map(|groups| state.process.threads.saturating_sub(of_ruby(groups))),
        }
    }
}

/// The parts of the stacks of threads, but for the main one, beyond their stack pointers.
fn unused_stacks(
    state: &ProcessState,
    stacks: &[Range<Address>],
) -> impl Iterator<Item = Range<Address>> {
    state.threads.iter().filter_map(|thread| {
        let after = stacks.partition_point(|stack| stack.end <= thread.stack_pointer);
        let stack = stacks.get(after).filter(|it| it.contains(&thread.stack_pointer))?;
        Some(stack.start..thread.stack_floor().max(stack.start))
    })
}

/// The part of the main thread's stack beyond its stack pointer; `None` while the thread runs on another stack.
fn unused_main_stack(state: &ProcessState) -> Option<Range<Address>> {
    let main = state.threads.iter().find(|thread| thread.tid == state.process.pid)?;
    let mapping = state.mappings.find(main.stack_pointer)?;
    let is_kernels = mapping.backing == Backing::Stack;
    is_kernels.then(|| mapping.range.start..main.stack_floor())
}

#[cfg(test)]
mod tests {
    use image::{Image, Memory, Source};
    use linux::{Mapping, Mappings, PageRun, PageState, Pages};

    use super::*;

    struct Nothing;

    impl Memory for Nothing {
        fn read(&self, _: Address, _: &mut [u8]) -> usize {
            0
        }
    }

    impl Source for Nothing {}

    /// A stack that overlaps one of a fiber is not booked, and a report on such memory ended in an overflow.
    #[test]
    fn stacks_that_are_not_booked_have_no_bytes() {
        let stacks = [0x1000, 0x3000, 0x5000].map(|at| Address(at)..Address(at + 0x2000));
        let all = Address(0x1000)..Address(0x7000);
        let run = PageRun { range: all.clone(), state: PageState::Anonymous, huge: false };
        let state = ProcessState {
            mappings: Mappings::new(vec![Mapping::anonymous(all)]),
            pages: Some(Pages::new(vec![run])),
            ..ProcessState::default()
        };
        let mut facts = Facts::unread(&Image::new(state.clone(), Nothing), Vec::new());
        facts.stacks = stacks.to_vec();
        let mut causes = Causes::default();
        for (booked, kept) in [(0x6000, 0x6000), (0x5000, 0x5000), (0, 0)] {
            causes[Cause::StackThreads] = booked;
            let found = KeptStacks::find(&state, &facts, &causes, None);
            assert_eq!((found.thread_bytes, found.resident_thread_bytes), (0x6000, kept));
        }
    }
}
