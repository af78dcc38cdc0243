use formats::Report;
use ledger::{Cause, CauseGroup};

/// Returns the command that is most useful after a report. `is_process` is true for the report on a live process.
#[must_use]
pub fn command_after(report: &Report, is_process: bool) -> &'static str {
    // A small process may leak all the same.
    let useless = diagnosis::useless(report).map(|row| row.cause);
    let useless = useless.filter(|&cause| cause == Cause::NativeUnreachable);
    let group = report.verdict.cause.map(|cause| cause.group());
    match group {
        _ if !is_process && report.advice.is_empty() => "map",
        _ if !is_process => "fix",
        // Is it growing?
        None if useless.is_some() => "diff",
        None | Some(CauseGroup::Files | CauseGroup::Unknown) => "record",
        Some(CauseGroup::RubyObjects | CauseGroup::NativeHeld) => "diff",
        Some(CauseGroup::NativeUnreachable | CauseGroup::NativeGlobal) => "who",
        Some(_) if report.advice.is_empty() => "map",
        Some(_) => "fix",
    }
}
