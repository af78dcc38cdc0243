//! What is recommended, on runs whose figures the test set.

use compare::{Comparison, Confidence, Load, Question, Run, SettingPart};

const MB: u64 = 1 << 20;

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
    let mut settings: Vec<SettingPart> = Vec::new();
    for run in &runs {
        if settings.iter().all(|it| it.setting != run.setting) {
            settings.push(SettingPart { setting: run.setting.clone(), environment: vec![] });
        }
    }
    let load = runs[0].load.map(|_| "wrk".to_owned());
    let command = vec!["ruby".into(), "app.rb".into()];
    let question = Question { command, load, settle_seconds: 15.0 };
    Comparison::new(question, settings, vec![], runs, vec![])
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
        taken.passed_over,
        [
            "arena2: what is left differs within the noise only",
            "mimalloc: saves 350.0 MB, less than jemalloc"
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
    assert!(taken.summary.starts_with("Leave it as it is"), "{taken:?}");
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
    assert_eq!(taken.passed_over, ["jemalloc: saves 176.0 MB, hardly more than arena2"]);
}

#[test]
fn what_is_slower_is_passed_over_and_it_is_said_by_how_much() {
    let runs = [runs("default", 800, 750, 1000.0, 3), runs("jemalloc", 800, 80, 1300.0, 3)];
    let taken = comparison(runs.concat()).recommendation;
    assert_eq!(taken.setting, "default");
    assert_eq!(taken.passed_over, ["jemalloc: saves 670.0 MB, but is 30 % slower"]);
}

#[test]
fn failed_requests_and_slow_ones_count_against_a_setting() {
    let under_load = |setting: &str, settled: u64, failures, p99_ms| {
        let mut runs = runs(setting, 800, settled, 1000.0, 3);
        for run in &mut runs {
            let rate = 900.0 + f64::from(run.number);
            run.load = Some(Load {
                requests: 9000,
                failures,
                requests_per_second: Some(rate),
                p99_ms: Some(p99_ms + f64::from(run.number) / 10.0),
                ..Load::default()
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
    assert_eq!(
        taken.passed_over,
        [
            "jemalloc: 9 requests failed",
            "tcmalloc: the slowest hundredth of requests takes 347 % longer"
        ]
    );
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
    comparison.missing.push(compare::Missing {
        setting: "tcmalloc".into(),
        needs: "the package libtcmalloc-minimal4".into(),
    });
    insta::assert_snapshot!(comparison.render_markdown());
    let again: Comparison = serde_json::from_str(&comparison.render_json()).unwrap();
    assert_eq!(again, comparison);
}
