//! One HTML file that needs nothing else: the sections of a snapshot as they are packed in its file, and a
//! script that unpacks and draws them.

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::{DominatorRow, MadePages, Report, Snapshot};
use ledger::{Cause, Size};
use serde_json::{Map, Value, json};

use crate::draw::{self, CAUSE_LEGEND, style_sheet};
use crate::made_by::maker;
use crate::map::overview::{LEGEND, TITLES};
use crate::words;

const STYLE: &str = include_str!("page/page.css");
/// In the order in which they run.
const SCRIPTS: [&str; 6] = [
    draw::SCRIPT,
    include_str!("page/memory_map.js"),
    include_str!("page/tables.js"),
    include_str!("page/colours.js"),
    include_str!("page/overview.js"),
    include_str!("page/zoom.js"),
];

#[derive(Template)]
#[template(path = "map/page/page.html")]
struct Page {
    title: String,
    palette: String,
    /// The names of sections, and their content in base64.
    sections: Vec<(&'static str, String)>,
    words: Value,
}

/// Returns the map of a snapshot as one HTML document, which loads nothing and contains the whole snapshot. `made` has the
/// pages that are coloured by the code that touched them.
///
/// # Panics
/// Never: writing to memory does not fail.
#[must_use]
pub fn map_html(snapshot: &Snapshot, made: Option<&MadePages>) -> String {
    let process = &snapshot.report.process;
    let title = format!("{} of pid {}: {}", Size(process.rss_bytes), process.pid, process.command);
    let sections = snapshot.sections();
    let page = Page {
        title,
        palette: style_sheet(),
        sections: sections.iter().map(|it| (it.name, STANDARD.encode(&it.packed))).collect(),
        words: words(&snapshot.report, made),
    };
    page.render().expect("writing to memory does not fail")
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
            "objects": row.objects,
            "retained_bytes": row.retained_bytes,
        }));
        add_dominators(row.parts.iter(), depth + 1, rows);
    }
}

/// Returns the words of the page, and the tables that it shares with other pictures.
fn words(report: &Report, made: Option<&MadePages>) -> Value {
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
    json!({
        "summary": verdict.summary,
        "evidence": verdict.evidence,
        "check": verdict.check,
        "steps": steps.collect::<Vec<_>>(),
        "meanings": meanings,
        "dominators": dominators,
        "made": made.map(|made| json!({
            "code": made.code.iter().map(maker).collect::<Vec<_>>(),
            "pages": made.pages,
        })),
        "groups": CAUSE_LEGEND,
        "legend": LEGEND,
        "titles": TITLES.map(|(kind, title)| (kind.name(), title)),
    })
}
