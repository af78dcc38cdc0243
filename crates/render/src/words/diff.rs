mod evidence;
mod subject;

use std::cmp::Reverse;

use diagnosis::{native_blocks_of_verdict, slow_root_besides, steady_root_besides};
use formats::{ClassChange, Diff, DiffKind, Doubt};
use ledger::{Count, Size};

use super::lines::made_by;
use super::next::longer;
use super::{VerdictWords, confidence, unread};
use evidence::{blocks_gone, evidence, keeps_more, rates};
use subject::{is_unknown, largest_code, subject, table_that_grew};

/// The name of the kind of objects that bytecode is.
const ISEQS: &str = "(imemo_iseq)";
/// The least difference of a cause, or of garbage, that is named, in bytes, and the most causes of a difference between two processes.
const MIN_CHANGE: u64 = 1 << 20;
const MAX_CAUSES: usize = 4;

/// Returns the verdict of a diff in words.
#[must_use]
pub fn diff_verdict(diff: &Diff) -> VerdictWords {
    let verdict = &diff.verdict;
    let class = verdict.class.as_ref();
    let class = class.and_then(|name| diff.classes.iter().find(|class| class.name == *name));
    let (mut summary, check) = sentences(diff, class);
    if let Some(row) = steady_root_besides(diff) {
        let line = made_by(row).filter(|_| !row.made_by.is_empty());
        let line = line.map_or(String::new(), |line| format!("; {line}"));
        summary += &format!(" {} at a steady rate, which may be a leak{line}.", keeps_more(row));
    }
    let check = format!("{} To check: {check}{}", confidence(verdict.confidence), unseen(diff));
    VerdictWords { summary, evidence: evidence(diff, class), check }
}

/// The growth that so short a time does not show, if nothing grew: 400 KiB in a minute are 560 MiB in a day.
fn unseen(diff: &Diff) -> String {
    const HOUR: f64 = 3600.0;
    if !matches!(diff.verdict.kind, DiffKind::Stable | DiffKind::Shrank)
        || diff.seconds <= 0.0
        || diff.seconds > HOUR
    {
        return String::new();
    }
    let hourly = diagnosis::least_growth(diff) as f64 / (diff.seconds / HOUR);
    format!(
        " Growth below {}/h does not show within {:.0} s; `rbloat diff --every {}` would show it.",
        Size(hourly as u64),
        diff.seconds,
        longer(diff)
    )
}

const CHECK_OF_A_LEAK: &str = "a later snapshot under the same load should show the same growth. After a fix, `rbloat diff` \
                               should report that nothing grew.";

