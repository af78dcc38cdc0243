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
}

impl examine::Progress for Progress {
    fn capture(&self, pid: i32, resident_bytes: u64) {
        let (size, left) = (Size(resident_bytes), time_left(resident_bytes, 1.0));
        self.show(&format!("reading process {pid}: {size}{left}"));
    }

    fn account(&self, resident_bytes: u64) {
        let (size, left) = (Size(resident_bytes), time_left(resident_bytes, 1.0 - PART_OF_CAPTURE));
        self.show(&format!("accounting for {size}{left}"));
    }

    fn end(&self) {
        self.erase();
    }
}

impl Progress {
    /// A line that is still empty.
    pub(crate) fn new() -> Self {
        let line = match terminal::shows_progress() {
            true => ProgressBar::new_spinner(),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{msg} ...");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        Self { line: line.with_style(style) }
    }

    /// Erases the line.
    pub(crate) fn erase(&self) {
        self.line.finish_and_clear();
    }

    /// Replaces the line.
    pub(crate) fn show(&self, what: &str) {
        *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.line.clone());
        if self.line.is_finished() {
            self.line.reset();
        }
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
}

/// Returns the time that a part of an examination is expected to take, if it is long.
fn time_left(resident_bytes: u64, part: f64) -> String {
    let gib = resident_bytes as f64 / f64::from(1 << 30);
    let left = PER_GIB.mul_f64(gib * part);
    if left < MIN_TIME { String::new() } else { format!(", about {:.0} s", left.as_secs_f64()) }
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
