//! A diff as text.

use std::fmt::Write;

use anstyle::Style;
use diagnosis::MIN_LISTED;
use formats::{
    ClassChange, Diff, DiffKind, DiffPoint, DominatorChange, KeptChange, KeptJudgement, KeptNative,
    OwnerChange, Trajectory, UnchangedRow,
};
use ledger::{Cause, Count, Size};

use crate::kept::{minutes_for_a_line, native_line_fact, sampling_facts};
use crate::made_by::write_made_by;
use crate::pins::write_pin_changes;
use crate::rows::{Heads, Row, write_rows};
use crate::text::{
    BOLD, DIM, GREEN, RED, YELLOW, change, changes, clipped, end_with_a_line, mebibytes,
    write_parts, write_verdict, write_wrapped,
};
use crate::waste::write_waste_changes;
use crate::words::lines::{is_used_in, made_by};
use crate::words::{self, signed_count};

/// Rows of classes and of owners, at most.
const MAX_ROWS: usize = 12;
/// Rows of what did not change, at most, and the least memory of one.
const MAX_UNCHANGED: usize = 3;
const MIN_UNCHANGED: u64 = 4 << 20;

/// Returns a diff as text for a terminal of `width` columns: the verdict, and the changes of causes, classes and
/// owners. It contains ANSI colours, which the caller strips if the reader does not want them.
#[must_use]
pub fn diff(diff: &Diff, width: usize) -> String {
    let mut text = String::new();
    write(diff, &mut text, width).expect("a string takes all text");
    end_with_a_line(&mut text);
    text
}

fn write(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    write_head(diff, out, width)?;
    let style = match diff.verdict.kind {
        DiffKind::ManagedLeak | DiffKind::NativeLeak | DiffKind::CodeLeak => RED,
        DiffKind::Growth | DiffKind::Retention => YELLOW,
        DiffKind::WarmUp | DiffKind::Stable | DiffKind::Shrank => GREEN,
        DiffKind::Difference => BOLD,
    };
    write_verdict(out, style, &words::diff_verdict(diff), width)?;
    write_causes(diff, out, width)?;
    write_classes(diff, out, width)?;
    write_kept(diff, out, width)?;
    write_unchanged(diff, out, width)?;
    write_kept_native(diff, out, width)?;
    write_owners(diff, out, width)?;
    write_made_by(diff.made_by.as_ref(), out, width)?;
    write_pin_changes(diff, out, width)?;
    write_waste_changes(diff, out, width)?;
    write_dominators(diff, out, width)
}

fn write_head(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    for (index, point) in diff.points.iter().enumerate() {
        let after = match diff.points.first() {
            Some(first) if index > 0 && diff.same_process => Some(format!(
                "{:.0} s later",
                point.unix_ms.saturating_sub(first.unix_ms) as f64 / 1e3
            )),
            _ => None,
        };
        let command = clipped(&point.command, width.saturating_sub(1));
        let parts = [
            format!("{BOLD}{}{BOLD:#}  pid {}", point.source, point.pid),
            format!("{} resident", Size(diff.rss_bytes.at[index])),
        ];
        let parts: Vec<_> =
            parts.into_iter().chain(after).chain([format!("{DIM}{command}{DIM:#}")]).collect();
        write_parts(out, &parts, width)?;
    }
    writeln!(out)
}

fn write_causes(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |(name, bytes): (&str, &Trajectory)| Row {
        name: name.to_owned(),
        figures: changes(bytes),
        ..Row::default()
    };
    let causes = diff.causes.iter().map(|it| (it.cause.name(), &it.bytes));
    let causes = causes.filter(|it| it.1.change.unsigned_abs() >= MIN_LISTED);
    let rows: Vec<_> = causes.chain([("RSS", &diff.rss_bytes)]).map(row).collect();
    let figures = &["FIRST", "LAST", "CHANGE"];
    write_rows(out, &Heads { name: "CAUSE, MiB", figures, ..Heads::default() }, &rows, width)
}

