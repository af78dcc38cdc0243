//! The files that rbloat writes, in folders where others may write.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::Target;

use crate::errors::{NOBODY, is_root};
use crate::{limited, rbloat};

const WAITING: &str = "puts 'ready {}'; $stdout.flush; $stdin.read";
const SIGXFSZ: i32 = 25;
const O_NONBLOCK: i32 = 0o4000;

/// A folder with the mode of /tmp, in which the user nobody has run a script.
fn planted(script: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder.path()).uid(NOBODY);
    assert!(command.status().unwrap().success());
    folder
}

/// A file that only root may read.
fn secret() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

/// A recording, for a report.
fn recording(folder: &Path) -> PathBuf {
    let path = folder.join("a.jsonl");
    let output = rbloat().args(["record", "-o"]).arg(&path).args(["--", "true"]).output();
    assert!(output.unwrap().status.success());
    path
}

/// All ways to write a file: the words of a command before its name, and those after it.
fn ways(target: &Target, recording: &Path) -> Vec<(Vec<String>, Vec<String>)> {
    let pid = target.pid().to_string();
    let recording = recording.to_str().unwrap();
    let ways: [(&[&str], &[&str]); 7] = [
        (&["report", &pid, "-o"], &[]),
        (&["snapshot", &pid, "-o"], &[]),
        (&["dump", &pid, "-o"], &[]),
        (&["map", &pid, "-o"], &[]),
        (&["record", &pid, "--for", "1s", "-o"], &[]),
        (&["record", "-o", "/dev/null", "--csv"], &["--", "true"]),
        (&["report", recording, "-o"], &[]),
    ];
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    ways.iter().map(|(before, after)| (words(before), words(after))).collect()
}

fn run((before, after): &(Vec<String>, Vec<String>), path: &Path) -> Output {
    rbloat().args(before).arg(path).args(after).output().unwrap()
}

fn compare(folder: &Path) -> Output {
    let settings = ["compare", "--with", "default", "--runs", "1", "--settle", "1s", "-o"];
    rbloat().args(settings).arg(folder).args(["--", "sleep", "0.2"]).output().unwrap()
}

#[track_caller]
fn assert_refused(output: &Output, why: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write ") && text.contains(why), "{text}");
    assert!(text.contains("and belongs to another user (uid 65534); give "), "{text}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_link_of_another_user_is_not_followed() {
    if !is_root() {
        return testkit::skip("only root can be another user, too");
    }
    let target = Target::bare_ruby(WAITING);
    let (outside, secret) = secret();
    let folder = outside.path().display();
    let planted = planted(&format!("ln -s {} a; ln -s {folder} d", secret.display()));
    let recording = recording(outside.path());
    for way in ways(&target, &recording) {
        let output = run(&way, &planted.path().join("a"));
        assert_refused(&output, "a is a symbolic link");
        let output = run(&way, &planted.path().join("d/b"));
        assert_refused(&output, "d is a symbolic link");
    }
    assert_refused(&compare(&planted.path().join("d")), "d is a symbolic link");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
    let mut left = names(outside.path());
    left.sort();
    assert_eq!(left, ["a.jsonl", "secret"]);
    assert!(target.finish());
}

#[test]
fn a_file_or_a_pipe_of_another_user_receives_nothing() {
    if !is_root() {
        return testkit::skip("only root can be another user, too");
    }
    let target = Target::bare_ruby(WAITING);
    let planted = planted("echo mine >a; chmod 666 a; mkfifo -m 666 b; mkdir folder");
    let outside = tempfile::tempdir().unwrap();
    let recording = recording(outside.path());
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).custom_flags(O_NONBLOCK).open(planted.path().join(name)).unwrap()
    };
    let mut pipe = open("b");
    for way in ways(&target, &recording) {
        let output = run(&way, &planted.path().join("a"));
        assert_refused(&output, "it is in a folder that others can write to");
        let output = run(&way, &planted.path().join("b"));
        assert_refused(&output, "it is a pipe");
    }
    let output = compare(&planted.path().join("folder"));
    assert_refused(&output, "it is in a folder that others can write to");
    let mut received = String::new();
    pipe.read_to_string(&mut received).unwrap();
    assert_eq!(received, "");
    open("a").read_to_string(&mut received).unwrap();
    assert_eq!(received, "mine\n");
    assert!(target.finish());
}

