//! `rbloat compare` finds a winner if one exists, and otherwise none.

use std::process::Output;

use formats::{Comparison, Drawback, Recording};

use crate::{complaint, rbloat};

const MIB: f64 = 1_048_576.0;

/// Runs `rbloat compare` on a Ruby program, with a short time to settle. No gems are installed.
fn run(program: &str, arguments: &[&str]) -> Output {
    run_with_gems("/nowhere", program, arguments)
}

/// Like [`run`], with the gems in `folder`.
fn run_with_gems(folder: &str, program: &str, arguments: &[&str]) -> Output {
    let mut command = rbloat();
    command.env("GEM_HOME", folder).env("GEM_PATH", folder);
    command.args(["compare", "--settle", "1s"]).args(arguments);
    command.args(["--", "ruby", "-e", program]).output().unwrap()
}

fn compare(program: &str, arguments: &[&str]) -> Comparison {
    let output = run(program, &[arguments, &["--json"]].concat());
    let comparison: Comparison = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let status = if comparison.failed.is_empty() { 0 } else { 6 };
    assert_eq!(output.status.code(), Some(status));
    comparison
}

/// Asserts that this setting is the best of two, and returns by how much less it leaves, in MiB. Its few runs may have been slower by
/// chance on a busy machine, and then the recommendation is another.
#[track_caller]
fn assert_best(comparison: &Comparison, setting: &str) -> f64 {
    let words = &comparison.recommendation;
    let is_slower = |it: &formats::PassedOver| matches!(it.because, Drawback::Slower { .. });
    let slower = words.passed_over.iter().find(|it| is_slower(it));
    assert_eq!(slower.map_or(&words.setting, |it| &it.setting), setting, "{words:?}");
    let left = |index: usize| comparison.medians[index].left_bytes().median / MIB;
    left(0) - left(1)
}

#[test]
fn the_winner_is_found_where_there_is_one() {
    // With two arenas the program keeps 20 MiB, otherwise 200 MiB.
    let program = "KEEP = 'x' * ((ENV['MALLOC_ARENA_MAX'] == '2' ? 20 : 200) << 20); $stdin.read";
    let comparison = compare(program, &["--with", "default,arena2", "--runs", "3"]);
    let saved = assert_best(&comparison, "arena2");
    assert!((178.0..182.0).contains(&saved), "{saved} MiB");
    assert_eq!(comparison.runs.len(), 6);
    // The settings take turns, and a different one comes first in each round.
    let order: Vec<&str> = comparison.runs.iter().map(|run| run.setting.as_str()).collect();
    assert_eq!(order, ["default", "arena2", "arena2", "default", "default", "arena2"]);
    for run in &comparison.runs {
        let least = if run.setting == "arena2" { 20 << 20 } else { 200 << 20 };
        assert!(run.rss_settled_bytes.unwrap() > least && run.rss_peak_bytes > least, "{run:?}");
        assert!(run.user_ms + run.system_ms > 0.0 && run.wall_ms > 0.0);
        assert!(run.minor_faults > least / 4096, "{run:?}");
    }
}

#[test]
fn none_is_found_where_there_is_none() {
    let program = "KEEP = 'x' * (100 << 20); $stdin.read";
    let comparison = compare(program, &["--with", "default,arena2", "--runs", "3"]);
    assert_eq!(comparison.recommendation.setting, "default");
    assert!(render::recommendation(&comparison).starts_with("Change nothing"));
}

#[test]
fn a_trim_is_one_of_the_settings() {
    // The strings that are kept lie above the freed ones, so that the heap cannot shrink by itself.
    let program = "keep = []; many = Array.new(60_000) { |at| s = 'x' * 900; keep << s if at % 600 == 599; s }
                   many = nil; GC.start; KEEP = keep; $stdin.read";
    let comparison = compare(program, &["--with", "default,trim", "--runs", "3"]);
    let saved = assert_best(&comparison, "trim");
    assert!(saved > 30.0, "{saved} MiB");
}

