use anstyle::Style;
use diagnosis::{MIN_BYTES, MIN_SHARE};
use formats::{MappedFile, Report};
use ledger::{Cause, percent};

use crate::rows::{Heads, Row, write_rows};
use crate::text::mebibytes;
use crate::words::total;

/// Files that are shown, at most.
const MAX_FILES: usize = 5;

/// Writes the largest mapped files if files are a large part of the process.
pub(crate) fn write_files(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let is_file =
        |cause| matches!(cause, Cause::FilePrivate | Cause::FileShared | Cause::FileShmem);
    let rows = report.causes.iter().filter(|row| is_file(row.cause));
    let bytes = total(rows.map(|row| row.bytes));
    let is_large = bytes >= MIN_BYTES && percent(bytes, report.process.rss_bytes) >= MIN_SHARE;
    if !is_large || report.files.is_empty() {
        return Ok(());
    }
    let row = |file: &MappedFile| Row {
        name: file.path.clone(),
        figures: vec![
            mebibytes(file.resident_bytes()),
            mebibytes(file.private_bytes),
            mebibytes(file.shared_bytes),
            mebibytes(file.repeated_bytes),
        ],
        note: vec![(Style::new(), times(file))],
        ..Row::default()
    };
    let rows: Vec<_> = report.files.iter().take(MAX_FILES).map(row).collect();
    let heads = Heads {
        name: "FILE, MiB",
        figures: &["RESIDENT", "PRIVATE", "SHARED", "REPEATED"],
        note: "MAPPED",
        lead: Some("mapped "),
    };
    write_rows(out, &heads, &rows, width)
}

/// The number of times that a file is mapped.
pub(crate) fn times(file: &MappedFile) -> String {
    match file.times {
        1 => "once".into(),
        times => format!("{times} times"),
    }
}
