//! The account equals what the kernel shows of all members.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;

use formats::{Family, FindingKind, FindingRow};
use testkit::Target;

use super::{PAGE, account, account_of, child, family, frames, pids, sum, tree};
use crate::errors::is_root;
use crate::{complaint, document, rbloat};

/// The account equals what /proc shows, to the page.
#[test]
fn every_frame_counts_once() {
    if !is_root() {
        return testkit::skip("only root sees the numbers of frames");
    }
    let words = ["small", "idle", "write", "collect", "grow", "objects", "load"];
    let target = family(&words);
    // The first capture may add four pages of stack to a thread (docs/effects.md).
    account(target.pid(), &["--owners", "0"]);
    let account = account(target.pid(), &[]);
    let number = account.members.len();
    // The parent, and the child of `grow`.
    assert_eq!(number, words.len() - 1 + 2);
    assert!(!account.is_estimated && account.findings.is_empty());
    let members: Vec<_> = account.members.iter().map(|it| frames(it.pid)).collect();
    let mut users: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (index, pages) in members.iter().enumerate() {
        for &frame in pages.values() {
            users.entry(frame).or_default().insert(index);
        }
    }
    let count = |is: &dyn Fn(&BTreeSet<usize>) -> bool| {
        users.values().filter(|users| is(users)).count() as u64 * PAGE
    };
    assert_eq!(account.memory_bytes, count(&|_| true));
    assert_eq!(sum(&account, |row| row.shared_by_all_bytes), count(&|users| users.len() == number));
    let some = count(&|users| (2..number).contains(&users.len()));
    assert_eq!(sum(&account, |row| row.shared_by_some_bytes), some);
    for (index, member) in account.members.iter().enumerate() {
        let own = count(&|users| users.len() == 1 && users.contains(&index));
        assert_eq!(member.private_bytes, own, "{member:?}");
        let rss = fs::read_to_string(format!("/proc/{}/smaps_rollup", member.pid)).unwrap();
        let rss = rss.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap().to_owned();
        let rss = rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        assert_eq!((member.rss_bytes, members[index].len() as u64 * PAGE), (rss, rss));
    }
    assert!(account.memory_bytes < account.rss_bytes / 2);
    // PSS lacks the parts of other users of the same libraries, of which some may have ended meanwhile.
    let [memory, pss, outside] =
        [account.memory_bytes, account.pss_bytes, account.outside_bytes.unwrap()];
    assert!(pss <= memory && pss + outside + (8 << 20) > memory, "{memory} {pss} {outside}");
    assert!(target.finish());
}

/// Without rights, the same memory is known by its addresses.
#[test]
fn an_account_without_rights_is_an_estimate() {
    if !is_root() {
        return testkit::skip("it is compared with the account by root");
    }
    let nobody = crate::errors::NOBODY;
    let source = fs::read_to_string("../../scenarios/family.rb").unwrap();
    let mut command = testkit::ruby();
    command.args(["-e", &source, "idle", "write"]).uid(nobody).gid(nobody);
    let target = Target::start(&mut command);
    let exact = account(target.pid(), &[]);
    let (_folder, path) = crate::errors::installed();
    let output = std::process::Command::new(&path)
        .args(["report", "--tree", "--json", "--max-pause", "10s", &target.pid().to_string()])
        .uid(nobody)
        .gid(nobody)
        .output()
        .unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("ptrace_scope") {
        return testkit::skip("Yama lets nobody but root trace a process");
    }
    let estimate: Family = document(&output.stdout);
    assert!(estimate.is_estimated && !exact.is_estimated);
    assert_eq!(estimate.outside_bytes, None);
    let difference = estimate.memory_bytes.abs_diff(exact.memory_bytes);
    assert!(difference * 50 < exact.memory_bytes, "{estimate:?} {exact:?}");
    assert!(target.finish());
}

