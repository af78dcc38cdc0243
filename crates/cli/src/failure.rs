use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use formats::{RecordingError, SnapshotError};
use image::CoreError;
use linux::Address;
use linux::proc::Obstacle;
use nix::errno::Errno;

/// The reason why a command failed. Each message states the event, the reason, and a remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}{}", .0, advice(.0))]
    Capture(linux::Error),
    #[error(transparent)]
    Core(CoreError),
    #[error(transparent)]
    CopyLost(inferior::Error),
    #[error(
        "process {pid} ({command}) is not a Ruby process: it has no symbol rb_cObject; `rbloat` lists the Ruby processes"
    )]
    NotRuby { pid: i32, command: String },
    #[error(
        "no Ruby process has the id {namespace_pid} inside a container; `rbloat` lists the Ruby processes with both ids"
    )]
    NotInContainer { namespace_pid: i32 },
    #[error("{} processes have the id {namespace_pid} inside their containers: {}; give one of these ids without --namespace-pid", candidates.len(), candidates.join(", "))]
    Ambiguous { namespace_pid: i32, candidates: Vec<String> },
    #[error("the name of the process is empty: give its id, or a word of its command line")]
    NoName,
    #[error(
        "there is neither a file `{word}` nor a Ruby process with `{word}` in its command line; `rbloat` lists the Ruby processes"
    )]
    NoSuchCommand { word: String },
    #[error("{} Ruby processes have `{word}` in their command lines: {}; give one of these ids", candidates.len(), candidates.join(", "))]
    ManyCommands { word: String, candidates: Vec<String> },
    #[error("cannot examine process {pid}; {}", crate::isolation::defect(what))]
    Panicked { pid: i32, what: String },
    #[error("process {pid}: {reason}")]
    Unread { pid: i32, reason: String },
    #[error(
        "cannot read process {pid}: rbloat needs about {} MiB of memory, and the memory limit that it shares with the \
         process leaves {} MiB. Run rbloat outside of the control group of the process (in Kubernetes: in an ephemeral \
         container with a limit of its own), or raise the limit",
        .own_bytes >> 20, .room_bytes >> 20
    )]
    NoRoom { pid: i32, own_bytes: u64, room_bytes: u64 },
    #[error("cannot {purpose} process {pid}: {refusal}{hint}")]
    CallRefused { pid: i32, purpose: &'static str, refusal: inferior::Refusal, hint: &'static str },
    #[error(
        "cannot trim process {pid}: its allocator, {allocator}, exports no function that returns memory"
    )]
    NoTrim { pid: i32, allocator: String },
    #[error("cannot read {}: {source}; give a process id, a file that `rbloat snapshot` wrote, or a core file", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{} is neither a file that `rbloat snapshot` wrote nor a core file: {what}; if you mean the process of this program, \
         give its id (`rbloat` lists them)",
        path.display()
    )]
    NoSource { path: PathBuf, what: String },
    #[error(
        "{} is the core of process {pid} ({command}), which was not a Ruby process: it has no symbol rb_cObject",
        path.display()
    )]
    NotRubyCore { path: PathBuf, pid: i32, command: String },
    #[error("cannot read {}: {error}", path.display())]
    NotASnapshot { path: PathBuf, error: SnapshotError },
    #[error("cannot read {}: {what}; give a file with the output of `rbloat who PID --json`", path.display())]
    NotSamples { path: PathBuf, what: String },
    #[error("{} has no samples of process {pid}: {why}", path.display())]
    OtherSamples { path: PathBuf, pid: i32, why: &'static str },
    #[error(transparent)]
    Unwritable(#[from] output::Error),
    #[error("{} is not an archive: it has no folder `looks`; `rbloat export` makes an archive", path.display())]
    NoArchive { path: PathBuf },
    #[error("cannot start {}: {source}; install DuckDB (https://duckdb.org, or `pip install duckdb-cli`), name it with --duckdb, or use \
         another engine with --print", program.display())]
    NoEngine { program: PathBuf, source: io::Error },
    #[error("{} could not answer: {status}", program.display())]
    NoAnswer { program: PathBuf, status: std::process::ExitStatus },
    #[error("cannot export {}: {error}", path.display())]
    NotExported { path: PathBuf, error: archive::Error },
    #[error("nothing to compare with: give two or more processes or files, or one process")]
    OneSource,
    #[error(
        "--every and --times are for one process, but {0} were given: leave out the options, or give one process"
    )]
    ManySources(usize),
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    #[error("every run failed; the first one (under {setting}): {why}")]
    NoRun { setting: String, why: String },
    #[error("interrupted in the first run: nothing was measured")]
    NothingMeasured,
    #[error("none of the settings can be tried: {needs}")]
    NoSetting { needs: String },
    #[error("cannot read {}: {source}; give a file that `rbloat record` wrote", path.display())]
    UnreadableRecording { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {error}", path.display())]
    NotARecording { path: PathBuf, error: RecordingError },
    #[error("cannot write {}: its name must end in .html, .svg or .png", path.display())]
    NoFormat { path: PathBuf },
    #[error(
        "--sysroot is for core files only: leave it out (the files of a process are found through /proc)"
    )]
    NeedlessSysroot,
    #[error("--tree needs a live process, or one file that `rbloat snapshot --tree` wrote")]
    TreeOfFile,
    #[error("`rbloat map --tree` needs a live process: no file has the page frames of a family")]
    MapOfFamilyFile,
    #[error(
        "process {pid} has no family: it was not forked, and has no forked children; leave out --tree"
    )]
    NoFamily { pid: i32 },
    #[error(
        "there is no control group {}: give its folder, or its path as in /proc/PID/cgroup", path.display()
    )]
    NoGroup { path: PathBuf },
    #[error("no Ruby process is in the control group {}", path.display())]
    NoRubyInGroup { path: PathBuf },
    #[error("-o and --png name the same file: give each a file of its own")]
    OneFile,
    #[error(
        "`{0}` is neither an address nor the name of a class: addresses look like 0x7f1234567890"
    )]
    NoAddress(String),
    #[error("there is no explanation of `{0}`: `rbloat explain` lists what it can explain")]
    NoExplanation(String),
    #[error("there is no live object and no malloc'ed memory in use at {0}")]
    NothingAt(Address),
    #[error("there is no live object of class {0}; `rbloat report` lists the largest classes")]
    NoObjects(String),
    #[error("the references between objects could not be read; `rbloat report` shows the reason")]
    NoReferences,
    #[error("a snapshot does not have the references between objects: use the process or a core")]
    SnapshotWithoutReferences,
    #[error("--retained needs owners: leave out --owners 0")]
    RetainedWithoutOwners,
    #[error("the snapshot has no retained sizes: take it with `rbloat snapshot --retained`")]
    NoRetainedSizes,
    #[error(
        "`rbloat top` needs a terminal: {0}. `rbloat` lists the Ruby processes once, and `rbloat record PID` records the memory \
         of a process over time"
    )]
    NoScreen(&'static str),
    #[error("cannot listen on {address}: {source}; give another address with --listen")]
    CannotListen { address: std::net::SocketAddr, source: io::Error },
    #[error(
        "found no certificates of authorities, which are needed to push to https://: name a file with --push-ca"
    )]
    NoAuthorities,
    #[error("cannot use {}: {what}", path.display())]
    UnusableSecret { path: PathBuf, what: String },
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl From<linux::Error> for Failure {
    fn from(error: linux::Error) -> Self {
        Self::Capture(error)
    }
}

