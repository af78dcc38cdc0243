//! One HTML file that needs nothing else: the sections of a snapshot as they are packed in its file, and a
//! script that unpacks and draws them.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::{Report, Snapshot};
use ledger::{Cause, Size};
use serde_json::{Map, Value, json};

use crate::words;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// The colours of all that rbloat draws, as variables of a style sheet: first those on a light ground, then what
/// differs on a dark one.
pub(crate) const PALETTE: &str = include_str!("page/palette.css");
/// In the order in which they run.
const SCRIPTS: [&str; 5] = [
    include_str!("page/atlas.js"),
    include_str!("page/colours.js"),
    include_str!("page/tables.js"),
    include_str!("page/overview.js"),
    include_str!("page/zoom.js"),
];

/// Returns the map of a snapshot as one HTML document, which loads nothing and contains the whole snapshot.
#[must_use]
pub fn map_html(snapshot: &Snapshot) -> String {
    let process = &snapshot.report.process;
    let title = format!("{} of pid {}: {}", Size(process.rss_bytes), process.pid, process.command);
    let mut data = String::new();
    for section in snapshot.sections() {
        let packed = STANDARD.encode(&section.packed);
        let _ = writeln!(
            data,
            "<script type=\"text/plain\" id=\"section-{}\">{packed}</script>",
            section.name
        );
    }
    let _ = writeln!(
        data,
        "<script type=\"application/json\" id=\"words\">{}</script>",
        // Nothing inside a script may look like its end.
        in_words(&snapshot.report).to_string().replace('<', "\\u003c")
    );
    let script = SCRIPTS.concat();
    // Each part is searched for behind the previous one, so that no name of a process can contain a mark.
    let parts = [
        ("{{title}}", escape(&title)),
        ("{{style}}", PALETTE.to_owned() + STYLE),
        ("{{data}}", data),
        ("{{script}}", script),
    ];
    let mut rest = PAGE;
    let mut page =
        String::with_capacity(PAGE.len() + parts.iter().map(|it| it.1.len()).sum::<usize>());
    for (mark, part) in &parts {
        let (before, after) = rest.split_once(mark).expect("the page has each mark once, in order");
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// Everything that the page says in words.
fn in_words(report: &Report) -> Value {
    let verdict = words::verdict(report);
    let steps = report.advice.iter().map(|step| {
        let words = words::advice(step, report);
        json!({
            "action": words.action,
            "command": words.command,
            "costs": words.costs,
            "saves_bytes": step.saves_bytes,
            "already_set": step.already_set,
        })
    });
    let meanings: Map<String, Value> =
        Cause::ALL.iter().map(|cause| (cause.name().into(), cause.meaning().into())).collect();
    json!({
        "summary": verdict.summary,
        "evidence": verdict.evidence,
        "check": verdict.check,
        "steps": steps.collect::<Vec<_>>(),
        "meanings": meanings,
    })
}

/// Escapes text for HTML and XML, also inside attributes. Control characters, which XML cannot contain, are dropped.
pub(crate) fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|char| !char.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
