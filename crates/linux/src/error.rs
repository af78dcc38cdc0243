use std::io;

use crate::obstacle::Obstacle;

/// The reason why a process cannot be examined. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process has this id.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The requested id.
        pid: i32,
    },
    /// The id belongs to a thread.
    #[error("{pid} is a thread of process {process}")]
    Thread {
        /// The requested id.
        pid: i32,
        /// The process of the thread.
        process: i32,
    },
    /// The process has ended, and only its entry in the process table is left.
    #[error(
        "process {pid} is a zombie: it has ended, has no memory, and waits to be reaped by its parent {parent}"
    )]
    Zombie {
        /// The requested id.
        pid: i32,
        /// Its parent.
        parent: i32,
    },
    /// A thread of the kernel, without memory of its own.
    #[error("process {pid} is a kernel thread: it has no memory of its own")]
    KernelThread {
        /// The requested id.
        pid: i32,
    },
    /// /proc was mounted for another pid namespace than ours, so its ids differ from those that system calls take.
    #[error("/proc belongs to another pid namespace than rbloat")]
    ForeignProc,
    /// The id is our own.
    #[error("process {pid} is rbloat itself")]
    Itself {
        /// The requested id.
        pid: i32,
    },
    /// Another process traces it already.
    #[error("process {pid} is being traced by process {tracer} ({name}), and only one process can")]
    Traced {
        /// The requested id.
        pid: i32,
        /// The tracing process.
        tracer: i32,
        /// Its name.
        name: String,
    },
    /// The kernel denies permission.
    #[error("cannot {what} process {pid}: permission denied ({obstacle})")]
    NotPermitted {
        /// The requested id.
        pid: i32,
        /// The denied operation, as a verb.
        what: &'static str,
        /// The reason, as far as it can be seen from outside.
        obstacle: Obstacle,
    },
    /// Its page faults cannot be sampled.
    #[error("cannot sample the page faults of process {pid}: {source}")]
    Faults {
        /// The requested id.
        pid: i32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The clocks of its threads cannot be used.
    #[error("cannot run a program at ticks of the clocks of process {pid}: {source}")]
    Clocks {
        /// The requested id.
        pid: i32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread did not stop in time. The target runs on.
    #[error(
        "thread {tid} of process {pid} did not stop within {milliseconds} ms (state {state}: D waits for a disk or \
         for a child's exec, R for a processor). Nothing was changed"
    )]
    DoesNotStop {
        /// The requested id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// The limit.
        milliseconds: u128,
        /// The thread's state, a letter of proc(5).
        state: char,
    },
    /// The target created threads faster than they could be stopped. It runs on.
    #[error(
        "process {pid} created threads faster than rbloat could stop them, for {milliseconds} ms. \
         Nothing was changed"
    )]
    NewThreads {
        /// The requested id.
        pid: i32,
        /// The limit.
        milliseconds: u128,
    },
    /// The target ended, or became another program by exec, during the capture.
    #[error("process {pid} {how} while rbloat examined it, so nothing is known of its memory")]
    Ended {
        /// The requested id.
        pid: i32,
        /// The event, as a verb.
        how: &'static str,
    },
    /// No folder that rbloat can open is that of its control group.
    #[error(
        "the control group of process {pid} could not be found, so its memory limit is unknown"
    )]
    UnknownGroup {
        /// The requested id.
        pid: i32,
    },
    /// rbloat may not open as many files as it needs.
    #[error("cannot open {path}: rbloat may not open more files")]
    TooManyFiles {
        /// The file.
        path: String,
    },
    /// A file of /proc could not be read or parsed.
    #[error("cannot read {path}: {source}")]
    Proc {
        /// The file.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// An operation of ptrace failed for a reason that has no variant above.
    #[error("cannot stop thread {tid} of process {pid}: {source}")]
    Ptrace {
        /// The requested id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// The reason.
        source: io::Error,
    },
}
impl Error {
    /// Returns true if the process has ended.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Self::NoSuchProcess { .. } | Self::Ended { .. } | Self::Zombie { .. })
    }
}
