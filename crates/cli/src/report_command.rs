use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ledger::{Ledger, Readings};
use report::{Capture, Report, TextOptions};

use crate::arguments::ReportArguments;
use crate::failure::{Failure, Outcome};

/// How often a target is stopped at most that is in the midst of a change each time.
const ATTEMPTS: u32 = 4;
/// How long it goes on in between.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let report = make(crate::process::find(&arguments.process)?, arguments.owners())?;
    if arguments.json {
        crate::print(&report.render_json())?;
    } else {
        let options = TextOptions { width: crate::width(), arenas: arguments.arenas };
        crate::print(&report.render_text(options))?;
    }
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}

fn make(pid: i32, owners: usize) -> Result<Report, Failure> {
    let started = Instant::now();
    let progress = progress(pid);
    let mut pause = Duration::ZERO;
    let mut attempt = 1;
    let (readings, outline) = loop {
        let frozen = target::freeze(pid, target::PATIENCE)?;
        // No word to the terminal before the target goes on: it might keep us waiting.
        let readings = Readings::read(frozen.image(), owners > 0);
        let thawed = frozen.thaw()?;
        pause += thawed.pause;
        if !readings.are_torn() || attempt == ATTEMPTS {
            break (readings, thawed.outline);
        }
        attempt += 1;
        std::thread::sleep(BETWEEN_ATTEMPTS);
    };
    let ledger = Ledger::draw_up(&outline, &readings);
    progress.finish_and_clear();
    Ok(Report::new(&ledger, Capture::freeze(pause, started.elapsed()), owners))
}

/// A sign of life on a terminal, drawn before the target is stopped. It does not move: a thread that
/// drew it meanwhile would be one that ^Z could stop rbloat through, with the target standing.
fn progress(pid: i32) -> ProgressBar {
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
