//! Families of processes, whose shared memory counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;

use formats::{Family, FamilyMember, FamilyStep};
use ledger::Cause;
use testkit::Target;

use crate::errors::is_root;
use crate::{complaint, document, rbloat};

const PAGE: u64 = 4096;

fn family(words: &[&str]) -> Target {
    Target::scenario("family", words)
}

fn account(pid: i32, words: &[&str]) -> Family {
    let mut command = rbloat();
    command.args(["report", "--tree", "--json", "--max-pause", "10s", &pid.to_string()]);
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    document(&output.stdout)
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
    let target = family(&["idle", "write", "collect", "grow"]);
    // The first capture may add four pages of stack to a thread (docs/effects.md).
    account(target.pid(), &["--owners", "0"]);
    let account = account(target.pid(), &[]);
    assert_eq!(account.members.len(), 6);
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
    assert_eq!(sum(&account, |row| row.shared_by_all_bytes), count(&|users| users.len() == 6));
    let some = count(&|users| (2..6).contains(&users.len()));
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

#[test]
fn a_file_has_no_family() {
    let output = rbloat().args(["report", "--tree", "a.rbloat"]).output().unwrap();
    let (status, line) = complaint(&output);
    assert_eq!(status, 2);
    assert!(line.contains("needs a live process"), "{line}");
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
