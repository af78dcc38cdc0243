//! What ptrace(2) and waitpid(2) say of one seized thread, real-time signals included, which nix has
//! no names for.

use std::time::{Duration, Instant};

use nix::errno::Errno;

/// Looks at a thread that is about to stop, before the processor is given away for longer.
const SPINS: u32 = 200;
/// Between two looks after that.
const POLL: Duration = Duration::from_micros(50);

/// What waitpid(2) says of a thread.
pub(crate) enum Wait {
    Running,
    Stopped(Event),
    Gone,
}

/// Why a seized thread stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It was asked to, or steps, or is new.
    Trap,
    /// It is about to be delivered this signal.
    Signal(i32),
    /// It enters or leaves a system call.
    SystemCall,
    /// It has made a new process, in clone(2).
    Cloned,
    /// Its process was stopped by SIGSTOP or its like.
    JobControl,
}

/// How a stopped thread goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Resume {
    /// Until something happens.
    Run,
    /// By one instruction; with a signal to be delivered, up to its handler's first.
    Step,
    /// To where it enters or leaves a system call.
    ToSystemCall,
    /// For good.
    Detach,
}

/// Lets a stopped thread go on, with the delivery of `signal` unless it is 0.
pub(crate) fn resume(tid: i32, how: Resume, signal: i32) -> Result<(), Errno> {
    let request = match how {
        Resume::Run => libc::PTRACE_CONT,
        Resume::Step => libc::PTRACE_SINGLESTEP,
        Resume::ToSystemCall => libc::PTRACE_SYSCALL,
        Resume::Detach => libc::PTRACE_DETACH,
    };
    // SAFETY: none of these requests takes memory; they fail harmlessly on a thread that is gone.
    Errno::result(unsafe { libc::ptrace(request, tid, 0, signal) }).map(drop)
}

/// What has become of a seized thread, without waiting.
pub(crate) fn wait(tid: i32) -> Wait {
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

/// Waits for a thread that was let go on to stop again; `Wait::Running` where it does not in time.
pub(crate) fn wait_for_stop(tid: i32, patience: Duration) -> Wait {
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
