use std::time::Duration;

use crate::kept::MAX_RATE;

/// A process that uses little of a processor gets so many times as many ticks in a second of its processor time: else an observation
/// of some minutes has hardly any.
const MORE: u32 = 5;
/// The part of a processor below which it gets more ticks, and above which it does not.
const IDLE: f64 = 0.15;
const BUSY: f64 = 0.2;
/// The time between two decisions.
const WINDOW: Duration = Duration::from_secs(5);

/// The number of ticks in a second of a thread's processor time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    of_busy: u32,
    is_idle: bool,
    /// The times of the latest decision: since the beginning, and of the processor.
    decided: Option<(Duration, Duration)>,
}

impl Rate {
    /// Begins with the rate of a busy process.
    pub(super) fn new(of_busy: u32) -> Self {
        Self { of_busy: of_busy.min(MAX_RATE), is_idle: false, decided: None }
    }

    pub(super) fn ticks(&self) -> u32 {
        match self.is_idle {
            true => self.of_busy.saturating_mul(MORE).min(MAX_RATE),
            false => self.of_busy,
        }
    }

    /// Returns the rate if it is another one from `now` on. `processor_time` is that of the process.
    pub(super) fn change(
        &mut self,
        now: Duration,
        processor_time: impl FnOnce() -> Duration,
    ) -> Option<u32> {
        let last = self.decided.unwrap_or_default();
        if self.decided.is_some() && now < last.0 + WINDOW {
            return None;
        }
        let (before, used) = (self.ticks(), processor_time());
        if self.decided.replace((now, used)).is_some() {
            let part = used.saturating_sub(last.1).as_secs_f64() / (now - last.0).as_secs_f64();
            self.is_idle = part < if self.is_idle { BUSY } else { IDLE };
        }
        Some(self.ticks()).filter(|&it| it != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "1 of 10 samples" of 13,000 leaked objects: the process had needed 0.3 s of processor time, and so had 68 ticks.
    #[test]
    fn a_process_that_is_mostly_idle_has_more_ticks() {
        let changes = |of_busy: u32, percent: &[u64]| {
            let mut rate = Rate::new(of_busy);
            let mut used = Duration::ZERO;
            let mut all = vec![rate.ticks()];
            for (second, percent) in (0..).zip(percent) {
                used += Duration::from_millis(10 * percent);
                all.extend(rate.change(Duration::from_secs(second), || used));
            }
            all
        };
        assert_eq!(changes(200, &[3; 20]), [200, 1000]);
        assert_eq!(changes(100, &[3; 20]), [100, 500]);
        assert_eq!(changes(500, &[3; 20]), [500, 1000]);
        assert_eq!(changes(1000, &[3; 20]), [1000]);
        assert_eq!(changes(5000, &[100; 20]), [1000]);
        assert_eq!(changes(200, &[100; 20]), [200]);
        // Load that varies a little changes nothing.
        assert_eq!(changes(200, &[18; 20]), [200]);
        let load = [&[3; 6][..], &[18; 10], &[90; 6], &[18; 10]].concat();
        assert_eq!(changes(200, &load), [200, 1000, 200]);
        // The number of a process that has ended.
        let mut rate = Rate::new(200);
        assert_eq!(rate.change(Duration::ZERO, || Duration::MAX), None);
        assert_eq!(rate.change(Duration::from_secs(9), || Duration::ZERO), Some(1000));
    }
}
