use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::Ledger;
use report::{Report, TextOptions};
use target::{Finding, Severity};

use crate::arguments::{CaptureMode, ReportArguments};
use crate::capture::{self, Captured};
use crate::failure::{Failure, Outcome};

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let pid = crate::process::find(&arguments.process)?;
    let report = make(pid, arguments.capture, arguments.owners())?;
    if arguments.json {
        crate::print(&report.render_json())?;
    } else {
        let options = TextOptions { width: crate::width(), arenas: arguments.arenas };
        crate::print(&report.render_text(options))?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

fn make(pid: i32, mode: CaptureMode, owners: usize) -> Result<Report, Failure> {
    let started = Instant::now();
    let progress = progress(pid);
    let captured = capture::take(pid, mode, owners > 0)?;
    let Captured { readings, outline, capture, left, statistics, .. } = captured;
    let mut ledger = Ledger::draw_up(&outline, &readings);
    if let Some(reason) = left {
        let what = format!(
            "the clone that was read is still in the process table, as a zombie of {pid} that takes no \
             memory: {reason}; the next report by --capture fork, or its end, takes it away"
        );
        ledger.findings.push(Finding::general(Severity::Note, what));
    }
    progress.finish_and_clear();
    let capture = capture.with_elapsed(started.elapsed());
    Ok(Report { allocator_statistics: statistics, ..Report::new(&ledger, capture, owners) })
}

/// A sign of life on a terminal, drawn before the target is stopped. It does not move: a thread that
/// drew it meanwhile would be one that ^Z could stop rbloat through, with the target standing.
pub(crate) fn progress(pid: i32) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} ...")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let progress = ProgressBar::new_spinner().with_style(style);
    progress.set_message(format!("reading process {pid}"));
    progress.tick();
    progress
}
