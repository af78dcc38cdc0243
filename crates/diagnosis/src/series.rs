//! The memory of a process tree as one series.

use formats::{CauseRow, CauseSample, Group, Recording, Sample};

use crate::StablePoint;

/// Exact samples are used from this number on, even if there are more samples that are not exact.
const MIN_EXACT_SAMPLES: usize = 100;

/// The memory of all processes together over time, sample by sample.
#[derive(Debug, Clone, Default)]
pub struct MemorySeries {
    rss: Vec<(f64, f64)>,
    exact_rss: Vec<(f64, f64)>,
    pss: Vec<(f64, f64)>,
    max_processes: usize,
    room_bytes: Option<u64>,
    group: Option<Group>,
    kills: u64,
}

/// The latest of the figures that only some samples of a recording have. Times are the times of samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatestFigures {
    /// The causes of all processes, the largest first.
    pub causes: Vec<CauseRow>,
    /// The time of the oldest of them.
    pub causes_t_ms: Option<u64>,
    /// PSS of all processes, and its time.
    pub pss: Option<(u64, u64)>,
}

/// The measure of memory in a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Resident bytes.
    Rss,
    /// Proportional bytes, which can be added up for processes that share pages.
    Pss,
}

impl Basis {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rss => "RSS",
            Self::Pss => "PSS",
        }
    }
}

impl MemorySeries {
    /// The series of a recording.
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let mut series = Self::default();
        recording.samples().for_each(|sample| series.add(sample));
        series
    }

    /// Adds a later sample.
    pub fn add(&mut self, sample: &Sample) {
        let time = sample.t_ms as f64 / 1e3;
        self.rss.push((time, sample.rss_bytes as f64));
        if sample.exact {
            self.exact_rss.push((time, sample.rss_bytes as f64));
            self.pss.extend(sample.pss_bytes.map(|bytes| (time, bytes as f64)));
        }
        self.max_processes = self.max_processes.max(sample.processes.len());
        if let (Some(before), Some(group)) = (self.group, sample.group) {
            self.kills += group.kills_since(before);
        }
        self.group = sample.group.or(self.group);
        self.room_bytes = sample.group.as_ref().and_then(|group| {
            let left = group.limit_bytes?.saturating_sub(group.usage_bytes);
            Some(left.saturating_add(group.cache_bytes))
        });
    }

    /// Returns the best points: PSS for several processes, otherwise RSS. Exact samples are used if all samples are exact,
    /// or if at least a quarter of them and `MIN_EXACT_SAMPLES` are.
    #[must_use]
    pub fn points(&self) -> (Basis, &[(f64, f64)]) {
        let enough = |points: &[(f64, f64)]| {
            points.len() == self.rss.len()
                || points.len() >= MIN_EXACT_SAMPLES.max(self.rss.len() / 4)
        };
        if self.max_processes > 1 && enough(&self.pss) {
            (Basis::Pss, &self.pss)
        } else if enough(&self.exact_rss) {
            (Basis::Rss, &self.exact_rss)
        } else {
            (Basis::Rss, &self.rss)
        }
    }

    /// Returns the name of the measure of [`points`](Self::points).
    #[must_use]
    pub fn measure(&self) -> &'static str {
        match self.points().0 {
            Basis::Rss if self.max_processes > 1 => {
                "sum of RSS (shared pages counted once per process)"
            }
            basis => basis.name(),
        }
    }

    /// The largest number of processes in a sample.
    #[must_use]
    pub fn max_processes(&self) -> usize {
        self.max_processes
    }

    /// The bytes that the control group's limit leaves at the end, including caches that the kernel can reclaim.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        self.room_bytes
    }

    /// Returns the stable point of the series.
    #[must_use]
    pub fn stable_point(&self) -> StablePoint {
        StablePoint::of(self.points().1)
    }

    /// The number of processes that the kernel killed for lack of memory during the recording.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        self.kills
    }
}

