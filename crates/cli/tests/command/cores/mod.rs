//! Cores of real processes, written by gcore and by the kernel.

mod files;
mod process;
mod processors;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use formats::{FindingKind, FindingRow, Report, Snapshot};
use ledger::PageUse;
use testkit::Target;

use crate::{complaint, rbloat, report_of};

const SIGQUIT: i32 = 3;
/// Ruby has a handler of SIGABRT from 4.1 on, which prints a report on the crash.
const SIGTRAP: i32 = 5;

/// A Ruby with many kinds of memory: arenas, freed memory, pages of zeros, fibers, threads.
const PROGRAM: &str = "
    $kept = Array.new(20_000) { |i| 'x' * (i % 300) }
    threads = 4.times.map do |i|
      Thread.new do
        random = Random.new(i)
        freed = Array.new(4000) { 'y' * random.rand(64..8000) }
        Thread.current[:kept] = freed.values_at(7, 1234)
        freed.clear
        sleep
      end
    end
    $zeros = ('z' * 5_000_000).tr!('z', \"\\0\")
    $fibers = 3.times.map { Fiber.new { Fiber.yield }.tap(&:resume) }
    sleep 0.01 until threads.all? { |thread| thread.status == 'sleep' }
    GC.start
    puts 'ready {}'; $stdout.flush; $stdin.read";

/// Returns true if the kernel writes the core of a process that a signal ends to its working directory. If the kernel
/// gives cores to a program, no test changes that: the setting is for the whole machine.
fn kernel_writes_cores() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let writes = !pattern.starts_with(['|', '/']);
    if !writes {
        testkit::skip(&format!("the kernel gives cores to {}", pattern.trim()));
    }
    writes
}

/// Starts a Ruby that may leave a core in `folder`.
fn start(program: &str, folder: &Path) -> Target {
    // The program sets its own working directory, which is lost on the way into another root. It also resets SIGQUIT,
    // which background processes ignore.
    let target =
        Target::bare_ruby(&format!("Dir.chdir({folder:?}); trap('QUIT', 'DEFAULT'); {program}"));
    let limit = format!("--pid={}", target.pid());
    let raised = Command::new("prlimit").args([&limit, "--core=unlimited:unlimited"]).status();
    assert!(raised.unwrap().success(), "the limit of cores can be raised");
    target
}

/// Ends a process by a signal. Returns the core that the kernel writes.
fn core_by_kernel(target: &mut Target, signal: i32, folder: &Path) -> PathBuf {
    target.end_by(signal);
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let core = files.find(|file| file.file_name().to_str().unwrap().starts_with("core"));
    core.expect("the kernel has made a core").path()
}

/// Returns a core that gcore writes of a process, which continues.
pub(crate) fn core_by_gdb(target: &Target, folder: &Path) -> PathBuf {
    let prefix = folder.join("gdb");
    let pid = target.pid().to_string();
    let done = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
    let done = done.expect("`make setup` installs gdb");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    folder.join(format!("gdb.{pid}"))
}

/// Checks the exit status of a command that read a core of gcore. From glibc 2.42 on, gdb cannot read the stacks of threads, so
/// that the core is incomplete.
fn check_status(output: &Output) {
    let version = testkit::command("getconf").arg("GNU_LIBC_VERSION").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let minor: u32 = version.trim().rsplit('.').next().unwrap().parse().unwrap();
    let expected = if minor >= 42 { 6 } else { 0 };
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(expected), "{complaint}");
}

fn run_on(core: &Path, arguments: &[&str]) -> Output {
    rbloat().arg("report").arg(core).args(arguments).output().unwrap()
}

/// The root of the files that targets map, for the kernel's cores: these have the paths that the target sees.
pub(crate) fn sysroot() -> Vec<String> {
    let root = testkit::root().map(|root| root.to_str().unwrap().to_owned());
    root.map_or(vec![], |root| vec!["--sysroot".into(), root])
}

fn report_on(core: &Path, sysroot: &[String]) -> Report {
    let mut arguments = vec!["--json", "--owners", "1000"];
    arguments.extend(sysroot.iter().map(String::as_str));
    let output = run_on(core, &arguments);
    // The kernel calls its cores so.
    if core.file_name().unwrap().to_str().unwrap().starts_with("core") {
        return report_of(&output);
    }
    check_status(&output);
    crate::document(&output.stdout)
}

