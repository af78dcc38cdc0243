use std::io;
use std::path::PathBuf;

use formats::{NoCopy, SnapshotError, Unread};
use image::CoreError;
use inferior::Refusal;
use linux::Address;
use sampler::NoStacks;

use crate::isolation::defect;

/// The reason why an examination failed. Each message states the event and the reason; what a user can do about it is left to
/// the caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused, or the process ended.
    #[error(transparent)]
    Capture(#[from] linux::Error),
    /// The core file cannot be read.
    #[error(transparent)]
    Core(CoreError),
    /// The forked copy ended before it was read.
    #[error(transparent)]
    CopyLost(inferior::Error),
    /// The process is no Ruby process.
    #[error("process {pid} ({command}) is not a Ruby process: it has no symbol rb_cObject")]
    NotRuby {
        /// Its id.
        pid: i32,
        /// The beginning of its command line.
        command: String,
        /// The only Ruby process that it, or a program between them, started.
        ruby: Option<i32>,
    },
    /// No process has this id in its container.
    #[error("no Ruby process has the id {namespace_pid} inside a container")]
    NotInContainer {
        /// The requested id.
        namespace_pid: i32,
    },
    /// Several processes have this id in their containers.
    #[error("{} processes have the id {namespace_pid} inside their containers: {}", candidates.len(), candidates.join(", "))]
    Ambiguous {
        /// The requested id.
        namespace_pid: i32,
        /// The processes: ids and command lines.
        candidates: Vec<String>,
    },
    /// The word for a command line is empty.
    #[error("the name of the process is empty")]
    NoName,
    /// No process has this word in its command line, or is in a container of that name.
    #[error(
        "there is neither a file `{word}` nor a Ruby process with `{word}` in its command line, or in a container of that name"
    )]
    NoSuchCommand {
        /// The word.
        word: String,
    },
    /// Several processes have this word in their command lines, or are in that container.
    #[error("{} Ruby processes have `{word}` in their command lines, or are in that container: {}", candidates.len(), candidates.join(", "))]
    ManyCommands {
        /// The word.
        word: String,
        /// The processes: ids and command lines.
        candidates: Vec<String>,
    },
    /// A defect of rbloat.
    #[error("cannot examine process {pid}; {}", defect(what))]
    Panicked {
        /// The process that brought it to light.
        pid: i32,
        /// The message and the place of the panic.
        what: String,
    },
    /// The memory of the process was not read.
    #[error("process {pid} was not read")]
    Unread {
        /// Its id.
        pid: i32,
        /// The pause that it would have taken.
        unread: Unread,
        /// The reason why no forked copy was made, if it is known.
        no_copy: Option<NoCopy>,
    },
    /// The stacks of the process cannot be read.
    #[error("process {pid}: {reason}")]
    NoStacks {
        /// Its id.
        pid: i32,
        /// The reason.
        reason: NoStacks,
    },
    /// The memory limit leaves too little for rbloat itself.
    #[error(
        "cannot read process {pid}: rbloat needs about {} MiB of memory, and the memory limit that it shares with the \
         process leaves {} MiB",
        .own_bytes >> 20, .room_bytes >> 20
    )]
    NoRoom {
        /// The process.
        pid: i32,
        /// The memory that rbloat needs.
        own_bytes: u64,
        /// The memory that is left.
        room_bytes: u64,
    },
    /// The process cannot be made to run a call.
    #[error("cannot {purpose} process {pid}: {refusal}{}", reason_for(refusal))]
    CallRefused {
        /// The process.
        pid: i32,
        /// The purpose of the call.
        purpose: Purpose,
        /// The reason.
        refusal: Refusal,
    },
    /// The allocator of the process cannot return memory.
    #[error(
        "cannot trim process {pid}: rbloat knows no function of its allocator, {allocator}, that returns memory"
    )]
    NoTrim {
        /// The process.
        pid: i32,
        /// Its allocator.
        allocator: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file is of another kind.
    #[error("{} is neither a file that `rbloat snapshot` wrote, nor a core file: {what}", path.display())]
    NoSource {
        /// The file.
        path: PathBuf,
        /// Its kind.
        what: String,
    },
    /// A core is not of a Ruby process.
    #[error(
        "{} is the core of process {pid} ({command}), which was not a Ruby process: it has no symbol rb_cObject",
        path.display()
    )]
    NotRubyCore {
        /// The file.
        path: PathBuf,
        /// The process.
        pid: i32,
        /// The beginning of its command line.
        command: String,
    },
    /// A file is no snapshot, or a damaged one.
    #[error("cannot read {}: {error}", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: SnapshotError,
    },
    /// A file has no samples.
    #[error("cannot read {}: {what}", path.display())]
    NotSamples {
        /// The file.
        path: PathBuf,
        /// The kind of document that is needed.
        kind: &'static str,
        /// The reason.
        what: String,
    },
    /// A file has no samples of this process.
    #[error("{} has no samples of process {pid}: {why}", path.display())]
    OtherSamples {
        /// The file.
        path: PathBuf,
        /// The process.
        pid: i32,
        /// The reason.
        why: &'static str,
    },
    /// A process has no relatives.
    #[error("process {pid} has no family: it was not forked, and has no forked children")]
    NoFamily {
        /// The process.
        pid: i32,
    },
    /// There is no such control group.
    #[error("there is no control group {}", path.display())]
    NoGroup {
        /// The requested path.
        path: PathBuf,
    },
    /// A control group has no Ruby process.
    #[error("no Ruby process is in the control group {}", path.display())]
    NoRubyInGroup {
        /// The requested path.
        path: PathBuf,
    },
    /// No object or block is at an address.
    #[error("there is no live object and no malloc'ed memory in use at {0}")]
    NothingAt(Address),
    /// A class has no object.
    #[error("there is no live object of class {0}")]
    NoObjects(String),
    /// The graph of objects is unknown.
    #[error("the references between objects could not be read")]
    NoReferences,
    /// A snapshot has no graph of objects.
    #[error("a snapshot does not have the references between objects")]
    SnapshotWithoutReferences,
    /// A snapshot has no objects.
    #[error("a snapshot is not a dump: it has no objects, only figures about them")]
    SnapshotWithoutObjects,
    /// A dump cannot be read.
    #[error("cannot read the dump {}: {error}", linux::one_line(&path.display().to_string()))]
    Dump {
        /// Its file.
        path: PathBuf,
        /// The reason.
        error: archive::DumpError,
    },
    /// The dump is a folder of tables.
    #[error("the dump {} is a folder of tables", linux::one_line(&path.display().to_string()))]
    DumpOfTables {
        /// The folder.
        path: PathBuf,
    },
    /// Dumps were given with something else.
    #[error("dumps are compared with dumps only, and `{}` is none", linux::one_line(other))]
    NotADump {
        /// The name of the other source.
        other: String,
    },
    /// One dump was given, or too many.
    #[error("two or three dumps are compared, and not {0}")]
    OtherNumberOfDumps(usize),
    /// A snapshot was taken without retained sizes.
    #[error("the snapshot has no retained sizes")]
    NoRetainedSizes,
    /// A thread of rbloat cannot be started.
    #[error("cannot start a thread: {0}")]
    NoThread(io::Error),
    /// A signal or a program cannot be handled.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
}

