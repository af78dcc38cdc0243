//! One HTML file that needs nothing else: the sections of a snapshot as they are packed in its file, and a
//! script that unpacks and draws them.

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::{MadePages, Report, SharedPages, Snapshot};
use serde_json::{Value, json};

use crate::draw::{self, style_sheet};
use crate::made_by::maker;
use crate::map::PageColours;
use crate::map::overview::{LEGEND, SHARING, TITLES, legend_of_sharing};
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

/// Returns the map of a snapshot as one HTML document, which loads nothing and contains the whole snapshot.
///
/// # Panics
/// Never: writing to memory does not fail.
#[must_use]
pub fn map_html(snapshot: &Snapshot, colours: PageColours<'_>) -> String {
    let sections = snapshot.sections();
    let page = Page {
        title: page::title(&snapshot.report),
        palette: style_sheet(),
        sections: sections.iter().map(|it| (it.name, STANDARD.encode(&it.packed))).collect(),
        words: words(&snapshot.report, colours),
    };
    page.render().expect("writing to memory does not fail")
}

/// Returns the words of the page, and the tables that it shares with other pictures.
fn words(report: &Report, colours: PageColours<'_>) -> Value {
    let mut words = page::words(report);
    let (made, shared) = match colours {
        PageColours::Use => (None, None),
        PageColours::Code(made) => (Some(made_words(made)), None),
        PageColours::Sharing(shared) => (None, Some(shared_words(shared))),
    };
    words.insert("made".into(), json!(made));
    words.insert("shared".into(), json!(shared));
    words.insert("legend".into(), json!(LEGEND));
    words.insert("titles".into(), json!(TITLES.map(|(kind, title)| (kind.name(), title))));
    words.into()
}

fn made_words(made: &MadePages) -> Value {
    json!({ "code": made.code.iter().map(maker).collect::<Vec<_>>(), "pages": made.pages })
}

/// The first entries of the legend are those of pages; a run of pages has the index of its entry.
fn shared_words(shared: &SharedPages) -> Value {
    let entry = |sharing| SHARING.iter().position(|(it, _)| *it == sharing);
    let runs = shared.pages.iter().map(|&(first, count, sharing)| (first, count, entry(sharing)));
    json!({ "legend": legend_of_sharing(shared), "kinds": SHARING.len(), "pages": runs.collect::<Vec<_>>() })
}