/// The books of a control group balance: its usage is the memory of processes, caches, and the kernel's own memory.
#[test]
fn the_memory_of_a_control_group_is_explained() {
    let Some(group) = testkit::ControlGroup::make() else { return };
    let folder = group.folder().to_str().unwrap();
    let (status, line) = complaint(&tree(&["--cgroup", folder]));
    assert!(status == 3 && line.contains("no Ruby process"), "{status} {line}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "KEPT = 'x' * 30_000_000
         File.write({:?}, 'y' * 20_000_000)
         GC.start
         fork {{ $stdin.read; exit!(0) }}
         puts 'ready {{}}'; $stdout.flush; $stdin.read; Process.waitall; exit!(0)",
        file.path()
    );
    let ruby = testkit::ruby();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "\"$@\"; true", "sh"]);
    command.arg(ruby.get_program()).args(ruby.get_args()).args(["-e", &script]);
    let target = Target::start(&mut group.command(&command));
    let account = account_of(&["--cgroup", folder, "--owners", "0"]);
    let name = format!("/{}", group.folder().file_name().unwrap().to_str().unwrap());
    let by_path = account_of(&["--cgroup", &name, "--owners", "0"]);
    assert_eq!(pids(&account), pids(&by_path));
    assert_eq!(account.members.len(), 2, "{account:?}");
    let parts = account.group_parts.as_ref().unwrap();
    // The shell.
    assert_eq!(parts.others.len(), 1, "{parts:?}");
    // The kernel's counts of a group lag behind.
    assert!(parts.unmapped_cache_bytes >= 16_000_000, "{parts:?}");
    assert!(account.memory_bytes >= 30_000_000);
    let usage = account.group.unwrap().usage_bytes;
    let others: u64 = parts.others.iter().map(|it| it.pss_bytes).sum();
    let elsewhere = parts.charged_elsewhere_bytes.unwrap_or(0);
    let explained =
        account.memory_bytes - elsewhere + others + parts.unmapped_cache_bytes + parts.kernel_bytes;
    assert_eq!(usage.wrapping_sub(explained).cast_signed(), parts.unexplained_bytes);
    // Each processor keeps some pages that are charged in advance.
    if is_root() {
        assert!(parts.unexplained_bytes.unsigned_abs() < 6 << 20, "{parts:?} {usage}");
    }
    assert!(target.finish());
}

#[test]
fn there_is_no_such_control_group() {
    let (status, line) = complaint(&tree(&["--cgroup", "/no/such/group"]));
    assert!(status == 3 && line.contains("no control group"), "{status} {line}");
}

/// The pages of a member that cannot be read belong to the family all the same.
#[test]
fn an_account_with_a_member_that_was_not_read_is_incomplete() {
    let target = family(&["idle"]);
    let output = rbloat()
        .args(["report", "--tree", "--json", "--capture", "freeze", "--max-pause", "10ms"])
        .arg(target.pid().to_string())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let incomplete: Family = document(&output.stdout);
    let complete = account(target.pid(), &[]);
    let is_unexplained =
        |it: &FindingRow| matches!(it.kind, FindingKind::ProcessUnexplained { .. });
    assert_eq!(incomplete.findings.len(), 2);
    assert!(incomplete.findings.iter().all(is_unexplained), "{:?}", incomplete.findings);
    let difference = incomplete.memory_bytes.abs_diff(complete.memory_bytes);
    assert!(difference <= 8 * PAGE, "{incomplete:?} {complete:?}");
    assert!(target.finish());
}

/// If two of three children have made the same memory, that much more is identical than if all have made their own.
#[test]
fn identical_pages_are_counted() {
    let saved = |seeds: &str| {
        let target = Target::bare_ruby(&format!(
            "KEPT = Random.new(1).bytes(20_000_000)
             ended, ends = IO.pipe
             ready, write = IO.pipe
             {seeds}.each do |seed|
               fork do
                 ends.close
                 own = Random.new(seed).bytes(12_000_000)
                 write << '.'
                 ended.read
                 exit!(own.empty?)
               end
             end
             ready.read(3)
             puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(0)"
        ));
        let account = account(target.pid(), &["--owners", "0", "--identical"]);
        assert!(target.finish());
        let pages = account.identical.unwrap();
        assert!(pages.read_bytes <= account.memory_bytes + (1 << 20), "{account:?}");
        assert!(pages.read_bytes > 20_000_000 + 3 * 12_000_000, "{pages:?}");
        pages.read_bytes - pages.distinct_bytes
    };
    let (different, same) = (saved("[7, 8, 9]"), saved("[7, 7, 9]"));
    let more = same.saturating_sub(different);
    assert!((11_000_000..13_000_000).contains(&more), "{same} {different}");
}

