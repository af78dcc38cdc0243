//! ptrace(2) and waitpid(2) for one seized thread. Signals are numbers, since nix has no names for real-time signals.

use std::time::{Duration, Instant};

use nix::errno::Errno;

/// The number of polls that only yield the processor.
const SPINS: u32 = 200;
/// The time between later polls.
const POLL: Duration = Duration::from_micros(50);

/// The state of a seized thread, from waitpid(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It runs.
    Running,
    /// It is stopped, for this reason.
    Stopped(Event),
    /// It has ended.
    Gone,
}

/// The reason for which a seized thread stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An interrupt, a single step, or the start of the thread.
    Trap,
    /// This signal is about to be delivered to it.
    Signal(i32),
    /// It enters or leaves a system call.
    SystemCall,
    /// It has created a process by clone(2).
    Cloned,
    /// Its process was stopped by SIGSTOP or a similar signal.
    JobControl,
}

/// The way in which a stopped thread continues.
#[derive(Debug, Clone, Copy)]
pub enum Resume {
    /// Until something happens.
    Run,
    /// For one instruction. If a signal is delivered, up to the first instruction of its handler.
    Step,
    /// Up to the start or end of a system call.
    ToSystemCall,
    /// For good.
    Detach,
}

/// Continues a stopped thread, and delivers `signal` to it unless that is 0.
///
/// # Errors
/// The error of ptrace(2); ESRCH if the thread was killed.
pub fn resume(tid: i32, how: Resume, signal: i32) -> Result<(), Errno> {
    let request = match how {
        Resume::Run => libc::PTRACE_CONT,
        Resume::Step => libc::PTRACE_SINGLESTEP,
        Resume::ToSystemCall => libc::PTRACE_SYSCALL,
        Resume::Detach => libc::PTRACE_DETACH,
    };
    // SAFETY: none of these requests takes memory; they fail harmlessly on a thread that is gone.
    Errno::result(unsafe { libc::ptrace(request, tid, 0, signal) }).map(drop)
}

/// Returns the state of a seized thread, without waiting.
#[must_use]
pub fn wait(tid: i32) -> Wait {
    let mut status = 0;
    // SAFETY: `status` is writable for the length of the call.
    let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
    match waited {
        0 => Wait::Running,
        _ if waited == tid && libc::WIFSTOPPED(status) => Wait::Stopped(event(status)),
        _ => Wait::Gone,
    }
}

fn event(status: i32) -> Event {
    const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;
    match (status >> 16, libc::WSTOPSIG(status)) {
        (0, SYSTEM_CALL) => Event::SystemCall,
        (0, signal) => Event::Signal(signal),
        (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK, _) => {
            Event::Cloned
        }
        (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Event::Trap,
        (libc::PTRACE_EVENT_STOP, _) => Event::JobControl,
        _ => Event::Trap,
    }
}

/// Waits until a thread that was resumed stops again; returns `Wait::Running` if it does not within `patience`.
#[must_use]
pub fn wait_for_stop(tid: i32, patience: Duration) -> Wait {
    let deadline = Instant::now() + patience;
    for look in 0_u32.. {
        match wait(tid) {
            Wait::Running if Instant::now() >= deadline => break,
            Wait::Running if look < SPINS => std::thread::yield_now(),
            Wait::Running => std::thread::sleep(POLL),
            other => return other,
        }
    }
    Wait::Running
}
