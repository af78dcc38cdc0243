//! The stable point: does memory level off, grow, or go up and down, and how sure is that.
//!
//! docs/recording.md describes the methods, and names their sources. In short: [`teeth`] are found first. What
//! must not grow is what is left after each GC, so the series becomes its lower envelope: the least of each of up to
//! 240 stretches of time, none shorter than a tooth. What a warm-up adds is cut off (MSER, or one change-point),
//! and the rest is tested for a trend ([`trend`]); where there is one, its later half is compared with the first,
//! to tell growth from what levels off.

mod teeth;
mod trend;
mod warm_up;

use formats::Confidence;
use serde::{Deserialize, Serialize};

pub use teeth::Teeth;
pub use trend::Slope;
use trend::{Trend, quantile, trend};

/// The most stretches of time that an envelope has.
const MAX_STRETCHES: usize = 240;
/// The fewest that anything is said of; and samples in each, where there are no teeth.
pub const MIN_STRETCHES: usize = 8;
const SAMPLES_PER_STRETCH: usize = 3;
/// Beyond so many deviations a trend is believed: by chance in one of a hundred series without any.
const BELIEVED: f64 = 2.576;
/// A rise over the whole time that is less than this share of the level is none.
const LEAST_RISE: f64 = 0.01;
/// Growth slows down where its later half is below this share of the first one.
const SLOWER: f64 = 0.8;
/// How long a recording must be for its outcome to be likely, and sure.
const LIKELY_SECONDS: f64 = 120.0;
const SURE_SECONDS: f64 = 600.0;

/// What a series of memory over time comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StablePoint {
    /// Which of the four.
    pub shape: Shape,
    /// How sure that is.
    pub confidence: Confidence,
    /// From when on this was found, in seconds since the recording began: after the warm-up.
    pub from_seconds: f64,
    /// Until when: the end of the recording.
    pub to_seconds: f64,
    /// The last value.
    pub last_bytes: f64,
}

/// How memory goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "snake_case")]
pub enum Shape {
    /// It stays where it is.
    Plateau {
        /// The median, and where nine of ten values lie.
        level_bytes: f64,
        /// The least of the nine.
        low_bytes: f64,
        /// The greatest of them.
        high_bytes: f64,
        /// How steep a growth cannot be ruled out.
        slope: Slope,
    },
    /// It grows.
    Growth {
        /// How fast; under saw-teeth, what is left after each.
        slope: Slope,
        /// The teeth above it.
        teeth: Option<Teeth>,
    },
    /// It goes up and down, and does not grow.
    SawTooth {
        /// How.
        teeth: Teeth,
        /// How steep a growth cannot be ruled out.
        slope: Slope,
    },
    /// Nothing can be said yet.
    TooEarly {
        /// Why.
        why: Early,
    },
}

/// Why nothing can be said yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Early {
    /// There are too few samples.
    Short,
    /// It goes up and down, too few times to tell whether it grows.
    FewTeeth {
        /// How.
        teeth: Teeth,
    },
    /// It still grows, but slower and slower.
    Slowing {
        /// How fast of late.
        slope: Slope,
    },
    /// It falls.
    Falling {
        /// How fast.
        slope: Slope,
    },
}

impl StablePoint {
    /// What a series comes to: times in seconds, ascending, and bytes. What is no number is passed over.
    #[must_use]
    pub fn of(points: &[(f64, f64)]) -> Self {
        let mut series: Vec<(f64, f64)> = Vec::with_capacity(points.len());
        for &(time, value) in points.iter().filter(|it| it.0.is_finite() && it.1.is_finite()) {
            if series.last().is_none_or(|last| time > last.0) {
                series.push((time, value));
            }
        }
        let teeth = teeth::find(&series);
        let envelope = envelope(&series, teeth.as_ref());
        let (from_seconds, shape, confidence) = judge(&series, &envelope, teeth);
        Self {
            shape,
            confidence,
            from_seconds,
            to_seconds: series.last().map_or(0.0, |last| last.0),
            last_bytes: series.last().map_or(0.0, |last| last.1),
        }
    }

    /// In how many seconds `room` bytes more are taken, if memory goes on growing as it does: likely, and the
    /// least and the most (`None`: maybe never). `None` where it does not grow.
    #[must_use]
    pub fn seconds_until(&self, room: f64) -> Option<(f64, f64, Option<f64>)> {
        let Shape::Growth { slope, .. } = &self.shape else { return None };
        let most = (slope.low > 0.0).then(|| room / slope.low);
        Some((room / slope.bytes_per_second, room / slope.high, most))
    }
}

