//! The line of progress on a terminal. It is never animated while a target is paused: a thread that draws to the terminal could
//! be stopped by ^Z, and rbloat with it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ledger::Size;

use crate::terminal;

/// The time of a report for each resident GiB, with its owners, and the part of it in the capture (docs/performance.md).
const PER_GIB: Duration = Duration::from_millis(550);
const PART_OF_CAPTURE: f64 = 0.6;
/// A shorter wait is not announced with its time.
const MIN_TIME: Duration = Duration::from_secs(1);

/// The line that is on the terminal. rbloat shows one at a time.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A line that is replaced by the next one, and erased at the end.
pub(crate) struct Progress {
    line: ProgressBar,
    /// The resident memory of the process that is read.
    bytes: u64,
}

impl Progress {
    /// Shows that process `pid` is read, before it is paused.
    pub(crate) fn of_capture(pid: i32) -> Self {
        let mut progress = Self::new();
        progress.bytes = linux::proc::resident_bytes(pid).unwrap_or(0);
        progress.show(&format!(
            "reading process {pid}: {}{}",
            Size(progress.bytes),
            progress.left(1.0)
        ));
        progress
    }

    /// A line that is still empty.
    pub(crate) fn new() -> Self {
        let line = match terminal::shows_progress() {
            true => ProgressBar::new_spinner(),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{msg} ...");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        Self { line: line.with_style(style), bytes: 0 }
    }

    /// Shows that the capture is over, and the memory is accounted for.
    pub(crate) fn account(&self) {
        let left = self.left(1.0 - PART_OF_CAPTURE);
        self.show(&format!("accounting for {}{left}", Size(self.bytes)));
    }

    /// Replaces the line.
    pub(crate) fn show(&self, what: &str) {
        *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.line.clone());
        self.line.set_message(what.to_owned());
        self.line.tick();
    }

    /// Waits until `end`, and shows the time that is left each second, behind `what`.
    pub(crate) fn wait_until(&self, end: Instant, what: &str) {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.show(&with_time_left(what, left));
            std::thread::sleep(left.min(Duration::from_secs(1)));
        }
    }

    /// Erases the line.
    pub(crate) fn end(self) {
        self.line.finish_and_clear();
    }

    /// Returns the time that this part of the work is expected to take, if it is long.
    fn left(&self, part: f64) -> String {
        let gib = self.bytes as f64 / f64::from(1 << 30);
        let left = PER_GIB.mul_f64(gib * part);
        if left < MIN_TIME { String::new() } else { format!(", about {:.0} s", left.as_secs_f64()) }
    }
}

/// Erases the line that another thread shows, and lets none appear again. For the end of rbloat.
pub(crate) fn abandon() {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = &*shown {
        line.finish_and_clear();
    }
    std::mem::forget(shown);
}

/// Returns a line with the time that is left.
pub(crate) fn with_time_left(what: &str, left: Duration) -> String {
    format!("{what}: {:.0} s left", left.as_secs_f64().ceil())
}