fn sentences(diff: &Diff, class: Option<&ClassChange>) -> (String, String) {
    let verdict = &diff.verdict;
    let subject = subject(diff, class);
    let size = Size(verdict.bytes.unsigned_abs());
    let rss = diff.rss_bytes.change;
    let rates = rates(diff, class);
    let rate = match &rates[..] {
        [objects, bytes] => format!("{objects} ({bytes})"),
        _ => rates.concat(),
    };
    let rates = rates.join(", ");
    let (in_use, _) = diagnosis::totals(diff);
    let blocks = native_blocks_of_verdict(diff);
    let (summary, check) = match (verdict.kind, verdict.doubt) {
        (_, Some(Doubt::Unread)) => (
            format!(
                "The memory was not read in {} of {} snapshots, so rbloat cannot tell what changed. RSS changed by {}.",
                Count(diff.unread.len() as u64),
                Count(snapshots(diff)),
                signed(verdict.bytes)
            ),
            "the reasons name the pause that each snapshot needs.",
        ),
        (DiffKind::ManagedLeak, _) => {
            (format!("Managed leak: {subject} grows by {rate}."), CHECK_OF_A_LEAK)
        }
        (DiffKind::NativeLeak, _) => {
            (format!("Native leak: {subject} grows by {rate}."), CHECK_OF_A_LEAK)
        }
        (DiffKind::CodeLeak, _) => (code_leak(diff, &rates), CHECK_OF_A_LEAK),
        (DiffKind::Growth, Some(Doubt::CodeIsLoaded)) if table_that_grew(diff).is_some() => (
            format!("Growth: {subject} grew by {size} ({rates})."),
            "a snapshot after the same work on the same objects should have no larger tables. `rbloat report PID --code` lists them.",
        ),
        (DiffKind::Growth, Some(Doubt::CodeIsLoaded)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}) at a steady rate: the program still loads code, or defines classes or \
                 methods again and again."
            ),
            "this should stop when all code is loaded. `rbloat report PID --code` lists bytecode and tables, and `rbloat who` \
             names the lines that make them grow.",
        ),
        (DiffKind::WarmUp, Some(Doubt::CodeIsLoaded)) => (
            format!("Warm-up: {subject} grew by {size}, by classes and bytecode that were loaded."),
            "this should stop when all code is loaded. If it does not, something defines classes or methods \
             again and again.",
        ),
        (DiffKind::WarmUp, _) => (
            format!(
                "Warm-up: {subject} grew by {size}, but more and more slowly.{}",
                if slow_root_besides(diff).is_none() { " This is no leak." } else { "" }
            ),
            "the next snapshot should grow less than the first ones.",
        ),
        (DiffKind::Difference, _) => (
            difference(diff),
            "compare processes that run the same program, under the same load, for the same time. `rbloat compare` does \
             that, several times under each allocator.",
        ),
        (DiffKind::Growth, Some(Doubt::NothingInUse)) => (
            format!(
                "Too early to tell: RSS rose by {}, {subject} by {size}; memory in use {}.",
                Size(rss.unsigned_abs()),
                changed(in_use)
            ),
            "another snapshot, later, should have no higher RSS.",
        ),
        (DiffKind::Growth, Some(Doubt::OwnersUnknown)) if is_unknown(diff) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}). rbloat cannot tell whose it is, or if this is a leak."
            ),
            "`rbloat who` names the code that touches this memory for the first time.",
        ),
        (DiffKind::Growth, Some(Doubt::OwnersUnknown)) => (
            format!(
                "Too early to tell: {subject} grew by {size} ({rates}). rbloat cannot tell if Ruby's objects hold this \
                 memory."
            ),
            "if the objects of a class increase at the same rate, they hold it.",
        ),
        (DiffKind::Growth, Some(Doubt::Garbage)) => (
            format!(
                "Too early to tell: {subject} grew by {size}, but nothing retains most of it. It may be garbage that \
                 the GC has not collected."
            ),
            "a snapshot after GC.start should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::GcDisabled)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}), because the GC is disabled (GC.disable). Nothing retains most of \
                 it."
            ),
            "a snapshot after GC.enable and GC.start should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::Uneven)) => (
            format!("Growth: {subject} grew by {size}, at an uneven rate."),
            "snapshots that are further apart, under the same load, should show the same rate if it is a leak.",
        ),
        (DiffKind::Growth, Some(Doubt::Turnover)) if blocks.is_some() => (
            format!(
                "Growth: {subject} grew by {size} ({rates}), but blocks come and go: {}.",
                blocks.map(blocks_gone).unwrap_or_default()
            ),
            "a snapshot at rest, under no load, should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::Turnover)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}), but most objects that were new in the last but one \
                 snapshot are gone by now: they come and go."
            ),
            "a snapshot after GC.start, at rest, should have less of it.",
        ),
        (DiffKind::Growth, Some(Doubt::Unproven)) => (
            format!(
                "Growth: {subject} grew by {size} ({rates}) at a steady rate. This may be a leak, or warm-up."
            ),
            "it is a leak if it grows by as much in snapshots that are further apart, under the same load.",
        ),
        (DiffKind::Growth, _) => (
            format!(
                "Too early to tell: {subject} grew by {size} ({rates}). This may be a leak, or warm-up."
            ),
            match diff.points.len() {
                ..=2 => "a third snapshot, later, shows a leak if it grew by as much again.",
                _ => "another snapshot, later, shows a leak if it grew by as much again.",
            },
        ),
        (DiffKind::Retention, _) => (
            format!(
                "Retention: RSS rose by {}, free memory that malloc or Ruby keeps by {size}{}.",
                Size(rss.unsigned_abs()),
                match in_use {
                    ..0 => format!("; memory in use fell by {}", Size(in_use.unsigned_abs())),
                    0.. => format!(", memory in use by {}", Size(in_use.unsigned_abs())),
                }
            ),
            "`rbloat trim` should return about as much as `rbloat report` predicts.",
        ),
        (DiffKind::Stable, _) => (
            format!(
                "Nothing grew: memory in use {}, and RSS {}.",
                changed(verdict.bytes),
                changed(rss)
            ),
            "a later snapshot should have no more memory in use.",
        ),
        (DiffKind::Shrank, _) => (
            format!("RSS fell by {}; memory in use {}.", Size(rss.unsigned_abs()), changed(in_use)),
            "a later snapshot should have no more memory in use than the first.",
        ),
    };
    (summary, check.into())
}

