//! A process and its descendants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::stat::{Stat, Status};
use super::{Identity, processes, status, threads, time};
use crate::arch::page_size;

/// A process and its descendants over time.
///
/// A process that was seen once belongs to the tree until it ends, even if its parent ends before: daemons
/// leave their parents on purpose. A process that starts and ends between two looks is not seen; the kernel adds its
/// times to its parent, once that has waited for it. A daemon whose parent started and ended between two looks is
/// not seen either: a caller that knows it adds it by [`Tree::adopt`].
#[derive(Debug)]
pub struct Tree {
    /// Processes that belong to the tree from the next look on.
    joining: Vec<i32>,
    /// Each member's id and start time, since the kernel reuses ids.
    members: BTreeMap<i32, u64>,
}

/// A process at one instant, of a [`Tree`] or alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The process id.
    pub pid: i32,
    /// The id of its current parent.
    pub parent: i32,
    /// The time at which it was started, in clock ticks since boot. Together with the id it identifies the process.
    pub started_ticks: u64,
    /// A number that changes when the process becomes another program by exec; 0 if the kernel hides it.
    pub program: u64,
    /// True if it was forked and has not become another program by exec since.
    pub is_forked: bool,
    /// True if its end sends no signal to its parent: a forked copy that rbloat made. fork(2) and its like create no such process.
    pub is_copy: bool,
    /// The state, a letter of proc(5).
    pub state: char,
    /// CPU time in user mode.
    pub user_time: Duration,
    /// CPU time in the kernel.
    pub system_time: Duration,
    /// Page faults without a read from disk.
    pub minor_faults: u64,
    /// Page faults with a read from disk.
    pub major_faults: u64,
    /// The number of threads.
    pub threads: u64,
    /// Resident bytes by the kernel's fast count, which may be off by some pages for each processor.
    pub rss_bytes: u64,
}

/// `PF_FORKNOEXEC` among the flags of a process.
const FORKED_WITHOUT_EXEC: u32 = 0x40;

impl Tree {
    /// Creates the tree of the process `root`.
    #[must_use]
    pub fn new(root: i32) -> Self {
        Self { joining: vec![root], members: BTreeMap::new() }
    }

    /// Adds a process whose parent is no member.
    pub fn adopt(&mut self, pid: i32) {
        self.joining.push(pid);
    }

    /// Returns true if the process belonged to the tree at the last look.
    #[must_use]
    pub fn has(&self, pid: i32) -> bool {
        self.members.contains_key(&pid)
    }

    /// Returns the living processes of the tree, ascending by id; none when the last one has ended. Zombies, which have no
    /// memory, and forked copies that rbloat made are left out.
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
            let Some(member) = member(pid).filter(|it| !it.is_copy) else { continue };
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

/// Returns the family of process `pid`: the processes that have forked from each other without an exec, also if their parents have
/// ended. Those whose parents are no members come first, then the others by their start. Empty if there is no such process.
#[must_use]
pub fn family(pid: i32) -> Vec<Member> {
    let Some(named) = member(pid) else { return Vec::new() };
    let program = Identity::of(pid).ok();
    let has_same_exec = |other: i32| {
        other == pid
            || program
                .as_ref()
                .zip(Identity::of(other).ok())
                .is_some_and(|(program, other)| other.is_of_same_exec(program))
    };
    let mut members: Vec<Member> =
        processes().unwrap_or_default().into_iter().filter_map(member).collect();
    // Another rbloat may read one of them.
    members.retain(|it| !it.is_copy && are_related(&named, it) && has_same_exec(it.pid));
    if members.is_empty() {
        members.push(named);
    }
    sort_by_age(&mut members);
    members
}

/// Sorts members: those whose parents are no members first, then the others by their start.
pub fn sort_by_age(members: &mut [Member]) {
    let pids: BTreeSet<i32> = members.iter().map(|it| it.pid).collect();
    members.sort_by_key(|it| (pids.contains(&it.parent), it.started_ticks, it.pid));
}

/// Returns the parent of process `pid`, if `pid` was forked from it without an exec.
#[must_use]
pub fn parent_in_family(pid: i32) -> Option<i32> {
    let child = member(pid)?;
    let parent = member(child.parent)?;
    are_related(&parent, &child).then_some(parent.pid)
}

/// An exec moves the stack, whose address is random.
fn are_related(parent: &Member, child: &Member) -> bool {
    parent.program != 0 && parent.program == child.program
}

/// Returns the children of process `pid`, zombies included; none if there is no such process.
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

/// Returns the process `pid` if it was started at this time, in clock ticks since boot. Another one may have its id by now.
#[must_use]
pub fn member_since(pid: i32, started_ticks: u64) -> Option<Member> {
    member(pid).filter(|member| member.started_ticks == started_ticks)
}

/// Returns the process `pid`; `None` if it is gone, a zombie, or about to be one: its memory goes first.
#[must_use]
pub fn member(pid: i32) -> Option<Member> {
    let stat = Stat::read(pid).ok()?;
    // Its first thread may have ended before the others.
    if matches!(stat.state, 'Z' | 'X') && threads(pid).ok()?.is_empty() {
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
        is_forked: stat.flags & FORKED_WITHOUT_EXEC != 0,
        is_copy: stat.exit_signal == Some(0),
        state: stat.state,
        user_time: time(stat.utime),
        system_time: time(stat.stime),
        minor_faults: stat.minflt,
        major_faults: stat.majflt,
        threads: stat.num_threads,
        rss_bytes: stat.rss.saturating_mul(page_size()),
    })
}

/// Returns the ended children of process `pid` whose end sends no signal ([`Member::is_copy`]), by their ids in its own pid
/// namespace.
#[must_use]
pub fn ended_without_signal(pid: i32) -> Vec<i32> {
    let has_ended = |child: &i32| {
        Stat::read(*child)
            .is_ok_and(|stat| stat.state == 'Z' && stat.ppid == pid && stat.exit_signal == Some(0))
    };
    let Ok(Status { nspid: own, .. }) = status(pid) else { return Vec::new() };
    let own_id = |child: i32| status(child).ok()?.nspid.get(own.len().checked_sub(1)?).copied();
    // A kernel may be built without lists of children.
    let has_lists = std::fs::exists("/proc/thread-self/children").unwrap_or(false);
    let candidates = if has_lists { children(pid) } else { processes().unwrap_or_default() };
    candidates.into_iter().filter(has_ended).filter_map(own_id).collect()
}
