//! The process or file to examine, and the method of its capture.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ledger::Extent;

use super::time::parse_short_time;
use crate::failure::Failure;
use crate::sandbox::SandboxArguments;

/// The process or file to examine.
#[derive(Debug, Args)]
pub(crate) struct SourceArguments {
    #[command(flatten)]
    which: WhichArguments,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// For a core file from another machine or a container: the folder with the files that the process had mapped
    /// (libruby, libc ...), laid out as below its root
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    sysroot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhichArguments {
    /// A process, a snapshot, or a core file
    ///
    /// A process has an id, or a word of its command line that no other Ruby process has
    #[arg(value_name = "PID|FILE")]
    source: Option<String>,
    /// The process to examine
    #[arg(short, long, value_name = "PID", hide_short_help = true)]
    pid: Option<i32>,
    /// The process, by the pid that it has in its container
    #[arg(long, value_name = "PID", hide_short_help = true)]
    namespace_pid: Option<i32>,
}

/// The name of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessName {
    /// The pid that /proc shows.
    Pid(i32),
    /// The pid in its container.
    NamespacePid(i32),
    /// A part of its command line.
    Command(String),
}

impl From<&str> for ProcessName {
    fn from(name: &str) -> Self {
        name.parse().map_or_else(|_| Self::Command(name.to_owned()), Self::Pid)
    }
}

/// The name of a process or file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceName {
    Process(ProcessName),
    File {
        path: PathBuf,
        /// The folder with the files that the process of a core had mapped.
        sysroot: Option<PathBuf>,
    },
}

impl SourceName {
    /// Returns the process or file that a word names. A number is a process; a file with a number as its name is written
    /// `./4242`. Another word is a file if there is such a file, or if it is a path or the usual name of a snapshot or core;
    /// otherwise it is a process. `sysroot` is the folder with the files that the process of a core had mapped.
    pub(crate) fn of(word: &str, sysroot: Option<&Path>) -> Self {
        let is_usual = word.contains('/') || word.ends_with(".rbloat") || word.starts_with("core");
        let is_file = || sysroot.is_some() || is_usual || Path::new(word).is_file();
        match ProcessName::from(word) {
            ProcessName::Command(_) if is_file() => {
                Self::File { path: word.into(), sysroot: sysroot.map(Path::to_owned) }
            }
            process => Self::Process(process),
        }
    }
}

impl SourceArguments {
    /// # Errors
    /// If such a folder is given for a live process.
    pub(crate) fn name(&self) -> Result<SourceName, Failure> {
        let WhichArguments { source, pid, namespace_pid } = &self.which;
        let name = match (source, pid, namespace_pid) {
            (Some(source), ..) => SourceName::of(source, self.sysroot.as_deref()),
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

/// The method of a capture, and its longest pause.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct CaptureArguments {
    /// How to capture the process
    ///
    /// `fork`: it pauses while one of its threads makes a forked copy, by clone(2) in a signal handler. rbloat then
    /// reads the copy. `freeze`: it pauses while rbloat reads it. Nothing is written to it. `auto`: `fork` if that is
    /// safe, else `freeze`.
    #[arg(long, value_enum, default_value_t, value_name = "HOW", hide_short_help = true)]
    pub(crate) capture: CaptureMode,
    /// The longest pause of the process: 50ms, 2s
    ///
    /// The default is 50 ms, and 25 ms more for each GiB of the process, but at most 500 ms. A freeze that reaches this limit resumes the process at once, and the report is incomplete. A forked copy is made
    /// only if it is expected to take less. The process may be paused up to four times, if its heap is being changed at
    /// that instant.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_short_time,
        hide_short_help = true
    )]
    pub(crate) max_pause: Option<Duration>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArguments,
}

/// Retained sizes, on request.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RetainedArguments {
    /// Also find the memory that objects retain
    ///
    /// That is what would be freed if a constant, a thread, an object, or all objects of a class went away. This takes some seconds more if the process has millions of objects, after the pause. Snapshots contain it only if
    /// they were taken with --retained.
    #[arg(long)]
    pub(crate) retained: bool,
}

impl RetainedArguments {
    /// The extent of a ledger without a memory map.
    pub(crate) fn extent(self) -> Extent {
        Extent { retained_sizes: self.retained, memory_map: false }
    }
}

/// The method of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureMode {
    #[default]
    Auto,
    Fork,
    Freeze,
}

/// The process to examine, named in one of three ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ProcessArguments {
    /// The process: its id, or a word of its command line
    ///
    /// No other Ruby process may have the word in its command line
    #[arg(value_name = "PID")]
    source: Option<String>,
    /// The process
    #[arg(short, long, value_name = "PID", hide_short_help = true)]
    pid: Option<i32>,
    /// The process, by the pid that it has in its container
    #[arg(long, value_name = "PID", hide_short_help = true)]
    namespace_pid: Option<i32>,
}

impl ProcessArguments {
    pub(crate) fn name(&self) -> ProcessName {
        match (&self.source, self.pid, self.namespace_pid) {
            (Some(name), ..) => ProcessName::from(name.as_str()),
            (_, Some(pid), _) => ProcessName::Pid(pid),
            (.., namespace_pid) => {
                ProcessName::NamespacePid(namespace_pid.expect("clap requires one of them"))
            }
        }
    }
}
