//! The methods that threads run.

use std::fmt::Write;

use formats::{Report, ThreadRow};

use crate::text::{align_right, end_of, method_and_room, table, trimmed};
use crate::words::{counted, total};

/// Groups of threads that are shown, at most.
const MAX_ROWS: usize = 8;
/// Columns of a method, at most.
const MAX_METHOD: usize = 60;
/// Columns of the number and of the spaces between columns.
const BESIDE_PLACE: usize = 12;

/// Writes what threads run, the largest groups only.
pub(crate) fn write_threads(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(threads) = report.threads.as_ref().filter(|threads| !threads.is_empty()) else {
        return Ok(());
    };
    let mut table = table(["THREADS", "RUN", "AT"]);
    for row in threads.iter().take(MAX_ROWS) {
        let (method, room) = method_and_room(&row.method, MAX_METHOD, BESIDE_PLACE, width);
        table.add_row([row.threads.to_string(), method, end_of(&place(row), room)]);
    }
    align_right(&mut table, 0..1);
    writeln!(out, "{}", trimmed(&table))?;
    if let Some(others) = threads.get(MAX_ROWS..).filter(|others| !others.is_empty()) {
        let count = total(others.iter().map(|row| row.threads));
        writeln!(out, "  and {} elsewhere (--json)", counted(count, "thread"))?;
    }
    writeln!(out)
}

fn place(row: &ThreadRow) -> String {
    match (&row.path, row.line) {
        (Some(path), Some(line)) => format!("{path}:{line}"),
        (Some(path), None) => path.clone(),
        (None, _) => String::new(),
    }
}
