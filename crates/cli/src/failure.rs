use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use examine::{Purpose, Refusal};
use formats::RecordingError;
use linux::page_faults::is_forbidden;
use linux::proc::Obstacle;
use nix::errno::Errno;

/// The reason why a command failed. Each message states the event, the reason, and a remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}{}", .0, remedy(.0))]
    Examine(examine::Error),
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
    #[error("-o and --png name the same file: give each a file of its own")]
    OneFile,
    #[error(
        "`{0}` is neither an address nor the name of a class: addresses look like 0x7f1234567890"
    )]
    NoAddress(String),
    #[error("there is no explanation of `{0}`: `rbloat explain` lists what it can explain")]
    NoExplanation(String),
    #[error("--retained needs owners: leave out --owners 0")]
    RetainedWithoutOwners,
    #[error(
        "`rbloat top` needs a terminal: {0}. `rbloat` lists the Ruby processes once, and `rbloat record PID` records the memory \
         of a process over time"
    )]
    NoScreen(&'static str),
    #[error("{}{}", .0, remedy_of_agent(.0))]
    Agent(agent::Error),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl From<examine::Error> for Failure {
    fn from(error: examine::Error) -> Self {
        match error {
            examine::Error::Supervise(error) => Self::Supervise(error),
            error => Self::Examine(error),
        }
    }
}

impl From<agent::Error> for Failure {
    fn from(error: agent::Error) -> Self {
        match error {
            agent::Error::Examine(error) => error.into(),
            agent::Error::Unwritable(error) => error.into(),
            agent::Error::Supervise(error) => error.into(),
            error => Self::Agent(error),
        }
    }
}

impl From<linux::Error> for Failure {
    fn from(error: linux::Error) -> Self {
        Self::Examine(error.into())
    }
}

/// The ways to give rbloat the right to examine other processes.
const GRANT: &str = "; in Docker: --cap-add SYS_PTRACE; in Kubernetes: securityContext.capabilities.add: [\"SYS_PTRACE\"], or kubectl \
                     debug --profile=sysadmin";

/// Returns the sentence on an error, with what the user can do about it.
pub(crate) fn explained(error: &examine::Error) -> String {
    format!("{error}{}", remedy(error))
}

fn remedy_of_agent(error: &agent::Error) -> &'static str {
    match error {
        agent::Error::CannotListen { .. } => "; give another address with --listen",
        agent::Error::NoAuthorities => ": name a file with --push-ca",
        _ => "",
    }
}

/// Returns what the user can do about an error, as the rest of its sentence.
fn remedy(error: &examine::Error) -> Cow<'static, str> {
    use examine::Error as E;
    use linux::Error as K;
    match error {
        E::Capture(K::NotPermitted { obstacle, .. }) => return right_for(*obstacle),
        E::Capture(K::NoSuchProcess { .. }) => "; `rbloat` lists the Ruby processes that run",
        E::Capture(K::Itself { .. }) => "; give the id of a Ruby process",
        E::Capture(K::DoesNotStop { .. }) => "; try again, or allow more with --max-pause",
        E::Capture(K::NewThreads { .. }) => "; try again",
        E::Capture(K::Faults { source, .. }) if source.raw_os_error() == Some(Errno::EMFILE as i32) => {
            "; it takes a descriptor for each thread and processor: raise the limit of open files (ulimit -Hn)"
        }
        E::Capture(K::Clocks { source, .. }) if is_forbidden(source) => {
            "; run rbloat as root; in Docker: --cap-add BPF --cap-add PERFMON; in Kubernetes: securityContext.capabilities.add: \
             [\"BPF\", \"PERFMON\"]. Without --kept, `rbloat who` needs less"
        }
        E::Capture(K::Clocks { .. }) => "; it needs Linux 5.13",
        E::NotRuby { .. } | E::NoSuchCommand { .. } => "; `rbloat` lists the Ruby processes",
        E::NotInContainer { .. } => "; `rbloat` lists the Ruby processes with both ids",
        E::Ambiguous { .. } => "; give one of these ids without --namespace-pid",
        E::NoName => ": give its id, or a word of its command line",
        E::ManyCommands { .. } => "; give one of these ids",
        E::NoRoom { .. } => {
            ". Run rbloat outside of the control group of the process (in Kubernetes: in an ephemeral container with a limit of \
             its own), or raise the limit"
        }
        E::CallRefused { purpose: Purpose::Fork, refusal: Refusal::Slow { .. }, .. } => {
            "; allow more with --max-pause"
        }
        E::CallRefused { purpose: Purpose::Fork, .. } => "; --capture freeze needs none",
        E::CallRefused { purpose: Purpose::Trim, refusal, .. } if refusal.is_transient() => {
            "; try again, or when it has less to do"
        }
        E::Unreadable { .. } => {
            "; give a process id, a file that `rbloat snapshot` wrote, or a core file"
        }
        E::NoSource { .. } => {
            "; if you mean the process of this program, give its id (`rbloat` lists them)"
        }
        E::NotSamples { .. } => "; give a file with the output of `rbloat who PID --json`",
        E::NoFamily { .. } => "; leave out --tree",
        E::NoGroup { .. } => ": give its folder, or its path as in /proc/PID/cgroup",
        E::NoObjects(_) => "; `rbloat report` lists the largest classes",
        E::NoReferences => "; `rbloat report` shows the reason",
        E::SnapshotWithoutReferences => ": use the process or a core",
        E::NoRetainedSizes => ": take it with `rbloat snapshot --retained`",
        _ => "",
    }
    .into()
}

