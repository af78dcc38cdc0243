use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use formats::RecordingError;

use crate::remedy::{
    remedy, remedy_of_added, remedy_of_agent, remedy_of_recording, remedy_of_screen,
};

/// The reason why a command failed. Each message states the event, the reason, and a remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}{}", .0, remedy(.0))]
    Examine(examine::Error),
    #[error("{}{}", .0, remedy_of_added(.0))]
    NoSnapshot(examine::Error),
    #[error(transparent)]
    Unwritable(#[from] output::Error),
    #[error("{} is not an archive: it has no folder `looks`; --add makes an archive", path.display())]
    NoArchive { path: PathBuf },
    #[error("cannot start {}: {source}; install DuckDB (https://duckdb.org, or `pip install duckdb-cli`), name it with --duckdb, or use \
         another engine with --print", program.display())]
    NoEngine { program: PathBuf, source: io::Error },
    #[error("{} could not answer: {status}: {}", program.display(), linux::one_line(reason))]
    NoAnswer { program: PathBuf, status: std::process::ExitStatus, reason: String },
    #[error("cannot read the answer of {}: {}", program.display(), linux::one_line(reason))]
    OddAnswer { program: PathBuf, reason: String },
    #[error("cannot add {}: {error}", path.display())]
    NotAdded { path: PathBuf, error: archive::Error },
    #[error("cannot write the tables to {}: {error}", path.display())]
    NotDumped { path: PathBuf, error: archive::Error },
    #[error("dumps are compared by object: leave out the options of processes and snapshots")]
    NeedlessOfDumps,
    #[error("nothing to compare with: give two or more processes or files, or one process")]
    OneSource,
    #[error(
        "--every and --times are for one process, but {0} were given: leave out the options, or give one process"
    )]
    ManySources(usize),
    #[error(
        "--kept samples one running process between its snapshots: give one process, or leave out --kept"
    )]
    KeptOfMany,
    #[error(
        "cannot compare {0}: the memory of its process was not read. `rbloat report {0}` says why; take another snapshot"
    )]
    NotRead(String),
    #[error(
        "cannot compare {of} with {with}: only one of them has {what}. `rbloat report` on the other one says why; take another snapshot"
    )]
    NotComparable { of: String, with: String, what: &'static str },
    #[error("--kept needs at least three snapshots: leave out --kept, or --times 2")]
    KeptOfTwo,
    #[error(
        "no object is older than {} s after {} s: give a longer --for, or a shorter --older-than",
        .older_than.as_secs_f64(), .duration.as_secs_f64()
    )]
    TooShortForKept { duration: Duration, older_than: Duration },
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
    #[error("cannot read {}: {error}{}", path.display(), remedy_of_recording(error))]
    NotARecording { path: PathBuf, error: RecordingError },
    #[error("cannot write {}: its name must end in {}", path.display(), extensions_in_words(extensions))]
    NoFormat { path: PathBuf, extensions: Vec<&'static str> },
    #[error(
        "--sysroot is for core files only: leave it out (the files of a process are found through /proc)"
    )]
    NeedlessSysroot,
    #[error(
        "a report is on one process or file: leave out the others, add --tree for the processes of a family, or write a platform as --fix=heroku"
    )]
    ManyReports,
    #[error(
        "a recording has the memory over time only: give no option but --output, --json and --fit, or a process, a snapshot or a core"
    )]
    NeedlessOfRecording,
    #[error(
        "--fit needs recordings of workers under load, or one process of a server, and no option but --output, --json and --tree"
    )]
    FitOfOther,
    #[error("with a recording, each further name must be that of a recording, and end in .jsonl")]
    NotOnlyRecordings,
    #[error("--tree needs a live process, or one file that `rbloat snapshot --tree` wrote")]
    TreeOfFile,
    #[error("`rbloat map --tree` needs a live process: no file has the page frames of a family")]
    MapOfFamilyFile,
    #[error(
        "`{0}` is neither an address nor the name of a class: addresses look like 0x7f1234567890"
    )]
    NoAddress(String),
    #[error("there is no explanation of `{0}`: `rbloat explain` lists what it can explain")]
    NoExplanation(String),
    #[error("{0} needs owners: leave out --owners 0")]
    NeedsOwners(&'static str),
    #[error("a snapshot has no texts: --show-strings needs a process or a core")]
    NoTexts,
    #[error("{}{}", .0, remedy_of_screen(.0))]
    Top(top::Error),
    #[error("{}{}", .0, remedy_of_agent(.0))]
    Agent(agent::Error),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Returns extensions as an enumeration.
fn extensions_in_words(extensions: &[&str]) -> String {
    let words: Vec<String> = extensions.iter().map(|it| format!(".{it}")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl From<examine::Error> for Failure {
    fn from(error: examine::Error) -> Self {
        match error {
            examine::Error::Supervise(error) => Self::Supervise(error),
            error => Self::Examine(error),
        }
    }
}

impl From<top::Error> for Failure {
    fn from(error: top::Error) -> Self {
        match error {
            top::Error::Examine(error) => error.into(),
            top::Error::Unwritable(error) => error.into(),
            top::Error::Supervise(error) => error.into(),
            top::Error::Output(error) => error.into(),
            error @ top::Error::NoScreen(_) => Self::Top(error),
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
    /// The exit status, as `rbloat --help` documents it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Examine(error) | Self::NoSnapshot(error) => status_of(error),
            Self::OneSource
            | Self::NeedlessOfDumps
            | Self::ManySources(_)
            | Self::KeptOfMany
            | Self::KeptOfTwo
            | Self::NotRead(_)
            | Self::NotComparable { .. }
            | Self::TooShortForKept { .. }
            | Self::NoFormat { .. }
            | Self::NeedlessSysroot
            | Self::ManyReports
            | Self::NeedlessOfRecording
            | Self::FitOfOther
            | Self::NotOnlyRecordings
            | Self::TreeOfFile
            | Self::MapOfFamilyFile
            | Self::NoAddress(_)
            | Self::NoExplanation(_)
            | Self::Top(_)
            | Self::NeedsOwners(_)
            | Self::NoTexts
            | Self::Agent(agent::Error::NoSnapshots) => 2,
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
            | Self::NotAdded { .. }
            | Self::NotDumped { .. }
            | Self::NoAnswer { .. }
            | Self::OddAnswer { .. }
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
        E::NoName
        | E::SnapshotWithoutReferences
        | E::SnapshotWithoutObjects
        | E::DumpOfTables { .. }
        | E::NotADump { .. }
        | E::OtherNumberOfDumps(_)
        | E::NoRetainedSizes => 2,
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
        | E::Dump { .. }
        | E::NoSource { .. }
        | E::NotRubyCore { .. }
        | E::NotASnapshot { .. }
        | E::NotSamples { .. }
        | E::OtherSamples { .. }
        | E::NothingAt(_)
        | E::NoObjects(_) => 3,
        E::Capture(K::NotPermitted { .. } | K::Faults { .. } | K::Clocks { .. }) => 4,
        E::Capture(
            K::Traced { .. }
            | K::DoesNotStop { .. }
            | K::NewThreads { .. }
            | K::Ended { .. }
            | K::UnknownGroup { .. },
        )
        | E::CopyLost(_)
        | E::Unread { .. }
        | E::NoStacks { .. }
        | E::NoRoom { .. }
        | E::CallRefused { .. } => 5,
        E::NoReferences => 6,
        E::Capture(K::Proc { .. } | K::TooManyFiles { .. } | K::Ptrace { .. } | K::ForeignProc)
        | E::Panicked { .. }
        | E::NoThread(_)
        | E::Supervise(_) => 1,
    }
}
