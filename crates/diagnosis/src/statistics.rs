//! Distinguishes a difference between two settings from noise.

/// The difference between the values of two settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Difference {
    /// The values overlap, or the difference is negligible.
    Noise,
    /// All values are less than all of the other setting's.
    Less {
        /// The probability of that by chance alone (two-sided).
        p: f64,
    },
    /// All values are greater than all of the other setting's.
    More {
        /// The probability of that by chance alone (two-sided).
        p: f64,
    },
}

/// The minimum difference of medians, as a fraction. Smaller differences are negligible.
const MIN_DIFFERENCE: f64 = 0.02;

/// With fewer runs than this, the minimum difference is larger.
const FEW: usize = 3;
const MIN_DIFFERENCE_OF_FEW: f64 = 0.25;

/// Returns the median of values; `None` if there are none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Compares `values` with `base`. They differ if they do not overlap at all, and their medians differ by 2 % or more. For
/// a few runs this is the exact rank test of Mann and Whitney (1947): of all orders of n and m values, two in
/// (n + m over n) do not overlap. With fewer than three runs of each the test has little power, so the medians must
/// differ by a quarter.
#[must_use]
pub fn difference(base: &[f64], values: &[f64]) -> Difference {
    let (Some(middle), Some(other)) = (median(base), median(values)) else {
        return Difference::Noise;
    };
    let min_difference =
        if base.len().min(values.len()) < FEW { MIN_DIFFERENCE_OF_FEW } else { MIN_DIFFERENCE };
    if (other - middle).abs() < min_difference * middle.abs() {
        return Difference::Noise;
    }
    let min = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p = 2.0 / orders(base.len(), values.len());
    if max(values) < min(base) {
        Difference::Less { p: p.min(1.0) }
    } else if min(values) > max(base) {
        Difference::More { p: p.min(1.0) }
    } else {
        Difference::Noise
    }
}

/// Returns the number of orders of `n` values of one kind and `m` of another.
fn orders(n: usize, m: usize) -> f64 {
    (1..=n).map(|step| (m + step) as f64 / step as f64).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

    #[test]
    fn what_overlaps_is_noise_and_what_does_not_has_a_probability() {
        let base = [100.0, 110.0, 120.0];
        assert_eq!(difference(&base, &[90.0, 105.0, 95.0]), Difference::Noise);
        assert_eq!(difference(&base, &[50.0, 55.0, 60.0]), Difference::Less { p: 0.1 });
        assert_eq!(difference(&base, &[150.0, 155.0, 160.0]), Difference::More { p: 0.1 });
        assert_eq!(difference(&[100.0], &[50.0]), Difference::Less { p: 1.0 });
        // One in three of two and two are apart by chance alone.
        assert_eq!(difference(&[100.0, 101.0], &[80.0, 81.0]), Difference::Noise);
        // Apart, but by 1 % only.
        assert_eq!(difference(&[100.0, 100.1, 100.2], &[99.0, 99.1, 99.2]), Difference::Noise);
        let five = difference(&[1.0, 1.1, 1.2, 1.3, 1.4], &[2.0, 2.1, 2.2, 2.3, 2.4]);
        let Difference::More { p } = five else { panic!("{five:?}") };
        assert!((p - 2.0 / 252.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn a_setting_does_not_differ_from_itself(values in prop::collection::vec(0.1_f64..1e9, 1..6)) {
            prop_assert_eq!(difference(&values, &values), Difference::Noise);
        }

        #[test]
        fn less_one_way_is_more_the_other_way(
            one in prop::collection::vec(0.1_f64..1e3, 1..6),
            other in prop::collection::vec(0.1_f64..1e3, 1..6),
            scale in 0.01_f64..100.0,
        ) {
            let scaled = |values: &[f64]| values.iter().map(|value| value * scale).collect::<Vec<_>>();
            match difference(&one, &other) {
                Difference::Less { .. } => {
                    let back = difference(&other, &one);
                    // Two per cent of the lesser one are a little less.
                    let turned = matches!(back, Difference::More { .. } | Difference::Noise);
                    prop_assert!(turned, "{:?}", back);
                }
                Difference::More { .. } => {
                    let turned = !matches!(difference(&other, &one), Difference::More { .. });
                    prop_assert!(turned);
                }
                Difference::Noise => {}
            }
            let (same, wide) = (difference(&one, &other), difference(&scaled(&one), &scaled(&other)));
            prop_assert_eq!(std::mem::discriminant(&same), std::mem::discriminant(&wide));
        }
    }
}
