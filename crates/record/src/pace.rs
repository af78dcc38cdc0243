//! How often something may be read without costing more than a share of a processor.

use std::time::Duration;

/// When something is due that is to be done at fixed intervals, and less often where it costs much.
#[derive(Debug, Clone)]
pub struct Pace {
    every: Duration,
    /// The most that it may take of one processor: 0.01 is one hundredth.
    share: f64,
    due: Duration,
}

impl Pace {
    /// What is due now, and then after each `every`.
    #[must_use]
    pub fn new(every: Duration, share: f64) -> Self {
        Self { every, share, due: Duration::ZERO }
    }

    /// The same, due at `first` for the first time.
    #[must_use]
    pub fn from(self, first: Duration) -> Self {
        Self { due: first, ..self }
    }

    /// When it is due, by the clock of the recording.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Whether it is due at `now`.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.due
    }

    /// It was done at `now`, and took so much of a processor's time.
    pub fn done(&mut self, now: Duration, cost: Duration) {
        let rest = cost.div_f64(self.share);
        if rest > self.every {
            self.due = now + rest;
            return;
        }
        // In step with the clock, so that delays do not add up; what was missed is not made up for.
        self.due += self.every;
        if self.due <= now {
            self.due = now + self.every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_costs_little_keeps_its_step_and_what_costs_much_its_share() {
        let mut pace = Pace::new(SECOND, 0.005);
        assert!(pace.is_due(Duration::ZERO));
        pace.done(3 * MS, MS);
        assert_eq!(pace.due(), SECOND);
        pace.done(SECOND + 200 * MS, 5 * MS);
        assert_eq!(pace.due(), 2 * SECOND);
        // After a pause of the machine it goes on, once.
        pace.done(60 * SECOND, MS);
        assert_eq!(pace.due(), 61 * SECOND);
        pace.done(61 * SECOND, 50 * MS);
        assert_eq!(pace.due(), 71 * SECOND);
    }

    #[test]
    fn whatever_it_costs_the_share_is_kept() {
        let mut pace = Pace::new(SECOND, 0.003);
        let (mut now, mut spent, mut last) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for round in 0..1000_u32 {
            now = now.max(pace.due());
            last = MS * (round * 37 % 41);
            spent += last;
            pace.done(now, last);
        }
        assert!((spent - last).as_secs_f64() <= now.as_secs_f64() * 0.003, "{spent:?} in {now:?}");
    }
}