#[test]
fn work_that_ends_by_itself_is_measured_to_its_end() {
    let comparison =
        compare("KEEP = 'x' * (64 << 20); sleep 0.3", &["--with", "default", "--runs", "1"]);
    let run = &comparison.runs[0];
    assert_eq!(run.rss_settled_bytes, None);
    assert!(run.rss_end_bytes > 64 << 20, "{}", run.rss_end_bytes);
    assert!(run.wall_ms >= 300.0);
}

#[test]
fn a_load_is_measured_by_what_it_prints() {
    let load = r#"sleep 0.2; echo '{"requests": 90, "failures": 2, "requests_per_second": 45.5, "p99_ms": 7.5}'"#;
    let comparison = compare("$stdin.read", &["--with", "default", "--runs", "1", "--load", load]);
    let measured = comparison.runs[0].load.unwrap();
    assert_eq!((measured.requests, measured.failures), (90, 2));
    assert_eq!(measured.p99_ms, Some(7.5));
    assert!(comparison.runs[0].wall_ms >= 200.0);

    let output = run("$stdin.read", &["--with", "default", "--runs", "1", "--load", "echo fine"]);
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(words.contains("every run failed") && words.contains("its last line: fine"), "{words}");
}

#[test]
fn what_is_missing_or_fails_is_named() {
    let comparison = compare("$stdin.read", &["--with", "default,gem", "--runs", "1"]);
    assert_eq!(comparison.missing[0].setting, "gem");
    assert!(
        render::comparison(&comparison)
            .contains("Not tried: gem. It needs the gem rbloat, which ruby does not find")
    );

    let fails_once = "abort 'no memory for you' if ENV['MALLOC_ARENA_MAX']; $stdin.read";
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().to_str().unwrap();
    let arguments = ["--with", "default,arena2", "--runs", "1", "-o", into];
    let comparison = compare(fails_once, &arguments);
    assert_eq!(comparison.failed[0].setting, "arena2");
    let recordings = ["default-1.jsonl", "arena2-1.jsonl"].map(|it| folder.path().join(it));
    assert_eq!(recordings.map(|it| it.exists()), [true, false]);
    assert!(comparison.failed[0].why.contains("no memory for you"), "{:?}", comparison.failed);

    let output = run("abort 'never'", &["--with", "default", "--runs", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("exit status: 1: never"));

    let output =
        rbloat().args(["compare", "--with", "default", "--", "/nowhere/app"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    let unknown = rbloat().args(["compare", "--with", "ptmalloc", "--", "true"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        String::from_utf8(unknown.stderr).unwrap().contains("the settings are default, arena2")
    );
}

#[test]
fn where_nothing_can_be_tried_it_says_why() {
    let output = run("$stdin.read", &["--with", "gem"]);
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains(
            "none of the settings can be tried: gem needs the gem rbloat, which ruby does not find"
        ),
        "{words}"
    );
}

/// The setting used to need `--gem`.
#[test]
fn an_installed_gem_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let gems = folder.path();
    let write = |name: &str, text: &str| {
        let path = gems.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write(
        "specifications/rbloat-99.0.gemspec",
        "Gem::Specification.new { |it| it.name = 'rbloat'; it.version = '99.0'; it.summary = 'x'; it.authors = ['x'] }",
    );
    write("gems/rbloat-99.0/lib/rbloat/core.rb", "LOADED = true");
    let program = "abort 'not loaded' if ENV['RBLOAT_AUTO_TRIM'] && !defined?(LOADED); $stdin.read";
    let arguments = ["--with", "default,gem", "--runs", "1", "--json"];
    let output = run_with_gems(gems.to_str().unwrap(), program, &arguments);
    let comparison: Comparison = crate::document(&output.stdout);
    assert_eq!((comparison.missing, comparison.failed), (vec![], vec![]));
    let library = gems.join("gems/rbloat-99.0/lib");
    let environment = &comparison.settings[1].environment;
    assert!(environment[0].1.contains(&format!("-I{}", library.display())), "{environment:?}");

    let output = run("", &["--with", "gem", "--gem", "/nowhere/gem"]);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("the gem's folder (--gem /nowhere/gem: No such file"), "{words}");
}

#[test]
fn a_setting_that_is_named_twice_runs_once() {
    let comparison = compare("", &["--with", "default,arena2,default", "--runs", "1"]);
    let order: Vec<&str> = comparison.runs.iter().map(|run| run.setting.as_str()).collect();
    assert_eq!(order, ["default", "arena2"]);
    assert_eq!(comparison.settings.len(), 2);
}

#[test]
fn last_words_and_commands_move_no_cursor() {
    let fails_once = "abort \"\\e[31mno\\e[2J\\rmore\" if ENV['MALLOC_ARENA_MAX']\n1";
    let comparison = compare(fails_once, &["--with", "default,arena2", "--runs", "1"]);
    assert!(comparison.failed[0].why.ends_with(":  [31mno [2J more"), "{:?}", comparison.failed);
    let text = render::comparison(&comparison);
    assert!(text.lines().next().unwrap().ends_with("if ENV['MALLOC_ARENA_MAX'] 1`"), "{text}");
}

#[test]
fn an_interrupt_keeps_what_was_measured_and_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    // The second run interrupts rbloat, as ^C would.
    let program = format!(
        "File.open({count:?}, 'a') {{ |file| file.puts(Process.pid) }}
         Process.kill(:INT, Process.ppid) if File.readlines({count:?}).size == 2; $stdin.read"
    );
    let output = run(&program, &["--with", "default", "--runs", "3", "--json"]);
    assert_eq!(output.status.code(), Some(6));
    let comparison: Comparison = crate::document(&output.stdout);
    assert_eq!(comparison.runs.len(), 1);
    for pid in std::fs::read_to_string(count).unwrap().lines() {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} still runs");
    }
}

