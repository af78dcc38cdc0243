//! The verdict on memory that cannot be accounted for, in words.

use formats::{FindingKind, Report, UnknownRow};
use ledger::Size;

use crate::words::counted;

/// Mappings of unknown memory.
pub(super) fn unknown(row: &UnknownRow) -> String {
    let beside = row.beside.as_ref().map_or_else(String::new, |file| format!(", next to {file}"));
    let largest = if row.mappings == 1 { "it is" } else { "the one with most is" };
    let huge = match row.huge_bytes {
        bytes if bytes > row.resident_bytes / 2 => format!(
            "; {} are in huge pages, each of which becomes resident as a whole when one byte of it is written",
            Size(bytes)
        ),
        _ => String::new(),
    };
    format!(
        "{} with the permissions {}, {}, of which {} are unknown; {largest} at {}{beside}{huge}",
        counted(row.mappings, "anonymous mapping"),
        row.permissions,
        Size(row.mapped_bytes),
        Size(row.resident_bytes),
        row.largest,
    )
}

/// A sentence on the class whose objects refer to most of the unknown memory; empty without one.
pub(super) fn pointed_to(report: &Report) -> String {
    let row = report.unknown.iter().find(|row| row.resident_bytes > report.verdict.bytes / 2);
    let owner = row.and_then(|row| row.owner.as_deref());
    owner.map_or_else(String::new, |class| format!(" Objects of {class} refer to most of it."))
}

/// The reason for which memory could not be accounted for.
pub(super) fn reason(report: &Report) -> String {
    if report.malloc.is_none() && report.ruby.is_none() {
        "neither malloc nor Ruby could be read (see the findings)".into()
    } else if report.findings.iter().any(|it| matches!(it.kind, FindingKind::RubyUnread { .. })) {
        "Ruby's heap could not be read (see the findings)".into()
    } else if report.malloc.is_some() {
        "it belongs neither to malloc nor to Ruby".into()
    } else {
        format!("malloc is served by {}", report.process.allocator)
    }
}
