//! The report on an ordinary process.

use formats::{Diff, DiffKind, Report};
use ledger::{Cause, CauseGroup, Size};
use testkit::Target;

use crate::diffs::{diff, set_time};
use crate::report;
use crate::snapshots::Kept;

/// The bytes of some groups of causes.
fn sum(report: &Report, groups: &[CauseGroup]) -> u64 {
    let rows = report.causes.iter().filter(|row| groups.contains(&row.cause.group()));
    rows.map(|row| row.bytes).sum()
}

/// Checks the sentences on a healthy process against its causes.
fn check(target: Target) {
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, None, "{:#?}", report.verdict);
    assert_eq!(report.advice, []);
    let words = render::words::verdict(&report);
    assert!(words.summary.starts_with("Healthy: "), "{}", words.summary);
    let free = sum(
        &report,
        &[
            CauseGroup::Unreturned,
            CauseGroup::Fragmented,
            CauseGroup::KeptForReuse,
            CauseGroup::FreeSlots,
        ],
    );
    let unknown = sum(&report, &[CauseGroup::Unknown]);
    let in_use = report.process.rss_bytes - free - unknown;
    let [used, kept, ..] = &words.evidence[..] else { panic!("{words:?}") };
    assert!(used.starts_with(&format!("{} are in use: ", Size(in_use))), "{used}");
    assert!(kept.starts_with(&format!("{} (", Size(free))), "{kept}");
    for (name, groups) in [
        ("Ruby objects", &[CauseGroup::RubyObjects][..]),
        (
            "the interpreter and the code that it loaded",
            &[CauseGroup::Interpreter, CauseGroup::Jit],
        ),
        ("pages of files, such as libraries", &[CauseGroup::Files]),
    ] {
        let part = format!("{} {name}", Size(sum(&report, groups)));
        assert!(used.contains(&part), "{part}: {used}");
    }
    let grouped: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(grouped, report.process.rss_bytes);
    assert!(report.causes.iter().any(|row| row.cause == Cause::RubyVm && row.bytes > 0));
    assert!(target.finish());
}

#[test]
fn a_small_program_is_described_by_its_parts() {
    check(Target::scenario("healthy", &["--scale", "0.3"]));
}

#[test]
fn a_rails_application_is_described_by_its_parts() {
    let can = testkit::ruby().args(["-rrails", "-e", ""]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return testkit::skip("rails is not installed where targets run");
    }
    check(Target::ruby(
        "require 'logger'
         require 'rails'
         require 'action_controller/railtie'
         class Shop < Rails::Application
           config.eager_load = false
           config.hosts.clear
           config.secret_key_base = 'x' * 64
           config.logger = Logger.new(IO::NULL)
           routes.append { root to: ->(env) { [200, {}, ['ok']] } }
         end
         Shop.initialize!
         session = Rack::MockRequest.new(Shop)
         500.times { session.get('/') }
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    ));
}

/// A process was healthy although one constant retained most of it.
#[test]
fn a_root_with_most_of_a_small_process_is_named() {
    let target = Target::ruby(
        "module Cache; STORE = {}; end
         30_000.times { |i| Cache::STORE[i] = 'x' * 1000 }
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, None, "{:#?}", report.verdict);
    let (root, bytes) = diagnosis::large_root(&report).unwrap();
    assert_eq!(root, "Cache::STORE");
    assert!(bytes >= 30_000_000, "{bytes}");
    let summary = render::words::verdict(&report).summary;
    let expected =
        format!("objects that hold {} begin with Cache::STORE. The program", Size(bytes));
    assert!(summary.contains(&expected), "{summary}");
    assert!(target.finish());
}

/// Each verdict of a leak on four snapshots in a row of a healthy program. `looks` is the number of all snapshots.
fn leaks_of_healthy(program: &str, looks: u64) -> Vec<impl std::fmt::Debug + use<>> {
    let mut target = Target::scenario("kept/steady", &[program]);
    let looks: Vec<Kept> = (0..looks)
        .map(|number| {
            // The rounds until the next snapshot.
            target.tell("250");
            target.next_truth();
            let kept = Kept::of(target.pid());
            set_time(&kept, number * 60_000);
            kept
        })
        .collect();
    let diffs = looks.windows(4).map(diff);
    let is_leak = |diff: &Diff| {
        use DiffKind::{CodeLeak, ManagedLeak, NativeLeak};
        matches!(diff.verdict.kind, ManagedLeak | NativeLeak | CodeLeak)
    };
    diffs.filter(is_leak).map(|it| (program.to_owned(), it.verdict, it.kept)).collect()
}

/// Full caches, pools, queues that drain, and code that is loaded or compiled.
#[test]
fn healthy_programs_under_load_are_no_leak() {
    let output = testkit::scenario("kept/steady").arg("--list").output().unwrap();
    let programs = String::from_utf8(output.stdout).unwrap();
    assert!(programs.lines().count() >= 10, "{programs}");
    let more = testkit::is_nightly("eight more healthy programs, and two more snapshots");
    let quick = ["bounded_cache", "connection_pool", "thread_pool", "sessions"];
    let is_wanted = |it: &&str| more || quick.contains(it);
    let programs = programs.lines().filter(is_wanted);
    let leaks: Vec<_> =
        programs.flat_map(|it| leaks_of_healthy(it, if more { 7 } else { 5 })).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
