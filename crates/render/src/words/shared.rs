//! What a step in one of several forked processes frees.

use formats::{Action, Advice, Report};

/// Returns true for one of several forked processes that share most of their memory.
pub(super) fn shares_most(report: &Report) -> bool {
    report.family.is_some_and(|family| {
        let (rss, pss) = (family.rss_bytes as f64, family.pss_bytes as f64);
        // Of memory that all of them share, all but one part is counted too often.
        let most = rss * (1.0 - 1.0 / family.processes.max(1) as f64);
        family.processes > 1 && rss - pss > most / 2.0
    })
}

/// The sentence on a step in such a process; empty for others, and for steps that concern neither free memory nor objects.
pub(super) fn in_family(advice: &Advice, report: &Report) -> String {
    let Some(family) = report.family.filter(|_| shares_most(report)) else { return String::new() };
    let effect = match advice.action {
        Action::Trim | Action::AutoTrim => {
            "A page that they share is free when all of them have returned it."
        }
        Action::ReleaseObjects { .. }
        | Action::FreeNative { .. }
        | Action::Rehash { .. }
        | Action::CopySlices { .. }
        | Action::ShareStrings { .. }
        | Action::CopyBuffers { .. }
        | Action::FreePages
        | Action::Compact => {
            "If this memory is from before the fork, it stays in the others, and pages that change are copied: free it before the fork."
        }
        _ => return String::new(),
    };
    format!(" The {} forked processes share most of their memory. {effect}", family.processes)
}