/// The RSS of the last process compared with that of the first, by cause. The figures add up.
fn difference(diff: &Diff) -> String {
    let rss = diff.rss_bytes.change;
    let last = if diff.points.len() > 2 { "last" } else { "second" };
    let allocators = [diff.points.first(), diff.points.last()]
        .map(|point| point.map_or("", |point| point.allocator.as_str()));
    let [of_first, of_last] = match allocators {
        [first, last] if first == last => [String::new(), String::new()],
        names => names.map(|name| format!(" ({})", if name.is_empty() { "unknown" } else { name })),
    };
    let size = Size(rss.unsigned_abs());
    let relation = match rss {
        ..0 => format!("{size} less than"),
        0 => "as much memory as".into(),
        1.. => format!("{size} more than"),
    };
    let mut causes: Vec<_> = diff.causes.iter().map(|row| (row.cause, row.bytes.change)).collect();
    causes.sort_by_key(|(_, change)| Reverse(change.unsigned_abs()));
    causes.retain(|(_, change)| change.unsigned_abs() >= MIN_CHANGE);
    causes.truncate(MAX_CAUSES);
    let others = rss - causes.iter().map(|(_, change)| change).sum::<i64>();
    let named = !causes.is_empty();
    let mut parts: Vec<_> = causes
        .iter()
        .map(|(cause, change)| format!("{} {}", cause.name(), signed(*change)))
        .collect();
    if named && others != 0 {
        parts.push(format!("other causes {}", signed(others)));
    }
    let colon = if named { ": " } else { "" };
    format!(
        "The {last} process{of_last} uses {relation} the first{of_first}{colon}{}.",
        parts.join(", ")
    )
}

/// The file whose code is defined again and again, and the root that retains most of it.
fn code_leak(diff: &Diff, rates: &str) -> String {
    let retainer = diff.classes.iter().find(|class| class.name == ISEQS);
    let root = retainer.and_then(|class| class.kept_by.as_ref()?.split(" → ").next());
    // Caches of the interpreter, threads and finalizers define no code.
    let root = root.filter(|root| !root.starts_with('('));
    let by = root.map_or_else(String::new, |root| format!(", retained by {root}"));
    let code = match largest_code(diff) {
        Some(file) => format!("the code of {}", file.path),
        None => "code".into(),
    };
    format!(
        "Code leak: {code} is defined again and again{by}. The interpreter's memory grows by {rates}. `rbloat who` names the line that \
         defines it."
    )
}

/// A change of a count with its sign.
pub(crate) fn signed_count(change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", Count(change.unsigned_abs()))
}

/// The number of all snapshots, with those that were not read.
fn snapshots(diff: &Diff) -> u64 {
    let is_left_out = |source: &str| diff.points.iter().all(|point| point.source != source);
    let left_out = diff.unread.iter().filter(|it| is_left_out(&it.source)).count();
    (diff.points.len() + left_out) as u64
}

/// "changed by +3.0 MiB".
fn changed(bytes: i64) -> String {
    match bytes {
        0 => "did not change".into(),
        _ => format!("changed by {}", signed(bytes)),
    }
}

/// A change of bytes with its sign.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", Size(bytes.unsigned_abs()))
}
