use std::time::{Duration, Instant};

use clap::Args;
use examine::{AllocatorCall, CaptureOptions, FamilyMembers, ProcessName, Progress as _};
use formats::{
    FamilyTrim, FindingKind, FindingRow, TrimOutcome, TrimReport, TrimWatch, WatchPoint, to_json,
};
use ledger::Ledger;

use crate::arguments::{CaptureArguments, ProcessArguments, parse_time};
use crate::failure::{Failure, Outcome};
use crate::progress::{Progress, with_time_left};
use crate::{naming, terminal};

/// The time between two samples of RSS after a trim.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat trim 4242 --dry-run    predict how much memory it would return
  rbloat trim 4242              return it
  rbloat trim 4242 --watch 60s  return it, and see whether that lasts";

/// The processes of a family that cannot be trimmed are left out.
fn not_trimmed(pid: i32, failure: &Failure) -> FindingRow {
    FindingKind::ProcessNotTrimmed { pid, error: examine::about(pid, &failure.to_string()) }.into()
}

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
    /// Trim the whole family of forked processes, one after the other
    ///
    /// The family are the processes that were forked from each other without another program in between. Any member names the
    /// family.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) tree: bool,
    /// Then watch RSS for this time, and report how much memory comes back: 60s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) watch: Option<Duration>,
}

pub(crate) fn run(arguments: &TrimArguments) -> Result<Outcome, Failure> {
    let target = naming::process(arguments.process.name())?;
    let pid = target.pid();
    if arguments.tree {
        return trim_family(pid, arguments);
    }
    let print = |text: &str| if arguments.json { Ok(()) } else { terminal::print_sentences(text) };
    let call = AllocatorCall::find(&target)?;
    let progress = Progress::new();
    progress.capture(pid, target.counts.resident_bytes);
    let how = arguments.capture.options();
    let (mut report, ledger) = examine::predict(&target, &call, how)?;
    progress.erase();
    print(&render::trim_prediction(&report))?;
    if !arguments.dry_run {
        report.outcome = Some(examine::trim(&call)?);
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
        let pid = pid.to_string();
        let next: &[&str] =
            if arguments.dry_run { &["trim", &pid] } else { &["report", &pid, "--fix"] };
        terminal::suggest(&[&["rbloat"], next].concat())?;
    }
    watched.map(|()| Outcome::Done)
}

/// Trims all members of the family of process `pid`, or predicts that.
fn trim_family(pid: i32, arguments: &TrimArguments) -> Result<Outcome, Failure> {
    let (how, is_dry) = (arguments.capture.options(), arguments.dry_run);
    let mut members = FamilyMembers::of_families(&[ProcessName::Pid(pid)])?;
    let mut report = FamilyTrim {
        members: Vec::new(),
        expected_private_bytes: Some(0),
        pss_bytes_before: members.pss_bytes(),
        pss_bytes_after: None,
        findings: Vec::new(),
    };
    let mut first_failure = None;
    members.trim(how, is_dry, &Progress::new(), |pid, trimmed| {
        match trimmed {
            Ok((trim, private)) => {
                let sum = report.expected_private_bytes.zip(private);
                report.expected_private_bytes = sum.map(|(sum, private)| sum + private);
                if !arguments.json {
                    terminal::print_sentences(&render::trim_of_member(&trim))?;
                }
                report.members.push(trim);
            }
            Err(error) => {
                let failure = Failure::from(error);
                report.findings.push(not_trimmed(pid, &failure));
                first_failure.get_or_insert(failure);
            }
        }
        Ok::<_, Failure>(())
    })?;
    if let Some(failure) = first_failure.filter(|_| report.members.is_empty()) {
        return Err(failure);
    }
    report.pss_bytes_after = (!is_dry).then(|| members.pss_bytes());
    if arguments.json {
        terminal::print(&to_json(&report, &render::family_trim_summary(&report)))?;
    } else {
        terminal::print_sentences(&render::family_trim(&report))?;
        let next = if is_dry { "trim" } else { "report" };
        terminal::suggest(&["rbloat", next, "--tree", &pid.to_string()])?;
    }
    Ok(if report.findings.is_empty() { Outcome::Done } else { Outcome::Incomplete })
}

/// Watches RSS for `length` after a trim, and then accounts for the process again.
fn watch(
    pid: i32,
    how: CaptureOptions,
    length: Duration,
    before: &Ledger,
    report: &TrimReport,
) -> Result<TrimWatch, Failure> {
    let (started, progress) = (Instant::now(), Progress::new());
    let mut samples = Vec::new();
    loop {
        let seconds = started.elapsed().as_secs_f64();
        samples.push(WatchPoint { seconds, rss_bytes: linux::proc::rss_bytes(pid)? });
        let left = length.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        progress.show(&with_time_left("watching RSS", left));
        std::thread::sleep(SAMPLE_INTERVAL.min(left));
    }
    progress.erase();
    let after = examine::causes_of(pid, how)?;
    let returned_bytes = report.outcome.as_ref().map_or(0, TrimOutcome::returned_bytes);
    Ok(diagnosis::trim_watch(samples, length.as_secs_f64(), returned_bytes, before, &after))
}
