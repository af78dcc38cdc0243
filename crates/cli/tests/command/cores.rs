//! Cores that gcore and the kernel make of real processes, against what was said of these while they
//! lived.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{bytes, complaint, rbloat, report_of, run};
use report::Report;
use target::{Address, Backing, Frozen, Mapping, Memory, PageState};
use testbed::Target;

const SIGQUIT: i32 = 3;
const SIGABRT: i32 = 6;
const PAGE: u64 = target::PAGE_SIZE;

/// A Ruby with a bit of everything: arenas, freed memory, pages of zeros, fibers, threads.
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

/// Whether the kernel leaves a core in the working directory of whatever a signal ends. Where it gives
/// them to a program, no test changes that: it holds for the whole machine.
fn kernel_writes_cores() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let writes = !pattern.starts_with(['|', '/']);
    if !writes {
        eprintln!("SKIPPED: the kernel gives cores to {}", pattern.trim());
    }
    writes
}

/// Starts a Ruby that may leave a core in `folder`.
fn start(program: &str, folder: &Path) -> Target {
    // Whatever folder it was started in: in another root that is lost on the way. And whatever it was told to
    // ignore: who runs in the background ignores SIGQUIT.
    let target =
        Target::ruby(&format!("Dir.chdir({folder:?}); trap('QUIT', 'DEFAULT'); {program}"));
    let limit = format!("--pid={}", target.pid());
    let raised = Command::new("prlimit").args([&limit, "--core=unlimited:unlimited"]).status();
    assert!(raised.unwrap().success(), "the limit of cores can be raised");
    target
}

/// Ends a process by a signal; the core that the kernel makes of it.
fn core_by_kernel(target: &mut Target, signal: i32, folder: &Path) -> PathBuf {
    target.end_by(signal);
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let core = files.find(|file| file.file_name().to_str().unwrap().starts_with("core"));
    core.expect("the kernel has made a core").path()
}

/// The core that gcore makes of a process, which goes on.
fn core_by_gdb(target: &Target, folder: &Path) -> PathBuf {
    let prefix = folder.join("gdb");
    let pid = target.pid().to_string();
    let done = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
    let done = done.expect("`make setup` installs gdb");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    folder.join(format!("gdb.{pid}"))
}

fn run_on(core: &Path, arguments: &[&str]) -> Output {
    rbloat().arg("report").arg(core).args(arguments).output().unwrap()
}

/// Where the files are that targets map, for the kernel's cores: it names them as the target sees them.
fn sysroot() -> Vec<String> {
    let root = testbed::root().map(|root| root.to_str().unwrap().to_owned());
    root.map_or(vec![], |root| vec!["--sysroot".into(), root])
}

fn report_on(core: &Path, sysroot: &[String]) -> Report {
    let mut arguments = vec!["--json", "--owners", "1000"];
    arguments.extend(sysroot.iter().map(String::as_str));
    report_of(&run_on(core, &arguments))
}

/// What a core can know of the resident bytes of a process that stands.
#[derive(Debug, Default)]
struct Knowable {
    /// Of private memory and shared memory, and pages of files that differ from the file's.
    bytes: u64,
    /// Pages of zeros among these.
    zeros: u64,
    /// Pages of files that the process has for itself, though they are as in the file: gdb restores what
    /// it wrote a breakpoint to.
    as_in_file: u64,
    /// Pages of the kernel's cache.
    cached: u64,
    /// Pages that are not to be dumped (MADV_DONTDUMP): those of getrandom in the vDSO, from glibc 2.41
    /// and Linux 6.11 on.
    undumped: u64,
}

