//! ptrace(2) and waitid(2) for one seized thread. Signals are numbers, since nix has no names for real-time signals.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::proc;

/// The number of polls that only yield the processor.
const SPINS: u32 = 200;
/// The time between later polls.
const POLL: Duration = Duration::from_micros(50);

/// The state of a seized thread, from waitid(2).
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
    /// An interrupt, or the start of the thread.
    Trap,
    /// This signal is about to be delivered to it.
    Signal(i32),
    /// It enters or leaves a system call.
    SystemCall,
    /// It has created a process by clone(2).
    Cloned,
    /// Its process was stopped by SIGSTOP or a similar signal.
    GroupStop,
}

/// The way in which a stopped thread continues.
#[derive(Debug, Clone, Copy)]
pub enum Resume {
    /// Until something happens.
    Run,
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
        Resume::ToSystemCall => libc::PTRACE_SYSCALL,
        Resume::Detach => libc::PTRACE_DETACH,
    };
    // SAFETY: none of these requests takes memory; they fail harmlessly on a thread that is gone.
    Errno::result(unsafe { libc::ptrace(request, tid, 0, signal) }).map(drop)
}

/// Returns the state of a seized thread, without waiting.
///
/// A process that rbloat started is never reaped here: its exit status belongs to the owner of its `Child`.
#[must_use]
pub fn wait(tid: i32) -> Wait {
    // For a zombie, this is ECHILD.
    if let Ok(Some(Look::Stopped(status))) = look(tid, libc::WSTOPPED) {
        return Wait::Stopped(event(status));
    }
    // It may have stopped between the two calls: the next one returns the stop.
    if notice_end(tid) { Wait::Gone } else { Wait::Running }
}

/// Returns true if a seized thread has ended, without waiting. The kernel notifies others of the end only after its tracer has
/// noticed it: its real parent, and an exec in another thread.
pub(super) fn notice_end(tid: i32) -> bool {
    match look(tid, libc::WEXITED | libc::WNOWAIT) {
        Ok(Some(Look::Ended)) => {
            if !proc::is_own_child(tid) {
                let _ = look(tid, libc::WEXITED);
            }
            true
        }
        Ok(_) => false,
        Err(_) => true,
    }
}

/// Returns true if the child process `pid` has ended, or has been reaped already. Consumes nothing: neither its exit status,
/// nor a stop that a tracer in another thread waits for.
#[must_use]
pub fn has_ended(pid: i32) -> bool {
    !matches!(look(pid, libc::WEXITED | libc::WNOWAIT), Ok(None | Some(Look::Stopped(_))))
}

/// A change of state that waitid(2) reports.
enum Look {
    /// With the status that waitpid(2) returns.
    Stopped(i32),
    Ended,
}

/// Calls waitid(2) for one thread or process, without waiting.
fn look(tid: i32, options: i32) -> Result<Option<Look>, Errno> {
    let options = options | libc::__WALL | libc::WNOHANG;
    // SAFETY: `information` is plain data, and writable for the length of the call. The kernel sets all fields that are read.
    let (pid, code, status) = unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let waited = libc::waitid(libc::P_PID, tid.cast_unsigned(), &raw mut information, options);
        Errno::result(waited)?;
        (information.si_pid(), information.si_code, information.si_status())
    };
    Ok(match (pid, code) {
        (0, _) => None,
        (_, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) => Some(Look::Ended),
        _ => Some(Look::Stopped(status << 8 | 0x7f)),
    })
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
        (libc::PTRACE_EVENT_STOP, _) => Event::GroupStop,
        _ => Event::Trap,
    }
}

/// Waits until a thread that was resumed stops again; returns `Wait::Running` if it does not within `patience`.
#[must_use]
pub fn wait_for_stop(tid: i32, patience: Duration) -> Wait {
    await_stop(|| wait(tid), || proc::thread_state(tid, tid) == Some('Z'), patience)
}

/// The same, of a thread whose state `wait` and `is_zombie` tell.
fn await_stop(
    mut wait: impl FnMut() -> Wait,
    is_zombie: impl Fn() -> bool,
    patience: Duration,
) -> Wait {
    let deadline = Instant::now() + patience;
    for look in 0_u32.. {
        match wait() {
            Wait::Running if Instant::now() >= deadline => break,
            Wait::Running if look < SPINS => std::thread::yield_now(),
            Wait::Running if !is_zombie() => std::thread::sleep(POLL),
            // It has ended since, and this look notices that. Only the end of a process's first thread is not reported, until its
            // tracer has noticed the ends of all others.
            Wait::Running => {
                return match wait() {
                    Wait::Running => Wait::Gone,
                    reported => reported,
                };
            }
            other => return other,
        }
    }
    Wait::Running
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use nix::sys::ptrace;
    use nix::unistd::Pid;

    use super::*;
    use crate::{PATIENCE, Stop};

    /// rbloat waited for a minute for a process that was killed while its first thread ran and the others were stopped.
    #[test]
    fn the_end_of_the_first_thread_is_noticed_before_those_of_stopped_threads() {
        let target = testkit::Target::bare_ruby(
            "Thread.new { sleep }; puts 'ready {}'; $stdout.flush; $stdin.read",
        );
        let pid = target.pid();
        let stop = Stop::all_threads(pid, PATIENCE).unwrap();
        assert!(stop.stopped().count() > 1);
        resume(pid, Resume::Run, 0).unwrap();
        nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        assert_eq!(wait_for_stop(pid, PATIENCE), Wait::Gone);
    }

    /// A copy that ended between two looks remained a zombie.
    #[test]
    fn an_end_between_two_looks_is_noticed() {
        let (is_zombie, noticed) = (Cell::new(false), Cell::new(false));
        let look = || {
            noticed.set(is_zombie.get());
            if is_zombie.get() { Wait::Gone } else { Wait::Running }
        };
        let ends = || {
            is_zombie.set(true);
            true
        };
        assert_eq!(await_stop(look, ends, PATIENCE), Wait::Gone);
        assert!(noticed.get());
        // The end of a first thread is not reported.
        assert_eq!(await_stop(|| Wait::Running, || true, PATIENCE), Wait::Gone);
        assert_eq!(await_stop(|| Wait::Running, || false, Duration::ZERO), Wait::Running);
    }

    #[test]
    fn the_tracer_leaves_the_exit_status_of_a_child_to_its_owner() {
        let mut child = Command::new("sh")
            .args(["-c", "read word; exit 7"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty()).unwrap();
        ptrace::interrupt(Pid::from_raw(pid)).unwrap();
        // A look for the end does not consume the stop.
        assert!(!has_ended(pid));
        let stopped = wait_for_stop(pid, Duration::from_secs(60));
        assert!(matches!(stopped, Wait::Stopped(_)), "{stopped:?}");
        resume(pid, Resume::Run, 0).unwrap();
        drop(child.stdin.take());
        while !has_ended(pid) {
            let waited = wait(pid);
            if let Wait::Stopped(Event::Signal(signal)) = waited {
                resume(pid, Resume::Run, signal).unwrap();
            }
        }
        assert_eq!(wait(pid), Wait::Gone);
        assert_eq!(wait(pid), Wait::Gone);
        assert_eq!(child.wait().unwrap().code(), Some(7));
        assert!(has_ended(pid));
    }
}
