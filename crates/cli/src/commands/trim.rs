use std::time::{Duration, Instant};

use clap::Args;
use formats::{TrimOutcome, TrimReport, TrimWatch, WatchPoint, to_json};
use ledger::Ledger;

use crate::allocator_call::AllocatorCall;
use crate::arguments::{CaptureArguments, ProcessArguments, parse_time};
use crate::attempts::{self, Captured};
use crate::failure::{Failure, Outcome};
use crate::progress::{Progress, with_time_left};
use crate::sandbox::Sandbox;
use crate::source::Detail;
use crate::{terminal, trimming};

/// The time between two samples of RSS after a trim.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat trim 4242 --dry-run    predict how much memory it would return
  rbloat trim 4242              return it
  rbloat trim 4242 --watch 60s  return it, and see whether that lasts";

#[derive(Debug, Args)]
pub(crate) struct TrimArguments {
    #[command(flatten)]
    pub(crate) process: ProcessArguments,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Only print the prediction
    #[arg(long, conflicts_with = "watch")]
    pub(crate) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Then watch RSS for this time, and report how much memory comes back: 60s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) watch: Option<Duration>,
}

pub(crate) fn run(arguments: &TrimArguments) -> Result<Outcome, Failure> {
    let pid = crate::process::find(arguments.process.name())?;
    let print = |text: &str| if arguments.json { Ok(()) } else { terminal::print(text) };
    let call = AllocatorCall::find(pid)?;
    let progress = Progress::of_capture(pid);
    let how = arguments.capture;
    let (mut report, ledger) = trimming::predict(pid, &call, how)?;
    progress.end();
    print(&render::trim_prediction(&report))?;
    if !arguments.dry_run {
        report.outcome = Some(trimming::trim(pid, &call)?);
        print(&render::trim_outcome(&report))?;
    }
    // The outcome is printed even if the watch fails.
    let watched = match arguments.watch {
        Some(length) => watch(pid, how, length, &ledger, &report).and_then(|watch| {
            report.watch = Some(watch);
            Ok(print(&render::trim_watch(&report))?)
        }),
        None => Ok(()),
    };
    if arguments.json {
        terminal::print(&to_json(&report, &render::trim_summary(&report)))?;
    } else {
        // The lasting counterpart of a trim is a setting.
        let next = if arguments.dry_run { "trim" } else { "fix" };
        terminal::suggest(&["rbloat", next, &pid.to_string()])?;
    }
    watched.map(|()| Outcome::Done)
}

/// Watches RSS for `length` after a trim, and then accounts for the process again.
fn watch(
    pid: i32,
    how: CaptureArguments,
    length: Duration,
    before: &Ledger,
    report: &TrimReport,
) -> Result<TrimWatch, Failure> {
    let (started, progress) = (Instant::now(), Progress::new());
    let mut samples = Vec::new();
    loop {
        let seconds = started.elapsed().as_secs_f64();
        samples.push(WatchPoint { seconds, rss_bytes: capture::proc::rss_bytes(pid)? });
        let left = length.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        progress.show(&with_time_left("watching RSS", left));
        std::thread::sleep(SAMPLE_INTERVAL.min(left));
    }
    progress.end();
    let Captured { facts, state, unread, .. } = attempts::take(pid, how, Detail::CAUSES)?;
    if let Some(reason) = unread {
        return Err(Failure::Unread { pid, reason });
    }
    let returned_bytes = report.outcome.as_ref().map_or(0, TrimOutcome::returned_bytes);
    Ok(Sandbox::of_analyses(how.sandbox).run(|| {
        let after = Ledger::draw_up(&state, &facts);
        diagnosis::trim_watch(samples, length.as_secs_f64(), returned_bytes, before, &after)
    }))
}
