//! The end of a warm-up.

/// The minimum number of points after the warm-up.
const MIN_STEADY: usize = 8;
/// A step explains a series if its squared error is below this fraction of a straight line's.
const MAX_STEP_ERROR: f64 = 0.5;

/// Returns the index at which the steady part of a series begins, by the marginal standard error rule (MSER, White 1997):
/// the cut that minimises the standard error of the rest's mean, within the first half. If there is a single step (the
/// change-point of least squares), the steady part begins after it, wherever it is.
pub(super) fn end(points: &[(f64, f64)]) -> usize {
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    let sums = Sums::of(&values);
    let n = values.len();
    let max = (n / 2).min(n.saturating_sub(MIN_STEADY));
    let error = |from: usize| {
        let left = (n - from) as f64;
        sums.squares(from, n) / (left * left)
    };
    let found = (0..=max).min_by(|&one, &other| error(one).total_cmp(&error(other))).unwrap_or(0);
    found.max(step(points, &sums).unwrap_or(0))
}

/// Returns the index after a single step, if two levels fit far better than a straight line.
fn step(points: &[(f64, f64)], sums: &Sums) -> Option<usize> {
    let n = points.len();
    let left = |at: &usize| sums.squares(0, *at) + sums.squares(*at, n);
    let at =
        (1..=n.checked_sub(MIN_STEADY)?).min_by(|one, other| left(one).total_cmp(&left(other)))?;
    (left(&at) < MAX_STEP_ERROR * squares_about_line(points)).then_some(at)
}

/// Cumulative sums, from which the sum of squares about the mean of any part follows.
struct Sums {
    values: Vec<f64>,
    squares: Vec<f64>,
}

impl Sums {
    fn of(values: &[f64]) -> Self {
        // About the mean, for precision: values may be large and differ little.
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let (mut value, mut square) = (0.0, 0.0);
        let mut sums = Self { values: vec![0.0], squares: vec![0.0] };
        for it in values.iter().map(|value| value - mean) {
            value += it;
            square += it * it;
            sums.values.push(value);
            sums.squares.push(square);
        }
        sums
    }

    /// The sum of squares about the mean of the values from `from` to before `to`.
    fn squares(&self, from: usize, to: usize) -> f64 {
        let sum = self.values[to] - self.values[from];
        let squares = self.squares[to] - self.squares[from];
        f64::max(squares - sum * sum / (to - from).max(1) as f64, 0.0)
    }
}

/// The sum of squares about the straight line of least squares.
fn squares_about_line(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let time = points.iter().map(|point| point.0).sum::<f64>() / n;
    let mean = points.iter().map(|point| point.1).sum::<f64>() / n;
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in points {
        let (x, y) = (x - time, y - mean);
        xx += x * x;
        xy += x * y;
        yy += y * y;
    }
    if xx > 0.0 { yy - xy * xy / xx } else { yy }
}