fn write_classes(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let large = |bytes: &Trajectory| bytes.change.unsigned_abs() >= MIN_LISTED;
    let shown: Vec<_> =
        diff.classes.iter().filter(|class| large(&class.bytes)).take(MAX_ROWS).collect();
    let has_ages = diff.points.last().is_some_and(DiffPoint::has_ages);
    let row = |class: &ClassChange| {
        // The class of a slot is known only if owners were searched for.
        let is_told = diff.same_process && class.survivors + class.newcomers > 0;
        let told = |count| {
            if is_told { Count(count).to_string() } else { String::new() }
        };
        Row {
            name: class.name.clone(),
            figures: vec![
                Count(class.objects.last()).to_string(),
                signed_count(class.objects.change),
                told(class.survivors),
                told(class.newcomers),
                if has_ages { told(class.old_newcomers) } else { String::new() },
                change(class.bytes.change),
            ],
            note: vec![(Style::new(), class.kept_by.clone().unwrap_or_default())],
            ..Row::default()
        }
    };
    let heads = Heads {
        name: "CLASS",
        figures: &["OBJECTS", "CHANGE", "SURVIVED", "NEW", "OLD BY NOW", "MiB"],
        note: "RETAINED BY",
        lead: Some("retained by "),
    };
    write_rows(out, &heads, &shown.into_iter().map(row).collect::<Vec<_>>(), width)
}

/// Writes what roots keep, without objects that come and go.
fn write_kept(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let large = |it: &&KeptChange| it.bytes.unsigned_abs() >= MIN_LISTED;
    let shown: Vec<_> = diff.kept.iter().flatten().filter(large).take(MAX_ROWS).collect();
    let row = |it: &KeptChange| Row {
        name: it.root.clone(),
        figures: vec![
            Count(it.objects.last()).to_string(),
            signed_count(it.objects.change),
            Count(it.newcomers).to_string(),
            Count(it.kept).to_string(),
            change(it.bytes),
        ],
        note: vec![(Style::new(), {
            let most = it.path.clone().or_else(|| it.class.clone());
            let made = made_by(it).filter(|_| it.bytes > 0);
            let path = it.path.as_ref().unwrap_or(&it.root);
            let used = is_used_in(path, &diff.root_uses).filter(|_| it.made_by.is_empty());
            let parts = [most, made, used];
            parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
        })],
        ..Row::default()
    };
    let heads = Heads {
        name: "KEPT BY",
        figures: &["LASTING", "CHANGE", "NEW IN 2ND", "STILL THERE", "ABOUT MiB"],
        note: "MOST OF IT",
        lead: Some("most of it: "),
    };
    let grew: Vec<_> = shown.iter().filter(|it| it.bytes > 0).collect();
    let of_few = grew.iter().filter(|it| it.made_by.is_empty()).find_map(|it| it.samples);
    let hint = of_few.map(|samples| {
        let interval = diff.seconds / diff.points.len().saturating_sub(1).max(1) as f64;
        // Objects without write barriers never grow old.
        let none = match samples {
            0 => " Ruby never calls some objects old, such as Methods and Bindings: these get no line.",
            _ => "",
        };
        format!(
            "A line needs {} samples: watch for longer (--every {}m), or with more ticks (--kept --rate 1000).{none}",
            KeptJudgement::MIN_SAMPLES,
            minutes_for_a_line(interval, samples)
        )
    });
    // What does not grow needs no line.
    let sampling = if grew.is_empty() { Vec::new() } else { sampling_facts(diff) };
    write_rows(out, &heads, &shown.into_iter().map(row).collect::<Vec<_>>(), width)?;
    let facts: Vec<String> =
        sampling.into_iter().chain(native_line_fact(diff)).chain(hint).collect();
    for fact in &facts {
        write_wrapped(out, " · ", fact, width)?;
    }
    if facts.is_empty() { Ok(()) } else { writeln!(out) }
}

