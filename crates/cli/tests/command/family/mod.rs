//! Families of processes, whose shared memory counts once.

mod accounts;
mod advice;
mod copies;
mod growth;
mod members;
mod trims;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use formats::Family;
use ledger::Cause;
use testkit::Target;

use crate::{document, rbloat};

const PAGE: u64 = 4096;

/// The scenario with these words. All its processes wait, so that each has a thread at a safe point.
fn family(words: &[&str]) -> Target {
    let target = Target::scenario("family", words);
    (0..target.truth["children"].as_array().unwrap().len())
        .map(|index| child(&target, index))
        .chain([target.pid()])
        .for_each(testkit::wait_until_asleep);
    target
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
