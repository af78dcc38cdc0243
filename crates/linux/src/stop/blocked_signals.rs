//! Signals that are held back for a while.

use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigSet, Signal};

/// Signals that the calling thread blocks. Threads that it starts inherit them. When this value is dropped, those
/// that were not blocked before are unblocked.
pub struct BlockedSignals {
    newly: SigSet,
    /// A signal mask belongs to one thread.
    not_send: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks the signals by which a terminal stops a process: SIGTSTP, SIGTTIN, SIGTTOU.
    #[must_use]
    pub fn job_control() -> Self {
        Self::block([Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU])
    }

    /// Blocks the signals by which a person, a service manager or a closed terminal asks a process to end: SIGINT,
    /// SIGTERM, SIGHUP.
    #[must_use]
    pub fn requests_to_end() -> Self {
        Self::block([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
    }

    fn block(signals: [Signal; 3]) -> Self {
        let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
        let newly: SigSet =
            signals.into_iter().filter(|&signal| !before.contains(signal)).collect();
        let _ = newly.thread_block();
        Self { newly, not_send: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let _ = self.newly.thread_unblock();
    }
}

/// Lets a program start with no signal blocked. Otherwise it inherits the signals that the calling thread blocks, and few
/// programs unblock them.
pub fn unblock_signals(command: &mut Command) -> &mut Command {
    // SAFETY: the closure only calls pthread_sigmask, which may be called between fork and exec.
    unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_starts_with_no_signal_blocked() {
        let _blocked = BlockedSignals::requests_to_end();
        let mut command = Command::new("grep");
        let output = unblock_signals(command.args(["SigBlk", "/proc/self/status"])).output();
        assert_eq!(output.unwrap().stdout, b"SigBlk:\t0000000000000000\n");
    }

    fn blocks(signal: Signal) -> bool {
        SigSet::thread_get_mask().unwrap().contains(signal)
    }

    #[test]
    fn two_that_end_in_either_order_leave_the_mask_as_it_was() {
        let mut own = SigSet::empty();
        own.add(Signal::SIGHUP);
        own.thread_block().unwrap();
        let first = BlockedSignals::requests_to_end();
        let second = BlockedSignals::job_control();
        assert!(blocks(Signal::SIGINT) && blocks(Signal::SIGTSTP));
        drop(first);
        assert!(!blocks(Signal::SIGINT) && !blocks(Signal::SIGTERM) && blocks(Signal::SIGTSTP));
        drop(second);
        assert!(!blocks(Signal::SIGTSTP));
        assert!(blocks(Signal::SIGHUP), "which was blocked before");
    }
}