/// Writes what constants and variables had in all snapshots, if their retained sizes were wanted. The program may read it all the time.
fn write_unchanged(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let large = |it: &&UnchangedRow| it.bytes >= MIN_UNCHANGED;
    if diff.unchanged.iter().flatten().all(|it| it.exclusive_bytes.is_none()) {
        return Ok(());
    }
    let shown = diff.unchanged.iter().flatten().filter(large).take(MAX_UNCHANGED);
    let row = |it: &UnchangedRow| Row {
        name: it.root.clone(),
        figures: vec![
            Count(it.objects).to_string(),
            mebibytes(it.bytes),
            it.exclusive_bytes.map_or_else(String::new, mebibytes),
        ],
        note: vec![
            (Style::new(), it.class.clone().unwrap_or_default()),
            (DIM, it.line.clone().unwrap_or_default()),
        ],
        ..Row::default()
    };
    let rows: Vec<_> = shown.map(row).collect();
    let heads = Heads {
        name: "OLD IN ALL SNAPSHOTS",
        figures: &["OBJECTS", "ABOUT MiB", "ONLY HERE"],
        note: "MOST OF IT",
        lead: Some("most of it: "),
    };
    write_rows(out, &heads, &rows, width)
}

/// Writes the native memory that owners keep, without sizes whose blocks come and go.
fn write_kept_native(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let grew = |it: &&KeptNative| it.blocks.change > 0 && it.bytes.change >= MIN_LISTED as i64;
    let shown: Vec<_> = diff.kept_native.iter().flatten().filter(grew).take(MAX_ROWS).collect();
    let row = |it: &KeptNative| Row {
        name: it.owner.clone(),
        figures: vec![
            Count(it.blocks.last()).to_string(),
            signed_count(it.blocks.change),
            Count(it.newcomers).to_string(),
            Count(it.kept).to_string(),
            change(it.bytes.change),
        ],
        note: vec![(Style::new(), it.cause.name().to_owned())],
        ..Row::default()
    };
    let heads = Heads {
        name: "BLOCKS KEPT BY",
        figures: &["LASTING", "CHANGE", "NEW IN 2ND", "STILL THERE", "MiB"],
        note: "CAUSE",
        lead: Some(""),
    };
    write_rows(out, &heads, &shown.into_iter().map(row).collect::<Vec<_>>(), width)
}

/// Writes how retained sizes changed, if all snapshots have them.
fn write_dominators(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let large = |it: &&DominatorChange| it.retained_bytes.change.unsigned_abs() >= MIN_LISTED;
    let shown: Vec<_> = diff.dominators.iter().flatten().filter(large).take(MAX_ROWS).collect();
    let row = |it: &DominatorChange| Row {
        name: it.name.clone(),
        figures: changes(&it.retained_bytes),
        ..Row::default()
    };
    let heads = Heads {
        name: "RETAINED BY",
        figures: &["FIRST", "LAST", "CHANGE, MiB"],
        note: "",
        lead: Some(""),
    };
    write_rows(out, &heads, &shown.into_iter().map(row).collect::<Vec<_>>(), width)
}

fn write_owners(diff: &Diff, out: &mut String, width: usize) -> std::fmt::Result {
    let shown: Vec<_> = diff
        .owners
        .iter()
        .filter(|it| {
            it.cause.is_some_and(Cause::is_native) && it.bytes.change.unsigned_abs() >= MIN_LISTED
        })
        .take(MAX_ROWS)
        .collect();
    let row = |owner: &OwnerChange| Row {
        name: owner.owner.clone(),
        figures: changes(&owner.bytes),
        note: vec![(Style::new(), owner.cause.map_or("", Cause::name).to_owned())],
        ..Row::default()
    };
    let heads = Heads {
        name: "NATIVE MEMORY OF",
        figures: &["FIRST", "LAST", "CHANGE, MiB"],
        note: "CAUSE",
        lead: Some(""),
    };
    write_rows(out, &heads, &shown.into_iter().map(row).collect::<Vec<_>>(), width)
}