impl From<inferior::Error> for Failure {
    fn from(error: inferior::Error) -> Self {
        match error {
            inferior::Error::Capture(error) => Self::Capture(error),
            lost => Self::CopyLost(lost),
        }
    }
}

/// The ways to give rbloat the right to examine other processes.
const GRANT: &str = "; in Docker: --cap-add SYS_PTRACE; in Kubernetes: securityContext.capabilities.add: [\"SYS_PTRACE\"], or kubectl \
                     debug --profile=sysadmin";

/// Returns the advice that follows the message of an error.
fn advice(error: &linux::Error) -> String {
    match error {
        linux::Error::NotPermitted { obstacle, .. } => remedy(*obstacle),
        error => hint(error).into(),
    }
}

/// Returns what helps against an obstacle.
fn remedy(obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::Locked { .. } => String::new(),
        Obstacle::OthersFiles | Obstacle::NotDumpable => "; run rbloat as root".into(),
        Obstacle::Forbidden => "; run rbloat as root on the host".into(),
        Obstacle::OtherUser { .. } => format!("; run rbloat as root or as that user{GRANT}"),
        Obstacle::Restricted { .. } => {
            format!("; run rbloat as root, or set /proc/sys/kernel/yama/ptrace_scope to 0{GRANT}")
        }
        Obstacle::NoCapability => format!("; run rbloat as root{GRANT}"),
    }
}