#[test]
fn a_core_gets_no_advice_that_needs_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let program =
        format!("GC.disable; Array.new(100_000) {{ 'z' * 1800 }}.clear; GC.enable; {PROGRAM}");
    let target = start(&program, folder.path());
    let core = core_by_gdb(&target, folder.path());
    let report = report_on(&core, &[]);
    assert_eq!(report.verdict.cause.map(ledger::Cause::name), Some("malloc.unreturned"));
    let output = run_on(&core, &[]);
    check_status(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let trim = format!("rbloat trim {}", report.process.pid);
    for word in [&trim, "Paused for", "Nothing was written"] {
        assert!(!text.contains(word), "{text}");
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in
        ["RSS is an estimate", "in a process that does the same:", "read from", "LD_PRELOAD"]
    {
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(report.verdict.confidence, formats::Confidence::Medium);
    assert!(target.finish());
}

/// Ruby handles the signal, and takes its heap apart before the signal ends the process.
#[test]
fn a_ruby_that_was_asked_to_quit_may_have_no_heap() {
    if !kernel_writes_cores() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut target = start(PROGRAM, folder.path());
    let core = core_by_kernel(&mut target, SIGQUIT, folder.path());
    let arguments = [vec!["--json".to_owned()], sysroot()].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = run_on(&core, &arguments);
    let report: Report = crate::document(&output.stdout);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    assert!(report.malloc.is_some());
    let is_said = report.findings.contains(&FindingKind::CoreWithoutObjects.into());
    assert_eq!(is_said, report.ruby.is_none());
    assert_eq!(output.status.code(), Some(if is_said { 6 } else { 0 }));
}

#[test]
fn the_core_of_another_program_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start(testkit::command("sh").args(["-c", "echo 'ready {}'; exec cat"]));
    let command = format!("/proc/{}/cmdline", target.pid());
    while !fs::read(&command).unwrap().starts_with(b"cat") {
        std::thread::yield_now();
    }
    let core = core_by_gdb(&target, folder.path());
    let (status, line) = complaint(&run_on(&core, &[]));
    assert_eq!(status, 3);
    assert!(
        line.contains(&format!("of process {} (cat), which was not a Ruby", target.pid())),
        "{line}"
    );
    assert!(target.finish());
}

/// Lost pages were drawn as resident: the report had 1 MB, and the map 66 MB. One was complete by its exit status.
#[test]
fn a_core_that_was_cut_short_is_reported_on_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let target = start(PROGRAM, folder.path());
    let core = core_by_gdb(&target, folder.path());
    assert!(target.finish());
    let whole = fs::metadata(&core).unwrap().len();
    let file = fs::File::options().write(true).open(&core).unwrap();
    for tenths in (0..10).rev() {
        file.set_len(whole * tenths / 10 + 100).unwrap();
        let output = run_on(&core, &["--json"]);
        let told = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(6) => {
                let report: Report = crate::document(&output.stdout);
                let is_truncated =
                    |it: &FindingRow| matches!(it.kind, FindingKind::CoreTruncated { .. });
                assert!(report.findings.iter().any(is_truncated));
                let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
                assert_eq!(sum, report.process.rss_bytes);
                assert!(report.process.lost_bytes > 0);
                check_map_of_partial_core(&core, &report);
            }
            Some(3) => assert!(told.contains("is damaged"), "{told}"),
            status => panic!("{status:?}: {told}"),
        }
    }
}

/// The map has the bytes of the report: those that are resident, and those that the core lacks.
fn check_map_of_partial_core(core: &Path, report: &Report) {
    let file = core.with_extension("rbloat");
    let output = rbloat().arg("snapshot").arg(core).arg("-o").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let Snapshot { memory_map, .. } = Snapshot::from_bytes(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(memory_map.resident_bytes(), report.process.rss_bytes);
    let runs = memory_map.areas.iter().flat_map(|area| memory_map.pages(area));
    let lost = runs.filter(|(_, used)| *used == PageUse::Lost);
    let lost: u64 = lost.map(|(range, _)| linux::length(&range)).sum();
    assert_eq!(lost, report.process.lost_bytes);
}

#[test]
fn a_core_is_kept_and_drawn_like_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let target = start(PROGRAM, folder.path());
    let core = core_by_gdb(&target, folder.path());
    assert!(target.finish());
    let kept = folder.path().join("kept.rbloat");
    let page = folder.path().join("heap.html");
    for (command, file) in [("snapshot", &kept), ("map", &page)] {
        let output = rbloat().arg(command).arg(&core).arg("-o").arg(file).output().unwrap();
        check_status(&output);
    }
    let of_core = report_on(&core, &[]);
    let of_kept = report_on(&kept, &[]);
    assert_eq!((&of_kept.causes, &of_kept.owners), (&of_core.causes, &of_core.owners));
    assert_eq!(of_kept.capture.method, formats::CaptureMethod::Core);
    assert!(fs::read_to_string(&page).unwrap().contains("<html"));
}

#[test]
fn two_cores_of_a_process_tell_what_grew() {
    let program = "
        LOG = []
        GC.start
        puts 'ready {}'; $stdout.flush
        $stdin.gets
        LOG.concat(Array.new(10_000) { |i| \"#{i} \" * 50 })
        GC.start
        puts 'ready {}'; $stdout.flush; $stdin.read";
    let folder = tempfile::tempdir().unwrap();
    let mut target = start(program, folder.path());
    let first = folder.path().join("first.core");
    fs::rename(core_by_gdb(&target, folder.path()), &first).unwrap();
    target.tell("go on");
    let _ = target.next_truth();
    let second = core_by_gdb(&target, folder.path());
    assert!(target.finish());
    let output = rbloat().arg("diff").args([&first, &second]).arg("--json").output().unwrap();
    check_status(&output);
    let diff: formats::Diff = crate::document(&output.stdout);
    assert!(diff.same_process);
    let strings = diff.classes.iter().find(|class| class.name == "String").unwrap();
    assert!((9_900..10_500).contains(&strings.objects.change), "{strings:?}");
    assert_eq!(strings.kept_by.as_deref(), Some("LOG → Array → String"));
    let rss: Vec<u64> =
        [first, second].iter().map(|core| report_on(core, &[]).process.rss_bytes).collect();
    assert_eq!(diff.rss_bytes.at, rss);
}
