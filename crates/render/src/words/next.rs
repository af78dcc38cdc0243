use formats::{Diff, DiffKind, KeptChange, Report};
use ledger::{Cause, CauseGroup};

/// Returns the words of the command that is most useful after a report on `source`. `is_process` is true for a live process.
#[must_use]
pub fn command_after<'a>(report: &Report, source: &'a str, is_process: bool) -> Vec<&'a str> {
    // A small process may leak all the same.
    let useless = diagnosis::useless(report);
    let is_leak = useless.is_some_and(|part| part.rows == [Cause::NativeUnreachable]);
    let group = report.verdict.cause.map(|cause| cause.group());
    match group {
        _ if !is_process && report.advice.is_empty() => vec!["map", source],
        _ if !is_process => vec!["report", source, "--fix"],
        // Is it growing?
        None if is_leak => vec!["diff", source],
        None | Some(CauseGroup::Files | CauseGroup::SharedMemory | CauseGroup::Unknown) => {
            vec!["record", source]
        }
        Some(CauseGroup::RubyObjects | CauseGroup::NativeHeld) => vec!["diff", source],
        Some(CauseGroup::NativeUnreachable | CauseGroup::NativeGlobal) => vec!["who", source],
        Some(_) if report.advice.is_empty() => vec!["map", source],
        Some(_) => vec!["report", source, "--fix"],
    }
}

/// Returns the words of the command that is most useful after a diff. `process` is its last source, if that is a live process.
#[must_use]
pub fn command_after_diff<'a>(diff: &'a Diff, process: &'a str) -> Vec<&'a str> {
    let verdict = &diff.verdict;
    let class = verdict.class.as_deref();
    let owner = diagnosis::native_owner_of_verdict(diff).map(|owner| &owner.owner);
    let held = verdict.owner.as_ref().or(owner);
    let held = held.filter(|_| verdict.cause == Some(Cause::NativeHeld));
    let roots = || diff.kept.iter().flatten();
    let is_of_verdict = |it: &&KeptChange| verdict.root.as_ref() == Some(&it.root);
    match (verdict.kind, class, held) {
        // The code that touches memory first (`who`) need not be the code that retains it.
        (DiffKind::ManagedLeak, Some(class), _) => vec!["why", process, class],
        (DiffKind::ManagedLeak, None, _) if has_lines(roots().find(is_of_verdict)) => {
            vec!["report", process, "--retained"]
        }
        (DiffKind::ManagedLeak, None, _) => find_lines(process),
        (DiffKind::WarmUp | DiffKind::Retention | DiffKind::Growth, ..)
            if diagnosis::steady_root_besides(diff).is_some_and(|it| !has_lines(Some(it))) =>
        {
            find_lines(process)
        }
        (DiffKind::NativeLeak, _, Some(owner)) => vec!["why", process, owner],
        // Then `who` sees it.
        (DiffKind::NativeLeak, ..) if diagnosis::is_native_in_free_memory(diff) => {
            vec!["trim", process]
        }
        (DiffKind::NativeLeak | DiffKind::CodeLeak, ..) => vec!["who", process],
        (DiffKind::Retention, ..) => vec!["trim", process, "--dry-run"],
        (DiffKind::Growth, ..) if verdict.cause == Some(Cause::Unknown) => vec!["who", process],
        (DiffKind::Growth | DiffKind::WarmUp, ..) => vec!["diff", process, "--every", longer(diff)],
        (DiffKind::Stable | DiffKind::Shrank | DiffKind::Difference, ..) => vec!["report", process],
    }
}

/// Returns true if it is known which lines make what a root keeps.
fn has_lines(root: Option<&KeptChange>) -> bool {
    root.is_some_and(|it| !it.made_by.is_empty())
}

/// The command that looks for lines with more ticks, and for longer, than a diff.
fn find_lines(process: &str) -> Vec<&str> {
    vec!["who", process, "--kept", "--for", "10m"]
}

/// Returns a longer time than that between two snapshots of a diff, as an option takes it.
pub(super) fn longer(diff: &Diff) -> &'static str {
    match diff.seconds / diff.points.len().saturating_sub(1).max(1) as f64 {
        ..45.0 => "60s",
        ..450.0 => "10m",
        _ => "1h",
    }
}
