//! Distinguishes differences between settings from noise.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The probability that a comparison of settings that do not differ finds any difference in a figure.
pub(crate) const FAMILY_ERROR: f64 = 0.05;

/// The minimum difference of medians, as a fraction. With enough runs a test finds any difference, such as that of
/// another layout of the heap or of a warmer file cache. Nobody changes a setting for less than 2 %.
const MIN_DIFFERENCE: f64 = 0.02;

/// With fewer runs, the rank test hardly ever finds a difference.
const MIN_RUNS_OF_RANK_TEST: usize = 5;

/// The test of one setting against the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tested {
    /// The probability of such a difference by chance alone (two-sided), corrected for the number of settings.
    pub(crate) p: f64,
    /// The difference from the baseline's median, in percent, unless it is negligible or may be noise.
    pub(crate) differs_percent: Option<f64>,
}

/// The test that finds a difference between two settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// The exact rank test of Mann and Whitney (1947), which holds for any noise.
    Ranks,
    /// The t-test of Welch (1947) on logarithms, which assumes that noise is about normal.
    Welch,
}

impl Method {
    /// Returns the method for `n` and `m` values, one of `comparisons`; `None` if noise cannot be estimated.
    pub(crate) fn choose(n: usize, m: usize, comparisons: usize) -> Option<Self> {
        // Of all orders of the values, two do not overlap. The rank test has no smaller probability.
        let least = 2.0 / orders(n, m);
        match n.min(m) {
            0..=1 => None,
            MIN_RUNS_OF_RANK_TEST.. if least * comparisons as f64 <= FAMILY_ERROR => {
                Some(Self::Ranks)
            }
            _ => Some(Self::Welch),
        }
    }

    /// Returns the probability by chance alone (two-sided) of the difference between `base` and `values`.
    pub(crate) fn p(self, base: &[f64], values: &[f64]) -> f64 {
        match self {
            Self::Ranks => rank_test(base, values),
            Self::Welch => welch_test(base, values),
        }
    }
}

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

/// The mean of values, and the ends of its interval of 95 % if their noise is about normal; `None` for fewer than three values.
pub(crate) fn mean_with_interval(values: &[f64]) -> Option<(f64, f64, f64)> {
    let count = values.len() as f64;
    if values.len() < 3 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    let reach = StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.975) * error;
    Some((mean, mean - reach, mean + reach))
}

/// Compares each of `others` with `base`. `None` for values that cannot be tested: noise cannot be estimated from a
/// single value.
pub(crate) fn compare(base: &[f64], others: &[&[f64]]) -> Vec<Option<Tested>> {
    let tested = others.iter().filter(|it| base.len().min(it.len()) > 1).count();
    let p = others.iter().map(|values| {
        Method::choose(base.len(), values.len(), tested).map(|method| method.p(base, values))
    });
    let corrected = holm(&p.collect::<Vec<_>>());
    let tests = others.iter().zip(corrected).map(|(values, p)| {
        let p = p?;
        let differs = difference(base, values).filter(|it| it.abs() >= MIN_DIFFERENCE);
        Some(Tested {
            p,
            differs_percent: differs.filter(|_| p <= FAMILY_ERROR).map(|it| it * 100.0),
        })
    });
    tests.collect()
}

/// The difference of the medians, as a fraction of the base's.
fn difference(base: &[f64], values: &[f64]) -> Option<f64> {
    let middle = median(base).filter(|&middle| middle > 0.0)?;
    Some(median(values)? / middle - 1.0)
}

/// Corrects probabilities for their number, by the method of Holm (1979).
fn holm(p: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<usize> = (0..p.len()).filter(|&at| p[at].is_some()).collect();
    order.sort_by(|&one, &other| f64::total_cmp(&p[one].unwrap_or(1.0), &p[other].unwrap_or(1.0)));
    let mut corrected = vec![None; p.len()];
    let mut greatest = 0.0_f64;
    for (place, &at) in order.iter().enumerate() {
        let left = (order.len() - place) as f64;
        greatest = greatest.max(left * p[at].unwrap_or(1.0)).min(1.0);
        corrected[at] = Some(greatest);
    }
    corrected
}

