//! The display during a recording: on a terminal a view that is updated in place, otherwise a line per minute.

use std::time::{Duration, Instant};

use diagnosis::LatestFigures;
use examine::{CaptureOptions, Detail, GrowthWatch, KeptRecording, Note};
use formats::{Kept, Report, Sample, Who};
use supervise::Watcher;

use crate::remedy::explained;
use crate::terminal;

/// The time between two lines if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) struct View {
    /// The way to capture processes.
    capture: CaptureOptions,
    /// True if standard output belongs to the recording or to a program that rbloat started. rbloat writes to standard error then.
    is_taken: bool,
    is_live: bool,
    /// The number of the view's lines on the terminal.
    shown: usize,
    next_line: Duration,
    /// RSS of the samples so far, for the sparkline.
    rss: Vec<u64>,
    growth: Option<GrowthWatch>,
    kept: Option<KeptRecording>,
    /// The last result of `--kept`.
    last_kept: Option<Kept>,
    /// The reason if there was no later one.
    kept_failure: Option<String>,
}

impl View {
    pub(crate) fn new(
        capture: CaptureOptions,
        is_taken: bool,
        growth: Option<GrowthWatch>,
        kept: Option<KeptRecording>,
    ) -> Self {
        let is_live = !is_taken && terminal::is_interactive();
        Self {
            capture,
            is_taken,
            is_live,
            shown: 0,
            next_line: LINE_INTERVAL,
            rss: Vec::new(),
            growth,
            kept,
            last_kept: None,
            kept_failure: None,
        }
    }

    /// Prints a permanent line.
    pub(crate) fn print(&mut self, line: &str) {
        self.clear();
        self.write(&format!("{line}\n"));
    }

    /// The last result of `--kept`; `None` if there is none.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.last_kept.as_ref()
    }

    /// The reason if `--kept` had no result at the end.
    pub(crate) fn kept_failure(&self) -> Option<&str> {
        self.kept_failure.as_deref()
    }

    fn clear(&mut self) {
        if self.shown > 0 {
            let _ = terminal::erase(self.shown);
            self.shown = 0;
        }
    }

    /// Errors are ignored: the recording continues even if nobody reads the display.
    fn write(&self, text: &str) {
        let _ = terminal::print_beside(self.is_taken, text);
    }
}

impl Watcher for View {
    fn is_ruby(&mut self, pid: i32) -> Option<bool> {
        examine::ruby(pid).ok().map(|image| image.is_some())
    }

    fn capture(&mut self, process: (i32, u64), owners: bool) -> Result<Report, String> {
        let detail = if owners { Detail::OWNERS } else { Detail::CAUSES };
        examine::report_of(process, self.capture, detail).map_err(|error| explained(&error))
    }

    fn growth(&mut self, is_end: bool) -> Option<Result<(Who, Instant), String>> {
        let grown = self.growth.as_mut()?.growth(is_end)?;
        Some(grown.map_err(|note| match note {
            Note::Failed(_, error) => format!("growth by code: {}", explained(&error)),
            note => note.sentence(explained),
        }))
    }

    fn kept(&mut self, is_end: bool) -> Option<Result<Kept, String>> {
        let kept = self.kept.as_mut()?.result(is_end)?;
        let kept = kept.map_err(|error| format!("what stays: {}", explained(&error)));
        if let Ok(kept) = &kept {
            self.last_kept = Some(kept.clone());
        }
        self.kept_failure = kept.as_ref().err().cloned();
        Some(kept)
    }

    fn show(&mut self, sample: &Sample, latest: &LatestFigures) {
        if terminal::is_quiet() {
            return;
        }
        if self.is_live {
            self.rss.push(sample.rss_bytes);
            // A line that wraps would take two rows of the terminal, and clearing the view would leave one of them.
            let width = terminal::width().saturating_sub(1);
            let lines = render::sample_view(sample, latest, &self.rss, width);
            self.clear();
            self.write(&(lines.join("\n") + "\n"));
            self.shown = lines.len();
        } else if Duration::from_millis(sample.t_ms) >= self.next_line {
            self.next_line = Duration::from_millis(sample.t_ms) + LINE_INTERVAL;
            self.print(&render::sample(sample, latest));
        }
    }
}
