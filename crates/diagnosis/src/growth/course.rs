//! The course of a number over time.

use formats::Trajectory;

/// Growth levels off if its last rate is below this part of its highest rate.
const LEVELS_OFF: f64 = 0.25;
/// Growth is steady if its rate is at least this part of the mean rate in every interval.
const STEADY: f64 = 0.5;

/// Growth that is slower in each interval, in the last one by this factor, is that of a cache that fills.
const FALLS: f64 = 0.5;
/// Steady growth may be about to end if its last rate is below this part of the mean rate.
const SLOWER: f64 = 0.75;

/// The course of a number over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// It grows at nearly the same rate in every interval.
    Steady,
    /// It grows more and more slowly.
    LevelsOff,
    /// Its rate changes.
    Uneven,
    /// There are fewer than three points.
    TooEarly,
}

/// The rate of each interval between two times in milliseconds, in units per second.
pub(super) fn rates(values: &Trajectory, times: &[u64]) -> Vec<f64> {
    let spans = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let steps = values.at.windows(2).map(|pair| pair[1] as f64 - pair[0] as f64);
    steps.zip(spans).map(|(step, span)| step * 1e3 / span.max(1) as f64).collect()
}

/// The same for values without a last one, of which only the change since the one before is known.
pub(super) fn rates_with_latest(values: &Trajectory, latest: i64, times: &[u64]) -> Vec<f64> {
    let last = values.last().saturating_add_signed(latest);
    rates(&Trajectory::new(values.at.iter().copied().chain([last])), times)
}

/// Returns true for rates that fall all the time, to much less than the first one.
pub(super) fn fall(rates: &[f64]) -> bool {
    let (Some(first), Some(last)) = (rates.first(), rates.last()) else { return false };
    *last < FALLS * first && rates.windows(2).all(|pair| pair[1] < pair[0])
}

/// Returns the course of the values at these times, in milliseconds.
pub(crate) fn course(values: &Trajectory, times: &[u64]) -> Course {
    let rates = rates(values, times);
    let [_, .., last] = rates[..] else { return Course::TooEarly };
    let fastest = rates.iter().copied().fold(f64::MIN, f64::max);
    if last < LEVELS_OFF * fastest {
        Course::LevelsOff
    } else if is_steady(&rates) {
        Course::Steady
    } else {
        Course::Uneven
    }
}

/// Returns true if no rate is far below the mean, and if the rates do not fall all the time.
pub(super) fn is_steady(rates: &[f64]) -> bool {
    let mean = mean(rates);
    rates.iter().all(|&rate| rate >= STEADY * mean) && !fall(rates)
}

/// Returns true for values that grow more slowly at the end: a list of limited length may have become full.
pub(super) fn slows_down(values: &Trajectory, times: &[u64]) -> bool {
    end_slower(&rates(values, times))
}

/// Returns true if the last rate is well below the mean.
pub(super) fn end_slower(rates: &[f64]) -> bool {
    rates.last().is_some_and(|&last| last < SLOWER * mean(rates))
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}