/// The exact rank test: the part of all divisions of the values into two groups of these sizes whose rank sums are at
/// least as far from the mean. Equal values have the mean of their ranks.
fn rank_test(base: &[f64], values: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = base.iter().map(|&value| (value, true)).collect();
    all.extend(values.iter().map(|&value| (value, false)));
    all.sort_by(|one, other| f64::total_cmp(&one.0, &other.0));
    // Doubled ranks are integers.
    let mut ranks = Vec::with_capacity(all.len());
    for equal in all.chunk_by(|one, other| one.0 == other.0) {
        ranks.extend(std::iter::repeat_n(2 * ranks.len() + equal.len() + 1, equal.len()));
    }
    let sum: usize = all.iter().zip(&ranks).filter(|(it, _)| it.1).map(|(_, rank)| rank).sum();
    let count = base.len();
    let mean = count * (all.len() + 1);
    // The number of ways to choose some of the ranks, by their number and sum.
    let mut ways: Vec<Vec<f64>> = (0..=count)
        .map(|chosen| vec![0.0; 1 + ranks.iter().rev().take(chosen).sum::<usize>()])
        .collect();
    ways[0][0] = 1.0;
    for &rank in &ranks {
        for chosen in (1..=count).rev() {
            let (fewer, more) = ways.split_at_mut(chosen);
            for (to, from) in more[0].iter_mut().skip(rank).zip(&fewer[chosen - 1]) {
                *to += from;
            }
        }
    }
    let distribution = &ways[count];
    let all: f64 = distribution.iter().sum();
    let extreme = distribution
        .iter()
        .enumerate()
        .filter(|(other, _)| other.abs_diff(mean) >= sum.abs_diff(mean))
        .map(|(_, ways)| ways);
    extreme.sum::<f64>() / all
}

/// Welch's test, of logarithms, because noise is proportional to the value. Returns 1 if a value has no logarithm.
fn welch_test(base: &[f64], values: &[f64]) -> f64 {
    if base.iter().chain(values).any(|&value| value <= 0.0) {
        return 1.0;
    }
    let (base_mean, base_error) = mean_and_error(base);
    let (mean, error) = mean_and_error(values);
    // Values that were rounded may all be the same, which does not mean that there is no noise.
    let (base_error, error) = (base_error.max(MIN_ERROR), error.max(MIN_ERROR));
    let variance = base_error + error;
    let difference = (mean - base_mean).abs();
    let part = |error: f64, count: usize| error * error / (count as f64 - 1.0);
    let freedom = variance * variance / (part(base_error, base.len()) + part(error, values.len()));
    StudentsT::new(0.0, 1.0, freedom).map_or(1.0, |t| 2.0 * t.sf(difference / variance.sqrt()))
}

/// The least squared standard error of a mean of logarithms: a noise of 1 %.
const MIN_ERROR: f64 = 1e-4;

/// The mean of the logarithms of values, and the squared standard error of it.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value.ln() - mean).powi(2)).sum();
    (mean, squares / (count - 1.0) / count)
}

