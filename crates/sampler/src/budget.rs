//! The CPU time for everything but reading stacks: mappings that have changed, pages that processes share.

use std::time::{Duration, Instant};

use linux::proc::own_thread_cpu_time;

/// The share of a processor.
const SHARE: f64 = 0.005;
/// The CPU time that may be spent at once after a time in which less was needed.
const MAX_ROOM: Duration = Duration::from_millis(300);

/// What is left of the share of a processor.
pub(crate) struct Budget {
    since: Instant,
    /// The time that may be spent; negative if one piece of work took more.
    room: f64,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), room: MAX_ROOM.as_secs_f64() }
    }

    /// Returns true if work may begin.
    pub(crate) fn has_room(&mut self) -> bool {
        let now = Instant::now();
        let gained = SHARE * (now - self.since).as_secs_f64();
        self.since = now;
        self.room = (self.room + gained).min(MAX_ROOM.as_secs_f64());
        self.room > 0.0
    }

    /// Works, and subtracts the time that it takes.
    pub(crate) fn spend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = own_thread_cpu_time();
        let result = work();
        self.room -= own_thread_cpu_time().saturating_sub(before).as_secs_f64();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_until_its_time_was_saved_up() {
        let mut budget = Budget::new();
        assert!(budget.has_room());
        budget.room = -1.0;
        assert!(!budget.has_room());
        // In 100 s, half a second is gained.
        budget.since -= Duration::from_secs(100);
        assert!(!budget.has_room());
        budget.since -= Duration::from_secs(101);
        assert!(budget.has_room());
        budget.since -= Duration::from_secs(10_000);
        assert!(budget.has_room() && budget.room <= MAX_ROOM.as_secs_f64());
        let before = budget.room;
        assert_eq!(
            budget.spend(|| (0..100_000_u64).map(std::hint::black_box).sum::<u64>()),
            4_999_950_000
        );
        assert!(budget.room < before);
    }
}