/// The least of each stretch of time, at the time at which it was.
fn envelope(series: &[(f64, f64)], teeth: Option<&Teeth>) -> Vec<(f64, f64)> {
    let (Some(first), Some(last)) = (series.first(), series.last()) else { return Vec::new() };
    let span = last.0 - first.0;
    let stretches = match teeth {
        Some(teeth) => (span / teeth.period_seconds) as usize,
        None => series.len() / SAMPLES_PER_STRETCH,
    };
    let stretches = stretches.clamp(1, MAX_STRETCHES);
    let place =
        |time: f64| (((time - first.0) / span * stretches as f64) as usize).min(stretches - 1);
    series
        .chunk_by(|one, other| place(one.0) == place(other.0))
        .filter_map(|stretch| {
            stretch.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1))
        })
        .collect()
}

fn judge(
    series: &[(f64, f64)],
    envelope: &[(f64, f64)],
    teeth: Option<Teeth>,
) -> (f64, Shape, Confidence) {
    let early = |from: f64, why| (from, Shape::TooEarly { why }, Confidence::Low);
    let begin = series.first().map_or(0.0, |first| first.0);
    if envelope.len() < MIN_STRETCHES {
        return early(begin, teeth.map_or(Early::Short, |teeth| Early::FewTeeth { teeth }));
    }
    let steady = &envelope[warm_up::end(envelope)..];
    let Some(all) = trend(steady) else { return early(begin, Early::Short) };
    let from = steady[0].0;
    if !is_rise(&all, steady) {
        let is_fall = is_rise(&Trend { z: -all.z, slope: negative(all.slope) }, steady);
        return if is_fall && teeth.is_none() {
            early(from, Early::Falling { slope: all.slope })
        } else {
            level(series, steady, all, teeth)
        };
    }
    let (sooner, later) = steady.split_at(steady.len() / 2);
    match (trend(sooner), trend(later)) {
        (Some(soon), Some(late)) if is_slower(late.slope, soon.slope) => {
            if !is_rise(&late, later) && later.len() >= MIN_STRETCHES {
                level(series, later, late, teeth)
            } else {
                early(from, Early::Slowing { slope: late.slope })
            }
        }
        _ => {
            let slope = all.slope;
            let width = (slope.high - slope.low) / slope.bytes_per_second;
            let confidence = confidence(steady, all.z > 4.0 && width < 1.0);
            (from, Shape::Growth { slope, teeth }, confidence)
        }
    }
}

/// Whether a trend is more than chance, and rises by what matters.
fn is_rise(trend: &Trend, points: &[(f64, f64)]) -> bool {
    let level = quantile(points.iter().map(|point| point.1), 0.5);
    let rise = trend.slope.bytes_per_second * seconds(points);
    trend.z > BELIEVED && trend.slope.low >= 0.0 && rise > LEAST_RISE * level
}

/// Whether one slope is below another for sure, and by what matters.
fn is_slower(one: Slope, other: Slope) -> bool {
    one.high < other.low && one.bytes_per_second < SLOWER * other.bytes_per_second
}

fn negative(slope: Slope) -> Slope {
    Slope { bytes_per_second: -slope.bytes_per_second, low: -slope.high, high: -slope.low }
}

fn seconds(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |last| last.0) - points.first().map_or(0.0, |first| first.0)
}

/// What does not grow: a plateau, or a saw.
fn level(
    series: &[(f64, f64)],
    steady: &[(f64, f64)],
    trend: Trend,
    teeth: Option<Teeth>,
) -> (f64, Shape, Confidence) {
    let from = steady[0].0;
    let slope = trend.slope;
    let values = || series.iter().filter(|point| point.0 >= from).map(|point| point.1);
    let level_bytes = quantile(values(), 0.5);
    let may_rise = f64::max(slope.high, -slope.low) * seconds(steady);
    let confidence = confidence(steady, may_rise < 0.05 * level_bytes);
    let shape = match teeth {
        Some(teeth) => Shape::SawTooth { teeth, slope },
        None => Shape::Plateau {
            level_bytes,
            low_bytes: quantile(values(), 0.05),
            high_bytes: quantile(values(), 0.95),
            slope,
        },
    };
    (from, shape, confidence)
}

fn confidence(steady: &[(f64, f64)], is_narrow: bool) -> Confidence {
    match seconds(steady) {
        time if time >= SURE_SECONDS && is_narrow => Confidence::High,
        time if time >= LIKELY_SECONDS => Confidence::Medium,
        _ => Confidence::Low,
    }
}

#[cfg(test)]
mod tests;