impl Knowable {
    fn of(frozen: &Frozen) -> Self {
        let image = frozen.image();
        let mut knowable = Self::default();
        let undumped = not_to_be_dumped(image.outline.process.pid);
        for mapping in &image.outline.mappings {
            if undumped.contains(&mapping.range.start) {
                let pages = image.outline.pages.as_ref().unwrap();
                knowable.undumped += pages.resident_bytes(&mapping.range);
                continue;
            }
            let pages = image.outline.pages.as_ref().unwrap();
            let runs = pages.runs_in(&mapping.range).filter(|run| run.state.is_resident());
            for run in runs {
                let mut at = run.range.start.max(mapping.range.start);
                while at < run.range.end.min(mapping.range.end) {
                    let mut page = [0; PAGE as usize];
                    let is_read = image.read(at, &mut page) == page.len();
                    match (&mapping.backing, run.state) {
                        (Backing::File(_) | Backing::Kernel(_), PageState::File) => {
                            knowable.cached += PAGE;
                        }
                        (Backing::File(path), _) if is_in_file(path, mapping, at, &page) => {
                            knowable.as_in_file += PAGE;
                        }
                        (backing, _) => {
                            knowable.bytes += PAGE;
                            let is_of_file = matches!(backing, Backing::File(_));
                            let is_zeros = is_read && page.iter().all(|&byte| byte == 0);
                            knowable.zeros += if is_zeros && !is_of_file { PAGE } else { 0 };
                        }
                    }
                    at = at.offset(PAGE);
                }
            }
        }
        knowable
    }
}

/// The beginnings of private mappings that the kernel was told not to dump.
fn not_to_be_dumped(pid: i32) -> Vec<Address> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut start = Address(0);
    let mut found = Vec::new();
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((from, _)) = first.split_once('-') {
            start = Address(u64::from_str_radix(from, 16).unwrap());
        } else if first == "VmFlags:" && line.split_whitespace().any(|flag| flag == "dd") {
            found.push(start);
        }
    }
    found
}

fn is_in_file(path: &Path, mapping: &Mapping, at: Address, page: &[u8]) -> bool {
    let mut bytes = vec![0; page.len()];
    let offset = mapping.file_offset + (at - mapping.range.start);
    let file = fs::File::open(path).or_else(|_| {
        let within = path.strip_prefix("/").unwrap();
        fs::File::open(testbed::root().unwrap_or_else(|| "/".into()).join(within))
    });
    file.unwrap().read_at(&mut bytes, offset).unwrap();
    bytes == page
}

const OF_FILES: [&str; 2] = ["file.private", "file.shared"];

/// All that does not depend on which pages were resident.
fn assert_same_parts(core: &Report, alive: &Report) {
    assert_eq!(core.ruby, alive.ruby);
    assert_eq!(
        core.malloc.as_ref().unwrap().in_use_bytes,
        alive.malloc.as_ref().unwrap().in_use_bytes
    );
    let parts = |report: &Report| {
        let owners = report.owners.clone().unwrap();
        let mut owners: Vec<_> = owners
            .into_iter()
            .map(|it| {
                (
                    it.owner,
                    it.kind,
                    it.cause,
                    it.objects,
                    it.chunks,
                    it.exclusive_bytes,
                    it.shared_bytes,
                    it.memsize,
                    it.kept_by,
                )
            })
            .collect();
        owners.sort_by(|one, other| one.0.cmp(&other.0));
        owners
    };
    assert_eq!(parts(core), parts(alive));
    let (of_core, process) = (&core.process, &alive.process);
    assert_eq!((of_core.pid, &of_core.command), (process.pid, &process.command));
    assert_eq!((&of_core.libc, &of_core.ruby_version), (&process.libc, &process.ruby_version));
    assert_eq!(of_core.threads, process.threads);
    assert_eq!(core.capture.method, "core");
    assert_eq!(core.capture.pause_ms, 0.0);
    let sum: u64 = core.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, core.process.rss_bytes);
    assert!(core.findings.iter().all(|finding| finding.severity == "note"), "{:?}", core.findings);
}

#[test]
fn a_core_says_of_a_process_what_was_said_while_it_lived() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = start(PROGRAM, folder.path());
    let alive =
        report_of(&run(target.pid(), &["--json", "--owners", "1000", "--capture", "freeze"]));
    let by_gdb = core_by_gdb(&target, folder.path());
    let frozen = target::freeze(target.pid(), target::PATIENCE).unwrap();
    let knowable = Knowable::of(&frozen);
    frozen.thaw().unwrap();
    assert!(knowable.zeros >= 4_900_000 && knowable.cached > 0, "{knowable:?}");

    let core = report_on(&by_gdb, &[]);
    let lacks_stacks =
        core.findings.iter().any(|finding| finding.what.contains("gdb could not read"));
    if lacks_stacks {
        eprintln!("SKIPPED: this gdb cannot read stacks whose guard pages are no mappings");
    } else {
        assert_as_by_gdb(&core, &alive, &knowable);
    }
    if !kernel_writes_cores() {
        return;
    }
    let by_kernel = core_by_kernel(&mut target, SIGABRT, folder.path());
    assert_as_by_kernel(&report_on(&by_kernel, &sysroot()), &alive, &knowable);
}

