//! What is said of a process of which no cause stands out.

use std::cmp::Reverse;

use diagnosis::{FREE, MIN_BYTES, MIN_SHARE, is_of_extensions};
use formats::{Action, Report};
use ledger::{CauseGroup, InterpreterKind, Size, percent};

use super::figures::{IN_USE, MIN_PART_BYTES, behind_extensions, by_cause, room};
use super::objects::uncollected;
use crate::words::{interpreter_kind, meaning, process, total};

/// The sentence, the evidence and the check.
pub(super) fn healthy(report: &Report) -> (String, Vec<String>, String) {
    let is_read = report.malloc.is_some() && report.ruby.is_some();
    let rss = report.process.rss_bytes;
    let bound = format!("{} MiB and {MIN_SHARE:.0} %", MIN_BYTES >> 20);
    let large_root = diagnosis::large_root(report);
    let large_class = diagnosis::large_in_parts(report);
    let large_table = diagnosis::large_table(report);
    let garbage = diagnosis::uncollected_garbage(report);
    let large_room = diagnosis::large_room(report);
    let useless =
        diagnosis::useless(report).filter(|part| large_room.is_none_or(|room| part.bytes >= room));
    let summary = match (useless, large_class, large_root, large_table) {
        (Some(part), ..) => format!(
            "Too small for a verdict: {} resident. But {:.0} % of it are {}.",
            Size(rss),
            percent(part.bytes, rss),
            match part.rows[..] {
                [cause] => format!("{} ({})", cause.name(), meaning(cause)),
                _ => format!("free ({})", by_cause(report, &part.rows)),
            }
        ),
        (None, ..) if garbage.is_some() => format!(
            "{} resident. No cause exceeds {bound} of RSS, but {} of it are garbage {}.",
            Size(rss),
            Size(garbage.unwrap_or_default()),
            uncollected(report)
        ),
        (None, Some(Action::ReleaseObjects { class, bytes, are_garbage, path, .. }), ..) => {
            format!(
                "{} resident. No cause exceeds {bound} of RSS, but the objects of class {class} do in several causes: {}.{}",
                Size(rss),
                Size(*bytes),
                match path.as_deref() {
                    _ if *are_garbage => " Most of them are garbage.".into(),
                    Some(path) if is_of_extensions(path) => behind_extensions(report).into(),
                    _ =>
                        room(report, *bytes, |group| group.class == *class).unwrap_or(IN_USE.into()),
                }
            )
        }
        (None, _, Some((root, bytes)), _) => format!(
            "{} resident. No cause exceeds {bound} of RSS, but the shortest paths to objects that hold {} begin with {root}.{}",
            Size(rss),
            Size(bytes),
            room(report, bytes, |group| diagnosis::root(&group.path) == root)
                .unwrap_or(IN_USE.into())
        ),
        (None, .., Some((table, bytes))) => format!(
            "{} resident. No cause exceeds {bound} of RSS, but {} of it are {}{}.",
            Size(rss),
            Size(bytes),
            interpreter_kind(table),
            if has_entries(report, table, bytes) { " with its entries" } else { "" }
        ),
        (None, ..) if large_room.is_some() => format!(
            "{} resident. No cause exceeds {bound} of RSS, but {} of it are room that live objects have and do not need: \
             `rbloat report {} --waste`.",
            Size(rss),
            Size(large_room.unwrap_or_default()),
            process(report)
        ),
        (None, ..) => format!(
            "{}: {} resident. Nothing stands out: no cause exceeds {bound} of RSS.",
            if is_read { "Healthy" } else { "Healthy as far as it could be read" },
            Size(rss),
        ),
    };
    let check = "report again later, and see that no cause has grown beyond these bounds.";
    (summary, composition(report), check.into())
}

/// Returns true if the bytes of a table include objects that are its entries.
fn has_entries(report: &Report, table: InterpreterKind, bytes: u64) -> bool {
    let kinds = report.interpreter.iter().flat_map(|it| &it.kinds);
    kinds.filter(|part| part.kind == table).any(|part| part.resident_bytes < bytes)
}

/// The parts of a process, each with the groups of causes that it sums up.
const PARTS: [(&str, &[CauseGroup]); 7] = [
    ("Ruby objects", &[CauseGroup::RubyObjects]),
    ("the interpreter and the code that it loaded", &[CauseGroup::Interpreter, CauseGroup::Jit]),
    ("pages of files, such as libraries", &[CauseGroup::Files]),
    ("files in memory and shared memory", &[CauseGroup::SharedMemory]),
    (
        "native memory",
        &[
            CauseGroup::NativeHeld,
            CauseGroup::NativeGlobal,
            CauseGroup::NativeUnreachable,
            CauseGroup::Untraced,
        ],
    ),
    ("stacks", &[CauseGroup::Stacks]),
    ("headers and padding", &[CauseGroup::Overhead]),
];

/// The memory in use by its purpose, largest first, the free memory, and the memory that could not be read. They add up
/// to RSS.
fn composition(report: &Report) -> Vec<String> {
    let rss = report.process.rss_bytes;
    let sum = |groups: &[CauseGroup]| {
        let rows = report.causes.iter().filter(|row| groups.contains(&row.cause.group()));
        total(rows.map(|row| row.bytes))
    };
    let mut parts = PARTS.map(|(name, groups)| (name, sum(groups)));
    parts.sort_by_key(|&(_, bytes)| Reverse(bytes));
    let shown = parts.iter().filter(|(_, bytes)| *bytes >= MIN_PART_BYTES);
    let shown: Vec<_> = shown.map(|(name, bytes)| format!("{} {name}", Size(*bytes))).collect();
    let (free, unknown) = (sum(&FREE), sum(&[CauseGroup::Unknown]));
    let in_use = rss.saturating_sub(free).saturating_sub(unknown);
    let mut evidence = vec![
        format!("{} are in use: {}", Size(in_use), shown.join(", ")),
        format!(
            "{} ({:.0} % of RSS) are free: malloc and Ruby keep them for reuse",
            Size(free),
            percent(free, rss)
        ),
    ];
    if unknown >= MIN_PART_BYTES {
        evidence.push(format!("{} are unknown: in use or free", Size(unknown)));
    }
    evidence
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files in memory were in no part of the memory in use.
    #[test]
    fn each_group_of_causes_is_in_one_part() {
        let in_parts = |group: &CauseGroup| PARTS.iter().filter(|it| it.1.contains(group)).count();
        for group in CauseGroup::ALL {
            let others = FREE.contains(&group) || group == CauseGroup::Unknown;
            assert_eq!(in_parts(&group) + usize::from(others), 1, "{group:?}");
        }
    }
}
