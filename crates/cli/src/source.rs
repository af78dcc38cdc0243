//! What is looked at: a process, or a file that was made of one.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::{Atlas, Ledger};
use report::{Report, Snapshot};
use target::{Finding, Severity};

use crate::arguments::{CaptureMode, SourceName};
use crate::capture::{self, Captured};
use crate::failure::Failure;

/// The most bytes of a snapshot's file: that of a process of 100 GB has less.
const MOST_BYTES: u64 = 2 << 30;

/// What is looked at, found and known to be what it should be.
pub(crate) enum Source {
    /// A Ruby process, by the id that /proc shows.
    Process(i32),
    /// What was kept of one.
    Snapshot(Box<Snapshot>),
}

impl Source {
    /// Finds the process, or reads the file.
    ///
    /// # Errors
    /// Where there is none, or it is something else.
    pub(crate) fn open(name: SourceName) -> Result<Self, Failure> {
        match name {
            SourceName::Process(name) => crate::process::find(name).map(Self::Process),
            SourceName::File(path) => {
                read_snapshot(&path).map(|snapshot| Self::Snapshot(Box::new(snapshot)))
            }
        }
    }

    /// The whole report of it; with owners, if they are wanted.
    pub(crate) fn report(self, mode: CaptureMode, owners: bool) -> Result<Report, Failure> {
        match self {
            Self::Process(pid) => Ok(examine(pid, mode, owners, false)?.0),
            Self::Snapshot(snapshot) => Ok(snapshot.report),
        }
    }

    /// The report of it with all owners, and where everything lies.
    pub(crate) fn snapshot(self, mode: CaptureMode) -> Result<Snapshot, Failure> {
        match self {
            Self::Process(pid) => {
                let (report, atlas) = examine(pid, mode, true, true)?;
                Ok(Snapshot { report, atlas })
            }
            Self::Snapshot(snapshot) => Ok(*snapshot),
        }
    }
}

/// Reads a process, and draws up its books; the atlas is empty unless `draws`.
fn examine(
    pid: i32,
    mode: CaptureMode,
    owners: bool,
    draws: bool,
) -> Result<(Report, Atlas), Failure> {
    let started = Instant::now();
    let progress = progress(pid);
    let captured = capture::take(pid, mode, owners)?;
    let Captured { readings, outline, capture, left, statistics, .. } = captured;
    let (mut ledger, atlas) = if draws {
        Ledger::draw_up_with_atlas(&outline, &readings)
    } else {
        (Ledger::draw_up(&outline, &readings), Atlas::default())
    };
    if let Some(reason) = left {
        let what = format!(
            "the clone that was read is still in the process table, as a zombie of {pid} that takes no \
             memory: {reason}; the next report by --capture fork, or its end, takes it away"
        );
        ledger.findings.push(Finding::general(Severity::Note, what));
    }
    progress.finish_and_clear();
    let capture = capture.with_elapsed(started.elapsed());
    let report = Report { allocator_statistics: statistics, ..Report::new(&ledger, capture) };
    Ok((report, atlas))
}

fn read_snapshot(path: &Path) -> Result<Snapshot, Failure> {
    let unreadable = |source| Failure::Unreadable { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    let mut bytes = Vec::new();
    // What does not begin as one might have no end.
    (&file).take(64).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.is_empty() || Snapshot::begins(&bytes) {
        (&file).take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    }
    Snapshot::from_bytes(&bytes).map_err(|error| Failure::NotASnapshot { path: path.into(), error })
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
