//! The page of a report, whose head and details are also those of the map's page.

use askama::Template;
use formats::{CaptureMethod, DominatorRow, FindingRow, Report};
use ledger::{Cause, Size};
use serde_json::{Map, Value, json};

use crate::draw::{self, CAUSE_LEGEND, style_sheet};
use crate::made_by::made_lines;
use crate::report::{foot, severity};
use crate::waste::page_rows;
use crate::words;

const STYLE: &str = include_str!("page.css");
/// What shows a report, in the order in which it runs.
pub(crate) const TABLES: &str = include_str!("tables.js");
pub(crate) const REPORT: &str = include_str!("report.js");
pub(crate) const OWNERS: &str = include_str!("owners.js");
const SCRIPTS: [&str; 5] = [draw::SCRIPT, TABLES, REPORT, OWNERS, include_str!("page.js")];

#[derive(Template)]
#[template(path = "page/report.html")]
struct Page<'a> {
    title: String,
    palette: String,
    report: &'a Report,
    words: Value,
}

/// Returns a report as one HTML document, which loads nothing and works from disk.
///
/// # Panics
/// Never: writing to memory does not fail.
#[must_use]
pub fn report_html(report: &Report) -> String {
    let page =
        Page { title: title(report), palette: style_sheet(), report, words: words(report).into() };
    page.render().expect("writing to memory does not fail")
}

/// The title of a page about a process.
pub(crate) fn title(report: &Report) -> String {
    let process = &report.process;
    format!("{} of pid {}: {}", Size(process.rss_bytes), process.pid, process.command)
}

/// The words of a report that its page shows beside the figures.
pub(crate) fn words(report: &Report) -> Map<String, Value> {
    let verdict = words::verdict(report);
    let steps = report.advice.iter().map(|step| {
        let words = words::advice(step, report);
        json!({
            "action": words.action,
            "command": words.command,
            "remark": words.remark,
            "costs": words.costs,
            "saves_bytes": step.saves_bytes,
        })
    });
    let mut dominators = Vec::new();
    add_dominators(report.dominators.iter().flatten(), 0, &mut dominators);
    let meanings: Map<String, Value> = Cause::ALL
        .iter()
        .map(|cause| (cause.name().into(), words::meaning(*cause).into()))
        .collect();
    // The process of a core may be gone.
    let why = (report.capture.method != CaptureMethod::Core).then_some(report.process.pid);
    let words = json!({
        "summary": verdict.summary,
        "evidence": verdict.evidence,
        "check": verdict.check,
        "steps": steps.collect::<Vec<_>>(),
        "meanings": meanings,
        "dominators": dominators,
        "made_by": report.made_by.as_ref().map(|rows| made_lines(rows)),
        "waste": report.waste.as_ref().map(page_rows),
        "groups": CAUSE_LEGEND,
        "why": why,
        "findings": report.findings.iter().map(finding_line).collect::<Vec<_>>(),
        "foot": foot(report),
    });
    let Value::Object(words) = words else { unreachable!("it is written as an object") };
    words
}

/// A finding in one line, after its severity.
fn finding_line(finding: &FindingRow) -> String {
    format!("{}: {}", severity(finding), words::finding(finding))
}

/// Adds the rows of dominators, each before those of its parts.
fn add_dominators<'a>(
    dominators: impl Iterator<Item = &'a DominatorRow>,
    depth: u32,
    rows: &mut Vec<Value>,
) {
    for row in dominators {
        rows.push(json!({
            "depth": depth,
            "name": words::dominator(row),
            "label": words::dominator_label(row),
            "objects": row.objects,
            "retained_bytes": row.retained_bytes,
        }));
        add_dominators(row.parts.iter(), depth + 1, rows);
    }
}
