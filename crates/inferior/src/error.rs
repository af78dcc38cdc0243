use std::borrow::Borrow;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;

/// The reason why a forked copy could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be captured.
    #[error(transparent)]
    Capture(#[from] linux::Error),
    /// The copy was killed, but not by us. The process runs on.
    #[error(
        "the forked copy of process {pid} was killed while rbloat read it; the process itself runs on"
    )]
    CopyKilled {
        /// The process.
        pid: i32,
    },
    /// The copy could not be made to run a function. The process runs on.
    #[error(
        "the forked copy of process {pid} could not run a function: {refusal}; the process itself runs on"
    )]
    CopyNotRun {
        /// The process.
        pid: i32,
        /// The reason.
        refusal: Refusal,
    },
    /// The copy was ended by us, before a memory limit was met. The process runs on.
    #[error(
        "the forked copy of process {pid} was ended before it filled the memory limit; \
         the process itself runs on"
    )]
    CopyEndedForRoom {
        /// The process.
        pid: i32,
    },
}

/// The reason why nothing was run in the target. The target is unchanged, except perhaps for [`Refusal::TraceFailed`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no handler to be borrowed.
    #[error("the process has no handler for {}", name(*.signal))]
    NoHandler {
        /// The signal.
        signal: i32,
    },
    /// No thread is at a safe point.
    #[error("no thread of the process waits where a signal handler may run: it computes")]
    NoSafePoint,
    /// The process has ended, or become another program by exec, so the addresses of its functions are of no use.
    #[error("the process has ended or become another program (exec)")]
    OtherProgram,
    /// The process is stopped by SIGSTOP or by a terminal.
    #[error("the process is stopped by a signal (SIGSTOP, SIGTSTP)")]
    Suspended,
    /// The C library lacks a function.
    #[error("the C library of the process has no {0} that rbloat could call")]
    NoFunction(&'static str),
    /// The memory limit leaves too little room.
    #[error(
        "the memory limit leaves {} MiB, and a forked copy may need {} MiB",
        .room_bytes >> 20, .needed_bytes.div_ceil(1 << 20)
    )]
    NoRoom {
        /// The room that is left.
        room_bytes: u64,
        /// The room that may be needed.
        needed_bytes: u64,
    },
    /// The control group of the process was not found.
    #[error(
        "the memory limit of the process is unknown, since its control group could not be found"
    )]
    UnknownLimit,
    /// The kernel has no more huge pages for a process that writes to a copied one of hugetlbfs: it sends SIGBUS to it, or
    /// takes the page from the copy (`hugetlb_wp` in mm/hugetlb.c).
    #[error(
        "the process has private memory of hugetlbfs, and might die if it wrote to a copied page"
    )]
    HugePages,
    /// The pause would be too long.
    #[error(
        "the process would be paused for about {} ms, longer than the allowed {} ms",
        .expected.as_millis(), .max_pause.as_millis()
    )]
    Slow {
        /// The expected pause.
        expected: Duration,
        /// The longest allowed pause.
        max_pause: Duration,
    },
    /// A seccomp filter forbids a system call, or may do so.
    #[error(
        "the process runs under seccomp, and its filter forbids a system call that is needed, or cannot be read \
         (needs CAP_SYS_ADMIN, and no seccomp filter on rbloat)"
    )]
    Seccomp,
    /// We may not send the signal to a process of another user.
    #[error("rbloat may not send a signal to a process of another user (needs CAP_KILL)")]
    NotSignalled,
    /// The kernel refused the system call, as it would have refused it to the target itself.
    #[error("the kernel refused it {call}: {}", .errno.desc())]
    Kernel {
        /// The name of the system call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// An operation on the target failed.
    #[error("rbloat could not {step}: {why}")]
    TraceFailed {
        /// The operation, as a verb.
        step: &'static str,
        /// The reason.
        why: TraceFailure,
    },
}

/// The reason for [`Refusal::TraceFailed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceFailure {
    /// A thread did not stop in time.
    #[error("a thread of the process did not stop in time")]
    Late,
    /// A thread stopped, but not where it had to.
    #[error("a thread of the process stopped elsewhere")]
    Elsewhere,
    /// The kernel's reason: ESRCH if the thread or the process has ended, ETIMEDOUT if a system call of the target did not end.
    #[error("{}", reason(*.0))]
    Kernel(Errno),
}

