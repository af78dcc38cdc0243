//! What is recommended, on runs whose figures the test set.

use diagnosis::{Workload, compare};
use formats::{
    Comparison, Confidence, Drawback, LoadResult, MissingSetting, PassedOver, Reason,
    Recommendation, Run, TriedSetting, to_json,
};

const MB: u64 = 1 << 20;
const MIB: f64 = 1_048_576.0;

/// So many runs of a setting: MB at the peak and when settled, and the wall time in ms, scattered by a little.
fn runs(setting: &str, peak: u64, settled: u64, wall_ms: f64, count: u32) -> Vec<Run> {
    (1..=count)
        .map(|number| Run {
            setting: setting.into(),
            number,
            rss_peak_bytes: (peak + u64::from(number)) * MB,
            rss_end_bytes: (peak + u64::from(number)) * MB,
            rss_settled_bytes: Some((settled + u64::from(number)) * MB),
            wall_ms: wall_ms * (1.0 + 0.004 * f64::from(number)),
            user_ms: wall_ms,
            system_ms: 10.0,
            minor_faults: 1000,
            major_faults: 0,
            load: None,
            samples: vec![],
        })
        .collect()
}

fn comparison(runs: Vec<Run>) -> Comparison {
    let mut settings: Vec<TriedSetting> = Vec::new();
    for run in &runs {
        if settings.iter().all(|it| it.setting != run.setting) {
            settings.push(TriedSetting { setting: run.setting.clone(), environment: vec![] });
        }
    }
    let load = runs[0].load.map(|_| "wrk".to_owned());
    let command = vec!["ruby".into(), "app.rb".into()];
    let workload = Workload { command, load, settle_seconds: 15.0 };
    compare(workload, settings, vec![], runs, vec![])
}

fn drawbacks(recommendation: &Recommendation) -> Vec<(&str, &Drawback)> {
    let passed_over = recommendation.passed_over.iter();
    passed_over.map(|PassedOver { setting, because }| (setting.as_str(), because)).collect()
}

#[test]
fn the_setting_that_saves_most_and_costs_little_is_taken() {
    let comparison = comparison(
        [
            runs("default", 800, 750, 4000.0, 3),
            runs("arena2", 800, 740, 4000.0, 3),
            runs("jemalloc", 900, 80, 4050.0, 3),
            runs("mimalloc", 900, 400, 4000.0, 3),
        ]
        .concat(),
    );
    let taken = &comparison.recommendation;
    assert_eq!(taken.setting, "jemalloc");
    assert_eq!(taken.confidence, Confidence::Medium, "three runs tell no more");
    assert!((taken.saves_percent - 89.1).abs() < 0.1, "{taken:?}");
    assert_eq!(taken.slower_percent, None);
    assert!(taken.peak_percent.unwrap() > 10.0);
    assert_eq!(
        drawbacks(taken),
        [
            ("arena2", &Drawback::Noise),
            ("mimalloc", &Drawback::SavesLess { saves_bytes: 350.0 * MIB })
        ]
    );
}

#[test]
fn nothing_is_changed_where_nothing_wins() {
    let runs = [
        runs("default", 100, 90, 1000.0, 3),
        runs("arena2", 100, 90, 1000.0, 3),
        runs("jemalloc", 105, 88, 1000.0, 3),
    ];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!(taken.setting, "default");
    assert_eq!(taken.reason, Reason::NoneSaves);
}

#[test]
fn of_two_that_save_much_the_same_the_simpler_is_taken() {
    let runs = [
        runs("default", 300, 211, 1000.0, 5),
        runs("arena2", 90, 41, 1000.0, 5),
        runs("jemalloc", 150, 35, 1000.0, 5),
    ];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!(taken.setting, "arena2");
    assert_eq!(taken.confidence, Confidence::High);
    assert_eq!(
        drawbacks(&taken),
        [("jemalloc", &Drawback::LessSimple { saves_bytes: 176.0 * MIB })]
    );
}

#[test]
fn what_is_slower_is_passed_over_and_it_is_said_by_how_much() {
    let runs = [runs("default", 800, 750, 1000.0, 3), runs("jemalloc", 800, 80, 1300.0, 3)];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!(taken.setting, "default");
    let [("jemalloc", Drawback::Slower { saves_bytes, percent })] = drawbacks(&taken)[..] else {
        panic!("{taken:?}")
    };
    assert_eq!(*saves_bytes, 670.0 * MIB);
    assert!((percent - 30.0).abs() < 0.5, "{percent}");
}

#[test]
fn failed_requests_and_slow_ones_count_against_a_setting() {
    let under_load = |setting: &str, settled: u64, failures, p99_ms| {
        let mut runs = runs(setting, 800, settled, 1000.0, 3);
        for run in &mut runs {
            let rate = 900.0 + f64::from(run.number);
            run.load = Some(LoadResult {
                requests: 9000,
                failures,
                requests_per_second: Some(rate),
                p99_ms: Some(p99_ms + f64::from(run.number) / 10.0),
                ..LoadResult::default()
            });
        }
        runs
    };
    let runs = [
        under_load("default", 750, 0, 20.0),
        under_load("jemalloc", 80, 3, 20.0),
        under_load("tcmalloc", 80, 0, 90.0),
        under_load("mimalloc", 300, 0, 20.5),
    ];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!(taken.setting, "mimalloc");
    let [
        ("jemalloc", Drawback::FailedRequests { count: 9 }),
        ("tcmalloc", Drawback::SlowerTail { percent }),
    ] = drawbacks(&taken)[..]
    else {
        panic!("{taken:?}")
    };
    assert!((percent - 347.0).abs() < 0.5, "{percent}");
}

#[test]
fn one_run_of_each_is_told_with_low_confidence() {
    let runs = [runs("default", 800, 750, 1000.0, 1), runs("jemalloc", 800, 80, 1000.0, 1)];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!((taken.setting.as_str(), taken.confidence), ("jemalloc", Confidence::Low));
}

#[test]
fn the_table_in_words() {
    let runs = [runs("default", 800, 750, 4000.0, 3), runs("jemalloc", 900, 80, 4050.0, 3)];
    let mut comparison = comparison(runs.concat());
    comparison.missing.push(MissingSetting {
        setting: "tcmalloc".into(),
        needs: "the package libtcmalloc-minimal4".into(),
    });
    insta::assert_snapshot!(render::comparison(&comparison));
    let again: Comparison = serde_json::from_str(&to_json(&comparison, "")).unwrap();
    assert_eq!(again, comparison);
}
