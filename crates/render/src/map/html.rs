//! One HTML file that needs nothing else: the sections of a snapshot as they are packed in its file, and a
//! script that unpacks and draws them.

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::{MadePages, Report, Snapshot};
use serde_json::{Value, json};

use crate::draw::{self, style_sheet};
use crate::made_by::maker;
use crate::map::overview::{LEGEND, TITLES};
use crate::page;

const STYLE: &str = concat!(include_str!("../page/page.css"), include_str!("page/map.css"));
/// In the order in which they run.
const SCRIPTS: [&str; 8] = [
    draw::SCRIPT,
    page::TABLES,
    page::REPORT,
    page::OWNERS,
    include_str!("page/memory_map.js"),
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
    let sections = snapshot.sections();
    let page = Page {
        title: page::title(&snapshot.report),
        palette: style_sheet(),
        sections: sections.iter().map(|it| (it.name, STANDARD.encode(&it.packed))).collect(),
        words: words(&snapshot.report, made),
    };
    page.render().expect("writing to memory does not fail")
}

/// Returns the words of the page, and the tables that it shares with other pictures.
fn words(report: &Report, made: Option<&MadePages>) -> Value {
    let mut words = page::words(report);
    let made = made.map(|made| {
        json!({ "code": made.code.iter().map(maker).collect::<Vec<_>>(), "pages": made.pages })
    });
    words.insert("made".into(), json!(made));
    words.insert("legend".into(), json!(LEGEND));
    words.insert("titles".into(), json!(TITLES.map(|(kind, title)| (kind.name(), title))));
    words.into()
}
