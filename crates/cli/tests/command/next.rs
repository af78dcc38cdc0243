//! Output on a terminal: the next useful command at its end, and lines of progress.

use std::path::Path;
use std::process::{Command, Stdio};

use testkit::Target;

/// What the arguments print on a terminal, in a folder. Standard error goes there, too.
pub(crate) fn on_a_terminal(arguments: &str, folder: &Path) -> String {
    let line = format!("stty cols 80 rows 24; {} {arguments}", env!("CARGO_BIN_EXE_rbloat"));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("NO_COLOR", "1").stdin(Stdio::null());
    let output = command.current_dir(folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments}: {text}");
    text.replace("\r\n", "\n")
}

fn last_line(text: &str) -> &str {
    text.trim_end().rsplit('\n').next().unwrap()
}

#[test]
fn output_ends_with_the_next_useful_command() {
    let target = Target::scenario("burst", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let pid = target.pid();
    let patient = format!("{pid} --max-pause 10s");
    for (arguments, next) in [
        (format!("report {patient}"), format!("rbloat report {pid} --fix")),
        (format!("report {patient} --tree"), format!("rbloat report {pid}")),
        (format!("report {patient} -o 'a page.html'"), "xdg-open 'a page.html'".into()),
        (format!("report {patient} -o a.json"), format!("rbloat report {pid} --fix")),
        (format!("report {patient} --fix"), format!("rbloat snapshot {pid}")),
        (format!("snapshot {patient} -o 'a b.rbloat'"), "rbloat report 'a b.rbloat'".into()),
        ("report 'a b.rbloat'".into(), "rbloat report 'a b.rbloat' --fix".into()),
        ("report 'a b.rbloat' --fix".into(), "rbloat report 'a b.rbloat'".into()),
        ("map 'a b.rbloat' -o a.html".into(), "rbloat report 'a b.rbloat'".into()),
        ("diff 'a b.rbloat' 'a b.rbloat'".into(), "rbloat report 'a b.rbloat'".into()),
        (format!("why {patient} String"), format!("rbloat report {pid} --retained")),
        (format!("who {patient} --for 1s"), format!("rbloat who {pid} -o who.html")),
        (format!("who {patient} --for 1s -o w.html"), "xdg-open w.html".into()),
        (format!("trim {patient} --dry-run"), format!("rbloat trim {pid}")),
        (format!("trim {patient} --watch 1s"), format!("rbloat report {pid} --fix")),
        (
            format!("record {patient} -o a.jsonl --for 2s --causes-every 0"),
            "rbloat report a.jsonl -o a.html".into(),
        ),
        ("report a.jsonl".into(), "rbloat report a.jsonl -o a.html".into()),
        ("report a.jsonl -o a.svg".into(), "xdg-open a.svg".into()),
        ("explain".into(), "rbloat explain malloc.unreturned".into()),
        ("explain arena".into(), "rbloat".into()),
        (
            "compare --runs 1 --with default --settle 1s -- ruby -e 1".into(),
            "rbloat compare --runs 7 -o comparison -- ruby -e 1".into(),
        ),
    ] {
        let text = on_a_terminal(&arguments, folder.path());
        assert_eq!(last_line(&text), format!("Next: {next}"), "{arguments}: {text}");
        // Not the end of a pipe.
        if !arguments.starts_with("snapshot") {
            let text = on_a_terminal(&format!("{arguments} | cat"), folder.path());
            assert!(!text.contains("Next: "), "{arguments}: {text}");
        }
    }
    let list = on_a_terminal("", folder.path());
    assert!(last_line(&list).starts_with("Next: rbloat report "), "{list}");
    for option in ["--quiet", "--json"] {
        let text = on_a_terminal(&format!("report {patient} {option}"), folder.path());
        assert!(!text.contains("Next: "), "{text}");
    }
    assert!(target.finish());
}

/// The next command was to draw the recording, which does not tell what grew.
#[test]
fn after_the_recording_of_a_process_that_grows_comes_a_diff() {
    // `diagnosis::stable` finds growth in 24 samples or more. The slower the machine, the longer that takes.
    let source = "$kept = []; Thread.new { loop { $kept << 'x' * (1 << 18); sleep 0.05 } }
                  puts 'ready {}'; $stdout.flush; $stdin.read";
    let (target, folder) = (Target::bare_ruby(source), tempfile::tempdir().unwrap());
    let pid = target.pid();
    let expected = format!("Next: rbloat diff {pid}");
    let mut shown = String::new();
    let is_next = [45, 90, 180, 360].into_iter().any(|seconds| {
        let file = format!("{seconds}.jsonl --every 100ms --for {seconds}s --causes-every 0");
        shown = on_a_terminal(&format!("record {pid} -o {file}"), folder.path());
        last_line(&shown) == expected
    });
    assert!(is_next, "{shown}");
    assert!(target.finish());
}

/// The process that a word names was printed with --quiet, too.
#[test]
fn quiet_output_has_nothing_but_the_result() {
    let target =
        Target::bare_ruby("$named_by_this_word = 1; puts 'ready {}'; $stdout.flush; $stdin.read");
    let folder = tempfile::tempdir().unwrap();
    for (option, is_named) in [("", true), ("--quiet", false)] {
        let report = format!("report named_by_this_word --max-pause 10s {option}");
        let text = on_a_terminal(&report, folder.path());
        let line = format!("process {}: ruby", target.pid());
        assert_eq!(text.contains(&line), is_named, "{text}");
    }
    assert!(target.finish());
}

#[test]
fn a_wait_shows_what_it_is_for_and_the_time_that_is_left() {
    let source = "$kept = []; Thread.new { loop { $kept << 'x' * (1 << 20); sleep 0.1 } }
                  puts 'ready {}'; $stdout.flush; $stdin.read";
    let target = Target::bare_ruby(source);
    let (pid, folder) = (target.pid(), tempfile::tempdir().unwrap());
    // The busier the machine, the longer a snapshot takes, and the less of the time until the next one is left.
    let seconds = (1..8).map(|power| 1 << power).find(|seconds| {
        let diff = format!("diff {pid} --every {seconds}s --times 2 --max-pause 10s");
        on_a_terminal(&diff, folder.path()).contains("waiting for snapshot 2 of 2: 1 s left")
    });
    let seconds = seconds.expect("a wait for the second snapshot");
    let reads = ["reading process ", "accounting for "];
    let all = [
        "reading process ",
        "accounting for ",
        "waiting for ",
        "which grew by ",
        "^C ends it: ",
        "watching RSS: ",
    ];
    for (arguments, waits) in [
        (format!("report {pid}"), &reads[..]),
        (format!("snapshot {pid}"), &reads),
        (format!("map {pid}"), &reads),
        (format!("diff {pid} --every {seconds}s --times 2"), &["reading process "]),
        (format!("who {pid} --for 2s"), &["which grew by ", "^C ends it: "]),
        (format!("trim {pid} --watch 2s"), &["reading process ", "watching RSS: "]),
    ] {
        let arguments = format!("{arguments} --max-pause 10s");
        let text = on_a_terminal(&arguments, folder.path());
        for wait in waits {
            assert!(text.contains(wait), "{wait}: {text}");
        }
        // The lines are erased: what remains has none of them.
        let remains = text.rsplit("\x1b[2K").next().unwrap();
        assert!(!all.iter().any(|wait| remains.contains(wait)), "{remains}");
        let quiet = on_a_terminal(&format!("{arguments} --quiet"), folder.path());
        assert!(!all.iter().any(|wait| quiet.contains(wait)), "{quiet}");
    }
    assert!(target.finish());
}

/// `map -o heap.png` wrote a page with the name of a picture.
#[test]
fn the_extension_decides_the_format() {
    let source = "$kept = []; Thread.new { loop { $kept << 'x' * (1 << 20); sleep 0.05 } }
                  puts 'ready {}'; $stdout.flush; $stdin.read";
    let (target, folder) = (Target::bare_ruby(source), tempfile::tempdir().unwrap());
    let pid = target.pid().to_string();
    let begins = |arguments: &[&str], name: &str, begin: &[u8]| {
        let path = folder.path().join(name);
        let mut command = crate::rbloat();
        command.args([arguments[0], &pid, "--max-pause", "10s", "-o"]).arg(&path);
        let output = command.args(&arguments[1..]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(begin), "{name}: {:?}", &bytes[..bytes.len().min(40)]);
        bytes
    };
    begins(&["map"], "heap.png", b"\x89PNG");
    begins(&["map"], "heap", b"<!doctype html>");
    begins(&["who", "--for", "2s"], "who.json", b"{");
    begins(&["who", "--for", "2s"], "who.html", b"<!doctype html>");
    let folded = String::from_utf8(begins(&["who", "--for", "2s"], "who.folded", b"")).unwrap();
    let has_bytes = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().is_ok();
    assert!(!folded.is_empty() && folded.lines().all(has_bytes), "{folded}");
    assert!(target.finish());
}