/// Returns the number of orders of `n` values of one kind and `m` of another.
fn orders(n: usize, m: usize) -> f64 {
    (1..=n).map(|step| (m + step) as f64 / step as f64).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Random numbers that are the same each time.
    struct Random(fastrand::Rng);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0.f64()
        }

        fn normal(&mut self) -> f64 {
            let (radius, angle) = (1.0 - self.uniform(), self.uniform());
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
        }

        fn values(&mut self, noise: Noise, middle: f64, part: f64, count: usize) -> Vec<f64> {
            (0..count).map(|_| middle * noise.factor(self, part)).collect()
        }
    }

    /// The number of settings that are compared with the baseline.
    const SETTINGS: u32 = 6;

    #[derive(Debug, Clone, Copy)]
    enum Noise {
        Normal,
        Lognormal,
        /// Two levels that are equally likely.
        Bimodal,
    }

    impl Noise {
        fn factor(self, random: &mut Random, part: f64) -> f64 {
            match self {
                Self::Normal => 1.0 + part * random.normal(),
                Self::Lognormal => (part * random.normal()).exp(),
                Self::Bimodal => {
                    let level = if random.uniform() < 0.5 { -part } else { part };
                    1.0 + level + part / 10.0 * random.normal()
                }
            }
        }
    }

    #[test]
    fn an_interval_is_that_of_students_t() {
        // 4.3027 is the quantile for two degrees of freedom.
        let (mean, low, high) = mean_with_interval(&[9.0, 10.0, 11.0]).unwrap();
        let reach = 4.3027 / 3.0_f64.sqrt();
        assert!((mean - 10.0).abs() < 1e-9, "{mean}");
        assert!((low - (10.0 - reach)).abs() < 1e-3 && (high - (10.0 + reach)).abs() < 1e-3);
        assert_eq!(mean_with_interval(&[1.0, 2.0]), None);
    }

    fn compare_all(base: &[f64], others: &[Vec<f64>]) -> Vec<Option<Tested>> {
        compare(base, &others.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// The part of `comparisons` of equal settings with a baseline that find a difference.
    fn false_alarms(noise: Noise, part: f64, runs: usize, comparisons: u32) -> f64 {
        let mut random = Random(fastrand::Rng::with_seed(1));
        let alarms = (0..comparisons).filter(|_| {
            let mut values = || random.values(noise, 100.0, part, runs);
            let base = values();
            let others: Vec<_> = (0..SETTINGS).map(|_| values()).collect();
            compare_all(&base, &others).iter().flatten().any(|it| it.differs_percent.is_some())
        });
        f64::from(alarms.count() as u32) / f64::from(comparisons)
    }

    /// The part of comparisons in which the only setting is found that differs, by a factor.
    fn power(factor: f64, part: f64, runs: usize) -> f64 {
        // Those of many runs take longest.
        let comparisons = if runs > 10 { 40 } else { 200 };
        let mut random = Random(fastrand::Rng::with_seed(2));
        let found = (0..comparisons).filter(|_| {
            let mut values = |middle| random.values(Noise::Normal, middle, part, runs);
            let base = values(100.0);
            let mut others = vec![values(100.0 * factor)];
            others.extend((1..SETTINGS).map(|_| values(100.0)));
            let percent = compare_all(&base, &others)[0].and_then(|it| it.differs_percent);
            percent.is_some_and(|percent| (percent > 0.0) == (factor > 1.0))
        });
        f64::from(found.count() as u32) / f64::from(comparisons)
    }

    #[test]
    fn equal_settings_hardly_ever_differ() {
        for (runs, comparisons) in [(2, 1000), (3, 1000), (4, 500), (5, 500), (10, 100)] {
            for noise in [Noise::Normal, Noise::Lognormal, Noise::Bimodal] {
                for part in [0.01, 0.05] {
                    let rate = false_alarms(noise, part, runs, comparisons);
                    // docs/json.md states these bounds. With few runs, each setting may meet one level only.
                    let bound = match (noise, runs) {
                        (Noise::Bimodal, 2) => 0.27,
                        (Noise::Bimodal, 3) => 0.14,
                        _ => 0.06,
                    };
                    assert!(rate <= bound, "{noise:?} {part}, {runs} runs: {rate}");
                }
            }
        }
    }

    #[test]
    fn more_runs_find_smaller_differences() {
        let rates = [3, 5, 10, 20].map(|runs| power(1.04, 0.02, runs));
        assert!(rates.is_sorted_by(|one, other| one < other), "{rates:?}");
        assert!(rates[3] >= 0.95, "{rates:?}");
        // The help of `rbloat compare --runs` states the latter two.
        let known =
            [(1.3, 0.03, 3, 0.9), (0.7, 0.03, 3, 0.9), (1.1, 0.01, 3, 0.9), (1.04, 0.02, 10, 0.8)];
        for (factor, noise, runs, least) in known {
            let rate = power(factor, noise, runs);
            assert!(rate >= least, "{factor}, noise {noise}, {runs} runs: {rate}");
        }
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

    #[test]
    fn one_run_finds_no_difference() {
        assert_eq!(compare(&[100.0], &[&[1.0], &[1.0, 1.1]]), [None, None]);
        assert_eq!(compare(&[100.0, 101.0], &[&[1.0]]), [None]);
    }

    #[test]
    fn a_negligible_difference_is_none_however_certain() {
        let base: Vec<f64> = (0..20).map(|at| 100.0 + f64::from(at) / 100.0).collect();
        let more: Vec<f64> = base.iter().map(|value| value * 1.019).collect();
        let tested = compare(&base, &[&more])[0].unwrap();
        assert!(tested.p < 1e-9 && tested.differs_percent.is_none(), "{tested:?}");
    }

    #[test]
    fn probabilities_equal_those_of_the_tests_definitions() {
        let is = |p: f64, expected: f64| assert!((p - expected).abs() < 1e-9, "{p} {expected}");
        // Five and five that do not overlap: 2 of 252 orders.
        is(rank_test(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]), 2.0 / 252.0);
        // The sums of two of the ranks 1 to 4 are 3, 4, 5, 5, 6 and 7. The sum is 4.
        is(rank_test(&[1.0, 3.0], &[2.0, 4.0]), 4.0 / 6.0);
        // The ranks are 1.5, 1.5, 3, 4: the sums are 3, 4.5, 4.5, 5.5, 5.5 and 7.
        is(rank_test(&[1.0, 1.0], &[2.0, 3.0]), 2.0 / 6.0);
        is(rank_test(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        // With two and two of equal variance, t has 2 degrees of freedom, for which p = 1 - t / sqrt(t^2 + 2).
        let (base, values) = ([1.0_f64, 3.0].map(f64::exp), [5.0_f64, 7.0].map(f64::exp));
        let t = 4.0 / 2.0_f64.sqrt();
        is(welch_test(&base, &values), 1.0 - t / (t * t + 2.0).sqrt());
        is(welch_test(&[2.0, 2.0], &[2.0, 2.0]), 1.0);
        // Without any scatter, each mean has an error of 1 %.
        let t = 1.5_f64.ln() / (2.0 * MIN_ERROR).sqrt();
        is(welch_test(&[2.0, 2.0], &[3.0, 3.0]), 1.0 - t / (t * t + 2.0).sqrt());
        is(welch_test(&[0.0, 2.0], &[3.0, 3.0]), 1.0);
    }

    #[test]
    fn probabilities_are_corrected_for_their_number() {
        let corrected = holm(&[Some(0.03), None, Some(0.01), Some(0.02), Some(0.9)]);
        let expected = [Some(0.06), None, Some(0.04), Some(0.06), Some(0.9)];
        for (p, expected) in corrected.iter().zip(expected) {
            assert_eq!(p.map(|p| (p * 1e9).round()), expected.map(|p: f64| (p * 1e9).round()));
        }
    }

    #[test]
    fn the_rank_test_is_used_if_it_can_find_a_difference() {
        assert_eq!(Method::choose(1, 9, 1), None);
        assert_eq!(Method::choose(4, 9, 1), Some(Method::Welch));
        assert_eq!(Method::choose(5, 5, 6), Some(Method::Ranks));
        assert_eq!(Method::choose(5, 5, 7), Some(Method::Welch));
        assert_eq!(Method::choose(6, 6, 7), Some(Method::Ranks));
    }

    proptest! {
        #[test]
        fn a_setting_does_not_differ_from_itself(values in prop::collection::vec(0.1_f64..1e9, 2..9)) {
            let tested = compare(&values, &[&values])[0].unwrap();
            prop_assert!(tested.p > 0.999_999 && tested.differs_percent.is_none(), "{:?}", tested);
        }

        #[test]
        fn a_test_depends_on_no_unit_and_no_order(
            one in prop::collection::vec(0.1_f64..1e3, 2..9),
            other in prop::collection::vec(0.1_f64..1e3, 2..9),
            scale in 0.01_f64..100.0,
        ) {
            let scaled = |values: &[f64]| values.iter().map(|value| value * scale).collect::<Vec<_>>();
            let method = Method::choose(one.len(), other.len(), 1).unwrap();
            let p = method.p(&one, &other);
            prop_assert!((0.0..=1.0).contains(&p), "{}", p);
            prop_assert!((method.p(&other, &one) - p).abs() < 1e-6);
            prop_assert!((method.p(&scaled(&one), &scaled(&other)) - p).abs() < 1e-6);
        }
    }
}
