//! Verdicts and advice in words. All figures come from the document that they belong to.

mod advice;
mod alarm;
mod cause;
mod diff;
mod dominator;
mod finding;
mod gc;
mod group;
mod interpreter;
pub(crate) mod lines;
mod next;
mod places;
mod retained;
mod room;
mod shared;
mod threads;
mod unread;
mod verdict;

use formats::Report;

pub(crate) use advice::process;
pub use advice::{AdviceWords, advice};
pub(crate) use alarm::utc;
pub use cause::meaning;
pub use diff::diff_verdict;
pub(crate) use diff::{signed, signed_count};
pub use dominator::{dominator, dominator_label};
pub use finding::{LAYOUT_UNKNOWN, NOT_STARTED, OTHER_COLLECTOR, finding};
pub use gc::gc;
pub use group::{group, tmpfs_file};
pub use interpreter::interpreter_kind;
pub use next::{command_after, command_after_diff};
pub(crate) use places::line_of_root;
pub(crate) use retained::retained_share;
pub use unread::{no_copy, unread};
pub use verdict::verdict;

pub use crate::stable::shape;

/// A verdict in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerdictWords {
    /// One sentence.
    pub summary: String,
    /// The figures behind it, one line each.
    pub evidence: Vec<String>,
    /// The confidence, and a way to check the verdict.
    pub check: String,
}

/// The first word of a check.
pub(crate) fn confidence(confidence: formats::Confidence) -> &'static str {
    match confidence {
        formats::Confidence::Low => "Low confidence.",
        formats::Confidence::Medium => "Medium confidence.",
        formats::Confidence::High => "High confidence.",
    }
}

/// The allocator, with its version unless that is the C library's.
pub(crate) fn allocator(report: &Report) -> &str {
    match &report.malloc {
        Some(malloc) if !malloc.walker.starts_with("glibc") => &malloc.walker,
        _ => &report.process.allocator,
    }
}

/// The call by which glibc returns free pages.
pub(crate) const GLIBC_TRIM: &str = "malloc_trim(0)";

/// The call that makes the allocator of a process return free pages; `None` if it has none, as musl's. Early snapshots do not name
/// glibc's.
pub(crate) fn trim_call(report: &Report) -> Option<&str> {
    let malloc = report.malloc.as_ref()?;
    let of_glibc = || malloc.walker.starts_with("glibc").then_some(GLIBC_TRIM);
    malloc.trim_call.as_deref().or_else(of_glibc)
}

/// Returns a count and its noun, in the plural if the count is not 1.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", ledger::Count(count))
}

/// Returns the sum of sizes. A document may be foreign, with sizes that no process has.
pub(crate) fn total(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}

/// Returns true if a setting lets jemalloc keep free pages forever.
fn keeps_pages_forever(report: &Report) -> bool {
    let tuning = report.malloc.as_ref().and_then(|malloc| malloc.tuning.as_ref());
    tuning.and_then(|tuning| tuning.dirty_decay_ms).is_some_and(|ms| ms < 0)
}
