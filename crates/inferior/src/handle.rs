//! A process that can be killed without the danger that another one has its id by then.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A forked copy, also after it has been reaped. The process that it copied may end at any time; then its child is reaped by
/// another one, and the kernel may use its id again.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: i32,
    /// `None` before Linux 5.3.
    descriptor: Option<OwnedFd>,
}

impl ProcessHandle {
    /// Opens the process `pid`, which must not have been reaped yet.
    pub(crate) fn open(pid: i32) -> Self {
        // SAFETY: the call takes numbers alone, and returns a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let descriptor = i32::try_from(descriptor).ok().filter(|&descriptor| descriptor >= 0);
        // SAFETY: the descriptor is new, so nothing else closes it.
        let descriptor = descriptor.map(|new| unsafe { OwnedFd::from_raw_fd(new) });
        Self { pid, descriptor }
    }

    /// Kills the process, if it has not ended, and frees its memory.
    ///
    /// A killed process frees its memory itself, when it has a processor. On a busy machine that may take so long that the kernel
    /// kills another process of a full control group first. process_mrelease(2) frees the memory here and now (Linux 5.15).
    pub(crate) fn kill(&self) {
        match &self.descriptor {
            Some(descriptor) => {
                let (descriptor, signal) = (descriptor.as_raw_fd(), libc::SIGKILL);
                // SAFETY: the call takes numbers alone, and no information on the signal.
                unsafe { libc::syscall(libc::SYS_pidfd_send_signal, descriptor, signal, 0, 0) };
                // SAFETY: the call takes numbers alone. The memory is that of a process that never runs again.
                unsafe { libc::syscall(libc::SYS_process_mrelease, descriptor, 0) };
            }
            None => {
                // SAFETY: the call takes numbers alone.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_killed_and_after_its_end_nothing_is() {
        let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
        let handle = ProcessHandle::open(sleeper.id().cast_signed());
        handle.kill();
        assert_eq!(sleeper.wait().unwrap().signal(), Some(libc::SIGKILL));
        if handle.descriptor.is_none() {
            return testkit::skip("pidfd_open takes Linux 5.3");
        }
        // Another process has its id by now.
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = other.id().cast_signed();
        ProcessHandle { pid, ..handle }.kill();
        // The first signal ends it.
        // SAFETY: the call takes numbers alone.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        assert_eq!(other.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
