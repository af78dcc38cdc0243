//! One HTML file that needs nothing else: the sections of a snapshot as they are packed in its file, and a
//! script that unpacks and draws them.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledger::{Cause, Size};
use serde_json::json;

use crate::Snapshot;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// The colours of all that rbloat draws, as variables of a style sheet: first those on a light ground, then what
/// differs on a dark one.
pub const PALETTE: &str = include_str!("page/palette.css");
/// In the order in which they run.
const SCRIPTS: [&str; 5] = [
    include_str!("page/atlas.js"),
    include_str!("page/colours.js"),
    include_str!("page/tables.js"),
    include_str!("page/overview.js"),
    include_str!("page/zoom.js"),
];

impl Snapshot {
    /// The map as a whole HTML document. It loads nothing, runs from disk, and holds what the snapshot holds.
    #[must_use]
    pub fn render_html(&self) -> String {
        let process = &self.report.process;
        let title =
            format!("{} of pid {}: {}", Size(process.rss_bytes), process.pid, process.command);
        let mut data = String::new();
        for section in self.sections() {
            let packed = STANDARD.encode(&section.packed);
            let _ = writeln!(
                data,
                "<script type=\"text/plain\" id=\"section-{}\">{packed}</script>",
                section.name
            );
        }
        let meanings: serde_json::Map<_, _> =
            Cause::ALL.iter().map(|it| (it.name().to_owned(), json!(it.meaning()))).collect();
        let _ = writeln!(
            data,
            "<script type=\"application/json\" id=\"meanings\">{}</script>",
            json!(meanings)
        );
        let script = SCRIPTS.concat();
        // Parts are put in one after the other: nothing that a process is called can name a later one.
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
            let (before, after) =
                rest.split_once(mark).expect("the page has each mark once, in order");
            page.push_str(before);
            page.push_str(part);
            rest = after;
        }
        page.push_str(rest);
        page
    }
}

/// Text as HTML and XML show it, also within an attribute. What XML knows no way to write is left out.
#[must_use]
pub fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|char| !char.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