/// Returns the growth of memory in bytes per minute: the slope of the straight line that fits `points` best (least squares).
/// A point has a time in seconds and bytes. `None` for less than ten seconds.
#[must_use]
pub fn growth_per_minute(points: &[(f64, f64)]) -> Option<f64> {
    const MIN_SECONDS: f64 = 10.0;
    let (first, last) = (points.first()?, points.last()?);
    if last.0 - first.0 < MIN_SECONDS {
        return None;
    }
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (time, bytes) = (mean(|it| it.0), mean(|it| it.1));
    let covariance: f64 = points.iter().map(|it| (it.0 - time) * (it.1 - bytes)).sum();
    let variance: f64 = points.iter().map(|it| (it.0 - time).powi(2)).sum();
    Some(covariance / variance * 60.0)
}

/// Returns the sums of the causes of several processes, the largest first.
#[must_use]
pub fn top_causes<'a>(causes: impl Iterator<Item = &'a CauseSample>) -> Vec<CauseRow> {
    let mut rows: Vec<CauseRow> = Vec::new();
    for row in causes.flat_map(|causes| &causes.causes) {
        match rows.iter_mut().find(|known| known.cause == row.cause) {
            Some(known) => known.bytes += row.bytes,
            None => rows.push(row.clone()),
        }
    }
    rows.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.cause.cmp(&other.cause)));
    rows
}

#[cfg(test)]
mod tests {
    use formats::ProcessSample;

    use super::*;

    fn sample(second: u64, exact: bool, processes: usize) -> Sample {
        let process = ProcessSample { pid: 1, rss_bytes: 100, ..ProcessSample::default() };
        let group =
            Group { usage_bytes: 70, limit_bytes: Some(100), cache_bytes: 5, oom_kills: None };
        Sample {
            t_ms: second * 1000,
            exact,
            rss_bytes: 100,
            pss_bytes: exact.then_some(60),
            processes: vec![process; processes],
            group: Some(group),
            ..Sample::default()
        }
    }

    fn series(samples: impl Iterator<Item = Sample>) -> MemorySeries {
        let mut series = MemorySeries::default();
        samples.for_each(|sample| series.add(&sample));
        series
    }

    #[test]
    fn kills_are_counted_from_the_first_sample_on() {
        let killed = |kills: [u64; 3]| {
            let counts = kills.into_iter().zip(0..);
            series(counts.map(|(kills, at)| {
                let mut sample = sample(at, true, 1);
                sample.group = sample.group.map(|it| Group { oom_kills: Some(kills), ..it });
                sample
            }))
            .oom_kills()
        };
        // Kills before the recording do not count.
        assert_eq!(killed([7, 7, 7]), 0);
        assert_eq!(killed([7, 7, 8]), 1);
        assert_eq!(killed([7, 8, 10]), 3);
    }

    #[test]
    fn growth_is_the_slope_of_all_points() {
        let points = |seconds: u64, bytes: fn(u64) -> f64| -> Vec<(f64, f64)> {
            (0..=seconds).map(|second| (second as f64, bytes(second))).collect()
        };
        let growth = |seconds, bytes| growth_per_minute(&points(seconds, bytes));
        assert_eq!(growth(9, |second| second as f64), None);
        assert_eq!(growth_per_minute(&[]), None);
        assert_eq!(growth(60, |_| 7e9), Some(0.0));
        assert!((growth(60, |second| 7e9 + 50.0 * second as f64).unwrap() - 3000.0).abs() < 1e-3);
        // A saw-tooth that ends at its top.
        assert!(growth(60, |second| 100.0 * (second % 2) as f64).unwrap().abs() < 10.0);
    }

    #[test]
    fn several_processes_are_added_up_by_what_they_do_not_share() {
        let of = |samples: u64, exact: u64, processes: usize| {
            let series = series((0..samples).map(|it| sample(it, it % exact == 0, processes)));
            let (basis, points) = series.points();
            (basis, points.len(), points[1])
        };
        assert_eq!(of(400, 4, 3), (Basis::Pss, 100, (4.0, 60.0)));
        assert_eq!(of(400, 4, 1), (Basis::Rss, 100, (4.0, 100.0)));
        assert_eq!(of(8, 1, 3), (Basis::Pss, 8, (1.0, 60.0)));
        // Too small a share, or too few.
        assert_eq!(of(1000, 5, 3), (Basis::Rss, 1000, (1.0, 100.0)));
        assert_eq!(of(80, 2, 3), (Basis::Rss, 80, (1.0, 100.0)));
        assert_eq!(series((0..8).map(|it| sample(it, true, 1))).room_bytes(), Some(35));
    }
}
