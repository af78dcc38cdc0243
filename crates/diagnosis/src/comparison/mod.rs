//! The same work under each allocator and setting: the differences between them, and the one to choose.

mod recommendation;

use formats::{
    Comparison, FailedRun, LoadResult, Medians, MissingSetting, Run, Spread, TriedSetting,
};

use crate::statistics::{Difference, difference, median};

/// The work that was compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The shell command that puts load on it, if there is one.
    pub load: Option<String>,
    /// Time between the end of the work and the last measurement, in seconds.
    pub settle_seconds: f64,
}

/// Compares `runs` of a workload. The first setting is the baseline.
#[must_use]
pub fn compare(
    workload: Workload,
    settings: Vec<TriedSetting>,
    missing: Vec<MissingSetting>,
    runs: Vec<Run>,
    failed: Vec<FailedRun>,
) -> Comparison {
    let Workload { command, load, settle_seconds } = workload;
    let of = |setting: &str| runs.iter().filter(|run| run.setting == setting).collect::<Vec<_>>();
    let base = settings.first().map(|it| of(&it.setting)).unwrap_or_default();
    let medians: Vec<_> = settings
        .iter()
        .map(|it| (it.setting.clone(), of(&it.setting)))
        .filter(|(_, runs)| !runs.is_empty())
        .map(|(setting, runs)| medians(setting, &runs, &base))
        .collect();
    let recommendation = recommendation::recommend(&settings, &medians, load.is_some());
    Comparison {
        command,
        load,
        settle_seconds,
        settings,
        missing,
        failed,
        runs,
        medians,
        recommendation,
    }
}

fn medians(setting: String, runs: &[&Run], base: &[&Run]) -> Medians {
    let is_base = base.first().is_some_and(|base| base.setting == setting);
    let optional = |of: &dyn Fn(&Run) -> Option<f64>| {
        let values: Option<Vec<f64>> = runs.iter().map(|run| of(run)).collect();
        let base: Option<Vec<f64>> = base.iter().map(|run| of(run)).collect();
        spread(&values?, if is_base { None } else { base.as_deref() })
    };
    let number = |of: fn(&Run) -> f64| {
        optional(&|run| Some(of(run))).expect("there is a run, and each has the number")
    };
    let of_load = |of: fn(&LoadResult) -> Option<f64>| optional(&|run| of(run.load.as_ref()?));
    Medians {
        runs: runs.len() as u32,
        rss_peak_bytes: number(|run| run.rss_peak_bytes as f64),
        rss_end_bytes: number(|run| run.rss_end_bytes as f64),
        rss_settled_bytes: optional(&|run| run.rss_settled_bytes.map(|bytes| bytes as f64)),
        wall_ms: number(|run| run.wall_ms),
        user_ms: number(|run| run.user_ms),
        system_ms: number(|run| run.system_ms),
        minor_faults: number(|run| run.minor_faults as f64),
        requests_per_second: of_load(|load| load.requests_per_second),
        failures: runs.iter().map(|run| Some(run.load?.failures)).sum(),
        p50_ms: of_load(|load| load.p50_ms),
        p99_ms: of_load(|load| load.p99_ms),
        max_ms: of_load(|load| load.max_ms),
        setting,
    }
}

/// The median and range of `values`, and their difference from the median of `base` unless that is noise.
fn spread(values: &[f64], base: Option<&[f64]>) -> Option<Spread> {
    let middle = median(values)?;
    let differs_percent = base.and_then(|base| match difference(base, values) {
        Difference::Noise => None,
        _ => median(base).filter(|&base| base > 0.0).map(|base| (middle / base - 1.0) * 100.0),
    });
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Spread { median: middle, min, max, differs_percent })
}
