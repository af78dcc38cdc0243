//! Pages that members share, and pages that were copied since the fork.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use formats::{FamilyMember, FamilyStep};
use ledger::{Cause, Write};
use testkit::Target;

use super::{PAGE, account, child, copied, family, frames, pids, sum};
use crate::errors::is_root;
use crate::{complaint, rbloat};

/// The account has the memory that a child touched after the fork, by cause and owner.
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
    let target = family(&["small", "write", "collect", "grow"]);
    let members = pids(&account(target.pid(), &["--identical"]));
    assert_eq!(members.len(), 5);
    // The kernel may move pages meanwhile: in place of a frame, the first page that has it.
    let all = || {
        let mut first_pages = HashMap::new();
        let of_members = members.iter().enumerate().map(|(member, &pid)| {
            let mut first = |page, frame| *first_pages.entry(frame).or_insert((member, page));
            let users = users_of_pages(pid).into_iter();
            users
                .map(|(page, (count, frame))| (page, (count, frame.map(|it| first(page, it)))))
                .collect::<BTreeMap<_, _>>()
        });
        of_members.collect::<Vec<_>>()
    };
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

/// The map of a member colours as many pages as the account counts.
#[test]
fn the_map_of_a_member_shows_who_shares_its_pages() {
    if !is_root() {
        return testkit::skip("only root sees the numbers of frames");
    }
    let target = family(&["small", "write", "idle"]);
    account(target.pid(), &[]);
    let folder = tempfile::tempdir().unwrap();
    let [page, picture] = ["a.html", "a.png"].map(|name| folder.path().join(name));
    let writer = child(&target, 0);
    for file in [&page, &picture] {
        let mut command = rbloat();
        command.args(["map", "--tree", "--max-pause", "10s", &writer.to_string(), "-o"]);
        let output = command.arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
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
    let alone = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let output = rbloat().args(["map", "--tree", &alone.pid().to_string()]).output().unwrap();
    let (status, line) = complaint(&output);
    assert!(status == 3 && line.contains("has no family"), "{status} {line}");
    assert!(alone.finish() && target.finish());
}
