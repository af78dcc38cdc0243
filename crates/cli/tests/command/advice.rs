//! Advice carried out: a setting that is advised leaves less memory. The saving of a trim is tested with every scenario.

use std::time::{Duration, Instant};

use formats::{Action, Report};
use testkit::Target;

use crate::report;

/// jemalloc returns memory within about 10 s. This much longer the tests wait for it on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn scenario(name: &str, variables: &[(&str, &str)]) -> Target {
    let mut command = testkit::scenario(name);
    Target::start(command.args(["--scale", "0.2"]).envs(variables.iter().copied()))
}

fn is_advised(report: &Report, is_it: impl Fn(&Action) -> bool) -> bool {
    report.advice.iter().any(|advice| is_it(&advice.action))
}

/// Waits until a process has less memory than `bytes`; false if jemalloc does not run in it.
fn falls_below(target: &Target, bytes: u64) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    if !maps.contains("libjemalloc") {
        testkit::skip("libjemalloc2 is not installed where targets run");
        return false;
    }
    let started = Instant::now();
    while target.rss_bytes() >= bytes {
        assert!(started.elapsed() < PATIENCE, "{} >= {bytes}", target.rss_bytes());
        std::thread::sleep(Duration::from_millis(200));
    }
    true
}

#[test]
fn two_arenas_leave_less_after_churn() {
    let target = scenario("churn", &[]);
    let report = report(target.pid());
    assert!(is_advised(&report, |action| matches!(action, Action::LimitArenas { .. })));
    let limited = scenario("churn", &diagnosis::TWO_ARENAS);
    let (before, after) = (target.rss_bytes(), limited.rss_bytes());
    assert!(after < before / 2, "{before} {after}");
    assert!(target.finish() && limited.finish());
}

#[test]
fn jemalloc_leaves_less_where_it_is_advised() {
    for name in ["burst", "churn", "pin"] {
        let target = scenario(name, &[]);
        let report = report(target.pid());
        let is_jemalloc = |action: &Action| {
            *action == Action::PreloadJemalloc { is_broken: false, is_pinned: false }
        };
        assert!(is_advised(&report, is_jemalloc), "{name}: {:#?}", report.advice);
        let other = scenario(name, &diagnosis::JEMALLOC);
        if !falls_below(&other, target.rss_bytes() / 2) {
            return;
        }
        assert!(target.finish() && other.finish());
    }
}

/// Advice on pinned memory promised a saving. In `sieve`, whose blocks have about the same size, jemalloc takes more.
#[test]
fn jemalloc_helps_against_pinned_memory_if_sizes_differ() {
    let source = "
        kept = []
        dropped = []
        30_000.times { dropped << 'a' * 1500 << 'b' * 1500; kept << 'k' * 700 }
        dropped.clear
        KEPT = kept
        3.times { GC.start }
        puts 'ready {}'; $stdout.flush; $stdin.read";
    let start = |variables: &[(&str, &str)]| {
        Target::start(testkit::ruby().args(["-e", source]).envs(variables.iter().copied()))
    };
    let is_pinned = |report: &Report| {
        let pinned = Action::PreloadJemalloc { is_broken: false, is_pinned: true };
        report
            .advice
            .first()
            .is_some_and(|first| first.action == pinned && first.saves_bytes.is_none())
    };
    let target = start(&[]);
    let report_on_mixed = report(target.pid());
    assert!(is_pinned(&report_on_mixed), "{:#?}", report_on_mixed.verdict);
    let other = start(&diagnosis::JEMALLOC);
    if falls_below(&other, target.rss_bytes() / 4 * 3) {
        assert!(other.finish());
    }
    let sieve = scenario("sieve", &[]);
    let report_on_sieve = report(sieve.pid());
    assert!(is_pinned(&report_on_sieve), "{:#?}", report_on_sieve.advice);
    let words = render::words::advice(&report_on_sieve.advice[0], &report_on_sieve);
    assert!(words.action.contains("does not help if they have the same sizes"), "{}", words.action);
    assert!(target.finish() && sieve.finish());
}

#[test]
fn garbage_is_called_garbage_and_no_path_is_blamed_for_it() {
    let source = "
        GC.disable
        GC.start
        20_000.times { 'x' * 5_000 }
        KEPT = Array.new(2_000) { 'y' * 5_000 }
        puts 'ready {}'; $stdout.flush; $stdin.read";
    let target = Target::ruby(source);
    let report = report(target.pid());
    let summary = render::words::verdict(&report).summary;
    assert!(summary.contains("most of which are garbage"), "{summary}");
    let release = report.advice.iter().find(|advice| {
        matches!(&advice.action, Action::ReleaseObjects { class, path: None, are_garbage: true, .. } if class == "String")
    });
    let words = render::words::advice(release.expect("the GC should run"), &report);
    assert_eq!(words.command, "GC.start");
    assert!(target.finish());
}
