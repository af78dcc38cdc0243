//! Signals that are held back for a while.

use std::marker::PhantomData;

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

#[cfg(test)]
mod tests {
    use super::*;

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