/// Returns the right that rbloat needs against an obstacle, and the ways to give it.
fn right_for(obstacle: Obstacle) -> Cow<'static, str> {
    match obstacle {
        Obstacle::Locked { .. } => "".into(),
        Obstacle::OthersFiles | Obstacle::NotDumpable => "; run rbloat as root".into(),
        Obstacle::Forbidden => "; run rbloat as root on the host".into(),
        Obstacle::OtherUser { .. } => format!("; run rbloat as root or as that user{GRANT}").into(),
        Obstacle::Restricted { .. } => {
            format!("; run rbloat as root, or set /proc/sys/kernel/yama/ptrace_scope to 0{GRANT}")
                .into()
        }
        Obstacle::NoCapability => format!("; run rbloat as root{GRANT}").into(),
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
    /// Returns the message for a list of several processes: it names the process once.
    pub(crate) fn about(&self, pid: i32) -> String {
        let (message, name) = (self.to_string(), format!("process {pid}"));
        if message.contains(&name) { message } else { format!("{name}: {message}") }
    }

    /// The exit status, as `rbloat --help` documents it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Examine(error) => status_of(error),
            Self::OneSource
            | Self::ManySources(_)
            | Self::NoFormat { .. }
            | Self::NeedlessSysroot
            | Self::TreeOfFile
            | Self::MapOfFamilyFile
            | Self::OneFile
            | Self::NoAddress(_)
            | Self::NoExplanation(_)
            | Self::NoScreen(_)
            | Self::RetainedWithoutOwners => 2,
            Self::UnreadableRecording { .. }
            | Self::NotARecording { .. }
            | Self::NoArchive { .. } => 3,
            // As a shell says it.
            Self::Supervise(supervise::Error::NotStarted { source, .. })
            | Self::NoEngine { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => 127,
                io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => 5,
                _ => 126,
            },
            Self::Unwritable(_)
            | Self::NotExported { .. }
            | Self::NoAnswer { .. }
            | Self::Agent(_)
            | Self::NoRun { .. }
            | Self::NothingMeasured
            | Self::NoSetting { .. }
            | Self::Supervise(supervise::Error::Signals(_) | supervise::Error::Unwritable { .. })
            | Self::Output(_) => 1,
        })
    }
}

/// The exit status after an examination failed.
fn status_of(error: &examine::Error) -> u8 {
    use examine::Error as E;
    use linux::Error as K;
    match error {
        E::NoName | E::SnapshotWithoutReferences | E::NoRetainedSizes => 2,
        E::Capture(
            K::NoSuchProcess { .. }
            | K::Thread { .. }
            | K::Zombie { .. }
            | K::KernelThread { .. }
            | K::Itself { .. },
        )
        | E::Core(_)
        | E::NotRuby { .. }
        | E::NotInContainer { .. }
        | E::Ambiguous { .. }
        | E::NoSuchCommand { .. }
        | E::NoGroup { .. }
        | E::NoRubyInGroup { .. }
        | E::NoFamily { .. }
        | E::ManyCommands { .. }
        | E::NoTrim { .. }
        | E::Unreadable { .. }
        | E::NoSource { .. }
        | E::NotRubyCore { .. }
        | E::NotASnapshot { .. }
        | E::NotSamples { .. }
        | E::OtherSamples { .. }
        | E::NothingAt(_)
        | E::NoObjects(_) => 3,
        E::Capture(K::NotPermitted { .. } | K::Faults { .. } | K::Clocks { .. }) => 4,
        E::Capture(
            K::Traced { .. } | K::DoesNotStop { .. } | K::NewThreads { .. } | K::Ended { .. },
        )
        | E::CopyLost(_)
        | E::Unread { .. }
        | E::NoRoom { .. }
        | E::CallRefused { .. } => 5,
        E::NoReferences => 6,
        E::Capture(K::Proc { .. } | K::TooManyFiles { .. } | K::Ptrace { .. } | K::ForeignProc)
        | E::Panicked { .. }
        | E::NoThread(_)
        | E::Supervise(_) => 1,
    }
}
