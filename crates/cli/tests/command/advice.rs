//! Advice carried out: an advised setting leaves less memory. The saving of a trim is tested with every scenario, too.

use std::time::{Duration, Instant};

use formats::{Action, Advice, Confidence, Report};
use ledger::Cause;
use testkit::Target;

use crate::{bytes, report};

/// jemalloc returns memory within about 10 s. On a busy machine, the tests wait this long.
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

/// A program that frees the end of its heap.
const FREED_END: &str = "GC.start; GC.disable
    strings = Array.new(1_000) { 'x' * 100_000 }
    strings.each(&:clear)
    puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)";

/// A program that frees large blocks in the middle of its heap.
const FREED_BLOCKS: &str = "blocks = Array.new(3) { ['x' * (40 << 20), 'y' * 100_000] }
    GC.start
    blocks.each { |block, _| block.clear }
    puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)";

/// Variables of glibc's malloc had no part in any sentence.
#[test]
fn variables_that_let_glibc_keep_free_memory_are_named() {
    if testkit::preload().is_some() {
        return testkit::skip("another allocator is preloaded");
    }
    let start = |source: &str, (name, value): (&str, &str)| {
        Target::start(testkit::ruby().args(["-e", source]).env(name, value))
    };
    let names = |report: &Report, variable: &str| {
        let summary = render::words::verdict(report).summary;
        summary.contains(&format!("at the end of its heap because of {variable}."))
    };
    for (source, variable, value, name) in [
        (FREED_END, "MALLOC_TRIM_THRESHOLD_", "1000000000", "MALLOC_TRIM_THRESHOLD_"),
        (FREED_END, "MALLOC_TOP_PAD_", "1000000000", "MALLOC_TOP_PAD_"),
        (
            FREED_END,
            "GLIBC_TUNABLES",
            "glibc.malloc.trim_threshold=1000000000",
            "glibc.malloc.trim_threshold in GLIBC_TUNABLES",
        ),
        (FREED_BLOCKS, "MALLOC_MMAP_THRESHOLD_", "1000000000", "MALLOC_MMAP_THRESHOLD_"),
    ] {
        let target = start(source, (variable, value));
        let other = start(source, ("UNUSED", ""));
        let saved = target.rss_bytes().saturating_sub(other.rss_bytes());
        if source == FREED_BLOCKS && saved < 64 << 20 {
            // This version of glibc ignores values above 32 MiB.
            continue;
        }
        let found = report(target.pid());
        let is_it = |step: &&Advice| match &step.action {
            Action::ReturnTop { variable, .. } | Action::MapLargeBlocks { variable, .. } => {
                variable == name
            }
            _ => false,
        };
        let step = found.advice.iter().find(is_it);
        let step = step.unwrap_or_else(|| panic!("{variable}: {:#?}", found.advice));
        assert_eq!(names(&found, name), source == FREED_END);
        let words = render::words::advice(step, &found);
        assert!(words.action.contains("up to 953.7 MiB"), "{words:?}");
        // The other process has carried it out.
        assert!(saved >= 64 << 20, "{variable}: {saved}");
        assert!(target.finish() && other.finish());
    }
}

