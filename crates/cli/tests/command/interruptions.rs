//! ^C on a terminal, at each stage of a command.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::Target;

/// Runs a command on a terminal, in a folder, and presses ^C when the terminal shows `when`. Returns the exit status, and the
/// text that remains on the terminal.
fn interrupted(arguments: &str, when: &str, folder: &Path) -> (Option<i32>, String) {
    // A shell that started the tests in the background made them ignore SIGINT.
    let line = format!(
        "stty cols 80 rows 24; exec env --default-signal=INT {} {arguments}",
        env!("CARGO_BIN_EXE_rbloat")
    );
    // script(1) gives the command a terminal of its own, and ends as the command does.
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1").current_dir(folder);
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keyboard, mut output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (mut bytes, mut is_pressed) = (Vec::new(), false);
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = output.read(&mut part) {
        bytes.extend(&part[..read]);
        if !is_pressed && String::from_utf8_lossy(&bytes).contains(when) {
            // The command may have ended.
            let _ = keyboard.write_all(b"\x03");
            is_pressed = true;
        }
    }
    let text = String::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    let remains = |line: &str| line.rsplit("\x1b[2K").next().unwrap().to_owned();
    let text = text.split('\n').map(remains).collect::<Vec<_>>().join("\n");
    (script.wait().unwrap().code(), text)
}

/// The line of progress remained, so that the shell's prompt followed it, and the capture went on to its end.
#[test]
fn an_interrupted_command_leaves_the_process_the_folder_and_the_terminal_as_they_were() {
    let strings = "$kept = Array.new(500_000) { |i| 'a string that malloc has to store ' + i.to_s }
                   puts 'ready {}'; $stdout.flush; $stdin.read";
    let target = Target::bare_ruby(strings);
    let pid = target.pid();
    // A copy that could not be reaped in time is a zombie until the next capture.
    let is_zombie = |child: &&str| {
        let status = fs::read_to_string(format!("/proc/{child}/status"));
        status.is_ok_and(|status| status.contains("\nState:\tZ"))
    };
    let has_copy = || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().any(|child| !is_zombie(&child))
    };
    let has_tracer = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("\nTracerPid:\t0\n")
    };
    for (arguments, when) in [
        ("report PID", "reading process"),
        ("report PID", "accounting for"),
        ("report PID -o report.html", "reading process"),
        ("report PID --tree", "reading process"),
        ("report PID --capture freeze", "reading process"),
        ("snapshot PID -o a.rbloat", "reading process"),
        ("snapshot PID -o a.rbloat", "accounting for"),
        ("map PID -o map.html", "reading process"),
        ("map PID -o map.html", "accounting for"),
        ("diff PID --every 1h", "waiting for snapshot 2"),
        ("why PID String", "reading process"),
        ("trim PID --dry-run", "reading process"),
    ] {
        let patient = format!("{pid} --max-pause 10s");
        let arguments = arguments.replace("PID", &patient);
        let output = arguments.split(" -o ").nth(1);
        // A command may end before the key is pressed, or just before rbloat looks for it.
        let is_interrupted = (0..30).any(|_| {
            let folder = tempfile::tempdir().unwrap();
            let (status, text) = interrupted(&arguments, when, folder.path());
            assert!(!has_tracer() && !has_copy(), "{arguments}");
            let files = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name());
            let files: Vec<_> = files.collect();
            if status != Some(130) {
                assert_eq!(status, Some(0), "{arguments}: {text}");
                return false;
            }
            let expected = "rbloat: interrupted\n";
            let rest = text.strip_suffix(expected).expect(&text);
            if output.is_some_and(|output| files == [output]) || rest.contains("RSS") {
                return false;
            }
            assert!(files.is_empty(), "{arguments}: {files:?}");
            // A message before the wait.
            assert!(rest.is_empty() || arguments.starts_with("diff"), "{arguments}: {text}");
            true
        });
        assert!(is_interrupted, "{arguments}: {when}");
    }
    assert!(target.finish());
}

/// A shell script ignores SIGINT for what it starts in the background. Recordings could not be ended by it for a while.
#[test]
fn a_recording_in_the_background_of_a_script_ends_by_sigint() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let folder = tempfile::tempdir().unwrap();
    // SIGINT would end the shell's copy that has not begun to ignore it, so the recording must have begun.
    let line = format!(
        "{} record {} -o a.jsonl --causes-every 0 & while kill -0 $! && [ ! -s a.jsonl ]; do sleep 0.1; done; \
         kill -INT $!; wait $!",
        env!("CARGO_BIN_EXE_rbloat"),
        target.pid()
    );
    let mut command = Command::new("sh");
    let output = command.args(["-c", &line]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(target.finish());
}

/// nohup(1) makes a program ignore SIGHUP, which ended recordings.
#[test]
fn a_signal_that_is_ignored_at_the_start_does_not_end_rbloat() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let folder = tempfile::tempdir().unwrap();
    for arguments in
        ["record PID -o a.jsonl --for 2s --causes-every 0", "diff PID --every 1s --times 2"]
    {
        let arguments = arguments.replace("PID", &target.pid().to_string());
        let line = format!(
            "trap '' HUP; {} {arguments} & while kill -HUP $! 2>/dev/null; do sleep 0.1; done; wait $!",
            env!("CARGO_BIN_EXE_rbloat")
        );
        let mut command = Command::new("sh");
        let output = command.args(["-c", &line]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
    }
    assert!(target.finish());
}
