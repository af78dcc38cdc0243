//! Families of processes, whose shared memory counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use formats::{
    Family, FamilyDiff, FamilyMember, FamilyServer, FamilyStep, FamilyTrim, Group, Outlook,
    Processes, WorkerGrowth,
};
use ledger::{Cause, Write};
use testkit::Target;

use crate::errors::is_root;
use crate::{complaint, document, rbloat};

const PAGE: u64 = 4096;

fn family(words: &[&str]) -> Target {
    Target::scenario("family", words)
}

fn account(pid: i32, words: &[&str]) -> Family {
    account_of(&[&[pid.to_string().as_str()], words].concat())
}

fn account_of(words: &[&str]) -> Family {
    let output = tree(words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    document(&output.stdout)
}

fn tree(words: &[&str]) -> std::process::Output {
    let mut command = rbloat();
    command.args(["report", "--tree", "--json", "--max-pause", "10s"]);
    command.args(words).output().unwrap()
}

/// The process id of a child of the scenario.
fn child(target: &Target, index: usize) -> i32 {
    i32::try_from(target.truth["children"][index].as_i64().unwrap()).unwrap()
}

fn pids(family: &Family) -> Vec<i32> {
    let mut pids: Vec<i32> = family.members.iter().map(|it| it.pid).collect();
    pids.sort_unstable();
    pids
}

/// The frames of a process's resident pages: anonymous or not, by address.
fn frames(pid: i32) -> BTreeMap<u64, u64> {
    const PRESENT: u64 = 1 << 63;
    const ZERO_PAGE: u64 = 1 << 24;
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let flags = File::open("/proc/kpageflags").unwrap();
    let word = |file: &File, index: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, index * 8).map(|()| u64::from_le_bytes(word)).unwrap_or(0)
    };
    let mut frames = BTreeMap::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines() {
        if line.ends_with("[vvar]")
            || line.ends_with("[vvar_vclock]")
            || line.ends_with("[vsyscall]")
        {
            continue;
        }
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).unwrap() / PAGE);
        let mut entries = vec![0; (end - start) as usize * 8];
        pagemap.read_exact_at(&mut entries, start * 8).unwrap();
        for (page, entry) in (start..end).zip(entries.chunks_exact(8)) {
            let entry = u64::from_le_bytes(entry.try_into().unwrap());
            let frame = entry & ((1 << 55) - 1);
            if entry & PRESENT != 0 && word(&flags, frame) & ZERO_PAGE == 0 {
                frames.insert(page, frame);
            }
        }
    }
    frames
}

fn sum(family: &Family, of: fn(&formats::FamilyCause) -> u64) -> u64 {
    family.causes.iter().map(of).sum()
}

fn copied(family: &Family, cause: Cause) -> u64 {
    family.copied.iter().find(|row| row.cause == cause).unwrap().bytes
}

