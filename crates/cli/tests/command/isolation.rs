//! The name, files and memory of one process neither end a command nor hide a process, and a defect of rbloat that
//! one process brings to light is that process's failure.

use std::process::{Command, Output};

use formats::{Family, FindingKind, Line, Processes, Recording};
use testkit::{Target, compile};

use crate::{document, limited, rbloat, report};

const WAIT: &str = "GC.start; $stdout.syswrite(\"ready {}\\n\"); $stdin.read";

/// A variable that lets debug builds panic when they examine a process.
const PANIC: &str = "RBLOAT_TEST_PANIC";

fn can_panic() -> bool {
    let can = cfg!(debug_assertions) && std::env::var_os("RBLOAT_TEST_BINARY").is_none();
    if !can {
        testkit::skip("only a debug build panics on request");
    }
    can
}

/// The standard error of a command, which has no sequence that controls a terminal.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!text.contains('\u{1b}') && !text.contains("panicked at"), "{text}");
    text
}

fn list(command: &mut Command) -> (Vec<i32>, String) {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    let list: Processes = document(&output.stdout);
    (list.processes.iter().map(|it| it.pid).collect(), complaint(&output))
}

/// The path of the library is `/SYSVq`: its file system is not mounted any more.
#[test]
fn a_file_with_the_name_of_shared_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = compile("linked", folder.path(), &["-shared", "-fPIC"]);
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/SYSVq && exec 9</mnt/SYSVq && umount -l /mnt && \
                  LD_PRELOAD=/proc/self/fd/9 exec \"$@\"";
    let within = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command.arg(&library).args(words);
        command
    };
    let is_possible = within(&["true"]).output().is_ok_and(|output| output.status.success());
    if !is_possible || testkit::root().is_some() {
        return testkit::skip("no user namespace with a mount can be made");
    }
    let ruby = testkit::ruby();
    let mut command = within(&[ruby.get_program().to_str().unwrap()]);
    let target = Target::start(command.args(ruby.get_args()).args(["-e", WAIT]));
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    assert!(maps.contains(" /SYSVq\n"), "{maps}");
    assert!(list(&mut rbloat()).0.contains(&target.pid()));
    assert_eq!(report(target.pid()).findings, []);
    assert!(target.finish());
}

#[test]
fn names_of_any_bytes() {
    for name in [") R 1 \\xff", "a\\n\\e[2J", "\\e]0;x\\a:", ")"] {
        let name = format!("\"{name}\".b");
        let source = format!(
            "File.binwrite('/proc/self/comm', {name}); Process.setproctitle({name}); \
             Thread.new {{ File.binwrite('/proc/thread-self/comm', {name}); sleep }}; {WAIT}"
        );
        let target = Target::ruby(&source);
        assert!(list(&mut rbloat()).0.contains(&target.pid()), "{name}");
        let output = rbloat().output().unwrap();
        assert!(output.status.success() && !output.stdout.contains(&0x1b));
        assert_eq!(report(target.pid()).findings, []);
        assert!(target.finish());
    }
}

/// A process can declare all of its address space to be its command line and its environment, without a right.
#[test]
fn a_command_line_of_gigabytes() {
    let target = Target::bare_ruby(
        "require 'fiddle'
         long, int = Fiddle::TYPE_LONG, Fiddle::TYPE_INT
         libc = Fiddle.dlopen(nil)
         call = ->(name, *words) { Fiddle::Function.new(libc[name], [long] * words.size, long).call(*words) }
         bytes = 16 << 30
         at = call.('mmap', 0, bytes, 1, 0x4022, -1, 0)
         stat = File.read('/proc/self/stat').split(') ').last.split.map(&:to_i)
         field = ->(number) { stat[number - 3] }
         fields = [26, 27, 45, 46, 47].map(&field) + [call.('sbrk', 0), field.(28)]
         map = (fields + [at, at + bytes] * 2 + [0]).pack('Q12') + [0, -1].pack('Ll')
         done = call.('prctl', 35, 14, Fiddle::Pointer[map].to_i, map.size, 0)
         $stdout.syswrite(%(ready {\"done\": #{done}}\\n)); $stdin.read"
    );
    if target.truth["done"] != 0 {
        return testkit::skip("this kernel lets no process change its command line");
    }
    let (pids, _) = list(&mut limited("-v 2097152"));
    assert!(pids.contains(&target.pid()));
    assert!(target.finish());
}

#[test]
fn a_panic_is_the_failure_of_one_process() {
    if !can_panic() {
        return;
    }
    let [first, second] = [(); 2].map(|()| Target::bare_ruby(WAIT));
    let pid = first.pid().to_string();
    let (pids, complaint_of_list) = list(rbloat().env(PANIC, &pid));
    assert!(!pids.contains(&first.pid()) && pids.contains(&second.pid()), "{pids:?}");
    let expected = format!("rbloat: cannot examine process {pid}; this is a defect of rbloat");
    assert!(complaint_of_list.contains(&expected), "{complaint_of_list}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let words = ["record", &pid, "--for", "2s", "--every", "200ms", "-o"];
    let output = rbloat().args(words).arg(&path).env(PANIC, &pid).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    let recording = Recording::read(&std::fs::read(&path).unwrap()[..]).unwrap();
    assert!(recording.lines.iter().any(|line| matches!(line, Line::Sample(_))));
    assert!(first.finish() && second.finish());
}

#[test]
fn a_family_is_read_without_the_member_that_panics() {
    if !can_panic() {
        return;
    }
    let target = Target::bare_ruby(
        "child = fork { $stdin.read }; $stdout.syswrite(%(ready {\"child\": #{child}}\\n)); $stdin.read",
    );
    let child = target.number("child").to_string();
    let words = ["report", "--tree", "--json", "--max-pause", "10s"];
    let pid = target.pid().to_string();
    let output = rbloat().args(words).arg(&pid).env(PANIC, &child).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", complaint(&output));
    let family: Family = document(&output.stdout);
    let [finding] = &family.findings[..] else { panic!("{:?}", family.findings) };
    let FindingKind::ProcessUnread { pid, error } = &finding.kind else { panic!("{finding:?}") };
    assert_eq!(pid.to_string(), child);
    assert!(error.contains(&format!("cannot examine process {child}; this is a defect")));
    assert!(target.finish());
}
