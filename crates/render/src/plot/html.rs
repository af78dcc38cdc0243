//! One HTML file that needs nothing else: the picture, its values, and a script that shows them.

use crate::map::{PALETTE, escape};
use serde_json::json;

use super::Plot;
use super::colours::GROUPS;
use super::svg;

const PAGE: &str = include_str!("page/plot.html");
const STYLE: &str = include_str!("page/plot.css");
const SCRIPT: &str = include_str!("page/plot.js");

impl Plot {
    /// The picture as a whole HTML document, which loads nothing and runs from disk.
    #[must_use]
    pub fn render_html(&self) -> String {
        let (scene, panels) = self.scene();
        let entries = self.entries();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name()).collect();
        let title = format!("Memory over time: {}", names.join(", "));
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|run| {
                let mut value = json!(run.history);
                value["colour"] = run.colour.into();
                value["label"] = run.label.clone().into();
                value
            })
            .collect();
        let groups: Vec<_> = GROUPS.iter().map(|(name, colour, _)| json!([name, colour])).collect();
        let data =
            json!({ "width": scene.width, "panels": panels, "runs": runs, "groups": groups });
        // Within a script nothing may look like its end.
        let data = data.to_string().replace('<', "\\u003c");
        let dark = svg::dark_rules(&scene, ":root[data-scheme=\"dark\"] ");
        let parts = [
            ("{{title}}", escape(&title)),
            // On paper everything is as on a light ground.
            ("{{style}}", format!("{PALETTE}{STYLE}@media screen {{ {dark} }}\n")),
            ("{{title}}", escape(&title)),
            ("{{picture}}", svg::render(&scene, "")),
            ("{{data}}", data),
            ("{{script}}", SCRIPT.to_owned()),
        ];
        // One after the other: nothing that a file is called can name a later part.
        let mut page = String::new();
        let mut rest = PAGE;
        for (mark, part) in &parts {
            let (before, after) = rest.split_once(mark).expect("the page has each mark, in order");
            page.push_str(before);
            page.push_str(part);
            rest = after;
        }
        page + rest
    }
}
