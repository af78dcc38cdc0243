//! The source of a report: a live process, a snapshot, or a core file.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capture::{Core, CoreOptions, Finding, Severity};
use formats::{Capture, CaptureMethod, Report, Snapshot, Why};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::{Explanation, Extent, Facts, Ledger, NoExplanation, Subject};

use crate::arguments::{CaptureArguments, RetainedArguments, SourceName};
use crate::attempts::{self, Captured};
use crate::failure::Failure;

/// The maximum size of a snapshot's file. The snapshot of a process of 100 GiB is smaller.
const MAX_BYTES: u64 = 2 << 30;

/// A source that was found and checked.
pub(crate) enum Source {
    /// A Ruby process, by its id in /proc.
    Process(i32),
    /// The snapshot of a process.
    Snapshot(Box<Snapshot>),
    /// The core file of a process, opened at the instant `since`.
    Core { path: PathBuf, core: Box<Core>, since: Instant },
}

impl Source {
    /// Finds the process, or reads the file.
    ///
    /// # Errors
    /// If there is no such process or file, or it is something else.
    pub(crate) fn open(name: SourceName) -> Result<Self, Failure> {
        match name {
            SourceName::Process(name) => crate::process::find(name).map(Self::Process),
            SourceName::File { path, sysroot } => Self::of_file(path, sysroot),
        }
    }

    fn of_file(path: PathBuf, sysroot: Option<PathBuf>) -> Result<Self, Failure> {
        if let Some(snapshot) = read_snapshot(&path)? {
            return Ok(Self::Snapshot(Box::new(snapshot)));
        }
        let since = Instant::now();
        let core = match capture::open_core(&path, &CoreOptions { sysroot }) {
            Ok(core) => Box::new(core),
            Err(capture::Error::NoCore { path, what }) => {
                return Err(Failure::NoSource { path, what });
            }
            Err(error) => return Err(error.into()),
        };
        // In a partial core, the missing part may be the one that identifies a Ruby process.
        if !core.is_partial && ruby::find(&core.image).is_none() {
            let command = crate::process::command(&core.image);
            let pid = core.image.state.process.pid;
            return Err(Failure::NotRubyCore { path, pid, command });
        }
        Ok(Self::Core { path, core, since })
    }

    /// Returns the report.
    pub(crate) fn report(self, how: CaptureArguments, detail: Detail) -> Result<Report, Failure> {
        Ok(self.examine(how, detail)?.report)
    }

    /// Returns the report with all owners, and the memory map.
    pub(crate) fn snapshot(
        self,
        how: CaptureArguments,
        retained: RetainedArguments,
    ) -> Result<Snapshot, Failure> {
        let extent = Extent { memory_map: true, ..retained.extent() };
        self.examine(how, Detail { owners: true, extent })
    }

    /// Returns the reason why a subject exists.
    pub(crate) fn explain(self, how: CaptureArguments, subject: &Subject) -> Result<Why, Failure> {
        let detail =
            Detail { owners: true, extent: Extent { retained_sizes: true, memory_map: false } };
        let (explanation, report) = match self {
            Self::Snapshot(_) => return Err(Failure::SnapshotWithoutReferences),
            Self::Process(pid) => {
                let progress = progress(pid);
                let started = Instant::now();
                let mut captured = attempts::take(pid, how, detail)?;
                if let Some(reason) = captured.unread {
                    return Err(Failure::Unread { pid, reason });
                }
                let explanation = Explanation::find(&captured.facts, subject);
                captured.facts.forget_owners();
                let report = account(captured, detail, started).report;
                progress.finish_and_clear();
                (explanation, report)
            }
            Self::Core { path, core, since } => {
                let mut facts = Facts::read(&core.image, detail.owners);
                let explanation = Explanation::find(&facts, subject);
                facts.forget_owners();
                (explanation, account_for_core(&path, &core, &facts, since, detail).report)
            }
        };
        let explanation = explanation.map_err(|reason| match (reason, subject) {
            (NoExplanation::NoGraph, _) => Failure::NoReferences,
            (_, Subject::Address(address)) => Failure::NothingAt(*address),
            (_, Subject::Class(name)) => Failure::NoObjects(name.clone()),
        })?;
        Ok(Why::new(report, &explanation))
    }

