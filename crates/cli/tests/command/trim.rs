//! `rbloat trim`: its prediction comes true.

use std::os::unix::process::CommandExt;
use std::process::Output;

use formats::{Action, Report, TrimReport};
use ledger::Cause;
use testkit::Target;

use crate::{bytes, rbloat};

fn trim(pid: i32, arguments: &[&str]) -> Output {
    rbloat().args(["trim", &pid.to_string()]).args(arguments).output().unwrap()
}

fn trim_report(pid: i32, arguments: &[&str]) -> TrimReport {
    let output = trim(pid, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    crate::document(&output.stdout)
}

/// Fails if the returned memory differs from the prediction by more than 1 % plus the changes that a waiting Ruby may
/// make.
fn assert_outcome_as_expected(report: &TrimReport) {
    let outcome = report.outcome.as_ref().unwrap();
    let expected = report.expected.returned_bytes.unwrap();
    let returned = outcome.rss_bytes_before.saturating_sub(outcome.rss_bytes_after);
    assert!(outcome.returned);
    assert!(returned.abs_diff(expected) <= expected / 100 + (64 << 10), "{report:#?}");
}

#[test]
fn what_is_promised_comes_back_in_every_scenario() {
    for (scenario, scale) in
        [("burst", "0.2"), ("churn", "0.1"), ("pin", "0.1"), ("leak", "0.1"), ("healthy", "0.2")]
    {
        let target = Target::scenario(scenario, &["--scale", scale]);
        let first = trim_report(target.pid(), &[]);
        assert_outcome_as_expected(&first);
        assert_eq!(target.rss_bytes(), first.outcome.as_ref().unwrap().rss_bytes_after);
        if scenario == "burst" {
            assert!(first.expected.returned_bytes > Some(50 << 20), "{first:#?}");
        }
        let second = trim_report(target.pid(), &["--dry-run"]);
        assert!(second.expected.returned_bytes < Some(64 << 10), "{scenario}: {second:#?}");
        assert!(target.finish());
    }
}

/// The CPU time of all threads of a process, in ms.
fn cpu_ms(pid: i32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let times = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
    });
    times.sum()
}

