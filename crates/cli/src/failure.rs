use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use formats::{RecordingError, SnapshotError};

/// Why rbloat ends without having done what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}{}", .0, advice(.0))]
    Target(capture::Error),
    #[error(transparent)]
    CopyLost(inferior::Error),
    #[error(
        "process {pid} ({command}) is not a Ruby: nothing in it exports rb_cObject; `rbloat` lists the Ruby processes"
    )]
    NotRuby { pid: i32, command: String },
    #[error(
        "no Ruby process is called {namespace_pid} inside a container; `rbloat` lists the Ruby processes with both ids"
    )]
    NotInContainer { namespace_pid: i32 },
    #[error("{} processes are called {namespace_pid} inside their containers: {}; give one of these ids without --namespace-pid", candidates.len(), candidates.join(", "))]
    Ambiguous { namespace_pid: i32, candidates: Vec<String> },
    #[error("process {pid}: {reason}")]
    Unread { pid: i32, reason: String },
    #[error(
        "to read process {pid}, rbloat needs about {} MiB of memory itself, and the memory limit that both share \
         leaves {} MiB: run rbloat outside of the control group of the process (in Kubernetes: as an ephemeral \
         container of its own limit), or give it more memory",
        .own_bytes >> 20, .room_bytes >> 20
    )]
    NoRoom { pid: i32, own_bytes: u64, room_bytes: u64 },
    #[error("no {what} was made in process {pid}: {refusal}{instead}")]
    NotTouched { pid: i32, what: &'static str, refusal: inferior::Refusal, instead: &'static str },
    #[error(
        "malloc in process {pid} is served by {allocator}, which exports no function that gives memory back"
    )]
    NoTrim { pid: i32, allocator: String },
    #[error("cannot read {}: {source}; give a process id, a file that `rbloat snapshot` wrote, or a core file", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is neither a file that `rbloat snapshot` wrote nor a core file: {what}", path.display())]
    NoSource { path: PathBuf, what: String },
    #[error(
        "{} is the core of process {pid} ({command}), which was not a Ruby: nothing in it exports rb_cObject",
        path.display()
    )]
    NotRubyCore { path: PathBuf, pid: i32, command: String },
    #[error("{}: {error}", path.display())]
    NotASnapshot { path: PathBuf, error: SnapshotError },
    #[error("cannot write {}: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("a comparison takes two or more processes or files, or one process and --every 60s")]
    OneSource,
    #[error("--every and --times look at one process again; {0} were given")]
    ManySources(usize),
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    #[error("every run failed; the first one ({setting}): {why}")]
    NoRun { setting: String, why: String },
    #[error("interrupted in the first run: nothing was measured")]
    NothingMeasured,
    #[error("none of the settings can be tried: {needs}")]
    NoSetting { needs: String },
    #[error("cannot read {}: {source}; give a file that `rbloat record` wrote", path.display())]
    UnreadableRecording { path: PathBuf, source: io::Error },
    #[error("{}: {error}", path.display())]
    NotARecording { path: PathBuf, error: RecordingError },
    #[error("{}: its name must end in .html, .svg or .png", path.display())]
    NoFormat { path: PathBuf },
    #[error(
        "--sysroot is for core files: leave it out, the files of a process are found through /proc"
    )]
    NeedlessSysroot,
    #[error("-o and --png name the same file: give each its own")]
    OneFile,
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl From<capture::Error> for Failure {
    fn from(error: capture::Error) -> Self {
        Self::Target(error)
    }
}

impl From<inferior::Error> for Failure {
    fn from(error: inferior::Error) -> Self {
        match error {
            inferior::Error::Capture(error) => Self::Target(error),
            lost => Self::CopyLost(lost),
        }
    }
}

/// The advice that follows the message of an error.
fn advice(error: &capture::Error) -> &'static str {
    use capture::Error as E;
    match error {
        E::NoSuchProcess { .. } => "; `rbloat` lists the Ruby processes that run",
        E::Itself { .. } => "; give the id of a Ruby process",
        E::DoesNotStop { .. } => "; try again, or allow more with --max-pause",
        E::NewThreads { .. } => "; try again",
        _ => "",
    }
}

/// What a run that failed nowhere came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The report was printed, but lacks a part of the process.
    Incomplete,
    /// A program that was started ended with this status, which is passed on.
    Ended(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Incomplete => Self::from(6),
            Outcome::Ended(status) => Self::from(status),
        }
    }
}

impl Failure {
    /// The exit status, as `rbloat --help` documents it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        use capture::Error as E;
        ExitCode::from(match self {
            Self::OneSource
            | Self::ManySources(_)
            | Self::NoFormat { .. }
            | Self::NeedlessSysroot
            | Self::OneFile => 2,
            Self::Target(
                E::NoSuchProcess { .. }
                | E::Thread { .. }
                | E::Zombie { .. }
                | E::KernelThread { .. }
                | E::Itself { .. }
                | E::CoreFile { .. }
                | E::NoCore { .. }
                | E::ForeignCore { .. }
                | E::DamagedCore { .. },
            )
            | Self::NotRuby { .. }
            | Self::NotInContainer { .. }
            | Self::Ambiguous { .. }
            | Self::NoTrim { .. }
            | Self::Unreadable { .. }
            | Self::Supervise(supervise::Error::NotStarted { .. })
            | Self::UnreadableRecording { .. }
            | Self::NotARecording { .. }
            | Self::NoSource { .. }
            | Self::NotRubyCore { .. }
            | Self::NotASnapshot { .. } => 3,
            Self::Target(E::NotPermitted { .. }) => 4,
            Self::Target(
                E::Traced { .. } | E::DoesNotStop { .. } | E::NewThreads { .. } | E::Ended { .. },
            )
            | Self::CopyLost(_)
            | Self::Unread { .. }
            | Self::NoRoom { .. }
            | Self::NotTouched { .. } => 5,
            Self::Target(E::Proc { .. } | E::Ptrace { .. } | E::ForeignProc)
            | Self::Unwritable { .. }
            | Self::NoRun { .. }
            | Self::NothingMeasured
            | Self::NoSetting { .. }
            | Self::Supervise(supervise::Error::Signals(_) | supervise::Error::Unwritable { .. })
            | Self::Output(_) => 1,
        })
    }
}
