//! A program that rbloat started, with all of its descendants.

use std::collections::BTreeSet;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use linux::proc::{Member, Tree};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use crate::signals::exit_status;

/// The processes of a program.
pub(crate) struct ProgramTree {
    pub(crate) child: Child,
    tree: Tree,
    /// The processes that lived at the last look.
    pub(crate) members: Vec<Member>,
    /// True if orphans were adopted after that look.
    has_orphans: bool,
    /// The status with which the program itself ended. Its descendants may live on.
    pub(crate) status: Option<ExitStatus>,
}

impl ProgramTree {
    pub(crate) fn new(child: Child) -> Self {
        let tree = Tree::new(child.id().cast_signed());
        Self { child, tree, members: Vec::new(), has_orphans: false, status: None }
    }

    /// Returns the id of the program's process, until that was waited for: another process may get its id then.
    pub(crate) fn waited_for(&self) -> Option<i32> {
        self.status.is_none().then(|| self.child.id().cast_signed())
    }

    pub(crate) fn look(&mut self) {
        // A program that has ended is a zombie until it is waited for.
        if self.status.is_none() {
            self.status = exit_status(&mut self.child).ok().flatten();
        }
        self.members = self.tree.look();
        self.has_orphans = false;
    }

    /// Returns true if a process lives. Orphans must be looked for after the others, since a process that ends
    /// between the two looks leaves its children as orphans.
    pub(crate) fn lives(&self) -> bool {
        !self.members.is_empty() || self.has_orphans
    }

    /// Returns true if an orphan descends from the program: it was seen before, or is in the program's own process
    /// group.
    pub(crate) fn has(&self, orphan: i32) -> bool {
        let group = || getpgid(Some(Pid::from_raw(orphan))).ok();
        self.tree.has(orphan) || group() == Some(Pid::from_raw(self.child.id().cast_signed()))
    }

    pub(crate) fn adopt(&mut self, orphan: i32) {
        self.tree.adopt(orphan);
        self.has_orphans = true;
    }
}

/// The termination of processes: each gets SIGTERM once, and SIGKILL after the deadline.
pub(crate) struct Termination {
    deadline: Instant,
    asked: BTreeSet<(i32, u64)>,
}

impl Termination {
    /// A termination whose deadline is `patience` from now.
    pub(crate) fn within(patience: Duration) -> Self {
        Self { deadline: Instant::now() + patience, asked: BTreeSet::new() }
    }

    pub(crate) fn ask(&mut self, members: &[Member]) {
        let is_late = Instant::now() >= self.deadline;
        for member in members {
            let is_new = self.asked.insert((member.pid, member.started_ticks));
            if is_new || is_late {
                let signal = if is_late { Signal::SIGKILL } else { Signal::SIGTERM };
                // An error means that the process has ended meanwhile.
                let _ = kill(Pid::from_raw(member.pid), signal);
            }
        }
    }
}
