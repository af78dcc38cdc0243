//! The stable point: memory levels off, grows, or forms a saw-tooth, with a confidence.
//!
//! rbloat judges RSS. For several processes it judges PSS, whose sum counts shared pages once, if there are enough exact
//! samples. The methods assume no distribution of the noise. No outcome depends on the unit of bytes or on the time at
//! which the recording started.
//!
//! 1. *Teeth* ([`teeth`]). A turning point is a peak or trough after which the series moves the other way by more than 4 % of its
//!    level and by more than nine deviations of its noise (the median absolute deviation of the steps between samples).
//!    Turning points are those of rainflow counting (ASTM E1049). Three falls make a saw-tooth.
//! 2. *Envelope.* Growth is judged by the memory that remains after each fall. The time is divided into up to 240
//!    intervals of three samples or more, or into one interval for each tooth. The envelope is the lowest value of each
//!    interval. With fewer than eight intervals it is too early to tell.
//! 3. *Warm-up* ([`warm_up`]). The beginning is cut off by the marginal standard error rule (MSER: K. P. White, "An effective
//!    truncation heuristic for bias reduction in simulation output", Simulation 69, 1997), within the first half. It is
//!    cut off at a change-point instead if two levels leave less than half of the squared error of a straight line.
//! 4. *Trend* ([`trend`]). The test of Mann (1945) and Kendall (1975) at 1 %, with the variance of Hamed and Rao ("A modified
//!    Mann-Kendall trend test for autocorrelated data", Journal of Hydrology 204, 1998), because consecutive samples are
//!    alike. The slope is that of Theil (1950) and Sen ("Estimates of the regression coefficient based on Kendall's tau",
//!    JASA 63, 1968), with Sen's 95 % interval. A rise of less than 1 % over the whole time does not count.
//! 5. *Steps.* If a few changes make most of the rise of the envelope, and the rise is not a trend or is more than twice
//!    its slope, it is too early to tell.
//! 6. *Slowing down.* If there is a rise, the two halves are compared. Growth slows down if the slope of the second half
//!    is less than 0.8 of the first one's and their intervals do not overlap. It is then a plateau if the second half has
//!    no trend of its own, and too early to tell otherwise.

mod teeth;
mod trend;
mod warm_up;

use formats::Confidence;
use serde::{Deserialize, Serialize};

pub use teeth::Teeth;
pub use trend::Slope;
pub(crate) use trend::quantile;
use trend::{Trend, trend};

/// The maximum number of intervals of an envelope.
const MAX_STRETCHES: usize = 240;
/// The minimum number of intervals for a stable point, and the samples in each if there are no teeth.
pub const MIN_STRETCHES: usize = 8;
const SAMPLES_PER_STRETCH: usize = 3;
/// A trend is significant beyond this number of deviations: by chance in one of a hundred series without a trend.
const SIGNIFICANT: f64 = 2.576;
/// The minimum rise over the whole time, as a share of the level.
const MIN_RISE: f64 = 0.01;
/// The part of the rise in steps that values fall in between, at most, and the number of steps that are told from a slope.
const MAX_FALL: f64 = 0.3;
const STEPS: f64 = 5.0;
/// The minimum rise in a single step, as a share of the level.
const MIN_STEP: f64 = 0.1;
/// Growth slows down if its slope in the second half is below this share of that in the first half.
const SLOWER: f64 = 0.8;
/// The minimum lengths of a recording for medium and for high confidence.
const MEDIUM_SECONDS: f64 = 120.0;
const HIGH_SECONDS: f64 = 600.0;

/// The development of memory over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StablePoint {
    /// The kind of development.
    pub shape: Shape,
    /// The confidence in the shape.
    pub confidence: Confidence,
    /// The end of the warm-up, in seconds since the recording began.
    pub from_seconds: f64,
    /// The end of the recording, in seconds.
    pub to_seconds: f64,
    /// The last value.
    pub last_bytes: f64,
    /// The last value without its place in a tooth: the line through the peaks of a saw-tooth that grows, at its end. The last
    /// value of any other series.
    pub top_bytes: f64,
}

