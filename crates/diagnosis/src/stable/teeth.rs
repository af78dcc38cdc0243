//! Saw-teeth: memory that rises until a GC, a cache's limit or a restart lets it fall, again and again.

use serde::{Deserialize, Serialize};

use super::trend::quantile;

/// The minimum height of a tooth, as a share of the level.
const MIN_SHARE: f64 = 0.04;
/// The minimum height of a tooth, in deviations of the noise. A thousand normal values span 6.5 deviations.
const MIN_DEVIATIONS: f64 = 9.0;
/// The minimum number of teeth.
const MIN_TEETH: usize = 3;

/// The teeth of a saw.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Teeth {
    pub count: usize,
    /// From one fall to the next.
    pub period_seconds: f64,
    pub trough_bytes: f64,
    pub peak_bytes: f64,
}

/// Finds the teeth of a series by its turning points: a peak or trough counts if the series then moves the other way by
/// more than a threshold (as in rainflow counting, ASTM E1049). `None` if there are fewer than three.
pub(super) fn find(points: &[(f64, f64)]) -> Option<Teeth> {
    if points.len() < 2 * MIN_TEETH {
        return None;
    }
    let threshold = threshold(points);
    let (mut peaks, mut troughs) = (Vec::new(), Vec::new());
    let (mut low, mut high) = (points[0], points[0]);
    let mut rises: Option<bool> = None;
    for &point in points {
        if point.1 > high.1 {
            high = point;
        }
        if point.1 < low.1 {
            low = point;
        }
        if rises != Some(false) && high.1 - point.1 > threshold {
            if rises.is_some() {
                peaks.push(high);
            }
            (rises, low) = (Some(false), point);
        } else if rises != Some(true) && point.1 - low.1 > threshold {
            if rises.is_some() {
                troughs.push(low);
            }
            (rises, high) = (Some(true), point);
        }
    }
    if peaks.len() < MIN_TEETH || troughs.len() < MIN_TEETH - 1 {
        return None;
    }
    let periods = peaks.windows(2).map(|pair| pair[1].0 - pair[0].0);
    Some(Teeth {
        count: peaks.len(),
        period_seconds: quantile(periods, 0.5),
        trough_bytes: quantile(troughs.iter().map(|it| it.1), 0.5),
        peak_bytes: quantile(peaks.iter().map(|it| it.1), 0.5),
    })
}

/// Returns the minimum height of a tooth: a share of the level, or a multiple of the noise. The noise is the median
/// deviation of the steps between neighbours, which neither the slow rise nor the rare fall of a saw-tooth changes.
fn threshold(points: &[(f64, f64)]) -> f64 {
    let steps: Vec<f64> = points.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    let middle = quantile(steps.iter().copied(), 0.5);
    let deviation = 1.4826 * quantile(steps.iter().map(|step| (step - middle).abs()), 0.5);
    let level = quantile(points.iter().map(|point| point.1), 0.5);
    // A step has the noise of two values.
    f64::max(level * MIN_SHARE, MIN_DEVIATIONS * deviation / f64::sqrt(2.0))
}
