//! The processes that belong to a family.

use std::collections::BTreeSet;

use formats::{Family, Processes};
use testkit::Target;

use super::{account, account_of, family, pids, sum, tree};
use crate::{document, rbloat};

/// A process whose child, a master, ends before its two workers.
const ORPHANS: &str = r#"
    KEPT = Array.new(10_000) { 'x' * 1000 }
    ended, ends = IO.pipe
    ready, write = IO.pipe
    master = fork do
      own = Process.pid
      2.times do
        fork do
          ends.close
          sleep 0.01 while Process.ppid == own
          write.puts Process.pid
          ended.read
          exit!(0)
        end
      end
      exit!(0)
    end
    Process.wait(master)
    children = Array.new(2) { ready.gets.to_i }
    puts %(ready {"children": #{children}})
    $stdout.flush
    $stdin.read
    exit!(0)
"#;

#[test]
fn workers_whose_master_ended_are_found() {
    let word = format!("orphans_of_{}", std::process::id());
    let target = Target::bare_ruby(&format!("# {word}\n{ORPHANS}"));
    let children = target.truth["children"].as_array().unwrap();
    let pid = |child: &serde_json::Value| i32::try_from(child.as_i64().unwrap()).unwrap();
    let mut all: Vec<i32> = children.iter().map(pid).chain([target.pid()]).collect();
    all.sort_unstable();
    for &pid in &all {
        assert_eq!(pids(&account(pid, &["--owners", "0"])), all);
    }
    // A word names all processes, and other processes may be named with it.
    let other = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let both = account_of(&[&word, &other.pid().to_string(), "--owners", "0"]);
    assert_eq!(both.members.len(), 4);
    assert!(both.members.iter().any(|it| it.pid == other.pid() && !it.is_orphan));
    let orphans = both.members.iter().filter(|it| it.is_orphan);
    assert!(orphans.clone().all(|it| it.pid != target.pid()) && orphans.count() == 2, "{both:?}");
    assert!(sum(&both, |row| row.shared_by_some_bytes) > 9_000_000, "{:?}", both.causes);
    assert!(other.finish() && target.finish());
}

/// Members may end at any time: the others count all the same.
#[test]
fn a_family_whose_members_come_and_go_has_an_account() {
    let target = Target::bare_ruby(
        "KEPT = Array.new(10_000) { 'x' * 1000 }
         lasting = fork { sleep }
         Thread.new { loop { Process.wait(fork { sleep rand / 20; exit!(0) }) } }
         puts %(ready {\"lasting\": #{lasting}}); $stdout.flush; $stdin.read
         Process.kill(:KILL, lasting); exit!(0)",
    );
    let lasting = i32::try_from(target.truth["lasting"].as_i64().unwrap()).unwrap();
    for _ in 0..5 {
        let output = tree(&[&lasting.to_string(), "--owners", "0"]);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 6)), "{complaint}");
        let account: Family = document(&output.stdout);
        assert_eq!(output.status.success(), account.findings.is_empty(), "{account:?}");
        assert!(account.members.iter().any(|it| it.pid == lasting && it.capture.is_some()));
        assert!(account.memory_bytes > 10_000_000);
    }
    assert!(target.finish());
}

#[test]
fn a_process_without_a_family_is_an_account_of_one() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let account = account(target.pid(), &["--owners", "0"]);
    let [only] = &account.members[..] else { panic!("{account:?}") };
    assert_eq!((only.private_bytes, only.copied_bytes), (account.memory_bytes, 0));
    assert_eq!(account.copied_owners, None);
    assert!(target.finish());
}

/// Another rbloat may be reading a member: its forked copy is none.
#[test]
fn a_forked_copy_is_no_member() {
    // Without descriptors and a time, ppoll(2) waits without end.
    let (clone, wait) = (libc::SYS_clone, libc::SYS_ppoll);
    let target = Target::bare_ruby(&format!(
        r#"$VERBOSE = nil
           copy = syscall({clone}, 0, 0, 0, 0, 0)
           loop {{ syscall({wait}, 0, 0, 0, 0, 0) }} if copy == 0
           puts %(ready {{"copy": #{{copy}}}}); $stdout.flush; $stdin.read
           Process.kill(:KILL, copy); exit!(0)"#
    ));
    let account = account(target.pid(), &["--owners", "0"]);
    assert_eq!(pids(&account), [target.pid()], "{}", target.truth);
    let list: Processes = document(&rbloat().arg("--json").output().unwrap().stdout);
    let has = |pid: i64| list.processes.iter().any(|it| i64::from(it.pid) == pid);
    let [own, copy] = [target.pid().into(), target.truth["copy"].as_i64().unwrap()];
    assert!(has(own) && !has(copy), "{copy}: {list:?}");
    assert!(target.finish());
}

/// The list of processes as a document has their trees.
#[test]
fn the_list_of_processes_is_a_document() {
    let target = family(&["idle", "idle"]);
    let list: Processes = document(&rbloat().arg("--json").output().unwrap().stdout);
    let parents = |pid: i32| list.processes.iter().filter(move |it| it.parent == Some(pid));
    let children: BTreeSet<_> = parents(target.pid()).map(|it| i64::from(it.pid)).collect();
    let forked = target.truth["children"].as_array().unwrap().iter().filter_map(|it| it.as_i64());
    assert_eq!(children, forked.collect());
    let parent = list.processes.iter().find(|it| it.pid == target.pid()).unwrap();
    assert!(parent.command.contains("idle") && parent.rss_bytes > 60_000_000, "{parent:?}");
    assert!(parent.pss_bytes.is_some_and(|pss| pss < parent.rss_bytes), "{parent:?}");
    let wrong = rbloat().args(["--json", "report", "1"]).output().unwrap();
    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(error.contains("`rbloat report 4242 --json`"), "{error}");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(target.finish());
}