/// Makes this thread, and the processes that it starts, run on one processor only.
fn stay_on_one_processor() {
    let this = std::fs::read_link("/proc/thread-self").unwrap();
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let first = allowed.trim().split([',', '-']).next().unwrap();
    let mut taskset = std::process::Command::new("taskset");
    let done = taskset.args(["-p", "-c", first]).arg(this.file_name().unwrap()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// The clock used to start when rbloat ran again. On a busy machine that was after the call.
#[test]
fn the_time_of_a_trim_is_that_of_the_whole_call() {
    stay_on_one_processor();
    for _ in 0..4 {
        let target = Target::bare_ruby(
            "keep = []
             burst = -> { Array.new(24_000) { |at| s = 'x' * 1200; keep << s if at % 600 == 599; s } }
             Thread.new { burst.call; nil }.join; GC.start; KEEP = keep; puts 'ready {}'; $stdout.flush; $stdin.read",
        );
        let (before, started) = (cpu_ms(target.pid()), std::time::Instant::now());
        let report = trim_report(target.pid(), &["--capture", "freeze", "--max-pause", "10s"]);
        let wall_ms = started.elapsed().as_secs_f64() * 1e3;
        let used_ms = cpu_ms(target.pid()) - before;
        let outcome = report.outcome.unwrap();
        assert!(outcome.returned_bytes() > 15 << 20, "{outcome:?}");
        // The pause for reading takes some CPU time, too. The call takes most of it.
        assert!(2.0 * outcome.call_ms >= used_ms, "{outcome:?}, CPU time {used_ms} ms");
        assert!(outcome.call_ms <= wall_ms, "{outcome:?}, {wall_ms} ms");
        assert!(target.finish());
    }
}

#[test]
fn a_dry_run_changes_nothing() {
    let target = Target::scenario("burst", &["--scale", "0.1"]);
    // While other tests need much memory, the kernel may take back pages of files.
    let undisturbed = (0..10).find_map(|_| {
        let before = target.rss_bytes();
        let report = trim_report(target.pid(), &["--dry-run"]);
        (target.rss_bytes() == before).then_some((before, report))
    });
    let (before, report) = undisturbed.expect("RSS changes each time");
    assert_eq!(report.outcome, None);
    assert_eq!(report.expected.rss_bytes, before);
    let text = String::from_utf8(trim(target.pid(), &["--dry-run"]).stdout).unwrap();
    assert!(text.starts_with("expected: RSS ") && text.lines().count() == 1, "{text}");
    assert!(target.finish());
}

#[test]
fn a_watch_says_whether_a_trim_lasts() {
    let target = Target::scenario("burst", &["--scale", "0.1"]);
    let output = trim(target.pid(), &["--watch", "1s"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("100 % of the prediction"), "{text}");
    assert!(text.contains("The trim lasts so far"), "{text}");
    assert!(target.finish());
}

#[test]
fn a_trim_that_is_undone_is_told_so() {
    // Much of the memory is taken again as soon as it was returned.
    let target = Target::bare_ruby(
        "grow = -> { Array.new(20_000) { 'x' * 2000 } }
         Thread.new { grow.call; nil }.join
         GC.start
         rss = -> { File.read('/proc/self/statm').split[1].to_i * 4096 }
         before = rss.call
         Thread.new { sleep 0.02 while rss.call > before - (1 << 20); loop { $kept = grow.call; sleep 0.1 } }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = trim_report(target.pid(), &["--watch", "3s"]);
    let watch = report.watch.unwrap();
    assert!(watch.came_back_bytes > 20 << 20, "{watch:#?}");
    assert!(watch.conclusion != formats::TrimConclusion::Lasts, "{watch:#?}");
    assert!(target.finish());
}

#[test]
fn jemalloc_is_purged_and_the_walk_says_beforehand_what_that_returns() {
    let Some(jemalloc) = testkit::jemalloc() else { return };
    // Other threads would return their caches to jemalloc at times of their own.
    let source = "loop do
           Fiber.new { Array.new(40_000) { 'x' * 3000 }; nil }.resume
           GC.start
           puts 'ready {}'; $stdout.flush
           break unless $stdin.gets
         end";
    let mut command = testkit::ruby();
    // Without these settings jemalloc would return free memory after ten seconds.
    command.args(["--disable-gems", "-e", source]).env("LD_PRELOAD", jemalloc);
    let mut target =
        Target::start(command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1"));
    let report = trim_report(target.pid(), &[]);
    assert_eq!(report.allocator, "jemalloc");
    assert!(report.expected.returned_bytes > Some(10 << 20), "{report:#?}");
    assert_outcome_as_expected(&report);

    // The first call in a process also makes jemalloc allocate its tables for such calls.
    for _ in 0..2 {
        target.tell("");
        target.next_truth();
        let before = target.anonymous_bytes();
        let report = trim_report(target.pid(), &[]);
        let returned = before.saturating_sub(target.anonymous_bytes());
        let expected = report.expected.returned_bytes.unwrap();
        assert!(
            expected > 10 << 20 && returned.abs_diff(expected) <= 4096,
            "{returned}: {report:#?}"
        );
    }

    assert!(target.finish());
}

#[test]
fn a_process_that_is_stopped_is_not_trimmed() {
    let target = Target::scenario("burst", &["--scale", "0.05"]);
    target.stop_asleep();
    let output = trim(target.pid(), &["--json"]);
    assert_eq!(output.status.code(), Some(5));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("the process is stopped by a signal"), "{complaint}");
    target.go_on();
    assert_outcome_as_expected(&trim_report(target.pid(), &[]));
    assert!(target.finish());
}

/// A Ruby with a filter of system calls in its first thread, which kills the process for the call `KILLED`.
const FILTERED: &str = r#"
  require 'fiddle'
  numbers = [Fiddle::TYPE_INT] + [Fiddle::TYPE_LONG] * 4
  prctl = Fiddle::Function.new(Fiddle.dlopen(nil)['prctl'], numbers, Fiddle::TYPE_INT)
  filter = [[0x20, 0, 0, 0], [0x15, 0, 1, KILLED], [0x06, 0, 0, 0x8000_0000], [0x06, 0, 0, 0x7fff_0000]]
  filter = Fiddle::Pointer[filter.map { |step| step.pack('SCCL') }.join]
  program = Fiddle::Pointer[[4].pack('Q') + [filter.to_i].pack('Q')]
  prctl.call(38, 1, 0, 0, 0)
  abort 'no filter' unless prctl.call(22, 2, program.to_i, 0, 0).zero?
  puts "ready {\"threads\": #{Dir.children('/proc/self/task').size}}"; $stdout.flush; $stdin.read"#;

#[test]
fn a_process_whose_filter_kills_for_what_a_trim_calls_is_not_trimmed() {
    // madvise(2)
    let target = Target::bare_ruby(&FILTERED.replace("KILLED", "28"));
    if target.number("threads") > 1 {
        return testkit::skip(
            "from Ruby 4.1 on there is a thread without the filter, which makes the call",
        );
    }
    let output = trim(target.pid(), &["--json"]);
    assert_eq!(output.status.code(), Some(5));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("seccomp"), "{complaint}");
    assert!(target.finish());
}

#[test]
fn a_process_whose_filter_lets_a_trim_through_is_trimmed() {
    if !crate::errors::is_root() {
        return testkit::skip("only root can read a seccomp filter");
    }
    // execve(2)
    let target = Target::bare_ruby(&FILTERED.replace("KILLED", "59"));
    assert_outcome_as_expected(&trim_report(target.pid(), &[]));
    assert!(target.finish());
}

#[test]
fn what_is_no_ruby_is_not_trimmed() {
    let sleeper = Target::start(testkit::command("sh").args(["-c", "echo 'ready {}'; exec cat"]));
    let output = trim(sleeper.pid(), &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(sleeper.finish());
}

#[test]
fn the_same_user_may_trim_without_root() {
    if !crate::errors::is_root() {
        return testkit::skip("the other tests show it, since they run without root");
    }
    let source = "x = Array.new(20_000) { 'x' * 2000 }; x = nil; GC.start
                  puts 'ready {}'; $stdout.flush; $stdin.read";
    let nobody = crate::errors::NOBODY;
    let target = Target::start(
        testkit::ruby().args(["--disable-gems", "-e", source]).uid(nobody).gid(nobody),
    );
    let (_folder, path) = crate::errors::installed();
    let run = |arguments: &[&str]| {
        std::process::Command::new(&path).args(arguments).uid(nobody).gid(nobody).output().unwrap()
    };
    let pid = target.pid().to_string();
    let output = run(&["trim", &pid, "--json"]);
    if String::from_utf8_lossy(&output.stderr).contains("ptrace_scope") {
        return testkit::skip("Yama lets nobody but root trace a process");
    }
    assert_outcome_as_expected(&crate::document(&output.stdout));
    let output = run(&["report", &pid, "--capture", "fork", "--json"]);
    let report: formats::Report = crate::document(&output.stdout);
    assert_eq!((report.capture.method, report.findings), (formats::CaptureMethod::Fork, vec![]));
    assert!(target.finish());
}

/// madvise(2) fails for locked pages, so that "`rbloat trim` should free about 142.9 MiB" freed none of them.
#[test]
fn a_trim_returns_no_page_that_is_locked_in_memory() {
    let mut target = Target::bare_ruby(
        "begin require 'fiddle'; rescue LoadError; puts 'ready {\"locked\":null}'; $stdout.flush; $stdin.read; end
         call = ->(name, *of) { Fiddle::Function.new(Fiddle::Handle::DEFAULT[name], of.map { Fiddle::TYPE_INT }, Fiddle::TYPE_INT).call(*of) }
         texts = Array.new(60_000) { 'x' * 1200 }
         PIN = Array.new(100) { 'y' * 1200 }
         texts.clear
         GC.start
         puts \"ready {\\\"locked\\\":#{call.('mlockall', 1)}}\"; $stdout.flush
         $stdin.gets
         call.('munlockall')
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    if target.truth["locked"] != 0 {
        return testkit::skip("memory cannot be locked here");
    }
    let report = crate::report(target.pid());
    let yield_of = |report: &Report| report.malloc.as_ref().unwrap().trim_yield_bytes;
    let free = bytes(&report, "malloc.unreturned");
    assert!(free > 40 << 20 && yield_of(&report) < 1 << 20, "{free} {}", yield_of(&report));
    assert!(report.process.locked_bytes > free, "{}", report.process.locked_bytes);
    let actions: Vec<_> = report.advice.iter().map(|it| &it.action).collect();
    assert!(actions.iter().any(|it| matches!(it, Action::UnlockMemory { .. })), "{actions:?}");
    assert!(
        !actions.contains(&&Action::Trim) && !actions.contains(&&Action::AutoTrim),
        "{actions:?}"
    );
    // Newer Rubies reserve some hundred MiB, which become resident when they are locked.
    if report.verdict.cause == Some(Cause::MallocUnreturned) {
        let summary = render::words::verdict(&report).summary;
        let locked = "keeps whole free pages, which are locked in memory (mlock or mlockall). This is not a leak.";
        assert!(summary.ends_with(locked), "{summary}");
    }
    let before = target.rss_bytes();
    assert!(trim(target.pid(), &[]).status.success());
    let fell = before.saturating_sub(target.rss_bytes());
    assert!(fell.abs_diff(yield_of(&report)) < 1 << 20, "{fell} {}", yield_of(&report));
    target.tell("unlock");
    target.next_truth();
    let report = crate::report(target.pid());
    assert!(yield_of(&report) > 40 << 20, "{}", yield_of(&report));
    assert!(target.finish());
}