/// The purpose of a call in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To copy it.
    Fork,
    /// To return its free memory.
    Trim,
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Fork => "make a forked copy of",
            Self::Trim => "trim",
        })
    }
}

impl From<inferior::Error> for Error {
    fn from(error: inferior::Error) -> Self {
        match error {
            inferior::Error::Capture(error) => Self::Capture(error),
            lost => Self::CopyLost(lost),
        }
    }
}

impl Error {
    /// Returns true if the process has ended.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Capture(error) if error.is_end())
    }

    /// Returns true if a memory limit left no room for the capture, or for a copy that would have paused the process for a shorter time.
    #[must_use]
    pub fn is_lack_of_room(&self) -> bool {
        let no_room = Some(NoCopy::NoRoom);
        matches!(self, Self::NoRoom { .. })
            || matches!(self, Self::Unread { no_copy, .. } if *no_copy == no_room)
    }

    /// Returns true if it is no news about a process of a list: it has ended, or is one of those without memory.
    #[must_use]
    pub fn is_without_memory(&self) -> bool {
        self.is_end() || matches!(self, Self::Capture(linux::Error::KernelThread { .. }))
    }

    /// Returns the reason why a call could not be run in the process or in its copy.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::CallRefused { refusal, .. }
            | Self::CopyLost(inferior::Error::CopyNotRun { refusal, .. }) => Some(refusal),
            _ => None,
        }
    }

    /// Returns true if the rights of rbloat do not suffice.
    #[must_use]
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Capture(linux::Error::NotPermitted { .. }))
    }
}

/// Returns the message about one of several processes: it names the process once.
#[must_use]
pub fn about(pid: i32, message: &str) -> String {
    let name = format!("process {pid}");
    if message.contains(&name) { message.into() } else { format!("{name}: {message}") }
}

/// Returns the rest of a sentence on a refusal that is about Ruby, which `inferior` does not know.
pub(crate) fn reason_for(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoHandler { .. } => ", which every CRuby installs when it starts",
        _ => "",
    }
}