fn hint(error: &linux::Error) -> &'static str {
    use linux::Error as E;
    match error {
        E::NoSuchProcess { .. } => "; `rbloat` lists the Ruby processes that run",
        E::Itself { .. } => "; give the id of a Ruby process",
        E::DoesNotStop { .. } => "; try again, or allow more with --max-pause",
        E::NewThreads { .. } => "; try again",
        E::Faults { source, .. } if source.raw_os_error() == Some(Errno::EMFILE as i32) => {
            "; it takes a descriptor for each thread and processor: raise the limit of open files (ulimit -Hn)"
        }
        _ => "",
    }
}

/// The outcome of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The report was printed, but lacks a part of the process.
    Incomplete,
    /// Memory grew by more than the user allows.
    GrewTooMuch,
    /// The program that rbloat started ended with this status, which becomes rbloat's.
    Ended(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Incomplete => Self::from(6),
            Outcome::GrewTooMuch => Self::from(7),
            Outcome::Ended(status) => Self::from(status),
        }
    }
}

impl Failure {
    /// Returns true if the process has ended.
    pub(crate) fn is_end(&self) -> bool {
        use linux::Error as E;
        matches!(self, Self::Capture(E::NoSuchProcess { .. } | E::Ended { .. } | E::Zombie { .. }))
    }

    /// Returns true if it is no news about a process of a list: it has ended, or is one of those without memory.
    pub(crate) fn is_without_memory(&self) -> bool {
        self.is_end() || matches!(self, Self::Capture(linux::Error::KernelThread { .. }))
    }

    /// Returns the message for a list of several processes: it names the process once.
    pub(crate) fn about(&self, pid: i32) -> String {
        let (message, name) = (self.to_string(), format!("process {pid}"));
        if message.contains(&name) { message } else { format!("{name}: {message}") }
    }

    /// The exit status, as `rbloat --help` documents it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        use linux::Error as E;
        ExitCode::from(match self {
            Self::OneSource
            | Self::ManySources(_)
            | Self::NoFormat { .. }
            | Self::NeedlessSysroot
            | Self::TreeOfFile
            | Self::MapOfFamilyFile
            | Self::OneFile
            | Self::NoAddress(_)
            | Self::NoExplanation(_)
            | Self::NoName
            | Self::NoScreen(_)
            | Self::SnapshotWithoutReferences
            | Self::RetainedWithoutOwners
            | Self::NoRetainedSizes => 2,
            Self::Capture(
                E::NoSuchProcess { .. }
                | E::Thread { .. }
                | E::Zombie { .. }
                | E::KernelThread { .. }
                | E::Itself { .. },
            )
            | Self::Core(_)
            | Self::NotRuby { .. }
            | Self::NotInContainer { .. }
            | Self::Ambiguous { .. }
            | Self::NoSuchCommand { .. }
            | Self::NoGroup { .. }
            | Self::NoRubyInGroup { .. }
            | Self::NoFamily { .. }
            | Self::ManyCommands { .. }
            | Self::NoTrim { .. }
            | Self::Unreadable { .. }
            | Self::UnreadableRecording { .. }
            | Self::NotARecording { .. }
            | Self::NoSource { .. }
            | Self::NotRubyCore { .. }
            | Self::NotASnapshot { .. }
            | Self::NotSamples { .. }
            | Self::NoArchive { .. }
            | Self::OtherSamples { .. }
            | Self::NothingAt(_)
            | Self::NoObjects(_) => 3,
            // As a shell says it.
            Self::Supervise(supervise::Error::NotStarted { source, .. })
            | Self::NoEngine { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => 127,
                io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => 5,
                _ => 126,
            },
            Self::NoReferences => 6,
            Self::Capture(E::NotPermitted { .. } | E::Faults { .. }) => 4,
            Self::Capture(
                E::Traced { .. } | E::DoesNotStop { .. } | E::NewThreads { .. } | E::Ended { .. },
            )
            | Self::CopyLost(_)
            | Self::Unread { .. }
            | Self::NoRoom { .. }
            | Self::CallRefused { .. } => 5,
            Self::Capture(
                E::Proc { .. } | E::TooManyFiles { .. } | E::Ptrace { .. } | E::ForeignProc,
            )
            | Self::Panicked { .. }
            | Self::Unwritable(_)
            | Self::NotExported { .. }
            | Self::NoAnswer { .. }
            | Self::CannotListen { .. }
            | Self::NoAuthorities
            | Self::UnusableSecret { .. }
            | Self::NoRun { .. }
            | Self::NothingMeasured
            | Self::NoSetting { .. }
            | Self::Supervise(supervise::Error::Signals(_) | supervise::Error::Unwritable { .. })
            | Self::Output(_) => 1,
        })
    }
}