#[test]
fn work_that_an_interrupt_ends_is_neither_measured_nor_failed() {
    // The ^C of a terminal reaches the command as well, which ends at once: once successfully, once not.
    for ending in ["exit!", "abort"] {
        let program = format!("Process.kill(:INT, Process.ppid); {ending}");
        let output = run(&program, &["--with", "default", "--runs", "2"]);
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains("interrupted in the first run: nothing was measured"), "{words}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn no_command_is_left_running_by_a_signal_that_ends_compare() {
    for signal in ["TERM", "HUP"] {
        let folder = tempfile::tempdir().unwrap();
        let ran = folder.path().join("ran");
        // The command would continue by itself, even without its standard input.
        let program = format!(
            "File.write({ran:?}, Process.pid.to_s); Process.kill(:{signal}, Process.ppid); sleep"
        );
        let output = run(&program, &["--with", "default"]);
        assert_eq!(output.status.code(), Some(1), "{signal}");
        let pid = std::fs::read_to_string(ran).unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{signal}");
    }
}

#[test]
fn a_folder_that_cannot_be_is_told_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let program = format!("File.write({ran:?}, '')");
    let output = run(&program, &["--with", "default", "-o", "/dev/null/here"]);
    let (status, words) = complaint(&output);
    assert_eq!(status, 1, "{words}");
    assert!(words.contains("cannot write /dev/null/here"), "{words}");
    assert!(!ran.exists());
}

#[test]
fn what_cannot_be_written_in_the_end_is_told_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("into");
    let program = format!(
        "Dir.children({path:?}).each {{ |it| File.unlink({path:?} + '/' + it) }}; Dir.rmdir({path:?})"
    );
    let arguments = ["--with", "default", "--runs", "1", "-o", path.to_str().unwrap()];
    let output = run(&program, &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("| default |"));
}