/// The account equals what /proc shows, to the page.
#[test]
fn every_frame_counts_once() {
    if !is_root() {
        return testkit::skip("only root sees the numbers of frames");
    }
    let words = ["idle", "write", "collect", "grow", "idle", "objects", "load", "idle"];
    let target = family(&words);
    // The first capture may add four pages of stack to a thread (docs/effects.md).
    account(target.pid(), &["--owners", "0"]);
    let account = account(target.pid(), &[]);
    let number = account.members.len();
    // The parent, and the child of `grow`.
    assert_eq!(number, words.len() + 2);
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

/// What a child does after the fork is in the account, by cause and owner.
#[test]
fn memory_that_was_copied_since_the_fork_is_named() {
    let target = family(&["idle", "write", "grow"]);
    let children = target.truth["children"].as_array().unwrap();
    // Any member leads to all of them.
    let account = account(i32::try_from(children[1].as_i64().unwrap()).unwrap(), &[]);
    let [parent, idle, write, grow, last] = &account.members[..] else { panic!("{account:?}") };
    assert_eq!((parent.pid, parent.parent, parent.copied_bytes), (target.pid(), None, 0));
    assert_eq!((write.parent, last.parent), (Some(parent.pid), Some(grow.pid)));
    let megabytes = |of: fn(&FamilyMember) -> u64, member: &FamilyMember| of(member) / 1_000_000;
    // 20,000 strings of 1 kB, and what is around them.
    assert!((19..26).contains(&megabytes(|it| it.copied_bytes, write)), "{write:?}");
    assert!(megabytes(|it| it.copied_bytes, idle) < 2, "{idle:?}");
    assert!(megabytes(|it| it.private_bytes, grow) < 4, "{grow:?}");
    let strings = copied(&account, Cause::RubyMalloc);
    assert!(strings > 18_000_000, "{:?}", account.copied);
    let owner = &account.copied_owners.as_ref().unwrap()[0];
    assert_eq!((&owner.name[..], owner.cause), ("String", Cause::RubyMalloc));
    // With the headers of chunks.
    assert!(owner.bytes.abs_diff(strings) * 10 < strings, "{owner:?}");
    // The memory that `grow` made is shared with its own child.
    let some = account.causes.iter().find(|row| row.cause == Cause::RubyMalloc).unwrap();
    assert!(some.shared_by_some_bytes > 20_000_000, "{some:?}");
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
    let target = Target::ruby(&format!("# {word}\n{ORPHANS}"));
    let children = target.truth["children"].as_array().unwrap();
    let pid = |child: &serde_json::Value| i32::try_from(child.as_i64().unwrap()).unwrap();
    let mut all: Vec<i32> = children.iter().map(pid).chain([target.pid()]).collect();
    all.sort_unstable();
    for &pid in &all {
        assert_eq!(pids(&account(pid, &["--owners", "0"])), all);
    }
    // A word names all processes, and other processes may be named with it.
    let other = Target::ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let both = account_of(&[&word, &other.pid().to_string(), "--owners", "0"]);
    assert_eq!(both.members.len(), 4);
    assert!(both.members.iter().any(|it| it.pid == other.pid() && !it.is_orphan));
    let orphans = both.members.iter().filter(|it| it.is_orphan);
    assert!(orphans.clone().all(|it| it.pid != target.pid()) && orphans.count() == 2, "{both:?}");
    assert!(sum(&both, |row| row.shared_by_some_bytes) > 9_000_000, "{:?}", both.causes);
    assert!(other.finish() && target.finish());
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
    assert!(parts.unmapped_cache_bytes >= 20_000_000, "{parts:?}");
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

/// Members may end at any time: the others count all the same.
#[test]
fn a_family_whose_members_come_and_go_has_an_account() {
    let target = Target::ruby(
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
    assert_eq!(incomplete.findings.len(), 2);
    assert!(incomplete.findings[0].what.contains("not read"), "{:?}", incomplete.findings);
    let difference = incomplete.memory_bytes.abs_diff(complete.memory_bytes);
    assert!(difference <= 8 * PAGE, "{incomplete:?} {complete:?}");
    assert!(target.finish());
}

#[test]
fn a_process_without_a_family_is_an_account_of_one() {
    let target = Target::ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let account = account(target.pid(), &["--owners", "0"]);
    let [only] = &account.members[..] else { panic!("{account:?}") };
    assert_eq!((only.private_bytes, only.copied_bytes), (account.memory_bytes, 0));
    assert_eq!(account.copied_owners, None);
    assert!(target.finish());
}

/// A collection writes the age of young objects into their slots. The scenario prepares its heap as the advice says.
#[test]
fn a_heap_that_was_not_prepared_for_the_fork_is_named() {
    let steps = |words: &[&str]| {
        let target = family(words);
        let account = account(target.pid(), &["--owners", "0"]);
        assert!(target.finish());
        account.steps
    };
    assert_eq!(steps(&["collect"]), []);
    let young = steps(&["young", "collect"]);
    let [FamilyStep::PrepareHeap { copied_bytes, .. }] = young[..] else { panic!("{young:?}") };
    // 200,000 objects of 40 bytes.
    assert!(copied_bytes > 200_000 * 40 * 3 / 4, "{copied_bytes}");
}

/// Each copied page counts for one reason, and for the classes that were written to.
#[test]
fn copies_have_reasons_and_classes() {
    let target = family(&["young", "collect", "objects", "write", "idle"]);
    let account = account(target.pid(), &[]);
    assert!(target.finish());
    let written: u64 = account.writes.iter().map(|row| row.bytes).sum();
    assert_eq!(written, account.members.iter().map(|it| it.copied_bytes).sum::<u64>());
    let row = |reason: Write| account.writes.iter().find(|row| row.reason == reason).unwrap();
    let most =
        |reason: Write| row(reason).owners.first().map(|it| (&it.name[..], it.bytes)).unwrap();
    // 200,000 objects of 40 bytes, once marked and once changed.
    for reason in [Write::Collector, Write::Objects] {
        let (name, bytes) = most(reason);
        assert_eq!(name, "Object", "{:?}", account.writes);
        assert!((6_000_000..10_000_000).contains(&bytes), "{:?}", account.writes);
    }
    let (name, bytes) = most(Write::Contents);
    assert_eq!(name, "String", "{:?}", account.writes);
    assert!((18_000_000..26_000_000).contains(&bytes), "{:?}", account.writes);
    assert!(account.writes.iter().all(|row| row.reason != Write::Unread), "{:?}", account.writes);
}

/// Compaction moves objects and changes references to them. Each page that it copies has a reason.
#[test]
fn the_copies_of_a_compaction_have_reasons() {
    let target = family(&["sparse", "compact"]);
    let account = account(target.pid(), &[]);
    assert!(target.finish());
    let written: u64 = account.writes.iter().map(|row| row.bytes).sum();
    assert_eq!(written, account.members[1].copied_bytes);
    assert!(written > 1 << 20, "{:?}", account.writes);
    assert!(account.writes.iter().all(|row| row.reason != Write::Unread), "{:?}", account.writes);
}

/// A write of what was there before leaves no word that differs. The objects on the page are named all the same.
#[test]
fn copies_with_the_same_contents_have_classes() {
    let target = family(&["same"]);
    let account = account(target.pid(), &[]);
    assert!(target.finish());
    let row = account.writes.iter().find(|row| row.reason == Write::Same).unwrap();
    let owner = &row.owners[0];
    assert_eq!(owner.name, "String", "{:?}", account.writes);
    assert!((18_000_000..24_000_000).contains(&owner.bytes), "{:?}", account.writes);
}

/// Only a program whose workers load the same code is advised to load it before.
#[test]
fn code_that_workers_load_is_named() {
    let report = |words: &[&str]| {
        let target = family(words);
        let account = account(target.pid(), &[]);
        assert!(target.finish());
        account
    };
    let late = report(&["puma", "load", "load", "objects"]);
    let code = late.late_code.as_ref().unwrap();
    let gem = &code.gems[0];
    assert_eq!((&gem.name[..], gem.version.as_deref(), gem.files), ("late", Some("1.0"), 100));
    assert!(code.largest_files[0].path.starts_with("/app/gems/late-1.0/lib/late"), "{code:?}");
    assert_eq!(code.largest_files[0].members, 2);
    let step = |account: &Family| {
        let is_load = |it: &&FamilyStep| matches!(it, FamilyStep::LoadBeforeFork { .. });
        account.steps.iter().find(is_load).cloned()
    };
    let Some(FamilyStep::LoadBeforeFork { repeated_bytes, has_application }) = step(&late) else {
        panic!("{:?} {code:?}", late.steps)
    };
    assert!(!has_application && repeated_bytes > 1 << 20);
    // Half of it: two processes have it.
    assert!(repeated_bytes.abs_diff(code.bytes / 2) < code.bytes / 20, "{code:?}");
    // The objects that one of them changed cannot be helped by preparing the heap.
    let [_, FamilyStep::Refork { worker, shared_bytes, workers: 2 }] = late.steps[..] else {
        panic!("{:?}", late.steps)
    };
    // The other one of the two that load, if it had been forked from this one: as it is with the child of one that loads.
    let reforked = report(&["load", "refork"]);
    let [parent, loads, forks, child] = &reforked.members[..] else { panic!("{reforked:?}") };
    assert_eq!((loads.parent, child.parent), (Some(parent.pid), Some(forks.pid)));
    let saved = loads.private_bytes - child.private_bytes;
    assert!((saved / 2..saved * 21 / 20).contains(&shared_bytes), "{shared_bytes} {saved}");
    let parent = &late.members[0];
    assert!(late.members.iter().any(|it| it.pid == worker && it.parent == Some(parent.pid)));
    // No known server, so no line that would fork again.
    assert!(reforked.steps.iter().all(|it| !matches!(it, FamilyStep::Refork { .. })));
    let early = report(&["puma", "loaded", "load", "idle"]);
    assert!(early.late_code.as_ref().is_some_and(|code| code.files == 0), "{early:?}");
    assert_eq!(early.steps, []);
}

/// Only if malloc keeps much free memory is a setting of malloc a cure.
#[test]
fn free_memory_of_workers_is_named() {
    let target = family(&["free", "write"]);
    let account = account(target.pid(), &["--owners", "0"]);
    assert!(target.finish());
    let child = account.members[1].pid;
    let [FamilyStep::ReturnFreeMemory { free_bytes, member }] = account.steps[..] else {
        panic!("{:?} {:?}", account.steps, account.causes)
    };
    assert!((70_000_000..100_000_000).contains(&free_bytes), "{free_bytes}");
    assert_eq!(member, child);
}

/// The trim of a family returns the free memory of each member, and breaks no sharing.
#[test]
fn a_family_is_trimmed() {
    let target = family(&["free", "idle"]);
    let run = |words: &[&str]| -> FamilyTrim {
        let mut command = rbloat();
        command.args(["trim", "--tree", "--json", "--max-pause", "10s"]).args(words);
        let output = command.arg(target.pid().to_string()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        document(&output.stdout)
    };
    let expected = run(&["--dry-run"]);
    assert_eq!(expected.members.len(), 3);
    assert!(expected.pss_bytes_after.is_none() && expected.findings.is_empty(), "{expected:?}");
    let private = expected.expected_private_bytes.unwrap();
    assert!((60_000_000..100_000_000).contains(&private), "{expected:?}");
    let trimmed = run(&[]);
    let returned = trimmed.pss_bytes_before - trimmed.pss_bytes_after.unwrap();
    // Shared pages that no member needs are returned, too.
    assert!(returned * 20 > private * 19, "{trimmed:?}");
    let account = account(target.pid(), &["--owners", "0"]);
    let [_, free, idle] = &account.members[..] else { panic!("{account:?}") };
    assert!(free.private_bytes < 20_000_000 && idle.private_bytes < 4_000_000, "{account:?}");
    assert_eq!(account.steps, []);
    assert!(target.finish());
}

/// The line about a member that could not be trimmed had its id twice.
#[test]
fn a_member_that_cannot_be_trimmed_is_named_once() {
    let target = family(&["idle", "idle"]);
    let stopped = child(&target, 0);
    let signal = |name: &str| {
        let words = [format!("-{name}"), stopped.to_string()];
        assert!(std::process::Command::new("kill").args(words).status().unwrap().success());
    };
    signal("STOP");
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{stopped}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    };
    while !is_stopped() {
        std::thread::yield_now();
    }
    let output = rbloat()
        .args(["trim", "--tree", "--max-pause", "10s", &target.pid().to_string()])
        .output()
        .unwrap();
    signal("CONT");
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    let [line] = lines[..] else { panic!("{text}") };
    assert_eq!(line.matches(&stopped.to_string()).count(), 1, "{line}");
    assert!(line.contains("stopped by a signal"), "{line}");
    assert!(text.contains("2 processes: PSS "), "{text}");
    assert!(target.finish());
}

/// The anonymous pages of a process by address: the number of processes that map each, and the frame of those that are shared. A
/// process that writes while a forked copy exists has another frame afterwards, which is private again.
fn users_of_pages(pid: i32) -> BTreeMap<u64, (u64, Option<u64>)> {
    const ANONYMOUS: u64 = 1 << 12;
    let [flags, counts] =
        ["flags", "count"].map(|name| File::open(format!("/proc/kpage{name}")).unwrap());
    let word = |file: &File, frame: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, frame * 8).unwrap();
        u64::from_le_bytes(word)
    };
    let frames = frames(pid).into_iter();
    let anonymous = frames.filter(|(_, frame)| word(&flags, *frame) & ANONYMOUS != 0);
    let users = |(page, frame): (u64, u64)| {
        let count = word(&counts, frame);
        (page, (count, (count > 1).then_some(frame)))
    };
    anonymous.map(users).collect()
}

/// The page faults of a process so far.
fn faults(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(7).unwrap().parse().unwrap()
}

/// An account of n members is n captures, one of each. No shared page changes its frame, and no page its number of users.
#[test]
fn an_account_breaks_no_sharing_and_is_one_capture_of_each_member() {
    if !is_root() {
        return testkit::skip("only root sees the numbers of frames");
    }
    let target = family(&["idle", "write", "collect", "objects", "grow"]);
    let members = pids(&account(target.pid(), &["--identical"]));
    assert_eq!(members.len(), 7);
    let all = || members.iter().map(|&pid| users_of_pages(pid)).collect::<Vec<_>>();
    let faults_of = |examine: &dyn Fn()| {
        let before: Vec<u64> = members.iter().map(|&pid| faults(pid)).collect();
        examine();
        members.iter().zip(before).map(|(&pid, before)| faults(pid) - before).collect::<Vec<_>>()
    };
    let before = all();
    // All of them share pages.
    assert!(before.iter().all(|it| it.values().filter(|it| it.0 > 1).count() > 1000));
    let of_account = faults_of(&|| {
        let account = account(target.pid(), &["--identical"]);
        assert!(account.members.iter().all(|it| it.capture.is_some()), "{account:?}");
    });
    let after = all();
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        let pid = members[index];
        let changed = before.iter().filter(|it| after.get(it.0) != Some(it.1)).collect::<Vec<_>>();
        assert!(changed.is_empty() && before.len() == after.len(), "process {pid}: {changed:?}");
    }
    let of_captures = faults_of(&|| {
        members.iter().for_each(|&pid| drop(crate::report(pid)));
    });
    for (of_account, of_capture) in of_account.iter().zip(&of_captures) {
        assert!(of_account <= of_capture, "{of_account} {of_captures:?}");
    }
    assert!(target.finish());
}

