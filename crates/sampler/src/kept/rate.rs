use std::time::Duration;

use crate::kept::MAX_RATE;

/// A process that uses little of a processor gets so many times as many ticks in a second of its processor time, at most: else an
/// observation of some minutes has hardly any.
const MORE: u32 = 5;
/// The change of the rate that is worth new clocks: load varies a little all the time.
const MIN_CHANGE: f64 = 1.25;
/// The time between two decisions.
const WINDOW: Duration = Duration::from_secs(5);

/// The number of ticks in a second of a thread's processor time. A process that uses a part of a processor has as many in a second as one
/// that uses it all, so it is never slowed down by more of a processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    of_busy: u32,
    ticks: u32,
    /// The times of the latest decision: since the beginning, and of the processor.
    decided: Option<(Duration, Duration)>,
}

impl Rate {
    /// Begins with the rate of a busy process.
    pub(super) fn new(of_busy: u32) -> Self {
        let of_busy = of_busy.min(MAX_RATE);
        Self { of_busy, ticks: of_busy, decided: None }
    }

    pub(super) fn ticks(&self) -> u32 {
        self.ticks
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
        let used = processor_time();
        self.decided.replace((now, used))?;
        let part = used.saturating_sub(last.1).as_secs_f64() / (now - last.0).as_secs_f64();
        let most = self.of_busy.saturating_mul(MORE).min(MAX_RATE);
        let wanted = (f64::from(self.of_busy) / part) as u32;
        let wanted = wanted.clamp(self.of_busy, most);
        let (more, less) = (wanted.max(self.ticks), wanted.min(self.ticks));
        let is_worth_it = f64::from(more) > MIN_CHANGE * f64::from(less);
        is_worth_it.then(|| {
            self.ticks = wanted;
            wanted
        })
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
        let mut rate = Rate::new(200);
        assert_eq!(rate.change(Duration::ZERO, || Duration::MAX), None);
        assert_eq!(rate.change(Duration::from_secs(9), || Duration::ZERO), Some(1000));
    }
}
