//! Stacks that no thread and no fiber has, which are kept for new ones.

use image::ProcessState;
use linux::Address;

use crate::cause::{Cause, Causes};
use crate::facts::Facts;
use crate::ownership::PointerGraph;
use crate::pages::pages_of;

/// The stacks that are kept for new threads and fibers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptStacks {
    /// The bytes of stacks that the C library keeps, resident or not: those of threads that have ended and, in a forked process, those
    /// of its parent's threads, which do not run here.
    pub thread_bytes: u64,
    /// The resident ones of these bytes.
    pub resident_thread_bytes: u64,
    /// The fibers that have a stack; `None` if owners were not traced.
    pub fibers: Option<u64>,
    /// The resident bytes of stacks that Ruby keeps: of fibers that have ended. `None` if owners were not traced.
    pub resident_fiber_bytes: Option<u64>,
}

impl KeptStacks {
    /// Finds the stacks that are not in use. `causes` are those of the same ledger.
    pub(crate) fn find(state: &ProcessState, facts: &Facts, causes: &Causes) -> Self {
        let pages = pages_of(state);
        let mut running: Vec<Address> =
            state.threads.iter().map(linux::Thread::descriptor_base).collect();
        running.sort_unstable();
        // Each block has the control block of its thread at its end.
        let kept = facts.stacks.iter().filter(|stack| {
            let after = running.partition_point(|at| *at < stack.start);
            running.get(after).is_none_or(|at| *at >= stack.end)
        });
        let kept: Vec<_> = kept.collect();
        let of_fibers = facts.graph.as_ref().map(PointerGraph::fiber_stacks);
        let in_use = |stacks: &[_]| stacks.iter().map(|stack| pages.resident_bytes(stack)).sum();
        let kept_by_ruby = |stacks| causes[Cause::StackFibers].saturating_sub(in_use(stacks));
        Self {
            thread_bytes: kept.iter().map(|stack| stack.end - stack.start).sum(),
            resident_thread_bytes: kept.iter().map(|stack| pages.resident_bytes(stack)).sum(),
            fibers: of_fibers.map(|stacks| stacks.len() as u64),
            resident_fiber_bytes: of_fibers.map(kept_by_ruby),
        }
    }
}
