//! The verdict on memory that cannot be accounted for, in words.

use diagnosis::retainer_of_mapper;
use formats::{FindingKind, Report, UnknownRow};
use ledger::{Count, Size};

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

/// The path that retains most objects of the class that refers to most of the unknown memory.
pub(super) fn retainer_of_mappings(report: &Report) -> Option<String> {
    let (owner, path, objects) = retainer_of_mapper(report)?;
    let (some, all) = (Count(objects), Count(owner.objects));
    Some(format!("{some} of {all} {} are retained by {path}", owner.owner))
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