/// Another rbloat may be reading a member: its forked copy is none.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_forked_copy_is_no_member() {
    let target = Target::ruby(
        "clone, pause = 56, 34
         $VERBOSE = nil
         copy = syscall(clone, 0, 0, 0, 0, 0)
         loop { syscall(pause) } if copy == 0
         puts %(ready {\"copy\": #{copy}}); $stdout.flush; $stdin.read
         Process.kill(:KILL, copy); exit!(0)",
    );
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

/// Writes files with classes of 50 methods into a folder, for 80 parts of an application.
fn write_parts(folder: &Path) {
    let method = |number: u32| {
        // Ruby 2.7 has no endless methods.
        format!(
            "def run{number}(a, *c); c.map {{ |d| [a.to_s, d.size, d.inspect] }}.sort.first; end\n"
        )
    };
    let methods: String = (0..50).map(method).collect();
    for number in 0..80 {
        let path = folder.join(format!("part{number}.rb"));
        fs::write(path, format!("class Part{number}\n{methods}end\n")).unwrap();
    }
}

/// The account of a Puma cluster.
fn cluster(number: usize, preloads: bool) -> (Family, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_parts(folder.path());
    let socket = path("puma.socket");
    fs::write(
        path("config.ru"),
        "80.times { |number| require_relative \"part#{number}\" }
         run lambda { |_| sleep 0.05; [200, { 'content-type' => 'text/plain' }, [Process.pid.to_s]] }",
    )
    .unwrap();
    // When the master has ended, a worker of Puma 4 writes a line, and stays if nobody reads it: it kept the standard error of this
    // test open, and whatever waited for that to end waited forever.
    fs::write(
        path("puma.rb"),
        format!(
            "workers {number}; threads 1, 1; preload_app! {preloads}
             bind 'unix://{0}'; rackup '{1}'; stdout_redirect '/dev/null', nil, true
             out = $stdout.dup
             Thread.new {{ sleep 0.01 until File.socket?('{0}'); out.puts 'ready {{}}'; out.flush; $stdin.read; exit!(0) }}",
            socket.display(),
            path("config.ru").display()
        ),
    )
    .unwrap();
    let mut command = testkit::ruby();
    command.args(["-S", "puma", "--quiet", "--config"]).arg(path("puma.rb"));
    let target = Target::start(&mut command);
    // Until all workers have answered.
    let mut workers = BTreeSet::new();
    while workers.len() < number {
        std::thread::scope(|scope| {
            let ask = || crate::servers::ask(&socket).unwrap_or_default();
            let answers: Vec<_> = (0..number).map(|_| scope.spawn(ask)).collect();
            let answers = answers.into_iter().map(|answer| answer.join().unwrap());
            workers.extend(answers.filter_map(|it| it.lines().last()?.parse::<i32>().ok()));
        });
    }
    let words = target.pid().to_string();
    let text = rbloat().args(["report", "--tree", "--max-pause", "10s", &words]).output().unwrap();
    let account = account(*workers.first().unwrap(), &[]);
    assert!(workers.iter().all(|pid| account.members.iter().any(|it| it.pid == *pid)));
    assert!(target.finish());
    (account, String::from_utf8(text.stdout).unwrap())
}

/// Puma's workers load the program by themselves unless the master does.
#[test]
fn a_puma_cluster_is_advised_to_preload_unless_it_does() {
    let (account, text) = cluster(2, false);
    assert_eq!((account.members.len(), account.server), (3, Some(FamilyServer::Puma)));
    let is_preload =
        |it: &FamilyStep| matches!(it, FamilyStep::LoadBeforeFork { has_application: true, .. });
    assert!(account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(text.contains("preload_app!"), "{text}");
    let (account, text) = cluster(8, true);
    assert_eq!(account.members.len(), 9);
    assert!(!account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(!text.contains("preload_app!"), "{text}");
}

/// The account of a parent with workers that are Sidekiq's, which sidekiqswarm would start: it loads the application before or after it
/// forks them.
fn sidekiqs(number: usize, preloads: bool) -> (Family, String) {
    let folder = tempfile::tempdir().unwrap();
    write_parts(folder.path());
    let path = |name: &str| folder.path().join(name);
    let socket = path("redis.socket");
    let redis = crate::servers::redis(&socket);
    let jobs = format!(
        "80.times {{ |number| require_relative \"part#{{number}}\" }}
         redis = {{ url: 'unix://{}' }}
         Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
         Sidekiq.configure_server do |config|
           config.redis = redis
           (config.respond_to?(:logger) ? config : Sidekiq).logger.level = Logger::ERROR
           config.on(:startup) {{ $started.write('.') }}
         end",
        socket.display()
    );
    fs::write(path("jobs.rb"), jobs).unwrap();
    let script = format!(
        "require 'sidekiq/cli'
         ready, $started = IO.pipe
         {preloads} && 80.times {{ |number| require '{folder}/part' + number.to_s }}
         3.times {{ GC.start }}
         workers = Array.new({number}) do
           fork do
             $stdin.reopen('/dev/null')
             cli = Sidekiq::CLI.instance
             cli.parse(['-c', '2', '-r', '{folder}/jobs.rb'])
             cli.run
           end
         end
         ready.read({number})
         puts 'ready {{}}'; $stdout.flush; $stdin.read
         Process.kill(:KILL, *workers); exit!(0)",
        folder = folder.path().display()
    );
    let target = Target::ruby(&script);
    let account = account(target.pid(), &[]);
    let words = target.pid().to_string();
    let text = rbloat().args(["report", "--tree", "--max-pause", "10s", &words]).output().unwrap();
    assert!(target.finish());
    drop(redis);
    (account, String::from_utf8(text.stdout).unwrap())
}

/// Sidekiq's workers are known by their titles, and advised as Puma's are.
#[test]
fn workers_of_sidekiq_are_advised_to_preload_unless_they_do() {
    let is_preload =
        |it: &FamilyStep| matches!(it, FamilyStep::LoadBeforeFork { has_application: true, .. });
    let (account, text) = sidekiqs(2, false);
    assert_eq!((account.members.len(), account.server), (3, Some(FamilyServer::Sidekiq)));
    assert!(account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(text.contains("SIDEKIQ_PRELOAD_APP=1"), "{text}");
    let (account, text) = sidekiqs(8, true);
    assert_eq!((account.members.len(), account.server), (9, Some(FamilyServer::Sidekiq)));
    assert!(!account.steps.iter().any(is_preload), "{:?} {:?}", account.steps, account.late_code);
    assert!(!text.contains("SIDEKIQ_PRELOAD_APP"), "{text}");
    assert!(account.memory_bytes < account.rss_bytes / 3 * 2, "{text}");
}

/// If two of three children have made the same memory, that much more is identical than if all have made their own.
#[test]
fn identical_pages_are_counted() {
    let saved = |seeds: &str| {
        let target = Target::ruby(&format!(
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
    let rollups: Vec<_> = pids.map(|pid| capture::proc::rollup(pid).unwrap()).collect();
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
    let alone = Target::ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
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
        let (recorded, rollup) = (of(pid), capture::proc::rollup(pid).unwrap());
        // PSS of libraries depends on other processes.
        assert!(recorded.pss_bytes.unwrap().abs_diff(rollup.pss_bytes) < 4 << 20, "{recorded:?}");
        assert!(recorded.uss_bytes.unwrap().abs_diff(rollup.uss_bytes) < 4 << 20, "{recorded:?}");
    }
    assert!(of(child(&target, 1)).uss_bytes.unwrap() > 18_000_000);
    let output = rbloat().arg("plot").arg(&recorder.path).output().unwrap();
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

/// A snapshot of the family of a process, in this file.
fn keep(pid: i32, path: &Path) -> Family {
    let mut command = rbloat();
    command.args(["snapshot", "--tree", "--max-pause", "10s", &pid.to_string(), "-o"]);
    let output = command.arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Family::from_bytes(&fs::read(path).unwrap()).unwrap()
}

/// The snapshot of a family has its account. Other commands name the option that reads it.
#[test]
fn a_family_is_kept_in_a_file() {
    let target = family(&["idle", "write", "load"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("family.rbloat");
    account(target.pid(), &[]);
    let kept = keep(target.pid(), &path);
    let live = account(target.pid(), &[]);
    let file = path.to_str().unwrap();
    let read = account_of(&[file]);
    assert_eq!(read, kept);
    let private = |family: &Family| -> Vec<(i32, u64, u64)> {
        let members = family.members.iter();
        members.map(|it| (it.pid, it.private_bytes, it.copied_bytes)).collect()
    };
    assert_eq!(private(&kept), private(&live));
    assert_eq!((&kept.late_code, &kept.steps), (&live.late_code, &live.steps));
    for member in &kept.members {
        let written: u64 = member.writes.iter().map(|row| row.bytes).sum();
        assert_eq!(written, member.copied_bytes, "{member:?}");
    }
    let run = |words: &[&str]| complaint(&rbloat().args(words).output().unwrap());
    let wrong = folder.path().join("wrong.rbloat");
    let damaged = Family { memory_bytes: kept.memory_bytes + 1, ..kept.clone() };
    fs::write(&wrong, damaged.to_bytes()).unwrap();
    let (status, line) = run(&["report", "--tree", wrong.to_str().unwrap()]);
    assert!(status == 3 && line.contains("add up to"), "{status} {line}");
    for words in [["report", file], ["map", file], ["fix", file]] {
        let (status, line) = run(&words);
        assert!(status == 3 && line.contains("snapshot of a family"), "{words:?} {status} {line}");
    }
    let (status, line) = run(&["map", "--tree", file]);
    assert!(status == 2 && line.contains("needs a live process"), "{status} {line}");
    let one = crate::snapshots::Kept::of(target.pid());
    let (status, line) = run(&["report", "--tree", one.path().to_str().unwrap()]);
    assert!(status == 3 && line.contains("leave out --tree"), "{status} {line}");
    assert!(target.finish());
}

/// A parent and two workers. At each step, a worker writes to 1000 strings of the parent, and makes one of 500 kB.
const ERODING: &str = r#"
    KEPT = Array.new(20_000) { |i| 'x' * (1000 + i % 8) }
    3.times { GC.start }
    done, write = IO.pipe
    workers = Array.new(2) do
      steps, step = IO.pipe
      fork do
        step.close
        own = []
        from = 0
        while steps.gets
          KEPT[from, 1000].each { |text| text.setbyte(0, 121) }
          from += 1000
          own << 'y' * 500_000
          write << '.'
        end
        exit!(0)
      end
      step.sync = true
      step
    end
    loop do
      puts 'ready {}'
      $stdout.flush
      break unless $stdin.gets
      workers.each { |step| step.puts }
      done.read(2)
    end
    exit!(0)
"#;

const MINUTE_MS: u64 = 60_000;

/// The diff of these accounts, taken at these minutes, of a family with this limit.
fn family_diff(
    accounts: &[Family],
    minutes: &[u64],
    limit_bytes: Option<u64>,
) -> (FamilyDiff, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (number, (account, minute)) in accounts.iter().zip(minutes).enumerate() {
        let mut account = account.clone();
        for capture in account.members.iter_mut().filter_map(|it| it.capture.as_mut()) {
            capture.unix_ms = 1_700_000_000_000 + minute * MINUTE_MS;
        }
        let usage_bytes = account.memory_bytes;
        let group = Group { usage_bytes, limit_bytes, cache_bytes: 0, oom_kills: None };
        account.group = Some(group);
        let path = folder.path().join(format!("{number}.rbloat"));
        fs::write(&path, account.to_bytes()).unwrap();
        paths.push(path);
    }
    let run = |words: &[&str]| {
        let output = rbloat().args(["diff", "--tree"]).args(words).args(&paths).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    (document(&run(&["--json"])), String::from_utf8(run(&[])).unwrap().replace('\n', " "))
}

/// The growth of workers, by reason, and the time until the limit, only if the growth is steady.
#[test]
fn the_erosion_of_workers_has_a_rate_and_reasons() {
    let mut target = Target::ruby(ERODING);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat");
    account(target.pid(), &[]);
    let mut accounts = vec![keep(target.pid(), &path)];
    for _ in 0..3 {
        target.tell("step");
        target.next_truth();
        accounts.push(keep(target.pid(), &path));
    }
    let last = accounts[3].memory_bytes;
    let (diff, text) = family_diff(&accounts, &[0, 1, 2, 3], Some(last + 60_000_000));
    let worker = diff.worker.unwrap();
    assert_eq!(worker.workers, 2);
    // With the headers of chunks, and pages that are only partly written to.
    let WorkerGrowth { private_bytes_per_minute: private, copied_bytes_per_minute: copied, .. } =
        worker;
    assert!((1e6..1.5e6).contains(&copied), "{diff:?}");
    assert!((4.5e5..7e5).contains(&(private - copied)), "{diff:?}");
    assert_eq!(diff.writes[0].reason, Write::Contents);
    assert!((diff.writes[0].bytes.change as f64 / 6.0 - copied).abs() < 1e5, "{diff:?}");
    assert_eq!(diff.causes[0].cause, Cause::RubyMalloc);
    let Outlook::Grows { bytes_per_minute, seconds_to_limit: Some(seconds) } = diff.outlook else {
        panic!("{:?}", diff.outlook)
    };
    assert!((bytes_per_minute - 2.0 * private).abs() < 3e5, "{diff:?}");
    assert!((seconds / 60.0 - 60e6 / bytes_per_minute).abs() < 0.1, "{diff:?}");
    for words in ["per minute (mean of 2 workers)", "reaches the limit of", "REASON OF THE COPY"] {
        assert!(text.contains(words), "{text}");
    }
    let outlook = |accounts: &[Family], minutes: &[u64], limit| {
        let (diff, text) = family_diff(accounts, minutes, limit);
        (diff.outlook, text)
    };
    let (no_limit, text) = outlook(&accounts, &[0, 1, 2, 3], None);
    assert!(matches!(no_limit, Outlook::Grows { seconds_to_limit: None, .. }), "{no_limit:?}");
    assert!(text.contains("It has no memory limit"), "{text}");
    // Whatever the order of the files, the oldest comes first.
    let turned: Vec<Family> = accounts.iter().rev().cloned().collect();
    assert!(matches!(outlook(&turned, &[3, 2, 1, 0], None).0, Outlook::Grows { .. }));
    let (early, text) = outlook(&accounts[2..], &[0, 1], Some(last));
    assert!(early == Outlook::TooEarly && text.contains("needs three snapshots"), "{text}");
    let (slower, text) = outlook(&accounts, &[0, 1, 2, 60], Some(last));
    assert!(slower == Outlook::LevelsOff && text.contains("more and more slowly"), "{text}");
    let (faster, text) = outlook(&accounts, &[0, 60, 61, 62], Some(last));
    assert!(faster == Outlook::Uneven && text.contains("from snapshot to snapshot"), "{text}");
    let same = vec![accounts[0].clone(); 3];
    let (idle, text) = outlook(&same, &[0, 1, 2], Some(last));
    assert!(idle == Outlook::NoGrowth && text.contains("does not grow"), "{text}");
    let mut others = accounts.clone();
    let worker = &mut others[1].members[1];
    worker.pid += 100_000;
    let pid = worker.pid;
    let (restarted, text) = outlook(&others, &[0, 1, 2, 3], Some(last));
    assert!(restarted == Outlook::OtherWorkers, "{restarted:?}");
    assert!(text.contains("started or ended"), "{text}");
    let (new, _) = family_diff(&others[..2], &[0, 1], None);
    assert_eq!(
        (&new.started[..], new.ended.len(), new.worker.unwrap().workers),
        (&[pid][..], 1, 1)
    );
    assert!(target.finish());
}

/// One command takes the accounts by itself, and the limit of growth holds for the whole family.
#[test]
fn a_family_is_compared_with_itself_later() {
    let target = family(&["idle", "write"]);
    let run = |words: &[&str]| {
        let mut command = rbloat();
        command.args(["diff", "--tree", "--json", "--max-pause", "10s"]).args(words);
        command.output().unwrap()
    };
    let pid = target.pid().to_string();
    let output = run(&["--every", "1s", "--times", "3", &pid]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let diff: FamilyDiff = document(&output.stdout);
    assert_eq!((diff.points.len(), diff.members.len(), diff.outlook), (3, 3, Outlook::NoGrowth));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rbloat");
    let mut smaller = keep(target.pid(), &path);
    let strings = smaller.causes.iter_mut().find(|row| row.cause == Cause::RubyMalloc).unwrap();
    smaller.memory_bytes -= std::mem::take(&mut strings.shared_by_some_bytes);
    smaller.memory_bytes -= std::mem::take(&mut strings.shared_by_all_bytes);
    fs::write(&path, smaller.to_bytes()).unwrap();
    let output = run(&["--fail-over", "10MiB", path.to_str().unwrap(), &pid]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{complaint}");
    assert!(complaint.contains("memory of the family grew by"), "{complaint}");
    assert!(target.finish());
}

/// The map of a member colours as many pages as the account counts.
#[test]
fn the_map_of_a_member_shows_who_shares_its_pages() {
    if !is_root() {
        return testkit::skip("only root sees the numbers of frames");
    }
    let target = family(&["write", "idle"]);
    account(target.pid(), &[]);
    let folder = tempfile::tempdir().unwrap();
    let [page, picture] = ["a.html", "a.png"].map(|name| folder.path().join(name));
    let writer = child(&target, 0);
    let mut command = rbloat();
    command.args(["map", "--tree", "--max-pause", "10s", &writer.to_string(), "-o"]);
    let output = command.arg(&page).arg("--png").arg(&picture).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(&picture).unwrap().starts_with(b"\x89PNG"));
    let account = account(target.pid(), &[]);
    let member = account.members.iter().find(|it| it.pid == writer).unwrap();
    let mut browser = testkit::Browser::open(&page, "", [1280, 900]);
    browser.wait_until("document.documentElement?.dataset.drawnMs !== undefined");
    let mut number = |script: &str| browser.evaluate(script).as_u64().unwrap();
    let mut pages = |entry: u64| {
        number(&format!(
            "window.rbloat.memoryMap.pageUses.reduce((sum, use, page) => sum + ((use === 1 || use === 3)
                && window.rbloat.colours.sharing[page] === {entry} ? 1 : 0), 0)"
        ))
    };
    let [all, some, copied, new] = [0, 1, 2, 3].map(&mut pages);
    assert_eq!(copied * PAGE, member.copied_bytes);
    assert_eq!((copied + new) * PAGE, member.private_bytes);
    assert_eq!((all + some + copied + new) * PAGE, member.rss_bytes);
    // Each frame that all share is at one page of it.
    assert!((all * PAGE).abs_diff(sum(&account, |row| row.shared_by_all_bytes)) < 1 << 20);
    let text = |script: &str| browser.evaluate(script).as_str().unwrap().to_owned();
    let mut text = text;
    let legend = text("document.getElementById('legend').textContent");
    assert!(
        legend.contains("shared by all 3 processes") && legend.contains("a copy since"),
        "{legend}"
    );
    let pressed = text("document.querySelector('[data-view][aria-pressed=true]').textContent");
    assert_eq!(pressed, "By sharing");
    let alone = Target::ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let output = rbloat().args(["map", "--tree", &alone.pid().to_string()]).output().unwrap();
    let (status, line) = complaint(&output);
    assert!(status == 3 && line.contains("has no family"), "{status} {line}");
    assert!(alone.finish() && target.finish());
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
