//! The messages and exit statuses of rbloat when it cannot report.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::{complaint, rbloat, report_of, run};
use formats::{FindingKind, Report};
use testkit::Target;

const WAITING: &str = "GC.start; puts 'ready {}'; $stdout.flush; $stdin.read";
/// The user nobody, on Debian.
pub(crate) const NOBODY: u32 = 65534;

#[test]
fn there_is_no_such_process() {
    let (status, line) = complaint(&run(0x3fff_ffff, &[]));
    assert_eq!(status, 3);
    assert_eq!(
        line,
        "rbloat: there is no process 1073741823; `rbloat` lists the Ruby processes that run\n"
    );
}

#[test]
fn a_process_that_is_no_ruby_is_not_stopped() {
    let sleeper = Target::start(testkit::command("sh").args(["-c", "echo 'ready {}'; exec cat"]));
    // A program has its name before it has its command line.
    let command = format!("/proc/{}/cmdline", sleeper.pid());
    while !std::fs::read(&command).unwrap().starts_with(b"cat") {
        std::thread::yield_now();
    }
    let (status, line) = complaint(&run(sleeper.pid(), &[]));
    assert_eq!(status, 3);
    assert!(line.contains("(cat) is not a Ruby"), "{line}");
    assert!(sleeper.finish());
}

#[test]
fn a_zombie_has_no_memory() {
    let mut ended = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = ended.id();
    while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let (status, line) = complaint(&run(pid.cast_signed(), &[]));
    assert_eq!(status, 3);
    assert!(line.contains("is a zombie"), "{line}");
    ended.wait().unwrap();
}

/// Process 1 of a container is often an init, such as tini.
#[test]
fn the_only_ruby_process_below_an_init_or_a_shell_is_named() {
    let started = |script: &str| {
        let ruby = testkit::ruby();
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(ruby.get_program()).args(ruby.get_args());
        Target::start(shell.args(["--disable-gems", "-e", WAITING]))
    };
    let children = |pid: i32| {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.unwrap().trim().to_owned()
    };
    let one = started("\"$@\"; true");
    let (status, line) = complaint(&run(one.pid(), &[]));
    assert_eq!(status, 3);
    let expected = format!("; give the Ruby process below it: {}\n", children(one.pid()));
    assert!(line.ends_with(&expected), "{line}");
    assert!(one.finish());
    // The second one starts when the first one is ready.
    let two = started("exec 3<&0; \"$@\" | { read line; \"$@\" <&3; }; true");
    let (status, line) = complaint(&run(two.pid(), &[]));
    assert_eq!(status, 3);
    assert!(line.ends_with("; `rbloat` lists the Ruby processes\n"), "{line}");
    assert!(two.finish());
}

/// rbloat panicked: exit status 101.
#[test]
fn a_full_disk_behind_standard_error_changes_no_exit_status() {
    for (arguments, status) in [(&["report", "1073741823"][..], 3), (&["report", "--no-such"], 2)] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = rbloat().args(arguments).stderr(full).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{arguments:?}");
    }
}

/// It was taken for a /proc of another pid namespace.
#[test]
fn a_limit_of_open_files_is_named() {
    let target = Target::bare_ruby(WAITING);
    let pid = target.pid().to_string();
    for limit in 4..7 {
        let arguments = ["report", &pid];
        let output = crate::limited(&format!("-n {limit}")).args(arguments).output().unwrap();
        let (status, line) = complaint(&output);
        assert_eq!(status, 1, "{limit}: {line}");
        assert!(line.contains("raise the limit (ulimit -n 64)"), "{limit}: {line}");
    }
    // Each later step may be the one that fails: of the capture, and of the end of the copy.
    for limit in 7..16 {
        let arguments = ["report", &pid, "--capture", "fork", "--max-pause", "10s"];
        let output = crate::limited(&format!("-n {limit}")).args(arguments).output().unwrap();
        if !output.status.success() {
            let line = String::from_utf8_lossy(&output.stderr);
            assert!(line.contains("raise the limit (ulimit -n 64)"), "{limit}: {line}");
        }
    }
    assert!(target.finish());
}

