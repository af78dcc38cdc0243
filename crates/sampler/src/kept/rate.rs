use std::time::Duration;

use linux::{Clocks, Error, TickSource};
use ruby::TickProgram;

use crate::kept::MAX_RATE;

/// A process that uses little of a processor gets so many times as many ticks in a second of its processor time, at most: else an
/// observation of some minutes has hardly any.
const MORE: u32 = 5;
/// The change of the rate that is worth new clocks: load varies a little all the time.
const MIN_CHANGE: f64 = 1.25;
/// The time between two decisions.
const WINDOW: Duration = Duration::from_secs(5);

/// The ticks of a window by which the kernel's other timers are counted, at least.
const MIN_TICKS: f64 = 50.0;

/// The number of ticks in a second of a thread's processor time. A process that uses a part of a processor has as many in a second as one
/// that uses it all, so it is never slowed down by more of a processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    of_busy: u32,
    ticks: u32,
    source: TickSource,
    /// The number of the kernel's timers that end for each of its ticks, as far as is known.
    timers: f64,
    decided: Option<Decision>,
}

/// What was known at the latest decision: the times since the beginning, and of the processor, and the ticks that were seen.
#[derive(Debug, Clone, Copy, Default)]
struct Decision {
    at: Duration,
    used: Duration,
    seen: u64,
}

impl Rate {
    /// Begins with the rate of a busy process.
    pub(super) fn new(of_busy: u32, source: TickSource) -> Self {
        let of_busy = of_busy.min(MAX_RATE);
        Self { of_busy, ticks: of_busy, source, timers: 1.0, decided: None }
    }

    /// Starts clocks of this rate.
    pub(super) fn start(self, pid: i32, tick: &TickProgram) -> Result<Clocks, Error> {
        Clocks::start(pid, self.ticks, self.timers, self.source, |code| tick.write(code))
    }

    /// Returns true if the rate is another one from `now` on. `seen` is the number of ticks so far, and `processor_time` that of the
    /// process.
    pub(super) fn change(
        &mut self,
        now: Duration,
        seen: u64,
        are_the_kernels: bool,
        processor_time: impl FnOnce() -> Duration,
    ) -> bool {
        let last = self.decided.unwrap_or_default();
        if self.decided.is_some() && now < last.at + WINDOW {
            return false;
        }
        let new = Decision { at: now, used: processor_time(), seen };
        if self.decided.replace(new).is_none() {
            return false;
        }
        let used = new.used.saturating_sub(last.used).as_secs_f64();
        let is_worth_it = |one: f64, other: f64| one.max(other) > MIN_CHANGE * one.min(other);
        let expected = f64::from(self.ticks) * used;
        let seen = seen.saturating_sub(last.seen) as f64;
        let timers = match are_the_kernels && expected >= MIN_TICKS {
            true => (self.timers * seen / expected).max(1.0),
            false => self.timers,
        };
        let part = used / (now - last.at).as_secs_f64();
        let most = self.of_busy.saturating_mul(MORE).min(MAX_RATE);
        let wanted = (f64::from(self.of_busy) / part) as u32;
        let wanted = wanted.clamp(self.of_busy, most);
        let changes =
            is_worth_it(wanted.into(), self.ticks.into()) || is_worth_it(timers, self.timers);
        if changes {
            (self.ticks, self.timers) = (wanted, timers);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "1 of 10 samples" of 13,000 leaked objects: the process had needed 0.3 s of processor time, and so had 68 ticks. One that used a
    /// quarter of a processor had 4 samples of 245,000.
    #[test]
    fn a_process_that_uses_a_part_of_a_processor_has_more_ticks() {
        let changes = |of_busy: u32, percent: &[u64]| {
            let mut rate = Rate::new(of_busy, TickSource::Any);
            let mut used = Duration::ZERO;
            let mut all = vec![rate.ticks];
            for (second, percent) in (0..).zip(percent) {
                used += Duration::from_millis(10 * percent);
                let changes = rate.change(Duration::from_secs(second), 0, false, || used);
                all.extend(changes.then_some(rate.ticks));
            }
            all
        };
        assert_eq!(changes(200, &[3; 20]), [200, 1000]);
        assert_eq!(changes(100, &[3; 20]), [100, 500]);
        assert_eq!(changes(500, &[3; 20]), [500, 1000]);
        assert_eq!(changes(1000, &[3; 20]), [1000]);
        assert_eq!(changes(5000, &[100; 20]), [1000]);
        assert_eq!(changes(200, &[100; 20]), [200]);
        // As many in a second as of a process that uses all of a processor.
        assert_eq!(changes(200, &[25; 20]), [200, 800]);
        assert_eq!(changes(200, &[50; 20]), [200, 400]);
        assert_eq!(changes(200, &[300; 20]), [200]);
        // Load that varies a little changes nothing.
        let varying = [&[40; 6][..], &[45; 5], &[38; 5]].concat();
        assert_eq!(changes(200, &varying), [200, 500]);
        let load = [&[3; 6][..], &[90; 10], &[20; 10]].concat();
        assert_eq!(changes(200, &load), [200, 1000, 222, 1000]);
        // The number of a process that has ended.
        let mut rate = Rate::new(200, TickSource::Any);
        assert!(!rate.change(Duration::ZERO, 0, false, || Duration::MAX));
        assert!(rate.change(Duration::from_secs(9), 0, false, || Duration::ZERO));
        assert_eq!(rate.ticks, 1000);
    }

    /// A process beside others that sleep for a millisecond at a time had seven times as many ticks as were wanted.
    #[test]
    fn other_timers_of_the_kernel_are_counted() {
        let mut rate = Rate::new(200, TickSource::Any);
        let seconds = Duration::from_secs;
        assert!(!rate.change(seconds(0), 0, true, || seconds(0)));
        assert!(rate.change(seconds(5), 7000, true, || seconds(5)));
        assert_eq!((rate.ticks, rate.timers), (200, 7.0));
        assert!(!rate.change(seconds(10), 8010, true, || seconds(10)));
        // They are fewer again.
        assert!(rate.change(seconds(15), 8510, true, || seconds(15)));
        assert_eq!((rate.ticks, rate.timers), (200, 3.5));
        // While the clocks are of threads, nothing is learned of them.
        assert!(rate.change(seconds(20), 9510, false, || seconds(16)));
        assert_eq!((rate.ticks, rate.timers), (1000, 3.5));
        assert!(!rate.change(seconds(25), 9810, false, || seconds(17)));
    }
}
