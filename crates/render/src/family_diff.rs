//! The growth of a family as text.

use std::fmt::Write;

use anstyle::Style;
use formats::{FamilyDiff, FamilyLimit, MemberChange, Outlook, Trajectory};
use ledger::Size;

use crate::family::{processes, reason};
use crate::rows::{self, Heads, Row};
use crate::text::{BOLD, change, changes, mebibytes, write_parts, write_wrapped};
use crate::words;

/// Smaller changes are not shown, in bytes.
const MIN_BYTES: u64 = 16 << 10;
/// A slower growth of a worker is none, in bytes per minute.
const MIN_RATE: f64 = 1024.0;

/// Returns the growth of a family as text, for a terminal of `width` columns.
#[must_use]
pub fn family_diff(diff: &FamilyDiff, width: usize) -> String {
    let mut text = String::new();
    write(diff, &mut text, width).expect("a string takes all text");
    text
}

/// Returns the growth of a family in one sentence.
#[must_use]
pub fn family_diff_summary(diff: &FamilyDiff) -> String {
    match &diff.worker {
        Some(worker) if worker.private_bytes_per_minute >= MIN_RATE => format!(
            "Each worker has {} more private memory per minute (mean of {}): {} of it in copies of pages that it shared, and {} \
             new.",
            rate(worker.private_bytes_per_minute),
            words::counted(worker.workers, "worker"),
            rate(worker.copied_bytes_per_minute),
            rate(worker.private_bytes_per_minute - worker.copied_bytes_per_minute)
        ),
        Some(_) => "The private memory of the workers does not grow.".into(),
        None => "No worker is in all snapshots.".into(),
    }
}

fn write(diff: &FamilyDiff, out: &mut String, width: usize) -> std::fmt::Result {
    let first = diff.points.first().map_or(0, |point| point.unix_ms);
    for (point, memory) in diff.points.iter().zip(&diff.memory_bytes.at) {
        let mut parts = vec![
            format!("{BOLD}{}{BOLD:#}", point.source),
            processes(point.processes),
            format!("{}{}", if point.is_estimated { "about " } else { "" }, Size(*memory)),
        ];
        if point.unix_ms > first {
            parts.push(format!("{:.0} s later", (point.unix_ms - first) as f64 / 1e3));
        }
        write_parts(out, &parts, width)?;
    }
    writeln!(out)?;
    write_wrapped(out, "", &family_diff_summary(diff), width)?;
    write_wrapped(out, " · ", &outlook(diff), width)?;
    for (pids, event) in [(&diff.started, "started"), (&diff.ended, "ended")] {
        if !pids.is_empty() {
            let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
            write_wrapped(out, " · ", &format!("{event}: {}", pids.join(", ")), width)?;
        }
    }
    writeln!(out)?;
    write_members(diff, out, width)?;
    let minutes = diff.seconds / 60.0;
    let writes = diff.writes.iter().map(|row| (reason(row.reason), &row.bytes));
    write_rows("REASON OF THE COPY, MiB", writes, minutes, out, width)?;
    let causes = diff.causes.iter().map(|row| (row.cause.name(), &row.bytes));
    write_rows("PRIVATE MEMORY OF WORKERS, MiB", causes, minutes, out, width)
}

/// The time until the limit, or the reason why it is unknown.
fn outlook(diff: &FamilyDiff) -> String {
    let unknown = "the time until the limit is unknown";
    match diff.outlook {
        Outlook::TooEarly => format!("{unknown}: that needs three snapshots at different times"),
        Outlook::OtherWorkers => format!("{unknown}: processes started or ended meanwhile"),
        Outlook::NoGrowth => {
            format!("the memory of the family does not grow ({})", change_of(&diff.memory_bytes))
        }
        Outlook::LevelsOff => format!("{unknown}: the family grows more and more slowly"),
        Outlook::Uneven => {
            format!("{unknown}: the growth of the family changed from snapshot to snapshot")
        }
        Outlook::Grows { bytes_per_minute, seconds_to_limit } => {
            let grows = format!("the family grows by {}/min", rate(bytes_per_minute));
            match seconds_to_limit.zip(diff.limit) {
                Some((seconds, FamilyLimit { limit_bytes, .. })) => format!(
                    "{grows}. If that continues, its control group reaches the limit of {} in about {}",
                    Size(limit_bytes),
                    time(seconds)
                ),
                None => format!("{grows}. No memory limit is known"),
            }
        }
    }
}

fn change_of(bytes: &Trajectory) -> String {
    let change = change(bytes.change);
    // A small one has a unit already.
    if change.ends_with('B') { change } else { format!("{change} MiB") }
}

/// A rate or a part of one, in bytes per minute.
fn rate(bytes: f64) -> String {
    let sign = if bytes <= -MIN_RATE { "-" } else { "" };
    format!("{sign}{}", Size(bytes.abs() as u64))
}

/// A time of which only the first digits are known.
fn time(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

fn write_members(diff: &FamilyDiff, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |member: &MemberChange| {
        let MemberChange { pid, private_bytes, copied_bytes, command, .. } = member;
        let figures = vec![
            pid.to_string(),
            mebibytes(private_bytes.at.first().copied().unwrap_or(0)),
            mebibytes(private_bytes.last()),
            change(private_bytes.change),
            change(copied_bytes.change),
        ];
        Row { figures, note: vec![(Style::new(), command.clone())], ..Row::default() }
    };
    let rows: Vec<_> = diff.members.iter().map(row).collect();
    let figures = &["PID", "PRIVATE,\nMiB FIRST", "\nLAST", "\nCHANGE", "OF IT\nCOPIED"];
    rows::write_rows(
        out,
        &Heads { name: "", figures, note: "COMMAND", lead: Some("") },
        &rows,
        width,
    )
}

fn write_rows<'a>(
    head: &str,
    rows: impl Iterator<Item = (&'static str, &'a Trajectory)>,
    minutes: f64,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    let row = |(name, bytes): (&str, &Trajectory)| {
        let per_minute = if minutes > 0.0 {
            change((bytes.change as f64 / minutes) as i64)
        } else {
            String::new()
        };
        let figures = changes(bytes).into_iter().chain([per_minute]).collect();
        Row { name: name.to_owned(), figures, ..Row::default() }
    };
    let has_changed = |it: &(&str, &Trajectory)| it.1.change.unsigned_abs() >= MIN_BYTES;
    let rows: Vec<_> = rows.filter(has_changed).map(row).collect();
    let figures = &["FIRST", "LAST", "CHANGE", "PER MINUTE"];
    rows::write_rows(out, &Heads { name: head, figures, ..Heads::default() }, &rows, width)
}