impl Refusal {
    /// Returns true if another try some milliseconds later may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoSafePoint | Self::Slow { .. } => true,
            Self::TraceFailed { why: TraceFailure::Kernel(errno), .. } => {
                matches!(errno, Errno::ESRCH | Errno::ENOENT | Errno::EBUSY)
            }
            Self::TraceFailed { .. } => true,
            _ => false,
        }
    }

    /// Returns the function that makes a refusal of the kernel's reason for the failure of `step`.
    pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::TraceFailed { step, why: TraceFailure::Kernel(errno) }
    }

    /// Returns the function that makes a refusal of an error that is the reason for the failure of `step`.
    pub(crate) fn capture_failed<E: Borrow<linux::Error>>(
        step: &'static str,
    ) -> impl Fn(E) -> Self {
        use linux::Error as E;
        move |error| {
            let errno = match error.borrow() {
                E::NoSuchProcess { .. } | E::Ended { .. } | E::Zombie { .. } => Errno::ESRCH,
                E::NotPermitted { .. } => Errno::EPERM,
                E::Traced { .. } => Errno::EBUSY,
                E::TooManyFiles { .. } => Errno::EMFILE,
                E::Proc { source, .. } | E::Ptrace { source, .. } => {
                    source.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
                }
                E::DoesNotStop { .. } | E::NewThreads { .. } => {
                    return Self::TraceFailed { step, why: TraceFailure::Late };
                }
                // These come before a process is stopped.
                E::Thread { .. }
                | E::KernelThread { .. }
                | E::ForeignProc
                | E::Itself { .. }
                | E::Faults { .. }
                | E::Clocks { .. }
                | E::UnknownGroup { .. } => Errno::EIO,
            };
            Self::failed(step)(errno)
        }
    }
}

fn reason(errno: Errno) -> &'static str {
    match errno {
        Errno::ESRCH | Errno::ENOENT => "it has ended",
        Errno::ETIMEDOUT => "the kernel takes too long",
        Errno::EPERM | Errno::EACCES => "permission denied (needs CAP_SYS_PTRACE)",
        Errno::EBUSY => "another process traces it",
        Errno::EMFILE => "it may not open more files",
        errno => errno.desc(),
    }
}

fn name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |it| it.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each was called "a thread of the process ended or did not stop in time", and tried four times.
    #[test]
    fn a_failure_states_its_step_and_reason_and_only_some_are_tried_again() {
        let step = "read the registers of a thread";
        use TraceFailure::{Elsewhere, Kernel, Late};
        for (why, reason, is_transient) in [
            (Late, "did not stop in time", true),
            // It was said to be late.
            (Elsewhere, "stopped elsewhere", true),
            (Kernel(Errno::ESRCH), "has ended", true),
            // Such as another rbloat, which soon ends.
            (Kernel(Errno::EBUSY), "another process traces it", true),
            (Kernel(Errno::EPERM), "permission denied", false),
            (Kernel(Errno::EMFILE), "may not open more files", false),
            (Kernel(Errno::ETIMEDOUT), "takes too long", false),
            (Kernel(Errno::EIO), "I/O error", false),
        ] {
            let refusal = Refusal::TraceFailed { step, why };
            let message = refusal.to_string();
            assert!(message.contains(step) && message.contains(reason), "{message}");
            assert_eq!(refusal.is_transient(), is_transient, "{message}");
        }
    }

    #[test]
    fn the_reason_of_a_failed_capture_is_kept() {
        use linux::Error as E;
        let file = || "/proc/7/maps".to_owned();
        let source = std::io::Error::from(Errno::EIO);
        use TraceFailure::{Kernel, Late};
        for (error, why) in [
            (E::TooManyFiles { path: file() }, Kernel(Errno::EMFILE)),
            (E::Proc { path: file(), source }, Kernel(Errno::EIO)),
            (E::Ended { pid: 7, how: "ended" }, Kernel(Errno::ESRCH)),
            (E::DoesNotStop { pid: 7, tid: 8, milliseconds: 9, state: 'D' }, Late),
        ] {
            let step = "stop a thread of the process";
            assert_eq!(Refusal::capture_failed(step)(error), Refusal::TraceFailed { step, why });
        }
    }
}