fn assert_as_by_gdb(core: &Report, alive: &Report, knowable: &Knowable) {
    assert_same_parts(core, alive);
    // Exactly the pages of zeros are missing, and what is not the process's own.
    assert_eq!(core.process.rss_bytes, knowable.bytes - knowable.zeros, "{knowable:?}");
    let mut missing = 0;
    for row in alive.causes.iter().filter(|row| !OF_FILES.contains(&row.cause.as_str())) {
        missing += row.bytes.checked_sub(bytes(core, &row.cause)).unwrap();
    }
    assert!(missing <= knowable.zeros + knowable.undumped, "{missing} bytes, {knowable:?}");
    assert!(core.capture.reason.ends_with("written by a debugger"), "{}", core.capture.reason);
}

fn assert_as_by_kernel(core: &Report, alive: &Report, knowable: &Knowable) {
    assert_same_parts(core, alive);
    // Its holes tell the pages of zeros from the absent ones.
    assert_eq!(core.process.rss_bytes, knowable.bytes, "{knowable:?}");
    for row in alive.causes.iter().filter(|row| !OF_FILES.contains(&row.cause.as_str())) {
        let undumped = if row.cause == "unknown" { knowable.undumped } else { 0 };
        assert_eq!(bytes(core, &row.cause) + undumped, row.bytes, "{}", row.cause);
    }
    assert_eq!(bytes(core, "file.shared"), 0);
    assert_eq!((&core.malloc, &core.arenas), (&alive.malloc, &alive.arenas));
    let resident = |report: &Report| -> Vec<_> {
        let owners = report.owners.iter().flatten();
        owners.map(|owner| (owner.owner.clone(), owner.resident_bytes)).collect()
    };
    assert_eq!(resident(core), resident(alive));
    let reason = &core.capture.reason;
    assert!(reason.ends_with("by the kernel when signal 6 ended the process"), "{reason}");
}

