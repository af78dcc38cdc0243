//! Processes of programs that rbloat started whose parent has ended: daemons, and workers whose master died.

use std::collections::BTreeSet;

use linux::tracee::has_ended;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Makes rbloat the parent of orphans in place of init (a child subreaper), so that none of them gets lost.
pub struct Orphans {
    /// Children from before: the process that became rbloat by exec may have had some.
    not_ours: BTreeSet<i32>,
}

impl Orphans {
    /// Becomes the parent of orphans from now on. If the kernel refuses that, no orphans are found.
    pub fn take_in() -> Self {
        let _ = set_child_subreaper(true);
        Self { not_ours: children().into_iter().collect() }
    }

    /// Returns the ids of living orphans, and reaps orphans that have ended. The children `waited_for` elsewhere are
    /// left alone.
    pub fn look(&self, waited_for: &[i32]) -> Vec<i32> {
        let is_orphan = |pid: &i32| !waited_for.contains(pid) && !self.not_ours.contains(pid);
        let lives = |pid: &i32| {
            let has_ended = has_ended(*pid);
            if has_ended {
                let _ = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
            }
            !has_ended
        };
        children().into_iter().filter(is_orphan).filter(lives).collect()
    }
}

fn children() -> Vec<i32> {
    linux::proc::children(std::process::id().cast_signed())
}
