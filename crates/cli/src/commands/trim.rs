use std::time::{Duration, Instant};

use clap::Args;
use formats::{
    FamilyTrim, FindingKind, FindingRow, TrimOutcome, TrimReport, TrimWatch, WatchPoint, to_json,
};
use ledger::{Cause, FamilyPages, Ledger, MemberPages};
use linux::proc;
use linux::{PageFrame, page_frames};

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

/// The processes of a family that cannot be trimmed are left out.
fn not_trimmed(pid: i32, failure: &Failure) -> FindingRow {
    FindingKind::ProcessNotTrimmed { pid, error: failure.about(pid) }.into()
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
    let target = crate::process::open(arguments.process.name())?;
    let pid = target.pid();
    if arguments.tree {
        return trim_family(pid, arguments);
    }
    let print = |text: &str| if arguments.json { Ok(()) } else { terminal::print_sentences(text) };
    let call = AllocatorCall::find(&target)?;
    let progress = Progress::of_capture(pid);
    let how = arguments.capture;
    let (mut report, ledger) = trimming::predict(&target, &call, how)?;
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

/// Trims all members of the family of process `pid`, or predicts that.
fn trim_family(pid: i32, arguments: &TrimArguments) -> Result<Outcome, Failure> {
    let members = proc::family(pid);
    if members.is_empty() {
        return Err(linux::Error::NoSuchProcess { pid }.into());
    }
    // A member whose pages cannot be read cannot be trimmed either, and says so below.
    let frames: Vec<Vec<PageFrame>> =
        members.iter().map(|it| page_frames(it.pid).unwrap_or_default()).collect();
    let pages = frames.iter().map(|frames| MemberPages { frames, parent: None });
    let pages = FamilyPages::new(linux::Machine::own(), pages.collect());
    let pss_bytes = || -> u64 {
        let rollups = members.iter().filter_map(|it| proc::rollup(it.pid).ok());
        rollups.map(|it| it.pss_bytes).sum()
    };
    let mut report = FamilyTrim {
        members: Vec::new(),
        expected_private_bytes: Some(0),
        pss_bytes_before: pss_bytes(),
        pss_bytes_after: None,
        findings: Vec::new(),
    };
    let mut first_failure = None;
    for (index, member) in members.iter().enumerate() {
        match trim_member(member.pid, index, &pages, arguments) {
            Ok((trim, private)) => {
                let sum = report.expected_private_bytes.zip(private);
                report.expected_private_bytes = sum.map(|(sum, private)| sum + private);
                if !arguments.json {
                    terminal::print_sentences(&render::trim_of_member(&trim))?;
                }
                report.members.push(trim);
            }
            Err(failure) => {
                report.findings.push(not_trimmed(member.pid, &failure));
                first_failure.get_or_insert(failure);
            }
        }
    }
    if let Some(failure) = first_failure.filter(|_| report.members.is_empty()) {
        return Err(failure);
    }
    report.pss_bytes_after = (!arguments.dry_run).then(pss_bytes);
    if arguments.json {
        terminal::print(&to_json(&report, &render::family_trim_summary(&report)))?;
    } else {
        terminal::print_sentences(&render::family_trim(&report))?;
        let next = if arguments.dry_run { "trim" } else { "report" };
        terminal::suggest(&["rbloat", next, "--tree", &pid.to_string()])?;
    }
    Ok(if report.findings.is_empty() { Outcome::Done } else { Outcome::Incomplete })
}

/// Trims a member, or predicts that. Also returns the bytes of its private pages that the trim should return.
fn trim_member(
    pid: i32,
    index: usize,
    pages: &FamilyPages<'_>,
    arguments: &TrimArguments,
) -> Result<(TrimReport, Option<u64>), Failure> {
    let target = crate::process::target(pid)?;
    let call = AllocatorCall::find(&target)?;
    let progress = Progress::of_capture(pid);
    let predicted = trimming::predict_and(&target, &call, arguments.capture, |state, facts| {
        let resident = state.pages.as_ref().expect("a captured process has page states");
        pages.parts(index, resident).private_causes(state, facts)[Cause::MallocUnreturned]
    });
    progress.end();
    let (mut trim, _, unreturned) = predicted?;
    if !arguments.dry_run {
        trim.outcome = Some(trimming::trim(pid, &call)?);
    }
    let private = trim.expected.returned_bytes.map(|returned| returned.min(unreturned));
    Ok((trim, private))
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
        samples.push(WatchPoint { seconds, rss_bytes: linux::proc::rss_bytes(pid)? });
        let left = length.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        progress.show(&with_time_left("watching RSS", left));
        std::thread::sleep(SAMPLE_INTERVAL.min(left));
    }
    progress.end();
    let captured = attempts::take(&crate::process::target(pid)?, how, Detail::CAUSES)?;
    captured.check_read(pid)?;
    let Captured { facts, state, .. } = captured;
    let returned_bytes = report.outcome.as_ref().map_or(0, TrimOutcome::returned_bytes);
    Ok(Sandbox::of_analyses(how.sandbox).run(|| {
        let after = Ledger::draw_up(&state, &facts);
        diagnosis::trim_watch(samples, length.as_secs_f64(), returned_bytes, before, &after)
    }))
}
