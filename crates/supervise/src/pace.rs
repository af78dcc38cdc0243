//! How often something may be read without costing more than a share of a processor.

use std::time::Duration;

/// When something is due that is to be done at fixed intervals, and less often where it costs much.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    every: Duration,
    /// The most that it may take of one processor: 0.01 is one hundredth.
    share: f64,
    due: Duration,
    /// What it has taken so far.
    spent: Duration,
}

impl Pace {
    /// What is due now, and then after each `every`.
    #[must_use]
    pub(crate) fn new(every: Duration, share: f64) -> Self {
        Self { every, share, due: Duration::ZERO, spent: Duration::ZERO }
    }

    /// The same, due at `first` for the first time.
    #[must_use]
    pub(crate) fn from(self, first: Duration) -> Self {
        Self { due: first, ..self }
    }

    /// When it is due, by the clock of the recording.
    #[must_use]
    pub(crate) fn due(&self) -> Duration {
        self.due
    }

    /// Whether it is due at `now`.
    #[must_use]
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.due
    }

    /// It was done at `now`, and took so much of a processor's time. The next time is when its share has been saved up,
    /// if it takes as much again: only the first time is not paid for beforehand.
    pub(crate) fn done(&mut self, now: Duration, cost: Duration) {
        self.spent += cost;
        // In step with the clock, so that delays do not add up; what was missed is not made up for.
        self.due += self.every;
        if self.due <= now {
            self.due = now + self.every;
        }
        self.due = self.due.max((self.spent + cost).div_f64(self.share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_costs_little_keeps_its_step_and_what_costs_much_waits() {
        let mut pace = Pace::new(SECOND, 0.005);
        assert!(pace.is_due(Duration::ZERO));
        pace.done(3 * MS, MS);
        assert_eq!(pace.due(), SECOND);
        pace.done(SECOND + 200 * MS, MS);
        assert_eq!(pace.due(), 2 * SECOND);
        // After a pause of the machine it goes on, once.
        pace.done(60 * SECOND, MS);
        assert_eq!(pace.due(), 61 * SECOND);
        pace.done(61 * SECOND, 397 * MS);
        assert_eq!(pace.due(), 159_400 * MS);
    }

    #[test]
    fn what_costs_the_same_each_time_never_takes_more_than_its_share_but_for_the_first_time() {
        let mut pace = Pace::new(SECOND, 0.003).from(7 * SECOND);
        let mut spent = Duration::ZERO;
        for _ in 0..100 {
            let now = pace.due();
            pace.done(now, 20 * MS);
            spent += 20 * MS;
            assert!(spent == 20 * MS || spent <= now.mul_f64(0.003), "{spent:?} in {now:?}");
        }
        assert_eq!(spent, 2 * SECOND);
    }
}
