//! What a step in one of several forked processes frees.

use formats::{Action, Advice, Report};

/// Returns true for one of several forked processes that share most of their memory.
pub(super) fn shares_most(report: &Report) -> bool {
    report.family.is_some_and(|family| family.pss_bytes < family.rss_bytes / 2)
}

/// The sentence on a step in such a process; empty for others, and for steps that concern no memory from before the fork.
pub(super) fn in_family(advice: &Advice, report: &Report) -> String {
    let Some(family) = report.family.filter(|_| shares_most(report)) else { return String::new() };
    let effect = match advice.action {
        Action::Trim | Action::AutoTrim => "A page is free when all of them have returned it.",
        Action::ReleaseObjects { .. }
        | Action::FreeNative { .. }
        | Action::Rehash { .. }
        | Action::CopySlices { .. }
        | Action::CopyBuffers { .. }
        | Action::Compact => {
            "What one of them frees stays in the others, and pages that it changes for that are copied: do it before the fork."
        }
        _ => return String::new(),
    };
    format!(" The {} forked processes share most of their memory. {effect}", family.processes)
}
