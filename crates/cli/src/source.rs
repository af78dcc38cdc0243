//! What is looked at: a process, or a file that was made of one.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capture::{Core, CoreOptions, Finding, ProcessState, Severity};
use indicatif::{ProgressBar, ProgressStyle};
use ledger::{Facts, Ledger, MemoryMap};
use report::{Capture, CaptureMethod, Report, Snapshot};

use crate::arguments::{CaptureArguments, SourceName};
use crate::attempts::{self, Captured};
use crate::failure::Failure;

/// The most bytes of a snapshot's file: that of a process of 100 GB has less.
const MOST_BYTES: u64 = 2 << 30;

/// What is looked at, found and known to be what it should be.
pub(crate) enum Source {
    /// A Ruby process, by the id that /proc shows.
    Process(i32),
    /// What was kept of one.
    Snapshot(Box<Snapshot>),
    /// What the kernel or a debugger left of one.
    Core { path: PathBuf, core: Box<Core>, since: Instant },
}

impl Source {
    /// Finds the process, or reads the file.
    ///
    /// # Errors
    /// Where there is none, or it is something else.
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
        // Where something is missing, it may be what tells that it is one.
        if !core.is_partial && ruby::find(&core.image).is_none() {
            let command = crate::process::command(&core.image);
            let pid = core.image.state.process.pid;
            return Err(Failure::NotRubyCore { path, pid, command });
        }
        Ok(Self::Core { path, core, since })
    }

    /// The whole report of it; with owners, if they are wanted.
    pub(crate) fn report(self, how: CaptureArguments, owners: bool) -> Result<Report, Failure> {
        match self {
            Self::Process(pid) => Ok(examine(pid, how, owners, false)?.0),
            Self::Snapshot(snapshot) => Ok(snapshot.report),
            Self::Core { path, core, since } => Ok(dissect(&path, &core, since, owners, false).0),
        }
    }

    /// The report of it with all owners, and where everything lies.
    pub(crate) fn snapshot(self, how: CaptureArguments) -> Result<Snapshot, Failure> {
        match self {
            Self::Process(pid) => {
                let (report, memory_map) = examine(pid, how, true, true)?;
                Ok(Snapshot { report, memory_map })
            }
            Self::Snapshot(snapshot) => Ok(*snapshot),
            Self::Core { path, core, since } => {
                let (report, memory_map) = dissect(&path, &core, since, true, true);
                Ok(Snapshot { report, memory_map })
            }
        }
    }
}

/// Reads a process, and draws up its books; the memory_map is empty unless `draws`.
fn examine(
    pid: i32,
    how: CaptureArguments,
    owners: bool,
    draws: bool,
) -> Result<(Report, MemoryMap), Failure> {
    let progress = progress(pid);
    let started = Instant::now();
    let examined = draw_up_captured(attempts::take(pid, how, owners)?, draws, started);
    progress.finish_and_clear();
    Ok(examined)
}

/// The report on the Ruby process `pid` without owners, and without a sign of life on the terminal.
///
/// # Errors
/// Also where its memory could not be read in time.
pub(crate) fn report_quietly(pid: i32, how: CaptureArguments) -> Result<Report, Failure> {
    let started = Instant::now();
    let captured = attempts::take(pid, how, false)?;
    match captured.unread {
        Some(reason) => Err(Failure::Unread { pid, reason }),
        None => Ok(draw_up_captured(captured, false, started).0),
    }
}

/// Draws up the books of a process for which the work began at `started`.
fn draw_up_captured(captured: Captured, draws: bool, started: Instant) -> (Report, MemoryMap) {
    let Captured { facts, state, capture, left, statistics, .. } = captured;
    let (mut ledger, memory_map) = draw_up(&state, &facts, draws);
    if let Some(reason) = left {
        let pid = state.process.pid;
        let what = format!(
            "the clone that was read is still in the process table, as a zombie of {pid} that takes no \
             memory: {reason}; the next report by --capture fork, or its end, takes it away"
        );
        ledger.findings.push(Finding::general(Severity::Note, what));
    }
    let capture = capture.with_elapsed(started.elapsed());
    let report = Report { allocator_statistics: statistics, ..Report::new(&ledger, capture) };
    (report, memory_map)
}

/// Reads a core, and draws up its books; the memory_map is empty unless `draws`.
fn dissect(
    path: &Path,
    core: &Core,
    since: Instant,
    owners: bool,
    draws: bool,
) -> (Report, MemoryMap) {
    let facts = Facts::read(&core.image, owners);
    let (ledger, memory_map) = draw_up(&core.image.state, &facts, draws);
    let reason = format!("read from {}, {}", path.display(), core.origin);
    let capture =
        Capture::new(CaptureMethod::Core, reason, core.written, Duration::ZERO, since.elapsed());
    (Report::new(&ledger, capture), memory_map)
}

fn draw_up(state: &ProcessState, facts: &Facts, draws: bool) -> (Ledger, MemoryMap) {
    if draws {
        Ledger::draw_up_with_atlas(state, facts)
    } else {
        (Ledger::draw_up(state, facts), MemoryMap::default())
    }
}

/// The snapshot in a file; `None` where that does not begin as one does.
fn read_snapshot(path: &Path) -> Result<Option<Snapshot>, Failure> {
    let unreadable = |source| Failure::Unreadable { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    let mut bytes = Vec::new();
    // What does not begin as one might have no end.
    (&file).take(64).read_to_end(&mut bytes).map_err(unreadable)?;
    if !Snapshot::begins(&bytes) {
        return Ok(None);
    }
    (&file).take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    let snapshot = Snapshot::from_bytes(&bytes);
    snapshot.map(Some).map_err(|error| Failure::NotASnapshot { path: path.into(), error })
}

/// A sign of life on a terminal, drawn before the target is stopped. It does not move: a thread that
/// drew it meanwhile would be one that ^Z could stop rbloat through, with the target standing.
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
