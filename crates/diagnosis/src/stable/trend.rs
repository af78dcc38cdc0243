//! The trend of a series, without an assumption about the distribution of its noise.

use serde::{Deserialize, Serialize};

/// The 97.5 % point of the normal distribution, for intervals of 95 %.
const QUANTILE: f64 = 1.96;

/// A slope with its interval of 95 %, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the type says it")]
pub struct Slope {
    pub bytes_per_second: f64,
    pub low: f64,
    pub high: f64,
}

/// A trend with its significance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trend {
    pub(super) slope: Slope,
    /// The statistic of Mann and Kendall in standard deviations. It is normally distributed if there is no trend.
    pub(super) z: f64,
}

/// Returns the trend of values over times: the slope of Theil (1950) and Sen (1968), which is the median of the slopes
/// between all pairs of points, and the test of Mann (1945) and Kendall (1975), with the variance of Hamed and Rao
/// (1998), which allows for autocorrelation. `None` for fewer than 4 points.
pub(super) fn trend(points: &[(f64, f64)]) -> Option<Trend> {
    if points.len() < 4 {
        return None;
    }
    let mut slopes = Vec::with_capacity(points.len() * (points.len() - 1) / 2);
    let mut concordance = 0.0;
    for (index, &(time, value)) in points.iter().enumerate() {
        for &(later_time, later) in &points[index + 1..] {
            let rise = later - value;
            concordance += if rise > 0.0 {
                1.0
            } else if rise < 0.0 {
                -1.0
            } else {
                0.0
            };
            slopes.push(rise / (later_time - time));
        }
    }
    slopes.sort_by(f64::total_cmp);
    let middle = median_of_sorted(&slopes);
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    let rest: Vec<f64> = points.iter().map(|(time, value)| value - middle * time).collect();
    let deviation = (variance(&values) * correction(&ranks(&rest))).sqrt();
    let z = if deviation > 0.0 {
        (concordance - f64::signum(concordance) * f64::min(1.0, concordance.abs())) / deviation
    } else {
        0.0
    };
    // Sen's interval: this number of slopes on either side of the median.
    let count = slopes.len() as f64;
    let at = |rank: f64| slopes[rank.clamp(0.0, count - 1.0) as usize];
    let low = at((count - QUANTILE * deviation) / 2.0);
    let high = at((count + QUANTILE * deviation) / 2.0);
    Some(Trend { slope: Slope { bytes_per_second: middle, low, high }, z })
}

/// Returns the variance of the statistic for independent values without a trend. Equal values count once.
fn variance(values: &[f64]) -> f64 {
    let of = |count: f64| count * (count - 1.0) * (2.0 * count + 5.0);
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let ties: f64 =
        sorted.chunk_by(|one, other| one == other).map(|equal| of(equal.len() as f64)).sum();
    (of(values.len() as f64) - ties) / 18.0
}

/// Returns the factor by which autocorrelation raises the variance (Hamed and Rao 1998, equation 10). It uses the
/// significant autocorrelations of the ranks, and is at least 1.
fn correction(ranks: &[f64]) -> f64 {
    let n = ranks.len() as f64;
    let mean = ranks.iter().sum::<f64>() / n;
    let square: f64 = ranks.iter().map(|rank| (rank - mean).powi(2)).sum();
    if square == 0.0 {
        return 1.0;
    }
    let mut sum = 0.0;
    for lag in 1..ranks.len() / 2 {
        let pairs = ranks.iter().zip(&ranks[lag..]);
        let product: f64 = pairs.map(|(one, other)| (one - mean) * (other - mean)).sum();
        let correlation = product / square;
        if correlation < QUANTILE / n.sqrt() {
            break;
        }
        let left = n - lag as f64;
        sum += left * (left - 1.0) * (left - 2.0) * correlation;
    }
    1.0 + 2.0 * sum / (n * (n - 1.0) * (n - 2.0))
}

/// Returns the rank of each value. Equal values have the same rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&one, &other| values[one].total_cmp(&values[other]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    for equal in order.chunk_by(|&one, &other| values[one] == values[other]) {
        let rank = from as f64 + (equal.len() as f64 - 1.0) / 2.0;
        equal.iter().for_each(|&index| ranks[index] = rank);
        from += equal.len();
    }
    ranks
}

/// Returns the median of values in ascending order.
pub(super) fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Returns the quantile of values at this share.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    if share == 0.5 {
        return median_of_sorted(&sorted);
    }
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[f64]) -> Vec<(f64, f64)> {
        values.iter().enumerate().map(|(index, &value)| (index as f64, value)).collect()
    }

    #[test]
    fn slope_and_test_are_those_of_a_published_example() {
        // Gilbert, Statistical Methods for Environmental Pollution Monitoring (1987), the median of all slopes and
        // S = 10 of five ascending values: (10 - 1) / sqrt(5 * 4 * 15 / 18).
        let trend = trend(&points(&[1.0, 2.0, 3.0, 4.0, 50.0])).unwrap();
        assert!((trend.slope.bytes_per_second - 1.0).abs() < 1e-9);
        assert!((trend.z - 9.0 / (300.0_f64 / 18.0).sqrt()).abs() < 1e-9, "{trend:?}");
    }

    #[test]
    fn equal_values_have_no_trend_and_few_have_none_either() {
        let level = trend(&points(&[5.0; 20])).unwrap();
        assert_eq!((level.z, level.slope.low, level.slope.high), (0.0, 0.0, 0.0));
        assert!(trend(&points(&[1.0, 2.0, 3.0])).is_none());
    }

    #[test]
    fn values_that_resemble_those_before_them_are_less_sure() {
        let wave: Vec<f64> = (0..100).map(|index| f64::from(index / 10 % 2)).collect();
        assert!(correction(&ranks(&wave)) > 3.0);
        let alternating: Vec<f64> = (0..100).map(|index| f64::from(index % 2)).collect();
        assert_eq!(correction(&ranks(&alternating)), 1.0);
    }
}
