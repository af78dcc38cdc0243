//! Recommendations on runs whose figures the test sets.

use diagnosis::{Workload, compare};
use formats::{
    Comparison, Confidence, Drawback, LoadResult, MissingSetting, PassedOver, Reason,
    Recommendation, Run, TriedSetting, to_json,
};

const MIB: u64 = 1 << 20;

/// Returns `count` runs of a setting: MiB at the peak and when settled, and the wall time in ms, slightly scattered.
fn runs(setting: &str, peak: u64, settled: u64, wall_ms: f64, count: u32) -> Vec<Run> {
    (1..=count)
        .map(|number| Run {
            setting: setting.into(),
            number,
            rss_peak_bytes: (peak + u64::from(number)) * MIB,
            rss_end_bytes: (peak + u64::from(number)) * MIB,
            rss_settled_bytes: Some((settled + u64::from(number)) * MIB),
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
    assert_eq!(taken.confidence, Confidence::Medium, "of three runs, noise is not known well");
    assert!((taken.saves_percent - 89.1).abs() < 0.1, "{taken:?}");
    assert_eq!(taken.slower_percent, None);
    assert!(taken.peak_percent.unwrap() > 10.0);
    assert_eq!(
        drawbacks(taken),
        [
            ("arena2", &Drawback::Noise),
            ("mimalloc", &Drawback::SavesLess { saves_bytes: 350.0 * MIB as f64 })
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
        runs("default", 300, 211, 1000.0, 6),
        runs("arena2", 90, 41, 1000.0, 6),
        runs("jemalloc", 150, 35, 1000.0, 6),
    ];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!(taken.setting, "arena2");
    assert_eq!(taken.confidence, Confidence::High);
    assert_eq!(
        drawbacks(&taken),
        [("jemalloc", &Drawback::LessSimple { saves_bytes: 176.0 * MIB as f64 })]
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
    assert_eq!(*saves_bytes, 670.0 * MIB as f64);
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
fn one_run_of_each_changes_nothing() {
    let runs = [runs("default", 800, 750, 1000.0, 1), runs("jemalloc", 800, 80, 1000.0, 1)];
    let comparison = comparison(runs.concat());
    let taken = &comparison.recommendation;
    assert_eq!((taken.setting.as_str(), taken.confidence), ("default", Confidence::Low));
    assert_eq!(taken.reason, Reason::TooFewRuns);
    assert_eq!(drawbacks(taken), [("jemalloc", &Drawback::TooFewRuns)]);
    assert_eq!(comparison.medians[1].left_bytes().p, None);
    let text = render::comparison(&comparison);
    assert!(text.contains("Change nothing yet: noise cannot be estimated from one run"), "{text}");
    assert!(
        !text.contains('%') && text.contains("One run of a setting shows no differences"),
        "{text}"
    );
}

/// Another setting used to take the place of the baseline.
#[test]
fn without_a_run_of_the_baseline_nothing_is_recommended() {
    let settings = ["default", "arena2", "jemalloc"]
        .map(|it| TriedSetting { setting: it.into(), environment: vec![] });
    let runs = [runs("arena2", 800, 750, 1000.0, 3), runs("jemalloc", 800, 80, 1000.0, 3)];
    let workload = Workload { command: vec![], load: None, settle_seconds: 15.0 };
    let taken = compare(workload, settings.into(), vec![], runs.concat(), vec![]).recommendation;
    assert_eq!((taken.setting.as_str(), taken.reason), ("default", Reason::TooFewRuns));
}

#[test]
fn confidence_follows_from_the_probability() {
    let others = ["arena2", "jemalloc", "tcmalloc", "mimalloc", "trim", "gem"];
    let confidence = |count: u32| {
        let mut all = runs("default", 800, 750, 1000.0, count);
        for other in others {
            all.extend(runs(other, 800, if other == "jemalloc" { 80 } else { 751 }, 1000.0, count));
        }
        let taken = comparison(all).recommendation;
        assert_eq!(taken.setting, "jemalloc", "{count}");
        taken.confidence
    };
    assert_eq!(
        [2, 3, 5, 7].map(confidence),
        [Confidence::Low, Confidence::Medium, Confidence::Medium, Confidence::High]
    );
}

#[test]
fn keeping_the_baseline_is_sure_only_if_no_setting_can_save_enough() {
    let of = |setting: &str, settled: &[u64]| {
        let mut all = runs(setting, 900, 0, 1000.0, settled.len() as u32);
        for (run, settled) in all.iter_mut().zip(settled) {
            run.rss_settled_bytes = Some(settled * MIB);
        }
        all
    };
    let alike = [of("default", &[700, 701, 702]), of("arena2", &[701, 700, 702])].concat();
    let scattered = [of("default", &[700, 500, 600]), of("arena2", &[500, 701, 600])].concat();
    let taken = [alike, scattered].map(|runs| comparison(runs).recommendation);
    assert_eq!(taken.each_ref().map(|it| it.reason), [Reason::NoneSaves; 2]);
    assert_eq!(taken.map(|it| it.confidence), [Confidence::Medium, Confidence::Low]);
}

/// These rates used to be shown as 1 and 1.
#[test]
fn small_rates_have_enough_digits() {
    let mut all = runs("default", 100, 90, 1000.0, 1);
    all.extend(runs("arena2", 100, 90, 1000.0, 1));
    for (run, rate) in all.iter_mut().zip([0.6, 1.2]) {
        run.load = Some(LoadResult { requests_per_second: Some(rate), ..LoadResult::default() });
    }
    let text = render::comparison(&comparison(all.clone()));
    assert!(text.contains(" 0.60 |") && text.contains(" 1.2 |"), "{text}");
    for (run, rate) in all.iter_mut().zip([0.0, 912.4]) {
        run.load = Some(LoadResult { requests_per_second: Some(rate), ..LoadResult::default() });
    }
    let text = render::comparison(&comparison(all));
    assert!(text.contains(" 0 |") && text.contains(" 912 |"), "{text}");
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

/// The table was 170 columns wide on every terminal.
#[test]
fn a_comparison_fits_80_columns_and_loses_nothing() {
    let runs = [runs("default", 800, 750, 4000.0, 3), runs("jemalloc", 900, 80, 4050.0, 3)];
    let comparison = comparison(runs.concat());
    let text = render::comparison_on_terminal(&comparison, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let cells = |text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.starts_with("| ") || line.starts_with("|-"));
        let cells = rows.flat_map(|row| row.split('|').map(|cell| cell.trim().to_owned()));
        cells.filter(|cell| !cell.is_empty() && !cell.starts_with('-')).collect()
    };
    let narrow = cells(&text);
    for cell in cells(&render::comparison(&comparison)) {
        assert!(narrow.contains(&cell), "{cell}: {text}");
    }
}
