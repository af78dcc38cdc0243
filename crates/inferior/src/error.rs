use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;

/// The reason why a forked copy could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be captured.
    #[error(transparent)]
    Capture(#[from] capture::Error),
    /// The copy was killed, but not by us. The process runs on.
    #[error(
        "the forked copy of process {pid} was killed while rbloat read it; the process itself runs on"
    )]
    CopyKilled {
        /// The process.
        pid: i32,
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

/// The reason why nothing was run in the target. The target is unchanged, except perhaps for [`Refusal::Lost`].
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
         (that needs CAP_SYS_ADMIN, and that rbloat runs without a seccomp filter)"
    )]
    Seccomp,
    /// We may not send the signal to a process of another user.
    #[error(
        "rbloat may not send a signal to a process of another user (needs CAP_KILL; in Docker: --cap-add KILL)"
    )]
    NotSignalled,
    /// The kernel refused the system call, as it would have refused it to the target itself.
    #[error("the kernel refused it {call}: {}", .errno.desc())]
    Kernel {
        /// The name of the system call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// A thread ended or did not stop again, or something unforeseen happened.
    #[error("a thread of the process ended or did not stop in time")]
    Lost,
}

fn name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |it| it.to_string())
}