/// The kind of development of memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shape", rename_all = "snake_case")]
pub enum Shape {
    /// Memory is stable.
    Plateau {
        /// The median.
        level_bytes: f64,
        /// The 5 % quantile.
        low_bytes: f64,
        /// The 95 % quantile.
        high_bytes: f64,
        /// The slope, with the growth that cannot be ruled out.
        slope: Slope,
    },
    /// Memory grows.
    Growth {
        /// The growth; of a saw-tooth, the growth of its low points.
        slope: Slope,
        /// The teeth, if it is a saw-tooth.
        teeth: Option<Teeth>,
    },
    /// Memory goes up and down, and does not grow.
    SawTooth {
        /// The teeth.
        teeth: Teeth,
        /// The slope, with the growth that cannot be ruled out.
        slope: Slope,
    },
    /// It is too early for a statement.
    TooEarly {
        /// The reason.
        why: Early,
    },
}

/// The reason why it is too early for a statement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Early {
    /// There are too few samples.
    Short,
    /// Memory goes up and down, but too few times to show growth.
    FewTeeth {
        /// The teeth so far.
        teeth: Teeth,
    },
    /// Memory grows, but more and more slowly.
    Slowing {
        /// The slope of the second half.
        slope: Slope,
    },
    /// Memory rises in steps, too few for a rate.
    Steps {
        /// The rise since the end of the warm-up.
        rise_bytes: f64,
    },
    /// Memory falls.
    Falling {
        /// The slope.
        slope: Slope,
    },
}

impl StablePoint {
    /// Returns the stable point of a series of ascending times, in seconds, and bytes. NaN and infinite values are skipped.
    #[must_use]
    pub fn of(points: &[(f64, f64)]) -> Self {
        let mut series: Vec<(f64, f64)> = Vec::with_capacity(points.len());
        let mut begin = None;
        for &(time, value) in points.iter().filter(|it| it.0.is_finite() && it.1.is_finite()) {
            // Later times have fewer digits for differences.
            let time = time - *begin.get_or_insert(time);
            if time.is_finite() && series.last().is_none_or(|last| time > last.0) {
                series.push((time, value));
            }
        }
        let begin = begin.unwrap_or(0.0);
        let teeth = teeth::find(&series);
        let envelope = envelope(&series, teeth.as_ref());
        let (from_seconds, shape, confidence) = judge(&series, &envelope, teeth);
        let last_bytes = series.last().map_or(0.0, |last| last.1);
        let top_bytes = match &shape {
            Shape::Growth { slope, teeth: Some(teeth) } => {
                let from = series.partition_point(|point| point.0 < from_seconds);
                top(&series[from..], slope, teeth).unwrap_or(last_bytes)
            }
            _ => last_bytes,
        };
        Self {
            shape,
            confidence,
            from_seconds: begin + from_seconds,
            to_seconds: begin + series.last().map_or(0.0, |last| last.0),
            last_bytes,
            top_bytes,
        }
    }

    /// Returns the time in seconds until memory has grown by `room` bytes, with the peaks of a saw-tooth: the estimate, the
    /// minimum, and the maximum (`None`: possibly never). `None` if memory does not grow.
    #[must_use]
    pub fn seconds_until(&self, room: f64) -> Option<(f64, f64, Option<f64>)> {
        let Shape::Growth { slope, .. } = &self.shape else { return None };
        let room = (room + self.last_bytes - self.top_bytes).max(0.0);
        let max = (slope.low > 0.0).then(|| room / slope.low);
        Some((room / slope.bytes_per_second, room / slope.high, max))
    }
}