/// The report on a member has the family's sums, which equal the kernel's.
#[test]
fn the_report_on_a_member_mentions_its_family() {
    let target = family(&["idle", "idle"]);
    let report = crate::report_of(&crate::run(target.pid(), &["--json", "--owners", "0"]));
    let memory = report.family.unwrap();
    let children = target.truth["children"].as_array().unwrap();
    let pid = |child: &serde_json::Value| i32::try_from(child.as_i64().unwrap()).unwrap();
    let pids = children.iter().map(pid).chain([target.pid()]);
    let rollups: Vec<_> = pids.map(|pid| linux::proc::rollup(pid).unwrap()).collect();
    assert_eq!(memory.processes, 3);
    // PSS depends on the other processes that map the libraries.
    let pss = rollups.iter().map(|it| it.pss_bytes).sum::<u64>();
    let rss = rollups.iter().map(|it| it.rss_bytes).sum::<u64>();
    // The kernel may take pages of files back.
    assert!(memory.rss_bytes.abs_diff(rss) < 8 << 20, "{memory:?} {rss}");
    assert!(memory.pss_bytes.abs_diff(pss) < 8 << 20 && memory.pss_bytes * 2 < memory.rss_bytes);
    let text = String::from_utf8(crate::run(target.pid(), &["--owners", "0"]).stdout).unwrap();
    let command = format!("rbloat report --tree {}", target.pid());
    assert!(text.replace('\n', " ").contains(&command), "{text}");
    assert!(target.finish());
    let alone = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let report = crate::report_of(&crate::run(alone.pid(), &["--json", "--owners", "0"]));
    assert_eq!(report.family, None);
    assert!(alone.finish());
}

/// A recording has PSS and private memory of each member, and the text of its plot shows them.
#[test]
fn a_recording_of_a_family_has_the_memory_of_each_member() {
    let target = family(&["idle", "write"]);
    let arguments = ["--every", "100ms", "--causes-every", "0"];
    let recorder = crate::record::Recorder::of(&target, &arguments);
    let recording = recorder.wait_for(|it| it.samples().filter(|sample| sample.exact).count() > 1);
    let sample = recording.samples().filter(|sample| sample.exact).last().unwrap();
    let of = |pid: i32| sample.processes.iter().find(|it| it.pid == pid).unwrap();
    for pid in [target.pid(), child(&target, 0), child(&target, 1)] {
        let (recorded, rollup) = (of(pid), linux::proc::rollup(pid).unwrap());
        // PSS of libraries depends on other processes.
        assert!(recorded.pss_bytes.unwrap().abs_diff(rollup.pss_bytes) < 4 << 20, "{recorded:?}");
        assert!(recorded.uss_bytes.unwrap().abs_diff(rollup.uss_bytes) < 4 << 20, "{recorded:?}");
    }
    assert!(of(child(&target, 1)).uss_bytes.unwrap() > 18_000_000);
    for process in &sample.processes {
        assert!(process.peak_rss_bytes.unwrap() + (4 << 20) > process.rss_bytes, "{process:?}");
    }
    let output = rbloat().arg("report").arg(&recorder.path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["PRIVATE", "SHARED", &target.pid().to_string(), &child(&target, 1).to_string()] {
        assert!(text.contains(words), "{text}");
    }
    assert!(target.finish());
}

#[test]
fn a_file_is_no_process_of_a_family() {
    let output = rbloat().args(["report", "--tree", "a.rbloat", "4242"]).output().unwrap();
    let (status, line) = complaint(&output);
    assert_eq!(status, 2);
    assert!(line.contains("needs a live process"), "{line}");
    let output = rbloat().args(["snapshot", "--tree", "a.rbloat"]).output().unwrap();
    let (status, line) = complaint(&output);
    assert!(status == 2 && line.contains("needs a live process"), "{status} {line}");
}

#[test]
fn a_family_as_text() {
    let target = family(&["write"]);
    let output = rbloat().args(["report", "--tree", &target.pid().to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["2 processes have ", "SHARED", "COPIED", "String"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(target.finish());
}