    fn examine(self, how: CaptureArguments, detail: Detail) -> Result<Snapshot, Failure> {
        let snapshot = self.read(how, detail)?;
        let report = &snapshot.report;
        if detail.extent.retained_sizes && report.owners.is_some() && report.dominators.is_none() {
            return Err(Failure::NoRetainedSizes);
        }
        Ok(snapshot)
    }

    fn read(self, how: CaptureArguments, detail: Detail) -> Result<Snapshot, Failure> {
        match self {
            Self::Process(pid) => {
                let progress = progress(pid);
                let started = Instant::now();
                let captured = attempts::take(pid, how, detail)?;
                let snapshot = account(captured, detail, started);
                progress.finish_and_clear();
                Ok(snapshot)
            }
            Self::Snapshot(snapshot) => Ok(*snapshot),
            Self::Core { path, core, since } => {
                let facts = Facts::read(&core.image, detail.owners);
                Ok(account_for_core(&path, &core, &facts, since, detail))
            }
        }
    }
}

/// The depth of an examination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Detail {
    /// True if owners are searched for.
    pub(crate) owners: bool,
    /// The extent of the ledger.
    pub(crate) extent: Extent,
}

impl Detail {
    /// Causes and owners.
    pub(crate) const OWNERS: Self = Self { owners: true, ..Self::CAUSES };
    /// Causes only.
    pub(crate) const CAUSES: Self =
        Self { owners: false, extent: Extent { retained_sizes: false, memory_map: false } };
}

/// Returns the report on the Ruby process `pid` without owners, and without a progress line on the terminal.
///
/// # Errors
/// Also if its memory could not be read in time.
pub(crate) fn report_quietly(pid: i32, how: CaptureArguments) -> Result<Report, Failure> {
    let started = Instant::now();
    let captured = attempts::take(pid, how, Detail::CAUSES)?;
    match captured.unread {
        Some(reason) => Err(Failure::Unread { pid, reason }),
        None => Ok(account(captured, Detail::CAUSES, started).report),
    }
}

/// Accounts for a captured process. The examination began at `started`.
fn account(captured: Captured, detail: Detail, started: Instant) -> Snapshot {
    let Captured { facts, state, capture, left, .. } = captured;
    let (mut ledger, memory_map) = Ledger::draw_up_to(detail.extent, &state, &facts);
    if let Some(reason) = left {
        let what = format!(
            "the forked copy has ended, but is still in the process table as a zombie of {}: {reason}. It takes no \
             memory. The next report removes it, as does the end of the process",
            state.process.pid
        );
        ledger.findings.push(Finding::general(Severity::Note, what));
    }
    let report = diagnosis::report(&ledger, capture.with_elapsed(started.elapsed()));
    Snapshot { report, memory_map }
}

/// Accounts for the process of a core. The examination began at `since`.
fn account_for_core(
    path: &Path,
    core: &Core,
    facts: &Facts,
    since: Instant,
    detail: Detail,
) -> Snapshot {
    let (ledger, memory_map) = Ledger::draw_up_to(detail.extent, &core.image.state, facts);
    let reason = format!("read from {}, {}", path.display(), core.origin);
    let pause = Duration::ZERO;
    let capture =
        Capture::new(CaptureMethod::Core, reason, core.written, pause, since.elapsed(), None);
    Snapshot { report: diagnosis::report(&ledger, capture), memory_map }
}

/// Returns the snapshot in a file; `None` if the file does not begin like one.
fn read_snapshot(path: &Path) -> Result<Option<Snapshot>, Failure> {
    let unreadable = |source| Failure::Unreadable { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    let mut bytes = Vec::new();
    // Another file may be endless, such as a device.
    (&file).take(64).read_to_end(&mut bytes).map_err(unreadable)?;
    if !Snapshot::begins(&bytes) {
        return Ok(None);
    }
    (&file).take(MAX_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    let snapshot = Snapshot::from_bytes(&bytes);
    snapshot.map(Some).map_err(|error| Failure::NotASnapshot { path: path.into(), error })
}

/// Shows a progress line on a terminal, before the target is paused. The line is not animated: a thread that draws to
/// the terminal could be stopped by ^Z, and rbloat with it, while the target is paused.
pub(crate) fn progress(pid: i32) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} ...")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let progress = ProgressBar::new_spinner().with_style(style);
    progress.set_message(format!("reading process {pid}"));
    progress.tick();
    progress
}