/// Returns the lower envelope: the minimum of each interval, at its time.
fn envelope(series: &[(f64, f64)], teeth: Option<&Teeth>) -> Vec<(f64, f64)> {
    let stretches = stretches(series, teeth);
    let low = |stretch: &[(f64, f64)]| {
        stretch.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1))
    };
    stretches.filter_map(low).collect()
}

/// Returns up to [`MAX_STRETCHES`] intervals of the same length, none of which is shorter than a tooth.
fn stretches<'a>(
    series: &'a [(f64, f64)],
    teeth: Option<&Teeth>,
) -> impl Iterator<Item = &'a [(f64, f64)]> {
    let first = series.first().map_or(0.0, |first| first.0);
    let span = seconds(series);
    let stretches = match teeth {
        Some(teeth) => (span / teeth.period_seconds) as usize,
        None => series.len() / SAMPLES_PER_STRETCH,
    };
    let stretches = stretches.clamp(1, MAX_STRETCHES);
    let place =
        move |time: f64| (((time - first) / span * stretches as f64) as usize).min(stretches - 1);
    series.chunk_by(move |one, other| place(one.0) == place(other.0))
}

/// Returns the line through the peaks of a saw-tooth, at its end.
fn top(series: &[(f64, f64)], slope: &Slope, teeth: &Teeth) -> Option<f64> {
    let end = series.last()?.0;
    let at_end = |&(time, value): &(f64, f64)| value + slope.bytes_per_second * (end - time);
    let peaks = stretches(series, Some(teeth))
        .filter_map(|stretch| stretch.iter().map(at_end).max_by(f64::total_cmp));
    Some(quantile(peaks, 0.5))
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
    // Most pairs of points are on one step, so the median slope may say too little.
    let said = if is_rise(&all, steady) { all.slope.bytes_per_second } else { 0.0 };
    let is_more = |rise: &f64| teeth.is_none() && *rise > 2.0 * said * seconds(steady);
    if let Some(rise_bytes) = rise_in_steps(steady).filter(is_more) {
        return early(from, Early::Steps { rise_bytes });
    }
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

/// Returns true if a trend is significant, and its rise is not negligible.
fn is_rise(trend: &Trend, points: &[(f64, f64)]) -> bool {
    let level = quantile(points.iter().map(|point| point.1), 0.5);
    let rise = trend.slope.bytes_per_second * seconds(points);
    trend.z > SIGNIFICANT && trend.slope.low >= 0.0 && rise > MIN_RISE * level
}

/// Returns the rise of values in a few steps up: they hardly fall, and few changes make most of it.
fn rise_in_steps(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?.1, points.last()?.1);
    let rise = last - first;
    let mut highest = first;
    let fall = points.iter().fold(0.0, |fall, point| {
        highest = f64::max(highest, point.1);
        f64::max(fall, highest - point.1)
    });
    let changes = points.windows(2).map(|pair| pair[1].1 - pair[0].1);
    let steps: Vec<f64> = changes.filter(|change| *change > rise / STEPS).collect();
    // A single small step is no more than what a plateau varies by.
    let least = if steps.len() > 1 { MIN_RISE } else { MIN_STEP };
    let are_most = steps.iter().sum::<f64>() > rise / 2.0;
    (are_most && fall < rise * MAX_FALL && rise > least * first).then_some(rise)
}

/// Returns true if one slope is significantly and considerably below another.
fn is_slower(one: Slope, other: Slope) -> bool {
    one.high < other.low && one.bytes_per_second < SLOWER * other.bytes_per_second
}

fn negative(slope: Slope) -> Slope {
    Slope { bytes_per_second: -slope.bytes_per_second, low: -slope.high, high: -slope.low }
}

fn seconds(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |last| last.0) - points.first().map_or(0.0, |first| first.0)
}

/// Returns a shape without growth: a plateau or a saw-tooth.
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
        time if time >= HIGH_SECONDS && is_narrow => Confidence::High,
        time if time >= MEDIUM_SECONDS => Confidence::Medium,
        _ => Confidence::Low,
    }
}

#[cfg(test)]
mod tests;