#[test]
fn an_existing_file_keeps_its_mode_and_owner() {
    if !is_root() {
        return testkit::skip("only root can write to another user's file");
    }
    let target = Target::bare_ruby(WAITING);
    let folder = tempfile::tempdir().unwrap();
    // The user's own folder: the file is where it was meant to be.
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let recording = recording(tempfile::tempdir().unwrap().keep().as_path());
    for (number, way) in ways(&target, &recording).iter().enumerate() {
        let new = folder.path().join(format!("new-{number}"));
        let old = folder.path().join(format!("old-{number}"));
        fs::write(&old, "old").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o620)).unwrap();
        chown(&old, Some(NOBODY), Some(NOBODY)).unwrap();
        for (path, expected) in [(new, (0, 0, 0o600)), (old, (NOBODY, NOBODY, 0o620))] {
            let output = run(way, &path);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{way:?}: {text}");
            let file = fs::metadata(&path).unwrap();
            assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), expected, "{way:?}");
            assert!(file.len() > 3, "{way:?}");
        }
    }
    assert!(
        names(folder.path())
            .iter()
            .all(|name| name.starts_with("new-") || name.starts_with("old-"))
    );
    fs::remove_dir_all(recording.parent().unwrap()).unwrap();
    assert!(target.finish());
}

/// A limit on the size of files kills rbloat while it writes.
#[test]
fn a_killed_rbloat_leaves_no_temporary_file() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let pid = target.pid().to_string();
    for verb in ["snapshot", "map"] {
        let mut command = limited("-c 0; ulimit -f 1");
        let status = command.args([verb, &pid, "-o"]).arg(&path).status().unwrap();
        assert_eq!(status.signal(), Some(SIGXFSZ));
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn the_users_own_pipe_and_device_are_written_to() {
    let target = Target::bare_ruby(WAITING);
    let folder = tempfile::tempdir().unwrap();
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("null"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink("/dev/null", &link).unwrap();
    let recording = recording(folder.path());
    for way in ways(&target, &recording) {
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        let output = run(&way, &pipe);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!reader.join().unwrap().is_empty(), "{way:?}");
        assert!(run(&way, &link).status.success(), "{way:?}");
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    assert!(target.finish());
}

/// It made a file with this name. Recordings, and pictures of them, had messages of rbloat in between.
#[test]
fn a_dash_is_standard_output_and_gets_the_file_only() {
    let target = Target::bare_ruby(WAITING);
    let folder = tempfile::tempdir().unwrap();
    let recording = recording(folder.path());
    let who = ["who", &target.pid().to_string(), "--for", "1s", "-o"].map(str::to_owned);
    let beginnings: [(&[u8], bool); 8] = [
        (b"<!doctype html>", false),
        (b"\x8brbloat", true),
        (b"{\"type\":", true),
        (b"<!doctype html>", false),
        (b"{\"schema\":", true),
        (b"t_ms,", true),
        (b"<!doctype html>", true),
        (b"<!doctype html>", true),
    ];
    let ways = ways(&target, &recording).into_iter().chain([(who.to_vec(), Vec::new())]);
    for (way, (beginning, has_summary)) in ways.zip(beginnings) {
        for name in ["-", "/dev/stdout"] {
            let mut command = rbloat();
            command.args(&way.0).arg(name).args(&way.1).current_dir(folder.path());
            let output = command.output().unwrap();
            let messages = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{way:?}: {messages}");
            let shown = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(80)]);
            assert!(output.stdout.starts_with(beginning), "{way:?}: {shown}");
            assert_eq!(!messages.is_empty(), has_summary, "{way:?}: {messages}");
            if way.0[0] == "record" {
                let text = String::from_utf8(output.stdout).unwrap();
                let is_data = |line: &str| line.starts_with(['{', 't', '0']) || line.contains(',');
                assert!(text.lines().all(is_data), "{text}");
            }
        }
    }
    let output = compare(Path::new("-"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("cannot write -: standard output is no folder"), "{messages}");
    assert_eq!(names(folder.path()), ["a.jsonl"]);
    assert!(target.finish());
}

#[test]
fn a_comparison_is_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b");
    let output = compare(&path);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    let mut files = names(&path);
    files.sort();
    let expected = ["comparison.json", "comparison.md", "comparison.svg", "default-1.jsonl"];
    assert_eq!(files, expected);
    for name in expected {
        let file = fs::metadata(path.join(name)).unwrap();
        assert_eq!(file.mode() & 0o777, 0o600, "{name}");
        assert!(file.len() > 0, "{name}");
    }
}
