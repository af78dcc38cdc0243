//! The same work under each allocator and setting: the differences between them, and the one to choose.

mod recommendation;

use formats::{
    Comparison, FailedRun, LoadResult, Medians, MissingSetting, Run, Spread, TriedSetting,
};

use crate::statistics::{self, Tested, median};

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
    let by_setting: Vec<(&str, Vec<&Run>)> = settings
        .iter()
        .map(|it| (&*it.setting, runs.iter().filter(|run| run.setting == it.setting).collect()))
        .filter(|(_, runs): &(_, Vec<_>)| !runs.is_empty())
        .collect();
    let base = settings.first().map_or("", |it| &it.setting);
    let medians = medians(&by_setting, base);
    let left: Vec<Vec<f64>> = by_setting.iter().map(|(_, runs)| left_bytes(runs)).collect();
    let recommendation = recommendation::recommend(&settings, &medians, &left, load.is_some());
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

/// The medians of each setting's runs, compared with those of the setting `base`.
fn medians(by_setting: &[(&str, Vec<&Run>)], base: &str) -> Vec<Medians> {
    let optional = |of: &dyn Fn(&Run) -> Option<f64>| {
        let values = by_setting.iter().map(|(setting, runs)| {
            (*setting, runs.iter().map(|run| of(run)).collect::<Option<Vec<f64>>>())
        });
        spreads(&values.collect::<Vec<_>>(), base)
    };
    let number = |of: fn(&Run) -> f64| {
        let spreads = optional(&|run| Some(of(run))).into_iter();
        let present = spreads.map(|it| it.expect("there is a run, and each has the number"));
        present.collect::<Vec<Spread>>()
    };
    let of_load = |of: fn(&LoadResult) -> Option<f64>| optional(&|run| of(run.load.as_ref()?));
    let rss_peak = number(|run| run.rss_peak_bytes as f64);
    let rss_end = number(|run| run.rss_end_bytes as f64);
    let rss_settled = optional(&|run| run.rss_settled_bytes.map(|bytes| bytes as f64));
    let wall = number(|run| run.wall_ms);
    let user = number(|run| run.user_ms);
    let system = number(|run| run.system_ms);
    let minor_faults = number(|run| run.minor_faults as f64);
    let requests = of_load(|load| load.requests_per_second);
    let p50 = of_load(|load| load.p50_ms);
    let p99 = of_load(|load| load.p99_ms);
    let max = of_load(|load| load.max_ms);
    let rows = by_setting.iter().enumerate().map(|(at, (setting, runs))| Medians {
        setting: (*setting).into(),
        runs: runs.len() as u32,
        rss_peak_bytes: rss_peak[at],
        rss_end_bytes: rss_end[at],
        rss_settled_bytes: rss_settled[at],
        wall_ms: wall[at],
        user_ms: user[at],
        system_ms: system[at],
        minor_faults: minor_faults[at],
        requests_per_second: requests[at],
        failures: runs.iter().map(|run| Some(run.load?.failures)).sum(),
        p50_ms: p50[at],
        p99_ms: p99[at],
        max_ms: max[at],
    });
    rows.collect()
}

/// The median and range of each setting's values, and their difference from those of the setting `base`.
fn spreads(values: &[(&str, Option<Vec<f64>>)], base: &str) -> Vec<Option<Spread>> {
    let of_base = values.iter().find(|(setting, _)| *setting == base);
    let of_base = of_base.and_then(|(_, values)| values.as_deref()).unwrap_or_default();
    // The baseline is not compared with itself.
    let others = values.iter().map(|(setting, values)| {
        values.as_deref().filter(|_| *setting != base).unwrap_or_default()
    });
    let tested = statistics::compare(of_base, &others.collect::<Vec<_>>());
    let spread = |(values, tested): (&(_, Option<Vec<f64>>), Option<Tested>)| {
        let values = values.1.as_deref()?;
        Some(Spread {
            median: median(values)?,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            differs_percent: tested.and_then(|it| it.differs_percent),
            p: tested.map(|it| it.p),
        })
    };
    values.iter().zip(tested).map(spread).collect()
}

/// The memory that each run left; see [`Medians::left_bytes`].
fn left_bytes(runs: &[&Run]) -> Vec<f64> {
    let settled: Option<Vec<u64>> = runs.iter().map(|run| run.rss_settled_bytes).collect();
    let left = settled.unwrap_or_else(|| runs.iter().map(|run| run.rss_end_bytes).collect());
    left.into_iter().map(|bytes| bytes as f64).collect()
}
