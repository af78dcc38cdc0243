//! The methods that threads run.

use anstyle::Style;
use formats::{Report, ThreadRow};

use crate::rows::{Heads, Row, write_rows};
use crate::text::DIM;
use crate::words::total;

/// Groups of threads that are shown, at most.
const MAX_ROWS: usize = 8;

/// Writes what threads run, the largest groups only.
pub(crate) fn write_threads(report: &Report, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(threads) = report.threads.as_ref().filter(|threads| !threads.is_empty()) else {
        return Ok(());
    };
    let row = |row: &ThreadRow| Row {
        figures: vec![row.threads.to_string()],
        note: vec![(Style::new(), row.method.clone()), (DIM, place(row))],
        ..Row::default()
    };
    let mut rows: Vec<_> = threads.iter().take(MAX_ROWS).map(row).collect();
    if let Some(others) = threads.get(MAX_ROWS..).filter(|others| !others.is_empty()) {
        let count = total(others.iter().map(|row| row.threads));
        let note = vec![(Style::new(), "elsewhere (--json)".into())];
        rows.push(Row { figures: vec![count.to_string()], note, ..Row::default() });
    }
    write_rows(
        out,
        &Heads { name: "", figures: &["THREADS"], note: "RUN", lead: Some("") },
        &rows,
        width,
    )
}

/// The place that threads run, and the one that started them if it is another one.
fn place(row: &ThreadRow) -> String {
    let place = |path: &Option<String>, line| match (path, line) {
        (Some(path), Some(line)) => format!("{path}:{line}"),
        (Some(path), None) => path.clone(),
        (None, _) => String::new(),
    };
    let run = place(&row.path, row.line);
    match place(&row.started_path, row.started_line) {
        started if started.is_empty() || started == run => run,
        started if run.is_empty() => format!("started at {started}"),
        started => format!("{run}, started at {started}"),
    }
}
