//! The code that touched memory first.

use std::fmt::Write;

use formats::{MadeBy, Maker};
use ledger::{Cause, Size};

use crate::text::{BOLD, write_wrapped};
use crate::words::lines::in_file;

/// Parts of the memory, at most.
const MAX_PARTS: usize = 20;
/// Rows of code for each part, at most.
const MAX_CODE: usize = 3;
/// Code with less memory is not shown: in bytes, and as a fraction of the part.
const MIN_BYTES: u64 = 1 << 20;
const MIN_FRACTION: u64 = 20;

/// Writes the code that touched each part of the memory first.
pub(crate) fn write_made_by(
    rows: Option<&Vec<MadeBy>>,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    let Some(rows) = rows else { return Ok(()) };
    writeln!(out, "{BOLD}MADE BY{BOLD:#}")?;
    for line in made_lines(rows) {
        write_wrapped(out, " · ", &line, width)?;
    }
    writeln!(out)
}

/// Returns a sentence for each code that touched much of a part of the memory first.
pub(crate) fn made_lines(rows: &[MadeBy]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows.iter().take(MAX_PARTS) {
        let part = row.owner.as_deref().or(row.cause.map(Cause::name)).unwrap_or_default();
        if row.code.is_empty() {
            let why = "malloc may have used this memory before, and the code that touched it first has freed it then";
            lines.push(format!("{part}: no code of {} is named: {why}", Size(row.bytes)));
        }
        let least = MIN_BYTES.max(row.bytes / MIN_FRACTION);
        let large = row.code.iter().filter(|code| code.bytes >= least);
        for code in large.take(MAX_CODE) {
            let (bytes, all) = (Size(code.bytes), Size(row.bytes));
            lines.push(format!("{part}: {bytes} of {all} first touched in {}", maker(code)));
        }
    }
    if lines.is_empty() {
        let least = Size(MIN_BYTES);
        lines.push(format!(
            "no code of the observation touched {least} of the memory that is there now"
        ));
    }
    lines
}

/// "ReportsController#export → CSV.generate (/srv/app/reports_controller.rb:24)".
pub(crate) fn maker(code: &Maker) -> String {
    let Maker { method, calls, path, line, task, .. } = code;
    let mut text = match task {
        Some(task) if !method.ends_with(task.as_str()) => format!("{task} → {method}"),
        _ => method.clone(),
    };
    if let Some(calls) = calls {
        text += &format!(" → {calls}");
    }
    in_file(text, path.as_deref(), *line)
}
