//! A command that was started here, and all that comes of it.

use std::collections::BTreeSet;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use capture::proc::{Member, Tree};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

pub(crate) struct Family {
    pub(crate) child: Child,
    tree: Tree,
    /// Those that lived at the last look.
    pub(crate) members: Vec<Member>,
    /// Whether orphans were found after that.
    has_orphans: bool,
    /// How the command itself ended; others may live on.
    pub(crate) status: Option<ExitStatus>,
}

impl Family {
    pub(crate) fn new(child: Child) -> Self {
        let tree = Tree::new(child.id().cast_signed());
        Self { child, tree, members: Vec::new(), has_orphans: false, status: None }
    }

    /// The command's process, until it has ended and was waited for: then another one may have its id.
    pub(crate) fn waited_for(&self) -> Option<i32> {
        self.status.is_none().then(|| self.child.id().cast_signed())
    }

    pub(crate) fn look(&mut self) {
        // A command that has ended is a zombie until we ask; what it left behind may go on.
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.members = self.tree.look();
        self.has_orphans = false;
    }

    /// Whether any of it lives. Orphans have to be looked for after the others: whoever ended before that look has
    /// left its own by then.
    pub(crate) fn lives(&self) -> bool {
        !self.members.is_empty() || self.has_orphans
    }

    /// Whether an orphan comes of it: one that was seen before, or is in the process group that the command has
    /// for itself.
    pub(crate) fn has(&self, orphan: i32) -> bool {
        let group = || getpgid(Some(Pid::from_raw(orphan))).ok();
        self.tree.has(orphan) || group() == Some(Pid::from_raw(self.child.id().cast_signed()))
    }

    pub(crate) fn adopt(&mut self, orphan: i32) {
        self.tree.adopt(orphan);
        self.has_orphans = true;
    }
}

/// How processes are brought to their end: each is asked once, and killed when it is late.
pub(crate) struct Ending {
    deadline: Instant,
    asked: BTreeSet<(i32, u64)>,
}

impl Ending {
    /// They have so much time from now on.
    pub(crate) fn within(patience: Duration) -> Self {
        Self { deadline: Instant::now() + patience, asked: BTreeSet::new() }
    }

    pub(crate) fn ask(&mut self, members: &[Member]) {
        let is_late = Instant::now() >= self.deadline;
        for member in members {
            let is_new = self.asked.insert((member.pid, member.started_ticks));
            if is_new || is_late {
                let signal = if is_late { Signal::SIGKILL } else { Signal::SIGTERM };
                // It may have ended meanwhile.
                let _ = kill(Pid::from_raw(member.pid), signal);
            }
        }
    }
}
