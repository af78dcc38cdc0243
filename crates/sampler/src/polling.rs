//! Page faults without events of the kernel: the counts of all threads, read again and again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use linux::proc::{self, Tree};

/// The time between two looks, if they cost at most [`SHARE`] of a processor.
const INTERVAL: Duration = Duration::from_millis(20);
const SHARE: f64 = 0.005;
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// The time between two searches for processes that were started.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// The counts of the threads of a process and of those that it starts.
pub(crate) struct Polling {
    tree: Tree,
    members: Vec<i32>,
    searched: Option<Instant>,
    counts: HashMap<(i32, i32), u64>,
    /// The stack of each thread at the last look, as a number of the book; `None` if it waited, or was unreadable.
    pub(crate) stacks: HashMap<(i32, i32), Option<u32>>,
    /// The time between two looks.
    pub(crate) interval: Duration,
}

/// A thread that was seen.
pub(crate) struct Polled {
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    /// Its page faults since the last look.
    pub(crate) faults: u64,
}

impl Polling {
    pub(crate) fn new(pid: i32) -> Self {
        let (tree, members) = (Tree::new(pid), vec![pid]);
        let (counts, stacks) = (HashMap::new(), HashMap::new());
        Self { tree, members, searched: None, counts, stacks, interval: INTERVAL }
    }

    /// The book begins anew.
    pub(crate) fn begin_again(&mut self) {
        self.stacks.clear();
    }

    /// Looks have cost this time, on average: the next one waits longer if they cost too much.
    pub(crate) fn adapt(&mut self, cost: Duration) {
        let wanted = cost.div_f64(SHARE).clamp(INTERVAL, MAX_INTERVAL);
        self.interval = (self.interval * 7 + wanted) / 8;
    }

    /// All threads, with their faults since the last look. A new thread has none before its second look, except in a process
    /// whose other threads were seen before: such a thread has begun since.
    pub(crate) fn look(&mut self) -> Vec<Polled> {
        if self.searched.is_none_or(|searched| searched.elapsed() >= SEARCH_INTERVAL) {
            self.searched = Some(Instant::now());
            self.members = self.tree.look().iter().map(|member| member.pid).collect();
        }
        let mut counts = HashMap::new();
        let mut found = Vec::new();
        for &pid in &self.members {
            let is_known = self.counts.keys().any(|known| known.0 == pid);
            for tid in proc::thread_ids(pid).unwrap_or_default() {
                let Some(count) = proc::minor_faults(pid, tid) else { continue };
                let first = if is_known { 0 } else { count };
                let before = self.counts.get(&(pid, tid)).copied().unwrap_or(first);
                counts.insert((pid, tid), count);
                found.push(Polled { pid, tid, faults: count.saturating_sub(before) });
            }
        }
        self.counts = counts;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_cost_much_are_rare() {
        let mut polling = Polling::new(std::process::id().cast_signed());
        let settle = |polling: &mut Polling, cost| {
            (0..100).for_each(|_| polling.adapt(cost));
            polling.interval.as_millis()
        };
        assert_eq!(settle(&mut polling, Duration::from_micros(50)), 20);
        assert!((995..=1000).contains(&settle(&mut polling, Duration::from_millis(5))));
        assert!(settle(&mut polling, Duration::from_secs(1)) <= 2000);
    }
}
