//! Figures that sentences share, and the least that are named.

use std::cmp::Reverse;

use diagnosis::are_kept_by_extensions;
use formats::{Report, WasteGroup};
use ledger::{Cause, Size};

use crate::words::{process, total};

/// Smaller parts of a healthy process are not listed, in bytes.
pub(super) const MIN_PART_BYTES: u64 = 100 << 10;
/// Owners and classes that are evidence, at most.
pub(super) const MAX_EVIDENCE: usize = 3;
/// The sentence on objects that are reachable from memory of C extensions only.
pub(super) fn behind_extensions(report: &Report) -> &'static str {
    match are_kept_by_extensions(report, None) {
        true => " A GC found most of them alive, so a C extension may retain them.",
        false => {
            " The GC may not follow memory of C extensions: if the extension does not mark the objects, they are garbage."
        }
    }
}
/// What memory that live objects hold may be.
pub(super) const IN_USE: &str =
    " The program itself uses this memory: it is a managed leak, or simply its data.";

/// The sentence on so many bytes of objects most of which is room that these do not use; `None` if it is not. `has` accepts their groups.
pub(super) fn room(
    report: &Report,
    bytes: u64,
    has: impl Fn(&WasteGroup) -> bool,
) -> Option<String> {
    let groups = report.waste.iter().flat_map(|waste| &waste.groups).filter(|it| has(it));
    let unused = total(groups.map(|group| group.row.unused_bytes));
    (unused > bytes / 2).then(|| {
        format!(
            " {} of it are room that live objects have and do not use: `rbloat report {} --waste`.",
            Size(unused.min(bytes)),
            process(report)
        )
    })
}

/// The bytes of a cause.
pub(super) fn bytes(report: &Report, cause: Cause) -> u64 {
    report.causes.iter().find(|row| row.cause == cause).map_or(0, |row| row.bytes)
}

/// The sizes of causes, largest first: `30.0 MiB malloc.unreturned, 9.0 MiB ruby.free_slots`.
pub(super) fn by_cause(report: &Report, causes: &[Cause]) -> String {
    let mut causes: Vec<_> = causes.iter().map(|&cause| (bytes(report, cause), cause)).collect();
    causes.sort_by_key(|&(bytes, cause)| (Reverse(bytes), cause));
    let large = causes.into_iter().filter(|(bytes, _)| *bytes >= MIN_PART_BYTES);
    let sizes: Vec<_> =
        large.map(|(bytes, cause)| format!("{} {}", Size(bytes), cause.name())).collect();
    sizes.join(", ")
}
