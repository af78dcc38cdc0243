//! The process or file to examine, and the method of its capture.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use examine::{CaptureOptions, ProcessName, SandboxOptions, SourceName};

use super::time::parse_short_time;
use crate::failure::Failure;
use crate::terminal;

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
    /// A process has an id, or a name that no other Ruby process has: a word of its command line, NAMESPACE/POD, or its container
    #[arg(value_name = "PID|FILE")]
    source: Option<String>,
    /// The process, by the pid that it has in its container
    #[arg(long, value_name = "PID", hide_short_help = true)]
    namespace_pid: Option<i32>,
}

impl SourceArguments {
    /// Returns true if no option says how to read a process or a core.
    pub(crate) fn is_plain(&self) -> bool {
        let CaptureArguments { capture, max_pause, sandbox: _ } = self.capture;
        self.sysroot.is_none() && max_pause.is_none() && capture == CaptureMode::default()
    }

    /// # Errors
    /// If such a folder is given for a live process.
    pub(crate) fn name(&self) -> Result<SourceName, Failure> {
        let WhichArguments { source, namespace_pid } = &self.which;
        let name = match (source, namespace_pid) {
            (Some(source), _) => SourceName::of(source, self.sysroot.as_deref()),
            (None, namespace_pid) => {
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
    /// The default is 50 ms, and 25 ms more for each GiB of the process, but at most 500 ms; for a process that only computes, at least
    /// 250 ms. A freeze that reaches this limit resumes the process at once, and the report is incomplete. A forked copy is made only if it
    /// is expected to take less. The process may be paused up to four times, if its heap is being changed at that instant.
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

impl CaptureArguments {
    /// The options of an examination.
    pub(crate) fn options(self) -> CaptureOptions {
        let mode = match self.capture {
            CaptureMode::Auto => examine::CaptureMode::Auto,
            CaptureMode::Fork => examine::CaptureMode::Fork,
            CaptureMode::Freeze => examine::CaptureMode::Freeze,
        };
        let sandbox = self.sandbox.options();
        CaptureOptions { mode, max_pause: self.max_pause, max_own_bytes: None, sandbox }
    }
}

/// The sandbox of an analysis.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SandboxArguments {
    /// Keep all rights during the analysis
    ///
    /// By default rbloat gives up its rights once it has read the process or opened the files: it drops its capabilities
    /// (capset), can open no further files (Landlock), and can make only the system calls of an analysis (seccomp).
    #[arg(long, hide_short_help = true)]
    no_sandbox: bool,
}

impl SandboxArguments {
    /// The options of a sandbox.
    pub(crate) fn options(self) -> SandboxOptions {
        SandboxOptions { is_enabled: !self.no_sandbox, complain: |what| terminal::complain(what) }
    }
}

/// Retained sizes, on request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args)]
pub(crate) struct RetainedArguments {
    /// Also find the memory that objects retain
    ///
    /// That is what would be freed if a constant, a thread, an object, or all objects of a class went away. This takes some seconds more if the process has millions of objects, after the pause. Snapshots contain it only if
    /// they were taken with --retained.
    #[arg(long)]
    pub(crate) retained: bool,
}

/// Memory that live objects do not use, on request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args)]
pub(crate) struct WasteArguments {
    /// Also find the memory that live objects do not use
    ///
    /// That is the room behind texts, elements and entries, and objects that contain the same as others, or nothing, each with the path that
    /// retains it. Only hashes of the contents are kept
    #[arg(long)]
    pub(crate) waste: bool,
}

/// The method of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureMode {
    #[default]
    Auto,
    Fork,
    Freeze,
}

/// The process to examine, named in one of two ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ProcessArguments {
    /// The process: its id, or a word of its command line
    ///
    /// No other Ruby process may have the word in its command line. NAMESPACE/POD and the name or id of its container are names, too
    #[arg(value_name = "PID")]
    source: Option<String>,
    /// The process, by the pid that it has in its container
    #[arg(long, value_name = "PID", hide_short_help = true)]
    namespace_pid: Option<i32>,
}

impl ProcessArguments {
    pub(crate) fn name(&self) -> ProcessName {
        match (&self.source, self.namespace_pid) {
            (Some(name), _) => ProcessName::from(name.as_str()),
            (None, namespace_pid) => {
                ProcessName::NamespacePid(namespace_pid.expect("clap requires one of them"))
            }
        }
    }
}
