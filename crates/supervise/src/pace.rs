//! Intervals between readings that keep their cost below a share of a processor.

use std::time::Duration;

/// The share of a processor for samples of the kernel's counters. A reading that needs less than its share leaves the rest unused.
pub(crate) const SHARE_OF_SAMPLES: f64 = 0.0025;
/// The share for exact samples, for which the kernel walks the page tables.
pub(crate) const SHARE_OF_EXACT_SAMPLES: f64 = 0.004;
/// The share for readings of memory limits, which are two small files for each control group.
pub const SHARE_OF_LIMITS: f64 = 0.001;
/// The share for captures of causes.
pub const SHARE_OF_CAUSES: f64 = 0.003;

/// The schedule of a task: at fixed intervals, or less often if the task costs more than its share.
#[derive(Debug, Clone)]
pub struct Pace {
    every: Duration,
    /// The share of one processor that the task may use: 0.01 is one hundredth.
    share: f64,
    first: Duration,
    due: Duration,
    /// The CPU time of the task so far.
    spent: Duration,
    runs: u64,
    is_limited: bool,
}

impl Pace {
    /// A task that is due now, and then after each `every`.
    #[must_use]
    pub fn new(every: Duration, share: f64) -> Self {
        let (first, due, spent) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { every, share, first, due, spent, runs: 0, is_limited: false }
    }

    /// The same task, due at `first` for the first time.
    #[must_use]
    pub fn from(self, first: Duration) -> Self {
        Self { first, due: first, ..self }
    }

    /// The next due time, by the clock of the recording.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Returns true if the task is due at `now`.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.due
    }

    /// The number of runs so far.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The number of runs until `now` at the fixed intervals.
    #[must_use]
    pub fn planned(&self, now: Duration) -> u64 {
        let since = now.checked_sub(self.first);
        since.map_or(0, |since| 1 + (since.as_nanos() / self.every.as_nanos().max(1)) as u64)
    }

    /// Returns true if a run was delayed because of its cost.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Notes that the task ran at `now` and took `cost` of CPU time. It is due again when its share covers another run
    /// of that cost, so only the first run can exceed the share.
    pub fn done(&mut self, now: Duration, cost: Duration) {
        self.spent += cost;
        self.runs += 1;
        // In step with the clock, so that delays do not add up. Missed runs are skipped.
        self.due += self.every;
        if self.due <= now {
            self.due = now + self.every;
        }
        let affordable = (self.spent + cost).div_f64(self.share);
        self.is_limited |= affordable > self.due;
        self.due = self.due.max(affordable);
    }
}

/// Processor time for tasks that come at any time: a share of a processor, which adds up while it is not used.
#[derive(Debug, Clone)]
pub struct Allowance {
    share: f64,
    most: Duration,
    left: Duration,
    /// The time up to which the share was added.
    counted: Duration,
    /// The time that was used beyond the allowance.
    debt: Duration,
}

impl Allowance {
    /// An allowance that adds up to `most`, which is there at the beginning.
    #[must_use]
    pub fn new(share: f64, most: Duration) -> Self {
        Self { share, most, left: most, counted: Duration::ZERO, debt: Duration::ZERO }
    }

    /// Returns true if something is left at `now`.
    pub fn is_left(&mut self, now: Duration) -> bool {
        let added = now.saturating_sub(self.counted).mul_f64(self.share);
        self.counted = self.counted.max(now);
        let paid = added.min(self.debt);
        self.debt -= paid;
        self.left = (self.left + added - paid).min(self.most);
        self.debt.is_zero() && !self.left.is_zero()
    }

    /// Notes that a task took `cost` of CPU time.
    pub fn spend(&mut self, cost: Duration) {
        self.debt += cost.saturating_sub(self.left);
        self.left = self.left.saturating_sub(cost);
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
        // After a pause of the machine, the next sample is due at once, but the missed ones are not repeated.
        pace.done(60 * SECOND, MS);
        assert_eq!(pace.due(), 61 * SECOND);
        pace.done(61 * SECOND, 397 * MS);
        assert_eq!(pace.due(), 159_400 * MS);
        assert!(pace.is_limited());
    }

    #[test]
    fn runs_are_counted_with_those_that_were_planned() {
        let mut pace = Pace::new(10 * SECOND, 0.05).from(2 * SECOND);
        assert_eq!((pace.planned(SECOND), pace.planned(2 * SECOND)), (0, 1));
        // A second costs a share of 5 % for 20 s, and the next one must be affordable, too.
        pace.done(2 * SECOND, SECOND);
        assert_eq!((pace.due(), pace.is_limited()), (40 * SECOND, true));
        assert_eq!((pace.runs(), pace.planned(41 * SECOND), pace.planned(42 * SECOND)), (1, 4, 5));
    }

    #[test]
    fn what_costs_less_than_its_share_runs_as_often_as_planned() {
        let mut pace = Pace::new(10 * SECOND, 0.05);
        for step in 0..100 {
            let now = 10 * SECOND * step;
            assert!(pace.is_due(now), "{now:?}");
            pace.done(now, 240 * MS);
        }
        assert_eq!((pace.runs(), pace.planned(990 * SECOND)), (100, 100));
        assert!(!pace.is_limited());
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

    #[test]
    fn an_allowance_adds_up_and_what_exceeds_it_is_saved_afterwards() {
        let mut allowance = Allowance::new(0.01, 2 * SECOND);
        assert!(allowance.is_left(Duration::ZERO));
        allowance.spend(SECOND);
        assert!(allowance.is_left(Duration::ZERO));
        allowance.spend(3 * SECOND);
        // A debt of 2 s takes 200 s.
        assert!(!allowance.is_left(199 * SECOND));
        assert!(allowance.is_left(201 * SECOND));
        // A day of rest adds up to 2 s, not to more.
        assert!(allowance.is_left(86_400 * SECOND));
        allowance.spend(2 * SECOND + MS);
        assert!(!allowance.is_left(86_400 * SECOND));
    }
}
