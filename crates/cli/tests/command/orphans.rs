//! Processes that the program of rbloat leaves behind: they are measured, and a comparison ends them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use formats::Comparison;
use formats::Line;

use crate::rbloat;
use crate::record::Recorder;

const MIB: u64 = 1 << 20;

/// A Ruby program that makes a daemon of 100 MiB and then executes `then`. The daemon leaves its parent and its session
/// before rbloat can notice it, writes its id to a file, and ignores SIGHUP.
fn program(pid_of_daemon: &Path, then: &str) -> String {
    format!(
        "fork do
           Process.setsid
           fork do
             trap('HUP', 'IGNORE')
             [$stdin, $stdout, $stderr].each {{ |it| it.reopen('/dev/null') }}
             KEEP = 'x' * (100 << 20)
             File.write({pid_of_daemon:?} + '.new', Process.pid.to_s)
             File.rename({pid_of_daemon:?} + '.new', {pid_of_daemon:?})
             sleep
           end
           exit!
         end
         Process.wait
         sleep 0.005 until File.exist?({pid_of_daemon:?})
         {then}"
    )
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = rbloat();
    command.args(["compare", "--settle", "1s", "--with", "default", "--json"]).args(arguments);
    command.args(["--", "ruby", "-e", program]).output().unwrap()
}

fn comparison(output: &Output) -> Comparison {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns true if the process whose id is in a file exists, even as a zombie.
fn is_there(pid: &Path) -> bool {
    let pid = fs::read_to_string(pid).unwrap();
    Path::new("/proc").join(pid.trim()).exists()
}

#[test]
fn a_daemon_of_the_work_is_measured_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = folder.path().join("daemon");
    let output = run(&program(&daemon, "$stdin.read"), &["--runs", "1"]);
    let run = &comparison(&output).runs[0];
    assert!(run.rss_settled_bytes.unwrap() > 100 * MIB, "{run:?}");
    assert!(!is_there(&daemon));
}

#[test]
fn a_server_may_be_a_daemon_that_outlives_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = folder.path().join("daemon");
    let load = r#"echo '{"requests": 1}'"#;
    let output = run(&program(&daemon, ""), &["--runs", "1", "--load", load]);
    let run = &comparison(&output).runs[0];
    assert!(run.rss_settled_bytes.unwrap() > 100 * MIB, "{run:?}");
    assert!(run.rss_settled_bytes.unwrap() < 150 * MIB, "the command has ended: {run:?}");
    assert!(!is_there(&daemon));
}

#[test]
fn no_daemon_is_left_by_a_comparison_that_a_signal_ends() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let daemon = folder.path().join("daemon");
        let then = format!("Process.kill(:{signal}, Process.ppid); sleep");
        let output = run(&program(&daemon, &then), &[]);
        assert_eq!(output.status.code(), Some(1), "{signal}");
        assert!(!is_there(&daemon), "{signal}");
    }
}

/// rbloat used to wait for the end of the load.
#[test]
fn an_interrupt_ends_the_load_at_once_and_keeps_the_runs_before() {
    let folder = tempfile::tempdir().unwrap();
    // The second load starts a process that it waits for and a process that leaves it, and interrupts rbloat.
    let load = format!(
        "cd {:?}; echo run >> count
         if [ $(wc -l < count) = 2 ]; then
           sleep 50 & echo $! > child; (sleep 50 & echo $! > orphan); echo $$ > shell
           kill -INT $PPID; wait
         fi
         echo '{{\"requests\": 1}}'",
        folder.path()
    );
    let output = run("$stdin.read", &["--runs", "3", "--load", &load]);
    assert_eq!(output.status.code(), Some(6));
    assert_eq!(comparison(&output).runs.len(), 1);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.ends_with("interrupted; 1 of 3 runs were measured\n"), "{words}");
    for file in ["child", "orphan", "shell"] {
        assert!(!is_there(&folder.path().join(file)), "{file}");
    }
}

#[test]
fn what_a_load_leaves_behind_is_not_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let orphan = folder.path().join("orphan");
    let keep = "KEEP = 'x' * (300 << 20); sleep";
    let load = format!(
        "(ruby -e \"{keep}\" >/dev/null & echo $! > {orphan:?}); sleep 2; echo '{{\"requests\": 1}}'"
    );
    let output = run("$stdin.read", &["--runs", "1", "--load", &load]);
    let run = &comparison(&output).runs[0];
    assert!(run.rss_peak_bytes < 200 * MIB, "{}", run.rss_peak_bytes);
    assert!(!is_there(&orphan));
}

#[test]
fn a_daemon_of_a_program_is_recorded_reaped_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|it| folder.path().join(it));
    let program = program(&first, &program(&second, "sleep"));
    let recorder = Recorder::start(&["--", "ruby", "-e", &program], &["--every", "20ms"]);
    let pid = |file: &Path| fs::read_to_string(file).ok()?.parse::<i32>().ok();
    let is_sampled = |recording: &formats::Recording, daemon: Option<i32>| {
        let sampled = |sample: &formats::Sample| {
            sample.processes.iter().any(|it| Some(it.pid) == daemon && it.rss_bytes > 100 * MIB)
        };
        recording.samples().any(sampled)
    };
    let both = [&first, &second];
    let recording =
        recorder.wait_for(|recording| both.iter().all(|daemon| is_sampled(recording, pid(daemon))));
    let signal = |signal: &str, pid: i32| {
        let line = format!("kill -{signal} {pid}");
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
    };
    let of_first = pid(&first).unwrap();
    signal("KILL", of_first);
    recorder.wait_for(|recording| {
        recording.lines.iter().any(|line| matches!(line, Line::Gone(gone) if gone.pid == of_first))
    });
    while is_there(&first) {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", recording.start.pid);
    assert_eq!(recorder.end().0, 128 + 15);
    assert!(is_there(&second), "it runs on, as without rbloat");
    signal("KILL", pid(&second).unwrap());
}