#[test]
fn jemalloc_leaves_less_where_it_is_advised() {
    let others = testkit::is_nightly("jemalloc in burst and pin, not in churn alone");
    for name in if others { &["burst", "churn", "pin"][..] } else { &["churn"] } {
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

/// Advice on pinned memory used to promise a saving. In `sieve`, whose blocks have about the same size, jemalloc takes
/// more memory.
#[test]
fn jemalloc_helps_against_pinned_memory_if_sizes_differ() {
    let source = "
        kept = []
        dropped = []
        30_000.times { dropped << 'a' * 1500 << 'b' * 1500; kept << 'k' * 1100 }
        dropped.clear
        KEPT = kept
        3.times { GC.start }
        puts 'ready {}'; $stdout.flush; $stdin.read";
    let start = |variables: &[(&str, &str)]| {
        Target::start(
            testkit::ruby().args(["--disable-gems", "-e", source]).envs(variables.iter().copied()),
        )
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
        puts 'ready {}'; $stdout.flush; gets
        GC.start
        puts 'ready {}'; $stdout.flush; $stdin.read";
    let mut target = Target::bare_ruby(source);
    let before = report(target.pid());
    let summary = render::words::verdict(&before).summary;
    assert!(summary.contains("most of which are garbage"), "{summary}");
    let release = before.advice.iter().find(|advice| {
        matches!(&advice.action, Action::ReleaseObjects { class, path: None, are_garbage: true, .. } if class == "String")
    });
    let release = release.expect("the GC should run");
    let words = render::words::advice(release, &before);
    assert_eq!(words.command, "GC.start");
    assert_eq!(before.verdict.confidence, Confidence::High);
    let Action::ReleaseObjects { garbage_bytes, .. } = release.action else { unreachable!() };
    let sentence = format!(" A collection frees about {} for reuse", ledger::Size(garbage_bytes));
    assert!(words.action.contains(&sentence) && release.saves_bytes.is_none(), "{words:?}");
    target.tell("collect");
    target.next_truth();
    let after = report(target.pid());
    let held = |report: &Report| bytes(report, "ruby.live_slots") + bytes(report, "ruby.malloc");
    let freed = held(&before).saturating_sub(held(&after));
    assert!(freed.abs_diff(garbage_bytes) * 10 <= garbage_bytes, "{freed} of {garbage_bytes}");
    assert!(target.finish());
}

/// A word on a stack may have led to them when the GC ran, and may do so again.
#[test]
fn garbage_that_the_last_gc_marked_is_less_certain() {
    let source = "
        kept = Array.new(20_000) { 'x' * 5_000 }
        4.times { GC.start }
        GC.disable
        kept.clear
        puts 'ready {}'; $stdout.flush; $stdin.read";
    let target = Target::bare_ruby(source);
    let report = report(target.pid());
    let summary = render::words::verdict(&report).summary;
    assert!(summary.contains("most of which are garbage"), "{summary}");
    assert_eq!(report.verdict.confidence, Confidence::Medium);
    assert!(target.finish());
}

/// The advice used to be to call GC.start once, which frees only a part of the pages.
#[test]
fn compaction_frees_most_of_the_free_slots() {
    let mut target = Target::bare_ruby(
        "class Row; def initialize(number) @number = number; end; end
         rows = Array.new(2_000_000) { |number| Row.new(number) }
         KEPT = rows.select.with_index { |_, at| (at % 50).zero? }
         rows.clear
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; gets
         GC.compact
         5.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let before = report(target.pid());
    assert_eq!(before.verdict.cause, Some(Cause::RubyFreeSlots));
    // 300,000 keys of a Hash that compares by identity do not move: 197.9 MiB were predicted, and 2.7 MiB fell.
    assert_eq!(before.advice[0], Advice { action: Action::Compact, saves_bytes: None });
    target.tell("compact");
    target.next_truth();
    let after = report(target.pid());
    let [before, after] = [before, after].map(|report| bytes(&report, "ruby.free_slots"));
    assert!(after < before / 2, "{before} {after}");
    assert!(target.finish());
}

/// "Few live objects pin many pages", and no step: Ruby 4.1 keeps pages without slots for slots of any size. (Up to 3.4 a burst leaves none.)
#[test]
fn a_warmup_frees_pages_without_slots() {
    let mut target = Target::bare_ruby(
        "def fill; Array.new(3_000_000) { 's' * 60 }; end
         def burn(depth); depth == 0 ? 0 : 1 + burn(depth - 1); end
         fill; burn(500)
         8.times { GC.start }
         puts 'ready {}'; $stdout.flush; gets
         Process.warmup
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let before = report(target.pid());
    if before.ruby.as_ref().unwrap().page_bytes_free < 64 << 20 {
        return testkit::skip("this Ruby keeps hardly any pages without slots: 4.1 does");
    }
    let step = before.advice.iter().find(|it| it.action == Action::FreePages);
    let claim = step.unwrap_or_else(|| panic!("{:?}", before.advice)).saves_bytes.unwrap();
    target.tell("warm up");
    target.next_truth();
    let after = report(target.pid());
    let rss = [&before, &after].map(|report| report.process.rss_bytes);
    let slots = [&before, &after].map(|report| bytes(report, "ruby.free_slots"));
    for [before, after] in [rss, slots] {
        // Memory of malloc's may be returned, too.
        let freed = before.saturating_sub(after);
        assert!(freed.abs_diff(claim) * 10 <= claim, "{freed} of {claim}");
    }
    assert!(target.finish());
}

/// 61 MiB were predicted, and nothing was saved.
#[test]
fn compaction_around_pinned_objects_is_not_predicted() {
    let target = Target::bare_ruby(
        "require 'stringio'
         rows = Array.new(2_000_000) { 'r'.dup }
         KEPT = rows.select.with_index { |_, at| (at % 500).zero? }.map { |row| StringIO.new(row) }
         rows.clear
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let step = report.advice.iter().find(|it| it.action == Action::Compact);
    let step = step.unwrap_or_else(|| panic!("{:?}", report.advice));
    let words = render::words::advice(step, &report);
    let is_right = words.action.contains("cannot move") || words.action.contains("from malloc");
    assert!(step.saves_bytes.is_none() && is_right, "{words:?}");
    assert!(target.finish());
}

/// "1 of 1,556 are retained by Cache::ROWS → Array, and 1 by Index::IDS → Array. @files of Gem::Specification is used in …": the numbers of
/// objects say nothing here, and most Arrays, which are small, have another root.
#[test]
fn roots_of_a_few_large_objects_are_named_with_their_bytes() {
    let target = Target::bare_ruby(
        "module Index; IDS = Array.new(4_000_000) { |id| id }; end
         module Cache; ROWS = Array.new(4_000_000) { |id| id }; end
         class Small; def self.keep; @arrays = Array.new(2_000) { [1, 2, 3, 4] }; end; end
         Small.keep
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let words = render::words::advice(&report.advice[0], &report).action;
    let text = words.replace("Index::IDS", "A").replace("Cache::ROWS", "A");
    assert!(
        text.contains(" (30.5 MiB) are retained by A → Array, and 1 (30.5 MiB) by A → Array."),
        "{words}"
    );
    assert!(!words.contains("@arrays"), "{words}");
    assert!(target.finish());
}

/// A report on a process in which constants retain these numbers of 12,000 strings.
fn strings_in(shares: &[u32]) -> Report {
    let constants: Vec<_> = shares
        .iter()
        .enumerate()
        .map(|(index, count)| format!("PART_{index} = Array.new({count}) {{ 'x' * 5_000 }}"))
        .collect();
    let source = format!(
        "{}\n3.times {{ GC.start }}; puts 'ready {{}}'; $stdout.flush; $stdin.read",
        constants.join("\n")
    );
    let target = Target::bare_ruby(&source);
    let report = report(target.pid());
    assert!(target.finish());
    report
}

#[test]
fn a_path_is_blamed_only_if_it_retains_more_than_half() {
    let advice = |shares: &[u32]| {
        let report = strings_in(shares);
        let first = report.advice.first().expect("60 MiB are worth a step");
        render::words::advice(first, &report).action
    };
    let shared = advice(&[1_500; 8]);
    assert!(shared.starts_with("Find out what retains the objects of class String ("), "{shared}");
    // "Find out what retains them" was the step where two roots had nearly all.
    let two = advice(&[5_000, 5_500, 1_500]);
    let said = ["5,500 of ", " MiB) are retained by PART_1 → Array → String, and 5,000 ("];
    assert!(
        two.starts_with("Release the objects of class String (")
            && said.iter().all(|it| two.contains(it)),
        "{two}"
    );
    // The step named the one root, with the memory of both.
    let two = advice(&[5_400, 6_600]);
    assert!(two.contains(") are retained by PART_1 → Array → String, and 5,400 ("), "{two}");
    let most = advice(&[2_500, 7_000, 2_500]);
    assert!(most.contains("most of which are retained by PART_1 → Array → String."), "{most}");
}

#[test]
fn a_path_to_native_memory_is_blamed_only_if_it_retains_more_than_half() {
    let advice = |shares: [u32; 2]| {
        let [one, other] = shares;
        let target = Target::bare_ruby(&format!(
            "require 'zlib'
             data = Random.new(1).bytes(100_000)
             ONE = Array.new({one}) {{ Zlib::Deflate.new.tap {{ |it| it << data }} }}
             OTHER = Array.new({other}) {{ Zlib::Deflate.new.tap {{ |it| it << data }} }}
             GC.start; puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(0)"
        ));
        let report = report(target.pid());
        let step = report.advice.iter().find(|it| matches!(it.action, Action::FreeNative { .. }));
        let words = render::words::advice(step.expect("they hold 66 MiB"), &report);
        assert_eq!(words.command, "deflate.close");
        assert!(target.finish());
        words.action
    };
    let half = advice([130, 130]);
    assert!(half.starts_with("Free the memory of 260 objects of class Zlib::Deflate"), "{half}");
    let most = advice([80, 180]);
    let step = "Release 180 of 260 objects of class Zlib::Deflate, which are retained by OTHER → Array → Zlib::Deflate";
    assert!(most.starts_with(step), "{most}");
}

/// The step was "the close, clear, free or destroy method of each" of objects that have none of these methods.
#[test]
fn objects_without_a_method_that_frees_them_are_to_be_released() {
    let target = Target::bare_ruby(
        "require 'openssl'
         bytes = \"\\x7f\" * 16_000
         KEPT = Array.new(3_000) { OpenSSL::BN.new(bytes, 2) }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let step = report.advice.iter().find(|it| matches!(it.action, Action::FreeNative { .. }));
    let words = render::words::advice(step.unwrap_or_else(|| panic!("{report:#?}")), &report);
    let expected = "Release 3,000 objects of class OpenSSL::BN, which are retained by KEPT → Array → OpenSSL::BN: the GC frees";
    assert!(words.action.starts_with(expected), "{words:?}");
    assert_eq!(words.command, format!("rbloat why {} OpenSSL::BN", target.pid()));
    assert!(target.finish());
}

/// The verdict used to be "the stacks of 1 thread", with the advice to run fewer threads.
#[test]
fn stacks_of_fibers_are_no_stacks_of_threads() {
    let target = Target::bare_ruby(
        "FIBERS = Array.new(1_000) { Fiber.new { deep = ->(n) { n > 0 ? [n].each { deep.(n - 1) } : Fiber.yield }; deep.(160) } }
         FIBERS.each(&:resume)
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::StackFibers), "{:#?}", report.causes);
    let summary = render::words::verdict(&report).summary;
    assert!(summary.ends_with(" of fibers."), "{summary}");
    assert!(!is_advised(&report, |action| matches!(action, Action::RunFewerThreads { .. })));
    assert!(target.finish());
}

/// A profile in Rails, and Puma's plugin, start AutoTrim without the variable RBLOAT_AUTO_TRIM.
#[test]
fn auto_trim_is_not_advised_if_it_runs() {
    let advises = |thread: &str| {
        let source = format!("Thread.new {{ sleep }}.name = '{thread}'; $0 = ARGV.shift; load $0");
        let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/burst.rb");
        let mut ruby = testkit::ruby();
        let target =
            Target::start(ruby.args(["--disable-gems", "-e", &source, scenario, "--scale", "0.2"]));
        let report = report(target.pid());
        assert!(target.finish());
        is_advised(&report, |action| *action == Action::AutoTrim)
    };
    assert!(!advises("rbloat-trim"));
    assert!(advises("worker"));
}

/// gem/test/native_pressure_test.rb carries this step out.
#[test]
fn garbage_that_the_gc_does_not_know_of_needs_native_pressure() {
    if testkit::preload().is_some() {
        return testkit::skip("NativePressure supports glibc only");
    }
    let advises = |variables: &[(&str, &str)], keep: &str| {
        let source = format!(
            "require 'openssl'
             GC.start; GC.disable
             bytes = \"\\x7f\" * 16_000
             $kept = []
             Thread.new {{ 4_000.times {{ {keep} OpenSSL::BN.new(bytes, 2) }} }}.join
             puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(0)"
        );
        let mut ruby = testkit::ruby();
        let target = Target::start(
            ruby.args(["--disable-gems", "-e", &source]).envs(variables.iter().copied()),
        );
        let report = report(target.pid());
        assert!(target.finish());
        let class = "OpenSSL::BN".to_owned();
        is_advised(&report, |action| *action == Action::NativePressure { class: class.clone() })
    };
    assert!(advises(&[], ""));
    assert!(!advises(&[("RBLOAT_NATIVE_PRESSURE", "1")], ""));
    assert!(!advises(&[], "$kept <<"));
}
