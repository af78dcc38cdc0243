//! The memory of a number of workers as a random number.
//!
//! It is `fixed` + the levels of the workers + what each has above its level at one moment, and the kernel's memory for them.
//!
//! *Levels.* Workers are alike, so the sum of `n` further levels has a predictive distribution of Student's: its mean is `n` means of
//! the recorded workers, and its variance `spread²` × (`n` + `n²` / recorded). Two workers say little about the spread. So it
//! also counts, as [`PRIOR_WORKERS`] further workers would, that workers of one server usually differ by [`PRIOR_SPREAD`]. The drift of the
//! level during the recording adds to the deviation of all workers alike.
//!
//! *Moments.* The memory above the level is that of a random moment of a random worker, independently of the other workers. The sum of
//! `n` is a convolution. A limit must hold at each moment of the time asked for. Every sample counts as a moment of its own. That is
//! cautious, since consecutive samples are alike.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The usual deviation of workers of one server under the same load, as a share of their level, and the number of workers that this
/// knowledge counts as.
const PRIOR_SPREAD: f64 = 0.05;
const PRIOR_WORKERS: f64 = 4.0;
/// Steps of the memory of one worker above its level.
const STEPS: usize = 128;
/// The sums of levels that are tried: the middles of parts of the same probability.
const LEVELS: usize = 400;

/// The distribution of the memory of any number of workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    pub(super) fixed: f64,
    pub(super) level: f64,
    /// The deviation of workers.
    pub(super) spread: f64,
    /// The change of the level while it was recorded, which may go on.
    drift: f64,
    /// The workers that the level was estimated from.
    recorded: f64,
    /// The memory of the kernel as a share of the rest.
    pub(super) kernel_share: f64,
    /// The least memory of a worker above its level (below zero), and the bytes of a step.
    least: f64,
    step: f64,
    /// The probability of each step, for one worker at one moment.
    moment: Vec<f64>,
    /// The number of moments.
    moments: f64,
    /// The sums of levels of one worker more than the index.
    quantiles: Vec<f64>,
}

/// The memory of a fixed number of workers.
pub(super) struct Workers<'a> {
    model: &'a Model,
    number: f64,
    /// The probability of a sum of as many steps or more.
    beyond: Vec<f64>,
}

impl Model {
    /// Makes a model of workers with these levels. `deviations` are what they had above their levels at single moments, of which there
    /// will be `moments`.
    pub(super) fn new(
        fixed: f64,
        levels: &[f64],
        deviations: &[f64],
        moments: f64,
        drift: f64,
    ) -> Self {
        let recorded = levels.len() as f64;
        let level = levels.iter().sum::<f64>() / recorded;
        let squares: f64 = levels.iter().map(|it| (it - level).powi(2)).sum();
        let freedom = PRIOR_WORKERS + recorded - 1.0;
        let spread = ((PRIOR_WORKERS * (PRIOR_SPREAD * level).powi(2) + squares) / freedom).sqrt();
        let students = StudentsT::new(0.0, 1.0, freedom).expect("the scale is above 0");
        let middle = |part: usize| (part as f64 + 0.5) / LEVELS as f64;
        let (least, step, moment) = steps(deviations);
        Self {
            fixed,
            level,
            spread,
            drift,
            recorded,
            kernel_share: 0.0,
            least,
            step,
            moment,
            moments: moments.max(1.0),
            quantiles: (0..LEVELS).map(|part| students.inverse_cdf(middle(part))).collect(),
        }
    }

    /// Returns the memory of 1, 2, 3 and more workers.
    pub(super) fn workers(&self) -> impl Iterator<Item = Workers<'_>> {
        let mut sum = vec![1.0];
        (1_u32..).map(move |number| {
            sum = convolved(&sum, &self.moment);
            let mut beyond = sum.clone();
            // From the end, where the numbers are small.
            for at in (0..beyond.len() - 1).rev() {
                beyond[at] += beyond[at + 1];
            }
            Workers { model: self, number: f64::from(number), beyond }
        })
    }

    /// Returns the expected memory of `number` workers, between peaks.
    pub(super) fn expected(&self, number: f64) -> f64 {
        (self.fixed + number * self.level) * (1.0 + self.kernel_share)
    }
}

impl Workers<'_> {
    /// Returns the probability that they stay below a limit.
    pub(super) fn probability(&self, limit: f64) -> f64 {
        let room = limit / (1.0 + self.model.kernel_share) - self.model.fixed;
        let levels = self.levels().map(|level| self.stays_within(room - level));
        levels.sum::<f64>() / LEVELS as f64
    }

    /// Returns the least limit below which they stay with this probability.
    pub(super) fn limit(&self, probability: f64) -> f64 {
        let most = self.levels().fold(0.0, f64::max) + self.number * self.model.most();
        let (mut low, mut high) =
            (0.0, (self.model.fixed + most) * (1.0 + self.model.kernel_share) * 1.001);
        // To a page of a terabyte.
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if self.probability(middle) < probability { low = middle } else { high = middle }
        }
        high
    }

    /// Returns sums of their levels.
    fn levels(&self) -> impl Iterator<Item = f64> {
        let Model { level, spread, drift, recorded, quantiles, .. } = self.model;
        let number = self.number;
        let of_workers = spread * (number + number * number / recorded).sqrt();
        let deviation = of_workers.hypot(number * drift);
        quantiles.iter().map(move |it| (number * level + it * deviation).max(0.0))
    }

    /// Returns the probability that they never have more than `room` above their levels.
    fn stays_within(&self, room: f64) -> f64 {
        let steps = ((room - self.number * self.model.least) / self.model.step).floor();
        if steps < 0.0 {
            return 0.0;
        }
        let more = self.beyond.get(steps as usize + 1).copied().unwrap_or(0.0);
        (self.model.moments * (-more.min(1.0)).ln_1p()).exp()
    }
}

impl Model {
    /// The most that a worker had above its level.
    pub(super) fn most(&self) -> f64 {
        self.least + self.step * (self.moment.len() - 1) as f64
    }
}

/// Returns the least of some values, the bytes of a step, and the share of values at each step. A value between two steps counts for
/// both, so that the mean stays.
fn steps(values: &[f64]) -> (f64, f64, Vec<f64>) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min).min(0.0);
    let most = values.iter().copied().fold(0.0, f64::max);
    let step = ((most - least) / STEPS as f64).max(1.0);
    let mut shares = vec![0.0; STEPS + 1];
    for value in values {
        let place = ((value - least) / step).min(STEPS as f64);
        let (below, part) = (place.floor(), place.fract());
        let share = 1.0 / values.len() as f64;
        shares[below as usize] += share * (1.0 - part);
        if part > 0.0 {
            shares[below as usize + 1] += share * part;
        }
    }
    if values.is_empty() {
        shares[0] = 1.0;
    }
    (least, step, shares)
}

/// Returns the distribution of the sum of two independent numbers.
fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; one.len() + other.len() - 1];
    for (at, share) in one.iter().enumerate().filter(|it| *it.1 > 0.0) {
        for (sum, other) in sum[at..].iter_mut().zip(other) {
            *sum += share * other;
        }
    }
    sum
}
