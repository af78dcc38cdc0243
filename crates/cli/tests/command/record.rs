//! `rbloat record`: its file, in all cases.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use formats::{EndReason, Line, Recording, Sample};
use serde_json::Value;
use tempfile::TempDir;
use testkit::Target;

use crate::rbloat;

/// A recorder at work. It is killed when this value is dropped.
pub(crate) struct Recorder {
    child: Child,
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

impl Recorder {
    pub(crate) fn start(what: &[&str], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut command = rbloat();
        command.arg("record").args(arguments).arg("-o").arg(&path).args(what);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        Self { child, path, _folder: folder }
    }

    pub(crate) fn of(target: &Target, arguments: &[&str]) -> Self {
        Self::start(&[&target.pid().to_string()], arguments)
    }

    /// Returns the recording as soon as it is `enough`.
    pub(crate) fn wait_for(&self, enough: impl Fn(&Recording) -> bool) -> Recording {
        let mut seen = None;
        loop {
            let has_ended = self.has_ended();
            // To read a recording takes processor time.
            let length = fs::metadata(&self.path).ok().map(|it| it.len());
            if length == seen && !has_ended {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            seen = length;
            let bytes = fs::read(&self.path).unwrap_or_default();
            if let Ok(recording) = Recording::read(&bytes[..])
                && enough(&recording)
            {
                return recording;
            }
            assert!(!has_ended, "the recorder has ended: {}", String::from_utf8_lossy(&bytes));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns true if the recorder is a zombie: it has ended, and is not reaped yet.
    fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('Z')
    }

    pub(crate) fn wait_for_samples(&self, number: usize) -> Recording {
        let before = self.wait_for(|_| true).samples().count();
        self.wait_for(|recording| recording.samples().count() >= before + number)
    }

    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for its end. Returns its exit status, and the whole file.
    pub(crate) fn end(mut self) -> (i32, Recording) {
        let status = self.child.wait().unwrap();
        (status.code().unwrap(), read(&self.path))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> Recording {
    Recording::read(&fs::read(path).unwrap()[..]).unwrap()
}

fn why(recording: &Recording) -> EndReason {
    recording.end().unwrap().why
}

/// A program that reports its own smaps_rollup after each line that it reads, and is idle otherwise.
const STEPS: &str = "
  def tell
    rows = Hash.new(0)
    text = File.read('/proc/self/smaps_rollup')
    rows = text.scan(/^(\\w+):\\s+(\\d+) kB$/).to_h { |key, kb| [key, kb.to_i * 1024] }
    puts \"ready {\\\"rss\\\": #{rows['Rss']}, \\\"swap\\\": #{rows['Swap']}, \\\"faults\\\": 0}\"
    $stdout.flush
  end
  # What telling itself takes has been taken before anything is compared.
  20.times { tell }
  kept = []
  while $stdin.gets
    kept << 'x' * (3 << 20)
    tell
  end";

#[test]
fn rss_is_that_of_smaps_at_each_step_of_a_program_that_stands_still() {
    let mut target = Target::bare_ruby(STEPS);
    for _ in 1..20 {
        target.next_truth();
    }
    let recorder = Recorder::of(&target, &["--every", "20ms", "--causes-every", "0"]);
    for _ in 0..5 {
        target.tell("");
        let truth: Value = target.next_truth();
        // The report itself took pages, too, so the comparison uses the RSS after it.
        let rss = target.rss_bytes();
        assert!(rss.abs_diff(truth["rss"].as_u64().unwrap()) <= 256 << 10);
        let recording = recorder.wait_for_samples(0);
        let from = recording.samples().last().map_or(0, |sample| sample.t_ms);
        let sees = |sample: &&Sample| sample.exact && sample.t_ms > from + 20;
        let recording = recorder.wait_for(|it| it.samples().filter(sees).count() >= 2);
        for sample in recording.samples().filter(sees) {
            assert_eq!(sample.rss_bytes, rss);
            assert_eq!(sample.processes[0].rss_bytes, rss);
            assert_eq!(sample.swap_bytes, truth["swap"].as_u64());
        }
    }
    assert!(target.finish());
    let (status, recording) = recorder.end();
    assert_eq!((status, why(&recording)), (0, EndReason::TargetEnded));
}

#[test]
fn the_causes_of_each_ruby_are_those_of_a_report() {
    let target = Target::bare_ruby(
        "$kept = Array.new(20_000) { 'x' * 500 }
         reader, writer = IO.pipe
         told, tells = IO.pipe
         2.times { |number| fork { $own = Array.new(9_000) { 'y' * 500 }; $0 = \"worker #{number}\"
           $stdin.close; writer.close; tells.write('.'); reader.read } }
         spawn('sh', '-c', 'read line', in: reader)
         told.read(2)
         puts 'ready {}'; $stdout.flush
         $stdin.read",
    );
    for capture in ["freeze", "fork"] {
        the_causes_are_told(&target, capture);
    }
    assert!(target.finish());
}

fn the_causes_are_told(target: &Target, capture: &str) {
    // A capture may fail, and the next search finds what is missing.
    let how =
        ["--every", "50ms", "--causes-every", "1s", "--capture", capture, "--max-pause", "10s"];
    let recorder = Recorder::of(target, &how);
    let commands = |recording: &Recording| -> BTreeSet<String> {
        recording.causes().map(|causes| causes.command.clone()).collect()
    };
    let recording = recorder.wait_for(|it| commands(it).len() >= 3);
    let commands: Vec<String> = commands(&recording).into_iter().collect();
    assert!(commands[0].starts_with("ruby"), "{commands:?}");
    assert_eq!(commands[1..], ["worker 0", "worker 1"]);
    assert_eq!(recording.processes().count(), 4);
    for causes in recording.causes() {
        let sum: u64 = causes.causes.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, causes.rss_bytes);
        let malloc = causes.causes.iter().find(|row| row.cause.name() == "ruby.malloc").unwrap();
        assert!(malloc.bytes > 9_000_000, "{causes:?}");
    }
    recorder.signal("INT");
    let (status, recording) = recorder.end();
    assert_eq!((status, why(&recording)), (0, EndReason::Interrupted));
    assert!(
        recording.causes().all(|causes| serde_json::json!(causes.method) == capture),
        "{:?}",
        recording.causes().next()
    );
}

#[test]
fn a_program_gets_signals_and_its_exit_status_is_passed_on() {
    // The process that runs the tests may ignore ^C, as in a shell's background, and so would its programs.
    let trap = "trap('INT', 'DEFAULT'); trap('USR1') { exit!(41) }; trap('TERM') { exit!(42) }; $stdout.sync = true
                File.write(ARGV[0], ENV.to_h.to_s); sleep";
    for (signal, expected) in [("USR1", 41), ("TERM", 42), ("INT", 130)] {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("env");
        let said = said.to_str().unwrap();
        let recorder = Recorder::start(&["--", "ruby", "-e", trap, said], &["--every", "50ms"]);
        while fs::read_to_string(said).unwrap_or_default().is_empty() {
            assert!(!recorder.has_ended());
            std::thread::sleep(Duration::from_millis(5));
        }
        let environment = fs::read_to_string(said).unwrap();
        recorder.signal(signal);
        let (status, recording) = recorder.end();
        assert_eq!(status, expected, "{signal}");
        assert_eq!(why(&recording), EndReason::TargetEnded);
        let end = recording.end().unwrap();
        assert_eq!(
            (end.exit_status.is_some(), end.signal.is_some()),
            (expected < 128, expected > 128)
        );
        let without = Command::new("ruby")
            .args(["-e", "File.write(ARGV[0], ENV.to_h.to_s)", said])
            .env("NO_COLOR", "1")
            .status()
            .unwrap();
        assert!(without.success());
        assert_eq!(environment, fs::read_to_string(said).unwrap());
    }
}

#[test]
fn a_target_that_forks_execs_and_dies_leaves_a_whole_file() {
    let program = "
      trap('USR1') { $go_on = true }
      pids = 5.times.map { fork { exec('sleep', '1000') } }
      sleep 0.01 until $go_on
      pids.each { |pid| Process.kill(:KILL, pid); Process.wait(pid) }
      50.times { Process.wait(fork { exit!(0) }) }
      exec('ruby', '-e', 'sleep')";
    let recorder = Recorder::start(&["--", "ruby", "-e", program], &["--every", "10ms"]);
    let sleepers = |recording: &Recording| {
        recording.processes().filter(|process| process.command == "sleep 1000").count()
    };
    let recording = recorder.wait_for(|recording| sleepers(recording) == 5);
    let root = recording.start.pid;
    recorder.signal("USR1");
    recorder.wait_for(|recording| {
        recording
            .processes()
            .any(|process| process.pid == root && process.command == "ruby -e sleep")
    });
    let kill = Command::new("sh").args(["-c", &format!("kill -KILL {root}")]).status().unwrap();
    assert!(kill.success());
    let (status, recording) = recorder.end();
    assert_eq!((status, recording.end().unwrap().signal), (128 + 9, Some(9)));
    let gone = recording.lines.iter().filter(|line| matches!(line, Line::Gone(_))).count();
    assert!(gone >= 5, "{gone}");
    assert!(recording.samples().all(|sample| !sample.processes.is_empty()));
}

#[test]
fn a_stopped_target_is_recorded() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let recorder = Recorder::of(&target, &["--every", "20ms", "--causes-every", "1s"]);
    target.stop();
    let recording = recorder.wait_for(|it| {
        it.samples().filter(|sample| sample.processes[0].state == 'T').count() >= 3
            && it.causes().count() >= 2
    });
    assert!(recording.lines.iter().all(|line| !matches!(line, Line::Failure(_))));
    target.go_on();
    recorder
        .wait_for(|it| it.samples().last().is_some_and(|sample| sample.processes[0].state != 'T'));
    recorder.signal("TERM");
    assert_eq!(why(&recorder.end().1), EndReason::Interrupted);
    assert!(target.finish());
}

#[test]
fn a_failed_capture_is_a_line_and_not_the_end() {
    let program = "puts %(ready {\"pid\": #{$$}}); $stdout.flush; $stdin.read";
    let shell = ["-c", "exec 3<&0; ruby -e \"$0\" <&3 & wait", program];
    let target = Target::start(Command::new("sh").args(shell));
    let ruby = i32::try_from(target.number("pid")).unwrap();
    let frozen = image::freeze(ruby, linux::PATIENCE).unwrap();
    let recorder = Recorder::of(&target, &["--every", "50ms", "--causes-every", "1s"]);
    recorder.wait_for(|recording| {
        recording.lines.iter().any(|line| match line {
            Line::Failure(failure) => failure.pid == ruby && failure.what.contains("being traced"),
            _ => false,
        })
    });
    frozen.thaw().unwrap();
    recorder.wait_for(|recording| recording.causes().any(|causes| causes.pid == ruby));
    assert!(target.finish());
    assert_eq!(why(&recorder.end().1), EndReason::TargetEnded);
}

#[test]
fn a_killed_recorder_leaves_a_whole_file() {
    let target = Target::bare_ruby(
        "puts 'ready {}'; $stdout.flush; loop { 'x' * rand(1 << 20); sleep 0.001 }",
    );
    for round in [0, 2, 5, 9] {
        let mut recorder = Recorder::of(&target, &["--every", "10ms", "--causes-every", "1s"]);
        recorder.wait_for(|it| it.samples().count() > round);
        recorder.signal("KILL");
        assert_eq!(recorder.child.wait().unwrap().signal(), Some(9));
        let recording = read(&recorder.path);
        assert!(recording.samples().count() > round && recording.end().is_none());
        assert_ne!(target.status("State:").chars().next(), Some('T'));
    }
}

#[test]
fn it_costs_less_than_one_percent_of_a_processor() {
    // Many processes, some of them with many pages: more than can be read every 10 ms, but twice in the time on a slow machine, too.
    let target = Target::bare_ruby(
        "$kept = 'x' * (100 << 20)
         reader, writer = IO.pipe
         15.times { fork { $stdin.close; writer.close; reader.read } }
         20.times { Thread.new { sleep } }
         puts 'ready {}'; $stdout.flush
         $stdin.read",
    );
    let recorder =
        Recorder::of(&target, &["--every", "10ms", "--causes-every", "0", "--for", "12s"]);
    let (_, recording) = recorder.end();
    let end = recording.end().unwrap();
    // The start of the recorder and the first reading of each kind come before the first known cost.
    let first = recording.samples().nth(1).unwrap();
    let cpu_ms = recording.samples().last().unwrap().recorder_cpu_ms - first.recorder_cpu_ms;
    let time_ms = (end.t_ms - first.t_ms) as f64;
    // One reading may come just before the end. Its cost is counted after it.
    let longest = recording
        .samples()
        .zip(recording.samples().skip(1))
        .map(|(one, next)| next.recorder_cpu_ms - one.recorder_cpu_ms)
        .fold(0.0, f64::max);
    assert!(cpu_ms <= time_ms * 0.01 + longest, "{cpu_ms} ms in {time_ms} ms");
    assert!(end.samples >= 3 && end.samples < 1200, "{end:?}");
}

/// The output of `rbloat record` on a terminal. As soon as it is `enough`, the recording is interrupted by ^C.
fn shown_on_a_terminal(target: &Target, arguments: &str, enough: impl Fn(&str) -> bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "stty cols 150 -echo; {} record {} {arguments} -o {}",
        env!("CARGO_BIN_EXE_rbloat"),
        target.pid(),
        folder.path().join("a.jsonl").display()
    );
    // script(1) gives the command a terminal of its own.
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env_remove("NO_COLOR");
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The keyboard stays connected: at its end, script(1) would send the end of input instead of ^C.
    let mut keyboard = script.stdin.take().unwrap();
    let mut is_interrupted = false;
    let mut output = script.stdout.take().unwrap();
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let read = output.read(&mut part).unwrap();
        if read == 0 {
            break;
        }
        bytes.extend(&part[..read]);
        if !is_interrupted && enough(&String::from_utf8_lossy(&bytes)) {
            keyboard.write_all(b"\x03").unwrap();
            is_interrupted = true;
        }
    }
    script.wait().unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Old causes used to look like current ones.
#[test]
fn causes_are_shown_with_their_age() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let ages = |shown: &str| -> Vec<u64> {
        let age = |rest: &str| Some(rest.split_once(" s ago:")?.0.parse().unwrap());
        shown.split("causes, ").skip(1).filter_map(age).collect()
    };
    // The recorder samples as often as its share of the processor allows, so no number of views is certain.
    let shown = shown_on_a_terminal(&target, "--every 100ms --causes-every 1h", |shown| {
        ages(shown).last() > ages(shown).first()
    });
    let ages = ages(&shown);
    assert!(ages.is_sorted() && ages[ages.len() - 1] > ages[0], "{shown}");
}

/// The sum of RSS used to look like the memory of all processes.
#[test]
fn several_processes_are_shown_by_their_pss() {
    let target = Target::bare_ruby(
        "$kept = 'x' * (50 << 20)
         reader, writer = IO.pipe
         2.times { fork { $stdin.close; writer.close; reader.read } }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let shown = shown_on_a_terminal(&target, "--every 200ms --causes-every 0", |shown| {
        shown.matches("  PSS ").count() > 2
    });
    let (_, rest) = shown.split_once("  PSS ").unwrap_or_else(|| panic!("{shown}"));
    let (pss, rest) = rest.split_once(" in 3 processes; sum of RSS ").unwrap();
    let mib = |text: &str| text.split_once(" MiB").unwrap().0.parse::<f64>().unwrap();
    assert!(mib(pss) > 50.0 && mib(pss) < 100.0 && mib(rest) > 150.0, "{shown}");
    // The suggestion of the next command follows.
    let is_summary = |line: &&str| !line.trim().is_empty() && !line.starts_with("Next: ");
    let last = shown.lines().rev().find(is_summary).unwrap();
    assert!(
        last.contains("PSS: ") || last.contains("sum of RSS (shared pages counted once"),
        "{shown}"
    );
}

/// `--causes-every 10s` used to result in two searches per minute, without a message.
#[test]
fn a_given_time_between_searches_is_kept_or_it_is_said_why_not() {
    let little = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let much = Target::bare_ruby(
        "$kept = Array.new(500_000) { 'x' * 50 }; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    for (target, seconds) in [(little, 3), (much, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let every = format!("{seconds}s");
        let mut command = rbloat();
        command.args(["record", &target.pid().to_string(), "--causes-every", &every, "--every"]);
        command.args(["100ms", "--for", "8s", "--max-pause", "10s", "-o"]).arg(&path);
        let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let recording = read(&path);
        let end = recording.end().unwrap();
        let (made, planned) = (end.searches.unwrap(), end.searches_planned.unwrap());
        assert_eq!(made, recording.causes().count() as u64);
        // A slow sample may delay the last search, or all later samples.
        let last_ms = recording.samples().last().map_or(0, |it| it.t_ms);
        assert!(planned >= 5 / seconds || last_ms < 5000, "{end:?}");
        assert_eq!(made < planned, shown.contains(&format!("not {planned}")), "{shown}");
        // A slow machine delays searches, too, but not for their cost.
        let is_limited = shown.contains(": more would have cost over");
        assert!(made == planned || is_limited || seconds == 3, "{shown}");
        assert!(target.finish());
    }
}

/// The program used to continue while rbloat waited for it. Programs also inherited rbloat's blocked signals, so that
/// few signals reached them.
#[test]
fn a_program_gets_sigterm_when_the_time_is_over() {
    let recorder = Recorder::start(&["--", "sleep", "60"], &["--for", "1s"]);
    let (status, recording) = recorder.end();
    assert_eq!((status, why(&recording)), (128 + 15, EndReason::TimeOver));
}

#[test]
fn on_a_terminal_a_live_view_stays_in_its_place() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let shown = shown_on_a_terminal(&target, "--every 50ms --causes-every 0", |shown| {
        shown.matches("  RSS ").count() > 2
    });
    let views: Vec<&str> = shown.split("\x1b[2A\x1b[J").collect();
    // Each view replaces the one before: the memory, and its course over time.
    assert!(views.len() > 2, "{shown}");
    for view in &views[..views.len() - 1] {
        assert!(
            view.contains("  RSS ") && view.contains(" MiB to ") && view.contains('▁'),
            "{view}"
        );
    }
    // The last one makes room for the summary, which remains.
    let last = views.last().unwrap();
    assert!(last.starts_with(&format!("{}: interrupted after", target.pid())), "{last}");
    assert!(last.contains(" 0 captures, ") && last.contains("\nRSS: "), "{last}");
}

#[test]
fn values_are_written_with_commas_too() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("a.csv");
    let arguments = ["--every", "50ms", "--csv", csv.to_str().unwrap(), "--for", "1s"];
    let (status, recording) = Recorder::of(&target, &arguments).end();
    assert_eq!((status, why(&recording)), (0, EndReason::TimeOver));
    let text = fs::read_to_string(&csv).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    assert_eq!(rows.len(), 1 + recording.samples().count());
    let column = rows[0].iter().position(|name| *name == "rss_bytes").unwrap();
    for (row, sample) in rows[1..].iter().zip(recording.samples()) {
        assert_eq!(row[column].parse(), Ok(sample.rss_bytes));
    }
}

#[test]
fn what_cannot_be_recorded_is_told() {
    let output = rbloat().args(["record", "--", "/no/such/program"]).output().unwrap();
    let (status, text) = crate::complaint(&output);
    assert_eq!(status, 127);
    assert!(text.contains("cannot start /no/such/program"), "{text}");
    let output = rbloat().args(["record", "--", "/etc/passwd"]).output().unwrap();
    assert_eq!(crate::complaint(&output).0, 126);
    let output = rbloat().args(["record", "1", "-o", "/no/such/folder/a"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let output = rbloat().args(["record", "999999999"]).output().unwrap();
    assert_eq!(crate::complaint(&output).0, 3);
}