#[test]
fn a_core_gets_no_advice_that_needs_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let program =
        format!("GC.disable; Array.new(200_000) {{ 'z' * 900 }}.clear; GC.enable; {PROGRAM}");
    let target = start(&program, folder.path());
    let core = core_by_gdb(&target, folder.path());
    let report = report_on(&core, &[]);
    assert_eq!(report.verdict.cause, "malloc.unreturned");
    let output = run_on(&core, &[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["rbloat trim", "Stopped for", "nothing was written to the process"] {
        assert!(!text.contains(word), "{text}");
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in
        ["RSS is an estimate", "In a process that does the same:", "read from", "LD_PRELOAD"]
    {
        assert!(text.contains(said), "{text}");
    }
    assert_eq!(report.verdict.confidence, "medium");
    assert!(target.finish());
}

/// The files that a process has mapped, as a core names them.
fn mapped_files(pid: i32) -> BTreeSet<PathBuf> {
    let image = target::look(pid).unwrap();
    let files = image.outline.mappings.iter().filter_map(Mapping::file);
    files.map(Path::to_owned).filter(|path| path.is_file()).collect()
}

/// Copies files below `root`, with the same paths.
fn copy_below(root: &Path, files: &BTreeSet<PathBuf>) {
    for file in files {
        let copy = root.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(file, copy).unwrap();
    }
}

/// The one of the files that the interpreter is in.
fn interpreter(files: &BTreeSet<PathBuf>) -> PathBuf {
    let is_named = |file: &&PathBuf, name: &str| {
        file.file_name().is_some_and(|it| it.to_str().unwrap().starts_with(name))
    };
    let library = files.iter().find(|file| is_named(file, "libruby"));
    library.or(files.iter().find(|file| is_named(file, "ruby"))).unwrap().clone()
}

#[test]
fn the_files_of_a_core_are_found_elsewhere_and_missed_where_they_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = start(PROGRAM, folder.path());
    let files = mapped_files(target.pid());
    let mut cores = vec![core_by_gdb(&target, folder.path())];
    if kernel_writes_cores() {
        cores.push(core_by_kernel(&mut target, SIGABRT, folder.path()));
    }
    let right = folder.path().join("right");
    copy_below(&right, &files);
    let wrong = folder.path().join("wrong");
    copy_below(&wrong, &files);
    // One bit of the build id.
    let interpreter = interpreter(&files);
    let altered = wrong.join(interpreter.strip_prefix("/").unwrap());
    let mut contents = fs::read(&altered).unwrap();
    let head = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let note = contents.windows(head.len()).position(|part| part == head).unwrap();
    contents[note + head.len()] ^= 1;
    fs::write(&altered, &contents).unwrap();

    for core in &cores {
        let in_place = report_on(core, &sysroot());
        if testbed::root().is_none() {
            let elsewhere = report_on(core, &below(&right));
            assert_eq!(
                (&elsewhere.causes, &elsewhere.owners),
                (&in_place.causes, &in_place.owners)
            );
            let said = "files are other builds than the process had mapped, so they were not read:";
            assert_lacks_files(core, &wrong, said, &interpreter, &in_place);
        }
        let said = "files that the process had mapped are missing, so their symbols are not known:";
        assert_lacks_files(core, &folder.path().join("empty"), said, &interpreter, &in_place);
    }
}

fn below(root: &Path) -> Vec<String> {
    vec!["--sysroot".into(), root.to_str().unwrap().into()]
}

/// The report without the interpreter's file names it, and what it says all the same holds.
fn assert_lacks_files(core: &Path, root: &Path, said: &str, interpreter: &Path, whole: &Report) {
    let output = run_on(core, &["--sysroot", root.to_str().unwrap(), "--json"]);
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    let finding = report.findings.iter().find(|finding| finding.what.starts_with(said));
    let finding = finding.unwrap_or_else(|| panic!("{said} {:?}", report.findings));
    assert_eq!(finding.severity, "warning");
    let name = interpreter.file_name().unwrap().to_str().unwrap();
    for part in [name, "--sysroot"] {
        assert!(finding.what.contains(part), "{}", finding.what);
    }
    // gdb dumps the symbols of libraries, the kernel does not.
    let by_kernel = report.capture.reason.contains("kernel");
    assert_eq!(report.ruby.is_none(), by_kernel);
    assert_eq!(output.status.code(), Some(if report.is_complete() { 0 } else { 6 }));
    if let (Some(part), Some(all)) = (&report.ruby, &whole.ruby) {
        assert_eq!((part.slots_live, &part.objects), (all.slots_live, &all.objects));
    }
    assert_eq!(report.process.pid, whole.process.pid);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    let obtained = |report: &Report| report.malloc.as_ref().unwrap().system_bytes;
    assert_eq!(obtained(&report), obtained(whole));
}

/// Ruby handles the signal, and takes its heap apart before it lets it end the process.
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
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    assert!(report.malloc.is_some());
    let is_said = report.findings.iter().any(|finding| finding.what.contains("SIGABRT, and gcore"));
    assert_eq!(is_said, report.ruby.is_none());
    assert_eq!(output.status.code(), Some(if is_said { 6 } else { 0 }));
}

#[test]
fn the_core_of_another_program_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::start(testbed::command("sh").args(["-c", "echo 'ready {}'; exec cat"]));
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
                let report: Report = serde_json::from_slice(&output.stdout).unwrap();
                let mut whats = report.findings.iter().map(|finding| &finding.what);
                assert!(whats.any(|what| what.contains("the core is cut short")));
                let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
                assert_eq!(sum, report.process.rss_bytes);
            }
            Some(3) => assert!(told.contains("is damaged"), "{told}"),
            status => panic!("{status:?}: {told}"),
        }
    }
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
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let of_core = report_on(&core, &[]);
    let of_kept = report_on(&kept, &[]);
    assert_eq!((&of_kept.causes, &of_kept.owners), (&of_core.causes, &of_core.owners));
    assert_eq!(of_kept.capture.method, "core");
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
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let diff: report::Diff = serde_json::from_slice(&output.stdout).unwrap();
    assert!(diff.same_process);
    let strings = diff.classes.iter().find(|class| class.name == "String").unwrap();
    assert!((9_900..10_500).contains(&strings.objects.change), "{strings:?}");
    assert_eq!(strings.kept_by.as_deref(), Some("LOG → Array → String"));
    let rss: Vec<u64> =
        [first, second].iter().map(|core| report_on(core, &[]).process.rss_bytes).collect();
    assert_eq!(diff.rss_bytes.at, rss);
}
