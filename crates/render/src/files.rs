use std::fmt::Write;

use diagnosis::{MIN_BYTES, MIN_SHARE};
use formats::{MappedFile, Report};
use ledger::{Cause, percent};

use crate::text::{align_right, end_of, mebibytes, table, trimmed};
use crate::words::total;

/// Files that are shown, at most.
const MAX_FILES: usize = 5;
/// Columns of the figures.
const BEFORE_PATH: usize = 54;
/// The least number of columns for a path.
const MIN_PATH: usize = 20;

/// Writes the largest mapped files if files are a large part of the process.
pub(crate) fn write_files(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let is_file = |cause| matches!(cause, Cause::FilePrivate | Cause::FileShared);
    let rows = report.causes.iter().filter(|row| is_file(row.cause));
    let bytes = total(rows.map(|row| row.bytes));
    let is_large = bytes >= MIN_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    if !is_large || report.files.is_empty() {
        return Ok(());
    }
    let room = width.saturating_sub(BEFORE_PATH).max(MIN_PATH);
    let mut table = table(["FILE, MiB", "RESIDENT", "PRIVATE", "SHARED", "REPEATED", "MAPPED"]);
    for file in report.files.iter().take(MAX_FILES) {
        table.add_row([
            end_of(&file.path, room),
            mebibytes(file.resident_bytes()),
            mebibytes(file.private_bytes),
            mebibytes(file.shared_bytes),
            mebibytes(file.repeated_bytes),
            times(file),
        ]);
    }
    align_right(&mut table, 1..5);
    writeln!(out, "{}\n", trimmed(&table))
}

/// The number of times that a file is mapped.
pub(crate) fn times(file: &MappedFile) -> String {
    match file.times {
        1 => "once".into(),
        times => format!("{times} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_loses_its_beginning() {
        assert_eq!(end_of("/lib/libc.so.6", 14), "/lib/libc.so.6");
        assert_eq!(end_of("/srv/äpp/shared/geo.db", 10), "…ed/geo.db");
    }
}
