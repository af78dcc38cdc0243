//! Processes that have lost their parent, of programs that we started: daemons, and workers whose master died.

use std::collections::BTreeSet;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// With this value they come to us, as they would to init otherwise: so none of them is lost sight of.
pub struct Orphans {
    /// Whoever became us by exec may have had children before.
    not_ours: BTreeSet<i32>,
}

impl Orphans {
    /// From now on they come to us. Where the kernel refuses that, there are none.
    pub fn take_in() -> Self {
        let _ = set_child_subreaper(true);
        Self { not_ours: children().into_iter().collect() }
    }

    /// Those that live. Those that have ended are reaped, since nobody else would; but not those that are
    /// `waited_for` elsewhere.
    pub fn look(&self, waited_for: &[i32]) -> Vec<i32> {
        let is_orphan = |pid: &i32| !waited_for.contains(pid) && !self.not_ours.contains(pid);
        let lives = |pid: &i32| {
            let status = waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG));
            matches!(status, Ok(WaitStatus::StillAlive))
        };
        children().into_iter().filter(is_orphan).filter(lives).collect()
    }
}

fn children() -> Vec<i32> {
    capture::proc::children(std::process::id().cast_signed())
}
