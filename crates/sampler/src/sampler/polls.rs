//! Samples by polling: the numbers of page faults of all threads, joined with their stacks before and after.

use std::collections::HashMap;

use linux::proc::own_thread_cpu_time;

use super::{Sampler, Source};
use crate::book::Sample;
use crate::polling::Polled;
use crate::profile::UnknownStack;

/// The number of threads beyond which the stacks of idle ones are not read.
const MAX_POLLED_STACKS: usize = 32;

impl Sampler {
    /// Waits, and counts the faults of all threads. Half of the growth of a thread is the code's that it ran at the last look.
    pub(super) fn step_by_polling(&mut self) {
        let Source::Polling(polling) = &mut self.source else { return };
        std::thread::sleep(polling.interval);
        let begin = own_thread_cpu_time();
        let threads = polling.look();
        let are_few = threads.len() <= MAX_POLLED_STACKS;
        let pids: Vec<i32> = threads.iter().map(|it| it.pid).collect();
        let mut stacks = HashMap::new();
        for Polled { pid, tid, faults } in threads {
            if faults == 0 && !are_few {
                continue;
            }
            let process = self.processes.find_or_add(pid, None);
            let reading = process.read_stack(tid, &mut self.budget);
            let book = &mut self.account.book;
            let stack = book.stack(process, &reading);
            stacks.insert((pid, tid), stack);
            if faults == 0 {
                continue;
            }
            book.count(Some(&reading), stack);
            let thread = book.thread(&process.name(tid));
            let sample = |stack, pages| {
                let (access, faults, is_prompt) = (None, pages, false);
                Sample { stack, thread, access, faults, pages, is_prompt }
            };
            let earlier = polling.stacks.get(&(pid, tid)).copied().flatten();
            let first = match earlier {
                // While a thread waits, it touches nothing.
                Some(_) if reading.frames == Err(UnknownStack::Late) => faults,
                Some(_) => faults / 2,
                None => 0,
            };
            let before = earlier.map(|earlier| sample(Some(earlier), first));
            self.account.add(pid, before.into_iter().chain([sample(stack, faults - first)]));
        }
        self.processes.suspect_all_but(&pids);
        polling.stacks = stacks;
        polling.adapt(own_thread_cpu_time().saturating_sub(begin));
    }
}
