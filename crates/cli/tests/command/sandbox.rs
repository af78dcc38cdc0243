//! The rights that rbloat gives up before it analyses the data that it has read.

use std::fs;
use std::io::{PipeReader, Read, Write};
use std::process::{Child, Command, Stdio};

use testkit::Target;

use crate::errors::is_root;
use crate::rbloat;
use crate::snapshots::Kept;

/// The capacity of a pipe.
const PIPE: usize = 1 << 16;

/// A command that waits to write its output, so that its state can be examined at the end of its analysis.
struct Waiting {
    child: Child,
    reader: PipeReader,
}

impl Waiting {
    fn start(command: &mut Command) -> Self {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[b' '; PIPE]).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(writer).spawn().unwrap();
        let wait = format!("/proc/{}/wchan", child.id());
        while !fs::read_to_string(&wait).unwrap().contains("pipe_write") {
            assert!(child.try_wait().unwrap().is_none(), "it ended without output");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Self { child, reader }
    }

    fn status(&self, key: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
    }

    /// Reads the output. The command must succeed.
    fn finish(mut self) -> Vec<u8> {
        let mut output = Vec::new();
        self.reader.read_to_end(&mut output).unwrap();
        assert!(self.child.wait().unwrap().success());
        output.split_off(PIPE)
    }
}

#[test]
fn analyses_have_no_rights_of_root() {
    if !is_root() {
        return testkit::skip("only root has rights to lose");
    }
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let pid = target.pid().to_string();
    let kept = Kept::of(target.pid());
    let snapshot = kept.path().to_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let core = crate::cores::core_by_gdb(&target, folder.path());
    let core = core.to_str().unwrap();
    let recording = folder.path().join("a.jsonl");
    let recording = recording.to_str().unwrap();
    let recorded = rbloat().args(["record", "-o", recording, "--", "true"]).output().unwrap();
    assert!(recorded.status.success());
    let commands: [&[&str]; 17] = [
        &["report", &pid],
        &["report", &pid, "--json"],
        &["report", &pid, "--capture", "freeze", "--max-pause", "10s"],
        &["report", &snapshot],
        &["report", core],
        &["report", &pid, "--fix"],
        &["map", &pid, "-o", "/dev/stdout"],
        &["report", &pid, "-o", "/dev/stdout"],
        &["map", core, "-o", "/dev/stdout"],
        &["snapshot", &snapshot, "-o", "/dev/stdout"],
        &["diff", &pid, &snapshot],
        &["diff", core, &pid, &snapshot],
        &["diff", &pid, "--times", "2", "--every", "1s"],
        &["why", core, "String"],
        &["dump", &pid, "-o", "/dev/stdout"],
        &["report", recording],
        &["who", &pid, "--for", "1s"],
    ];
    for arguments in commands {
        let waiting = Waiting::start(rbloat().args(arguments));
        for (key, expected) in [
            ("CapEff", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("CapInh", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(waiting.status(key), expected, "{key} in {arguments:?}");
        }
        // Threads of the capture may not have ended yet.
        for thread in fs::read_dir(format!("/proc/{}/task", waiting.child.id())).unwrap() {
            let status = fs::read_to_string(thread.unwrap().path().join("status"));
            let is_filtered = |text: String| text.contains("\nSeccomp:\t2\n");
            assert!(status.map_or(true, is_filtered), "a thread in {arguments:?}");
        }
        assert!(!waiting.finish().is_empty(), "{arguments:?}");
    }
    let waiting = Waiting::start(rbloat().args(["report", &pid, "--no-sandbox"]));
    assert_eq!((waiting.status("Seccomp"), waiting.status("NoNewPrivs")), ("0".into(), "0".into()));
    assert_ne!(waiting.status("CapEff"), "0000000000000000");
    waiting.finish();
}

/// Commands that capture again, or trim afterwards.
#[test]
fn threads_of_an_analysis_have_no_rights_while_the_command_keeps_its_own() {
    if !is_root() {
        return testkit::skip("only root has rights to lose");
    }
    let target = Target::scenario("healthy", &["--scale", "0.5"]);
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.jsonl");
    let record = ["record", &pid, "--causes-every", "1s", "--every", "200ms", "--for", "1m"];
    let record = [&record[..], &["-o", recording.to_str().unwrap()]].concat();
    let commands: [&[&str]; 3] =
        [&record, &["trim", &pid, "--dry-run"], &["diff", &pid, "--times", "2", "--every", "1s"]];
    for arguments in commands {
        let is_seen = (0..100).any(|_| {
            let mut child = rbloat().args(arguments).stdout(Stdio::null()).spawn().unwrap();
            let mut is_seen = false;
            while !is_seen && child.try_wait().unwrap().is_none() {
                is_seen = has_thread_without_rights(child.id());
            }
            // A recording would last.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            child.wait().unwrap();
            is_seen
        });
        assert!(is_seen, "{arguments:?}");
    }
    assert!(target.finish());
}

/// Returns true if a thread of the process has a filter and no capabilities, and the main thread has its capabilities and no
/// filter.
fn has_thread_without_rights(pid: u32) -> bool {
    let has = |status: &str, filter: &str, is_empty: bool| {
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t"));
        status.contains(&format!("\nSeccomp:\t{filter}\n"))
            && capabilities.is_some_and(|it| (it.trim_start_matches('0').is_empty()) == is_empty)
    };
    let status = |path: String| fs::read_to_string(path).unwrap_or_default();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut threads = threads.flatten().map(|it| status(format!("{}/status", it.path().display())));
    threads.any(|it| has(&it, "2", true)) && has(&status(format!("/proc/{pid}/status")), "0", false)
}

#[test]
fn reports_are_the_same_without_a_sandbox() {
    let target = Target::scenario("healthy", &["--scale", "0.1"]);
    let folder = tempfile::tempdir().unwrap();
    let core = crate::cores::core_by_gdb(&target, folder.path());
    let report = |allocator: &str, arguments: &[&str]| {
        let output = rbloat()
            .args(["report", "--json"])
            .arg(&core)
            .args(crate::cores::sysroot())
            .args(arguments)
            .env("LD_PRELOAD", allocator)
            .output();
        let mut report = crate::report_of(&output.unwrap());
        report.capture.elapsed_ms = 0.0;
        report
    };
    let expected = report("", &["--no-sandbox"]);
    assert_eq!(report("", &[]), expected);
    // Another allocator makes other calls.
    let Some(jemalloc) = testkit::jemalloc() else { return };
    assert_eq!(report(jemalloc.to_str().unwrap(), &[]), expected);
}
