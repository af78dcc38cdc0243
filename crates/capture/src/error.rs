use std::io;
use std::path::PathBuf;

use crate::arch::MACHINE_NAME;

/// Why a process, or what is left of one, cannot be looked at. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process has this id.
    #[error("there is no process {pid}; `rbloat` lists the Ruby processes that run")]
    NoSuchProcess {
        /// The id asked for.
        pid: i32,
    },
    /// The id is that of a thread.
    #[error("{pid} is a thread of process {process}; ask for {process}")]
    Thread {
        /// The id asked for.
        pid: i32,
        /// The process that the thread belongs to.
        process: i32,
    },
    /// The process has ended and only its entry is left.
    #[error(
        "process {pid} is a zombie: it has ended, has no memory, and waits to be reaped by its parent {parent}"
    )]
    Zombie {
        /// The id asked for.
        pid: i32,
        /// Its parent.
        parent: i32,
    },
    /// A thread of the kernel, without memory of its own.
    #[error("process {pid} is a kernel thread: it has no memory of its own")]
    KernelThread {
        /// The id asked for.
        pid: i32,
    },
    /// /proc was mounted for another pid namespace than rbloat's: the ids that it shows are not those
    /// that system calls take.
    #[error(
        "/proc is not that of the pid namespace that rbloat runs in: enter both \
         (nsenter --pid --mount), or mount a /proc there"
    )]
    ForeignProc,
    /// rbloat was asked to stop itself.
    #[error("process {pid} is rbloat itself; give the id of a Ruby process")]
    Itself {
        /// The id asked for.
        pid: i32,
    },
    /// Another process traces it already.
    #[error(
        "process {pid} is being traced by process {tracer} ({name}): only one can at a time; \
         wait for it to end, or detach it"
    )]
    Traced {
        /// The id asked for.
        pid: i32,
        /// The process that traces it.
        tracer: i32,
        /// That process's name.
        name: String,
    },
    /// The kernel does not let us.
    #[error("cannot {what} process {pid}: permission denied ({remedy})")]
    NotPermitted {
        /// The id asked for.
        pid: i32,
        /// What was refused, as a verb.
        what: &'static str,
        /// Why, as far as it can be seen, and what helps.
        remedy: String,
    },
    /// A thread could not be stopped in time. The target runs on.
    #[error(
        "thread {tid} of process {pid} did not stop within {milliseconds} ms (state {state}: D waits for a disk or \
         for a child's exec, R for a processor). Nothing was changed; try again, or allow more with --max-pause"
    )]
    DoesNotStop {
        /// The id asked for.
        pid: i32,
        /// The thread.
        tid: i32,
        /// How long we waited.
        milliseconds: u128,
        /// Its state, a letter of proc(5).
        state: char,
    },
    /// The target made new threads faster than they could be stopped. It runs on.
    #[error(
        "process {pid} made new threads faster than rbloat could stop them, for {milliseconds} ms. \
         Nothing was changed; try again"
    )]
    Restless {
        /// The id asked for.
        pid: i32,
        /// How long we tried.
        milliseconds: u128,
    },
    /// The target ended, or became another program by exec, while we looked at it.
    #[error("process {pid} {how} while rbloat looked at it; nothing can be said of its memory")]
    Ended {
        /// The id asked for.
        pid: i32,
        /// What became of it.
        how: &'static str,
    },
    /// The clone that was read instead of the target was killed, but not by us.
    #[error(
        "the clone of process {pid} was killed while rbloat read it; the process itself runs on"
    )]
    CloneEnded {
        /// The id asked for.
        pid: i32,
    },
    /// The clone that was read instead of the target was ended by us, before a memory limit was met.
    #[error(
        "the forked copy of process {pid} was ended before it filled the memory limit; \
         the process itself runs on"
    )]
    CloneEndedForRoom {
        /// The id asked for.
        pid: i32,
    },
    /// A file of /proc could not be read or makes no sense.
    #[error("{path}: {source}")]
    Proc {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused an operation of ptrace for a reason that has no name above.
    #[error("cannot stop thread {tid} of process {pid}: {source}")]
    Ptrace {
        /// The id asked for.
        pid: i32,
        /// The thread.
        tid: i32,
        /// Why.
        source: io::Error,
    },
    /// A core file cannot be read.
    #[error("{}: {source}", path.display())]
    CoreFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no core file.
    #[error("{} is no core file: {what}", path.display())]
    NoCore {
        /// The file.
        path: PathBuf,
        /// What it is instead, as a sentence.
        what: String,
    },
    /// A core file of a machine that rbloat does not know.
    #[error(
        "{} is the core of a program for {machine}; rbloat reads those of {MACHINE_NAME}", path.display()
    )]
    ForeignCore {
        /// The file.
        path: PathBuf,
        /// The machine.
        machine: String,
    },
    /// A core file without what it takes.
    #[error(
        "{} is damaged: {what}; it may have been cut short (a full disk, or a limit: ulimit -c) or altered",
        path.display()
    )]
    DamagedCore {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}
