//! What a recorder shows meanwhile: on a terminal a view that stays in its place, else a line a minute.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use formats::{CauseRow, Report, Sample};
use ledger::Size;
use render::{sample as line, sparkline};
use supervise::Watcher;

use crate::arguments::CaptureArguments;
use crate::terminal;

/// Between two lines where there is no terminal.
const MINUTE: Duration = Duration::from_secs(60);
/// The most causes that are named.
const CAUSES: usize = 6;

pub(crate) struct View {
    /// The way to capture processes.
    capture: CaptureArguments,
    /// Whether a program that we started owns standard output: what we say goes to standard error then.
    beside_program: bool,
    is_live: bool,
    /// Lines of the view that stand on the terminal.
    shown: usize,
    next_line: Duration,
    /// RSS of the samples so far, for the sparkline.
    rss: Vec<u64>,
}

impl View {
    pub(crate) fn new(capture: CaptureArguments, beside_program: bool) -> Self {
        let is_live = !beside_program && io::stdout().is_terminal();
        Self { capture, beside_program, is_live, shown: 0, next_line: MINUTE, rss: Vec::new() }
    }

    /// Says a line that stays.
    pub(crate) fn say(&mut self, line: &str) {
        self.clear();
        self.write(&format!("{line}\n"));
    }

    fn lines(&self, sample: &Sample, causes: &[CauseRow]) -> Vec<String> {
        // A line that wrapped would take two of the terminal's, and the view would wander.
        let width = terminal::width().saturating_sub(1);
        let (low, high) = (self.rss.iter().min(), self.rss.iter().max());
        let range = format!(" {} to {}", Size(*low.unwrap_or(&0)), Size(*high.unwrap_or(&0)));
        let mut lines = vec![
            line(sample, &[]),
            sparkline(&self.rss, width.saturating_sub(range.len())) + &range,
        ];
        let longest = causes.first().map_or(1, |row| row.bytes.max(1));
        for row in causes.iter().take(CAUSES) {
            let bar = "█".repeat((row.bytes * 30 / longest) as usize);
            lines.push(format!(
                "{:>20} {:>10}  {bar}",
                row.cause.name(),
                Size(row.bytes).to_string()
            ));
        }
        lines.iter().map(|line| line.chars().take(width).collect()).collect()
    }

    fn clear(&mut self) {
        if self.shown > 0 {
            self.write(&format!("\x1b[{}A\x1b[J", self.shown));
            self.shown = 0;
        }
    }

    /// That nobody reads us any more is no reason to stop recording.
    fn write(&self, text: &str) {
        let _ = if self.beside_program {
            anstream::stderr().write_all(text.as_bytes())
        } else {
            let mut out = anstream::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}

impl Watcher for View {
    fn capture(&mut self, pid: i32) -> Result<Report, String> {
        crate::source::report_quietly(pid, self.capture).map_err(|failure| failure.to_string())
    }

    fn show(&mut self, sample: &Sample, causes: &[CauseRow]) {
        if self.is_live {
            self.rss.push(sample.rss_bytes);
            let lines = self.lines(sample, causes);
            self.clear();
            self.write(&(lines.join("\n") + "\n"));
            self.shown = lines.len();
        } else if Duration::from_millis(sample.t_ms) >= self.next_line {
            self.next_line = Duration::from_millis(sample.t_ms) + MINUTE;
            self.say(&line(sample, causes));
        }
    }
}
