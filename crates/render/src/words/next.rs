use formats::Report;
use ledger::CauseGroup;

/// Returns the command that is most useful after a report. `is_process` is true for the report on a live process.
#[must_use]
pub fn command_after(report: &Report, is_process: bool) -> &'static str {
    let group = report.verdict.cause.map(|cause| cause.group());
    match group {
        _ if !is_process && report.advice.is_empty() => "map",
        _ if !is_process => "fix",
        // Is it growing?
        None | Some(CauseGroup::Files | CauseGroup::Unknown) => "record",
        Some(CauseGroup::RubyObjects | CauseGroup::NativeHeld) => "diff",
        Some(CauseGroup::NativeUnreachable | CauseGroup::NativeGlobal) => "who",
        Some(_) if report.advice.is_empty() => "map",
        Some(_) => "fix",
    }
}