#[test]
fn a_comparison_is_written_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er");
    let output =
        run("$stdin.read", &["--with", "default", "--runs", "1", "-o", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    let comparison: Comparison = serde_json::from_str(&read("comparison.json")).unwrap();
    assert_eq!(read("comparison.md"), render::comparison(&comparison));
    // The runs are recordings, from which the picture is drawn.
    let recording = Recording::read(read("default-1.jsonl").as_bytes()).unwrap();
    assert_eq!(recording.start.label.as_deref(), Some("default"));
    assert_eq!(recording.start.command.as_ref(), Some(&comparison.command));
    let rss: Vec<u64> = recording.samples().map(|sample| sample.rss_bytes).collect();
    let samples = comparison.runs[0].samples.iter();
    assert_eq!(rss, samples.map(|sample| sample.rss_bytes).collect::<Vec<_>>());
    assert_eq!(recording.processes().next().unwrap().pid, recording.start.pid);
    assert_eq!(recording.end().unwrap().samples, rss.len() as u64);
    let drawn = path.join("again.svg");
    let plotted =
        rbloat().arg("report").arg(path.join("default-1.jsonl")).arg("-o").arg(&drawn).output();
    assert!(plotted.unwrap().status.success());
    assert_eq!(read("comparison.svg"), read("again.svg"));
    // Without a terminal, the table is printed.
    assert_eq!(String::from_utf8(output.stdout).unwrap(), render::comparison(&comparison));
}

#[test]
fn arguments_of_compare_that_make_no_sense() {
    let (status, words) = {
        let output = rbloat().args(["compare", "--runs", "0", "--", "true"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(status, Some(2), "{words}");
    let output =
        rbloat().args(["compare", "--with", "default", "--runs", "1", "--", ""]).output().unwrap();
    let (status, words) = complaint_after_progress(&output);
    assert_eq!(status, 127, "{words}");
    assert!(words.contains("cannot start"), "{words}");
}

/// The exit status and the last line on standard error.
fn complaint_after_progress(output: &Output) -> (i32, String) {
    let mut last = output.clone();
    let text = String::from_utf8(last.stderr).unwrap();
    last.stderr = format!("{}\n", text.lines().next_back().unwrap_or_default()).into_bytes();
    complaint(&last)
}

/// Such a trim used to be reported as a setting that saves nothing.
#[test]
fn a_trim_that_was_none_is_a_failure() {
    let mut command = rbloat();
    command.args(["compare", "--settle", "1s", "--with", "default,trim", "--runs", "1", "--json"]);
    let output = command.args(["--", "cat"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    let comparison: Comparison = crate::document(&output.stdout);
    assert_eq!(comparison.failed[0].setting, "trim");
    assert!(comparison.failed[0].why.contains("the command has no Ruby process"), "{comparison:?}");
}

#[test]
fn a_setting_of_ones_own_is_compared_too() {
    let program = "few = [ENV['KEPT'], ENV['MORE']] == ['a few', '']
                   KEEP = 'x' * ((few ? 20 : 200) << 20); $stdin.read";
    let own = ["--set", "frugal:KEPT=a few", "--set", "frugal:MORE="];
    let comparison = compare(program, &[&own[..], &["--with", "default", "--runs", "3"]].concat());
    let tried: Vec<&str> = comparison.settings.iter().map(|it| it.setting.as_str()).collect();
    assert_eq!(tried, ["default", "frugal"]);
    assert!(assert_best(&comparison, "frugal") > 100.0);
    let words = render::recommendation(&comparison);
    let is_used = comparison.recommendation.setting == "frugal";
    assert!(!is_used || words.contains("set KEPT=a few MORE="), "{words}");

    for (wrong, why) in [
        ("KEPT=1", "begin with the name of the setting and a colon"),
        ("own:KEPT", "VARIABLE=VALUE"),
        ("gem:KEPT=1", "gem is a built-in setting"),
        (":KEPT=1", "needs a name"),
        ("../own:KEPT=1", "a name of letters"),
        ("own:=1", "the variable needs a name"),
    ] {
        let output = run("", &["--set", wrong]);
        assert_eq!(output.status.code(), Some(2));
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains(why), "{wrong}: {words}");
    }
}
