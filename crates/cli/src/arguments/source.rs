//! What is to be looked at, and how it is held still meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::time::parse_short_time;
use crate::failure::Failure;

/// What is to be looked at.
#[derive(Debug, Args)]
pub(crate) struct SourceArguments {
    #[command(flatten)]
    which: WhichArguments,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Where the files are that the process of a core file had mapped (libruby, libc ...), as below its
    /// root: for a core of another machine or a container
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhichArguments {
    /// A process, a file that `rbloat snapshot` wrote, or a core file
    #[arg(value_name = "PID|FILE")]
    source: Option<String>,
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: Option<i32>,
    /// The process by the id that it has inside its container, seen from outside of that
    #[arg(long, value_name = "PID")]
    namespace_pid: Option<i32>,
}

/// How a process is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessName {
    /// By the id that /proc shows.
    Pid(i32),
    /// As its container calls it.
    NamespacePid(i32),
}

/// How that is called which is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceName {
    Process(ProcessName),
    File {
        path: PathBuf,
        /// The folder below which the files are that the process of a core had mapped.
        sysroot: Option<PathBuf>,
    },
}

impl From<&str> for SourceName {
    /// A number is a process; a file of such a name is written `./4242`.
    fn from(source: &str) -> Self {
        match source.parse() {
            Ok(pid) => Self::Process(ProcessName::Pid(pid)),
            Err(_) => Self::File { path: source.into(), sysroot: None },
        }
    }
}

impl SourceName {
    /// The same, with the folder below which the files are that the process of a core had mapped.
    pub(super) fn below(self, folder: Option<&Path>) -> Self {
        match self {
            Self::File { path, .. } => Self::File { path, sysroot: folder.map(Path::to_owned) },
            process => process,
        }
    }
}

impl SourceArguments {
    /// # Errors
    /// Where a folder of files is given for a process, which has its own.
    pub(crate) fn name(&self) -> Result<SourceName, Failure> {
        let WhichArguments { source, pid, namespace_pid } = &self.which;
        let name = match (source, pid, namespace_pid) {
            (Some(source), ..) => SourceName::from(source.as_str()).below(self.sysroot.as_deref()),
            (_, Some(pid), _) => SourceName::Process(ProcessName::Pid(*pid)),
            (.., namespace_pid) => {
                let pid = namespace_pid.expect("clap requires one of them");
                SourceName::Process(ProcessName::NamespacePid(pid))
            }
        };
        match name {
            SourceName::Process(_) if self.sysroot.is_some() => Err(Failure::NeedlessSysroot),
            name => Ok(name),
        }
    }
}

/// The method of a capture, and its limit.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct CaptureArguments {
    /// How to hold the process still
    ///
    /// `fork`: it pauses while it makes a forked copy of itself, which is read instead; one of its threads
    /// runs clone(2) as if in a signal handler. `freeze`: it pauses while it is read, and nothing is written
    /// to it. `auto`: fork if that is safe, freeze if not.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub(crate) capture: CaptureMode,
    /// The longest pause of the process: 50ms, 2s
    ///
    /// A freeze that reaches it lets the process go on at once; what was not read is reported as missing.
    /// A process that is in the midst of a change may be paused up to four times.
    #[arg(long, value_name = "TIME", value_parser = parse_short_time, default_value = "50ms")]
    pub(crate) max_pause: Duration,
}

/// Which way of holding a process still is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureMode {
    #[default]
    Auto,
    Fork,
    Freeze,
}

/// The process, in one of three ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ProcessArguments {
    /// The process
    #[arg(value_name = "PID")]
    source: Option<i32>,
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: Option<i32>,
    /// The process by the id that it has inside its container, seen from outside of that
    #[arg(long, value_name = "PID")]
    namespace_pid: Option<i32>,
}

impl ProcessArguments {
    pub(crate) fn name(&self) -> ProcessName {
        match (self.source.or(self.pid), self.namespace_pid) {
            (Some(pid), _) => ProcessName::Pid(pid),
            (None, namespace_pid) => {
                ProcessName::NamespacePid(namespace_pid.expect("clap requires one of them"))
            }
        }
    }
}