#[test]
fn what_would_be_ignored_or_lost_is_refused() {
    let pid = std::process::id().to_string();
    for (arguments, why) in [
        (&["report", &pid, "--sysroot", "/"][..], "--sysroot is for core files"),
        (&["report", &pid, "-o", "a.pdf"], "its name must end in .html, .json or .txt"),
        (&["snapshot", &pid, "-o", "a.png"], "its name must end in .rbloat"),
        (&["record", &pid, "-o", "a.html"], "its name must end in .jsonl"),
        (&["record", &pid, "--csv", "a.jsonl"], "its name must end in .csv"),
        (&["dump", &pid, "-o", "a.csv"], "must end in .ndjson or .ndjson.gz"),
        (&["map", &pid, "-o", "a.svg"], "its name must end in .html or .png"),
        (&["who", &pid, "-o", "a.gz"], "its name must end in .html, .json, .folded or .pb.gz"),
    ] {
        let (status, line) = complaint(&rbloat().args(arguments).output().unwrap());
        assert_eq!(status, 2, "{line}");
        assert!(line.contains(why), "{line}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_told_so() {
    for arguments in
        [&["report"][..], &["who", "1", "2"], &["report", "1", "--namespace-pid", "1"], &["frob"]]
    {
        let output = rbloat().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    // They could be milliseconds.
    let output = rbloat().args(["report", "1", "--max-pause", "50"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("a time needs a unit: 50s for seconds, 50m for minutes"), "{error}");
}

#[test]
fn a_process_is_named_by_a_word_that_only_its_command_line_has() {
    // Other tests may run elsewhere at the same time.
    let own = |word: &str| format!("{word}{}", std::process::id());
    let (unique, common) = (own("unique"), own("common"));
    let start = |words: &str| {
        let source = format!("puts 'ready {{}}'; $stdout.flush; $stdin.read # {words}");
        Target::start(testkit::ruby().args(["--disable-gems", "-e", &source]))
    };
    let (one, other) = (start(&format!("{unique} {common}")), start(&common));
    let run = |verb: &str, word: &str| rbloat().args([verb, word, "--json"]).output().unwrap();
    let report: Report = crate::document(&run("report", &unique).stdout);
    assert_eq!(report.process.pid, one.pid());
    let recording = tempfile::tempdir().unwrap();
    let recording = recording.path().join("a.jsonl").display().to_string();
    let arguments = ["record", &unique, "--for", "1s", "--causes-every", "0", "-o", &recording];
    let output = rbloat().args(arguments).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains(&format!("recording process {}", one.pid())), "{shown}");
    let (status, line) = complaint(&run("trim", &common));
    let pids = [one.pid(), other.pid()].map(|pid| format!("{pid} (ruby"));
    assert!(status == 3 && pids.iter().all(|pid| line.contains(pid)), "{line}");
    let (status, line) = complaint(&run("report", &own("none")));
    assert!(status == 3 && line.contains("neither a file `none"), "{line}");
    assert_eq!(complaint(&run("trim", " ")).0, 2);
    // It may be another process the next time.
    let part = &unique[..unique.len() - 1];
    assert_eq!(complaint(&run("report", part)).0, 3);
}

#[test]
fn without_a_name_maps_and_snapshots_get_one_that_overwrites_nothing() {
    let target = Target::bare_ruby(WAITING);
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    for (verb, extension, next) in
        [("map", "html", "open it in a browser"), ("snapshot", "rbloat", "of RSS in")]
    {
        let output = rbloat().current_dir(folder.path()).args([verb, &pid]).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let name = shown.split_once(':').unwrap().0;
        let time = name.strip_prefix(&format!("rbloat-{pid}-")).unwrap();
        assert!(time.strip_suffix(&format!(".{extension}")).unwrap().parse::<u64>().is_ok());
        assert!(folder.path().join(name).is_file() && shown.contains(next), "{shown}");
    }
    assert!(target.finish());
}

#[test]
fn a_traced_process_is_named_with_its_tracer() {
    let target = Target::bare_ruby(WAITING);
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let (status, line) = complaint(&run(target.pid(), &[]));
    frozen.thaw().unwrap();
    assert_eq!(status, 5);
    assert!(line.contains(&format!("traced by process {}", std::process::id())), "{line}");
    assert!(target.finish());
}

/// The rbloat command in a place where any user may run it.
pub(crate) fn installed() -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).unwrap();
    let path = folder.path().join("rbloat");
    // Not copied by this process: a child that another test starts meanwhile would have the copy open for writing, and
    // it could not be run.
    let copied =
        Command::new("install").args([env!("CARGO_BIN_EXE_rbloat").as_ref(), &*path]).status();
    assert!(copied.unwrap().success());
    (folder, path)
}

/// Returns true if targets can be started as other users: as root, and without another root filesystem.
pub(crate) fn is_root() -> bool {
    testkit::root().is_none()
        && std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0\t")
}

#[test]
fn another_users_process_needs_a_capability() {
    if !is_root() {
        return testkit::skip("only root can start another user's process");
    }
    let target = Target::bare_ruby(WAITING);
    let (_folder, path) = installed();
    let output = Command::new(path)
        .args(["report", &target.pid().to_string()])
        .uid(NOBODY)
        .output()
        .unwrap();
    let (status, line) = complaint(&output);
    assert_eq!(status, 4);
    let begin = format!("rbloat: cannot read process {}: permission denied (", target.pid());
    assert!(line.starts_with(&begin), "{line}");
    for word in [
        "needs CAP_SYS_PTRACE: the process runs as uid 0, rbloat as uid 65534",
        "in Docker: --cap-add SYS_PTRACE",
        "securityContext.capabilities.add: [\"SYS_PTRACE\"], or kubectl debug --profile=sysadmin",
    ] {
        assert!(line.contains(word), "{line}");
    }
    assert!(target.finish());
}

#[test]
fn the_same_user_needs_no_root() {
    if !is_root() {
        return testkit::skip("the other tests show it, since they run without root");
    }
    // A report on a process that never collected garbage has a note about that.
    let source = format!("GC.start; {WAITING}");
    let target = Target::start(
        testkit::ruby().args(["--disable-gems", "-e", &source]).uid(NOBODY).gid(NOBODY),
    );
    let (_folder, path) = installed();
    let output = Command::new(path)
        .args(["report", &target.pid().to_string(), "--json"])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    if let Ok(scope) = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        && scope.trim() != "0"
    {
        let (status, line) = complaint(&output);
        assert_eq!(status, 4);
        assert!(line.contains("ptrace_scope"), "{line}");
        return testkit::skip("Yama lets nobody but root trace a process");
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: formats::Report = crate::document(&output.stdout);
    assert_eq!(report.findings, []);
    assert!(target.finish());
}

#[test]
fn a_capability_without_the_right_to_open_files_is_not_enough() {
    if !is_root() {
        return testkit::skip("only root can give capabilities");
    }
    let target = Target::bare_ruby(WAITING);
    let (status, line) = complaint(&as_nobody(",+sys_ptrace", "", target.pid()));
    assert_eq!(status, 4);
    assert!(line.contains("CAP_DAC_READ_SEARCH"), "{line}");
    assert!(target.finish());
}

/// Runs an installed rbloat as nobody with these capabilities, in a mount namespace that `prepare`
/// changes first.
fn as_nobody(capabilities: &str, prepare: &str, pid: i32) -> Output {
    let (_folder, path) = installed();
    let script = format!(
        "set -e; {prepare}
         exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all{capabilities} \
            --ambient-caps=-all{capabilities} \"$0\" report {pid} --max-pause 10s --json"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(path);
    command.output().unwrap()
}

#[test]
fn both_capabilities_together_are_as_good_as_root() {
    if !is_root() {
        return testkit::skip("only root can give capabilities");
    }
    let target = Target::ruby(WAITING);
    target.stop_asleep();
    let truth = target.rss_bytes();
    let report = report_of(&as_nobody(",+sys_ptrace,+dac_read_search", "", target.pid()));
    assert_eq!(report.findings, []);
    assert_eq!(report.process.rss_bytes, truth);
    target.go_on();
    assert!(target.finish());
}

/// A process of the user nobody that this user may not trace, like a process that changed its user.
fn undumpable() -> Target {
    const UNDUMPABLE: &str = "require 'fiddle'
        types = [Fiddle::TYPE_INT, Fiddle::TYPE_LONG]
        prctl = Fiddle::Function.new(Fiddle.dlopen(nil)['prctl'], types, Fiddle::TYPE_INT)
        prctl.call(4, 0) == 0 or raise 'PR_SET_DUMPABLE'
        puts 'ready {}'; $stdout.flush; $stdin.read";
    Target::start(
        testkit::ruby().args(["--disable-gems", "-e", UNDUMPABLE]).uid(NOBODY).gid(NOBODY),
    )
}

#[test]
fn a_process_that_may_not_be_dumped() {
    if !is_root() {
        return testkit::skip("only root can start another user's process");
    }
    let target = undumpable();
    let (status, line) = complaint(&as_nobody("", "", target.pid()));
    assert_eq!(status, 4);
    assert!(line.contains("the process is not dumpable"), "{line}");
    assert!(target.finish());
}

/// A Ruby of the same user. The kernel shows its mappings, but not its memory, as under Yama. There is no Yama here, so
/// /proc/PID/mem is closed in another way.
#[test]
fn a_ruby_whose_memory_alone_is_refused_is_not_taken_for_another_program() {
    if !is_root() {
        return testkit::skip("only root can mount, and start another user's process");
    }
    let target = Target::start(
        testkit::ruby().args(["--disable-gems", "-e", WAITING]).uid(NOBODY).gid(NOBODY),
    );
    let folder = tempfile::tempdir().unwrap();
    let prepare = format!(
        "touch {folder}/closed; chmod 0 {folder}/closed
         mount --bind {folder}/closed /proc/{pid}/mem",
        folder = folder.path().display(),
        pid = target.pid(),
    );
    let (status, line) = complaint(&as_nobody("", &prepare, target.pid()));
    assert_eq!(status, 4, "{line}");
    for said in ["permission denied (needs CAP_SYS_PTRACE", "in Docker: --cap-add SYS_PTRACE"] {
        assert!(line.contains(said), "{line}");
    }
    assert!(target.finish());
}

#[test]
fn root_of_another_user_namespace_has_no_rights_here() {
    if !is_root() {
        return testkit::skip("only root can start another user's process");
    }
    let target = Target::bare_ruby(WAITING);
    let (_folder, path) = installed();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(["unshare", "--user", "--map-root-user"]).arg(path);
    let output = command.args(["report", &target.pid().to_string()]).output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("unshare") {
        return testkit::skip("no user namespace can be made here");
    }
    let (status, line) = complaint(&output);
    assert_eq!(status, 4, "{line}");
    for said in ["permission denied (", "in another user namespace", "as root on the host"] {
        assert!(line.contains(said), "{line}");
    }
    assert!(target.finish());
}

/// Yama itself need not be in the kernel: another mechanism refuses here, and only the setting that rbloat reads looks
/// like Yama's. The test shows that the message names the setting.
#[test]
fn a_refusal_under_yama_names_its_setting() {
    if !is_root() {
        return testkit::skip("only root can mount");
    }
    let target = undumpable();
    for (scope, remedy) in [(1, "ptrace_scope to 0"), (2, "CAP_SYS_PTRACE"), (3, "reboot")] {
        let prepare = format!(
            "mount -t tmpfs yama /proc/sys/kernel
             mkdir /proc/sys/kernel/yama
             echo {scope} >/proc/sys/kernel/yama/ptrace_scope"
        );
        let (status, line) = complaint(&as_nobody("", &prepare, target.pid()));
        assert_eq!(status, 4);
        assert!(line.contains(&format!("kernel.yama.ptrace_scope is {scope}")), "{line}");
        assert!(line.contains(remedy), "{line}");
    }
    assert!(target.finish());
}

/// A library with an allocator that rbloat cannot read.
pub(crate) fn foreign_malloc() -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    testkit::compile("foreign_malloc", folder, &["-shared", "-fPIC"])
}

/// The exit status was 0.
#[test]
fn an_arena_that_cannot_be_read_makes_a_report_incomplete() {
    let target = Target::bare_ruby(
        "require 'fiddle'
         # The thread has an arena of its own. It writes beyond its chunk, into the header of the next one.
         Thread.new { Fiddle::Pointer.new(Fiddle.malloc(104))[104, 8] = [0x1337_1337].pack('Q'); sleep }
         Thread.pass until (Thread.list - [Thread.main]).all?(&:stop?)
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let output = run(target.pid(), &["--json"]);
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let report: formats::Report = crate::document(&output.stdout);
    let walked: Vec<bool> = report.arenas.iter().flatten().map(|arena| arena.walked).collect();
    assert_eq!(walked, [true, false]);
    assert!(!report.findings.is_empty());
    let causes = report.causes.iter().map(|row| row.bytes);
    assert_eq!(causes.sum::<u64>(), report.process.rss_bytes);
    assert!(target.finish());
}

#[test]
fn another_allocator_leaves_rubys_side() {
    let target = Target::start(
        testkit::ruby().args(["--disable-gems", "-e", WAITING]).env("LD_PRELOAD", foreign_malloc()),
    );
    let output = run(target.pid(), &["--json"]);
    assert_eq!(output.status.code(), Some(6));
    let report: formats::Report = crate::document(&output.stdout);
    assert!(report.process.allocator.starts_with("foreign_malloc"));
    assert_eq!(report.malloc, None);
    assert!(report.ruby.as_ref().unwrap().slots_live > 1000);
    let allocator = report.process.allocator.clone();
    let finding = FindingKind::MallocUnsupported { allocator };
    assert!(report.findings.contains(&finding.into()), "{:?}", report.findings);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    assert!(target.finish());
}

#[test]
fn a_library_that_exports_malloc_for_itself_is_not_the_allocator() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = testkit::compile("own_malloc", folder.path(), &["-shared", "-fPIC"]);
    // Such libraries have lower addresses than libraries that were loaded before.
    let source = format!(
        "require 'fiddle'; Fiddle::Handle.new({library:?}, Fiddle::RTLD_NOW); GC.start; {WAITING}"
    );
    let target = Target::bare_ruby(&source);
    let report = report_of(&run(target.pid(), &["--json"]));
    assert_eq!(report.process.allocator, "glibc");
    assert_eq!(report.findings, []);
    assert!(report.malloc.is_some());
    assert!(target.finish());
}

/// The name of the library is the only evidence: mmtk has no heap pages to find it by.
#[test]
fn another_garbage_collector_leaves_the_other_sides() {
    let folder = tempfile::tempdir().unwrap();
    let library = testkit::compile("trim", folder.path(), &["-shared", "-fPIC"]);
    let collector = folder.path().join("librubygc.mmtk.so");
    std::fs::rename(library, &collector).unwrap();
    // Not by Target's environment: other programs start Ruby.
    let target = Target::bare_ruby(&format!(
        "require 'rbconfig'
         ENV['LD_PRELOAD'] = [{collector:?}, ENV['LD_PRELOAD']].compact.join(':')
         exec(RbConfig.ruby, '--disable-gems', '-e', {WAITING:?})"
    ));
    target.stop_asleep();
    let truth = target.rss_bytes();
    let output = run(target.pid(), &["--json"]);
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let report: formats::Report = crate::document(&output.stdout);
    assert_eq!((&report.ruby, &report.process.ruby_version), (&None, &None));
    assert!(report.malloc.as_ref().unwrap().in_use_chunks > 1000);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    let FindingKind::CollectorUnsupported { collector, .. } = &finding.kind else {
        panic!("{finding:?}")
    };
    assert_eq!(collector, "mmtk");
    assert_ne!(report.verdict.confidence, formats::Confidence::High);
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!((sum, report.process.rss_bytes), (truth, truth));
    for arguments in [&[][..], &["--arenas"]] {
        let output = run(target.pid(), arguments);
        assert_eq!(output.status.code(), Some(6));
        assert!(String::from_utf8_lossy(&output.stdout).contains("garbage collector mmtk"));
    }
    target.go_on();
    assert!(target.finish());
}

/// The library itself, with a Ruby for which it was built (docs/rubies.md).
#[test]
fn a_heap_of_mmtk_is_unknown_and_the_other_sides_are_read() {
    let source = format!("KEPT = Array.new(20_000) {{ |i| 'text' * 30 }}; {WAITING}");
    let mut command = testkit::ruby();
    command.args(["-e", "print RbConfig::CONFIG['modular_gc_dir']"]);
    let folder = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let library = std::path::Path::new(&folder).join("librubygc.mmtk.so");
    if folder.is_empty() || !testkit::outside(&library).exists() {
        return testkit::skip("there is no mmtk for this Ruby");
    }
    let mut command = testkit::ruby();
    command.args(["--disable-gems", "-e", &source]);
    let command = command.env("RUBY_GC_LIBRARY", "mmtk").env("RUST_LOG", "off");
    let target = Target::start(command);
    let output = run(target.pid(), &["--json"]);
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let report: formats::Report = crate::document(&output.stdout);
    assert!(report.ruby.is_none() && report.malloc.is_some());
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    let FindingKind::CollectorUnsupported { collector, .. } = &finding.kind else {
        panic!("{finding:?}")
    };
    assert_eq!(collector, "mmtk");
    // The collector maps its memory beside malloc.
    let unknown = crate::bytes(&report, "unknown");
    assert!(unknown > 20_000 * 120, "{unknown}");
    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes);
    let pid = target.pid().to_string();
    let commands: [&[&str]; 4] = [
        &["who", &pid, "--for", "1s"],
        &["who", &pid, "--kept", "--for", "2s", "--older-than", "1s"],
        &["why", &pid, "String"],
        &["dump", &pid, "-o", "/dev/null/heap.ndjson"],
    ];
    for arguments in commands {
        let output = rbloat().args(arguments).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
    assert!(target.finish());
}

#[test]
fn whoever_reads_the_first_lines_only_gets_them() {
    let target = Target::bare_ruby(WAITING);
    let mut rbloat = rbloat()
        .args(["report", &target.pid().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(rbloat.stdout.take());
    assert!(rbloat.wait().unwrap().success());
}
