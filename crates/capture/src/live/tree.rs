//! A process and all that it starts, by what the kernel counts of each: without stopping any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use procfs_core::process::Stat;

use super::proc;
use crate::{Error, PAGE_SIZE};

/// A process and its descendants, as they come and go.
///
/// Whoever was once seen belongs to the tree until it ends, also where its parent ended before: daemons
/// leave their parents on purpose. What comes and goes between two looks is not seen; what it did is
/// counted by its parent, once that has waited for it. Nor is a daemon whose parent came and went: who knows
/// of it gives it to the tree ([`Tree::adopt`]).
#[derive(Debug)]
pub struct Tree {
    /// Those that belong to it from the next look on.
    joining: Vec<i32>,
    /// Each member's id, and when it was started: an id alone is given anew one day.
    members: BTreeMap<i32, u64>,
}

/// A process of a [`Tree`] at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its process id.
    pub pid: i32,
    /// The id of its parent by now.
    pub parent: i32,
    /// When it was started, in clock ticks since the machine was: with its id, which process it is.
    pub started_ticks: u64,
    /// Changes when the process becomes another program by exec; 0 where the kernel keeps it from us.
    pub program: u64,
    /// Its state, a letter of proc(5).
    pub state: char,
    /// The time that it has computed outside of the kernel.
    pub user_time: Duration,
    /// The time that the kernel has computed for it.
    pub system_time: Duration,
    /// Page faults that took no reading from a disk.
    pub minor_faults: u64,
    /// Page faults that took one.
    pub major_faults: u64,
    /// How many threads it has.
    pub threads: u64,
    /// Resident bytes by the kernel's fast count, which may be off by some pages for each processor.
    pub rss_bytes: u64,
}

/// What the page tables of a process say, in bytes: exact, but the kernel has to walk them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Resident: what the process has in memory, also where others share it.
    pub rss_bytes: u64,
    /// Its proportional part: a page that four processes share counts for a quarter.
    pub pss_bytes: u64,
    /// What it has for itself alone.
    pub uss_bytes: u64,
    /// What is swapped out.
    pub swap_bytes: u64,
}

impl Tree {
    /// The tree of the process `root`.
    #[must_use]
    pub fn new(root: i32) -> Self {
        Self { joining: vec![root], members: BTreeMap::new() }
    }

    /// Lets a process belong to the tree that none of its members is a parent of any more.
    pub fn adopt(&mut self, pid: i32) {
        self.joining.push(pid);
    }

    /// Whether the process belonged to the tree at the last look.
    #[must_use]
    pub fn has(&self, pid: i32) -> bool {
        self.members.contains_key(&pid)
    }

    /// All processes of the tree that live, by their ids: none when the last one has ended. Zombies have no
    /// memory, and are none.
    pub fn look(&mut self) -> Vec<Member> {
        let mut found: BTreeMap<i32, Member> = BTreeMap::new();
        let mut looked_at = BTreeSet::new();
        let mut next: Vec<(i32, Option<u64>)> =
            self.members.iter().map(|(&pid, &started)| (pid, Some(started))).collect();
        next.extend(self.joining.drain(..).map(|pid| (pid, None)));
        while let Some((pid, started)) = next.pop() {
            if !looked_at.insert(pid) {
                continue;
            }
            let Some(member) = member(pid) else { continue };
            // Another process may have this id by now.
            if started.is_some_and(|started| started != member.started_ticks) {
                continue;
            }
            next.extend(children(pid).into_iter().map(|child| (child, None)));
            found.insert(pid, member);
        }
        self.members = found.iter().map(|(&pid, member)| (pid, member.started_ticks)).collect();
        found.into_values().collect()
    }
}

/// Those that the threads of the process `pid` have started, and that live or wait to be reaped; none of a process
/// that there is not.
#[must_use]
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut children = Vec::new();
    for task in tasks.flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    children
}

/// `None` where the process is gone, a zombie, or about to be one: its memory goes first.
fn member(pid: i32) -> Option<Member> {
    let stat: Stat = proc::parse(pid, "stat").ok()?;
    // Its first thread may have ended before the others.
    if matches!(stat.state, 'Z' | 'X') && proc::threads(pid).ok()?.is_empty() {
        return None;
    }
    if stat.vsize == 0 && stat.state != 'Z' {
        return None;
    }
    Some(Member {
        pid,
        parent: stat.ppid,
        started_ticks: stat.starttime,
        program: stat.startstack,
        state: stat.state,
        user_time: proc::time(stat.utime),
        system_time: proc::time(stat.stime),
        minor_faults: stat.minflt,
        major_faults: stat.majflt,
        threads: u64::try_from(stat.num_threads).unwrap_or(0),
        rss_bytes: stat.rss.saturating_mul(PAGE_SIZE),
    })
}

/// What the page tables of the process `pid` say now.
///
/// # Errors
/// Where there is no such process, it has no memory, or the kernel refuses.
pub fn rollup(pid: i32) -> Result<Rollup, Error> {
    let rollup = proc::Rollup::read(pid)?;
    let bytes = |key: &str| rollup.bytes(key).unwrap_or(0);
    Ok(Rollup {
        rss_bytes: rollup.bytes("Rss:").ok_or(Error::Ended { pid, how: "ended" })?,
        pss_bytes: bytes("Pss:"),
        uss_bytes: bytes("Private_Clean:") + bytes("Private_Dirty:") + bytes("Private_Hugetlb:"),
        swap_bytes: bytes("Swap:"),
    })
}

/// The command line of a process, words joined by blanks, without control characters; its name in brackets
/// where it has none.
///
/// # Errors
/// Where there is no such process.
pub fn command_line(pid: i32) -> Result<String, Error> {
    proc::command_line(pid)
}

/// The time that this process, rbloat, has computed with all its threads, in the kernel and outside.
#[must_use]
pub fn own_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a timespec to where one is.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "every Linux has this clock");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
