//! One HTML file that needs nothing else: the picture, its values, and a script that shows them.

use askama::Template;
use serde_json::{Value, json};

use crate::draw::{self, CAUSE_LEGEND, dark_rules, style_sheet, svg};

use crate::who::GRAPH;

use super::Plot;

const STYLE: &str = concat!(include_str!("page/plot.css"), include_str!("../who/page/graph.css"));
const SCRIPT: &str = include_str!("page/plot.js");

#[derive(Template)]
#[template(path = "plot/page/plot.html")]
struct Page {
    title: String,
    palette: String,
    dark: String,
    picture: String,
    data: Value,
}

impl Plot {
    /// Returns the picture as an HTML document, which loads nothing and works from disk.
    ///
    /// # Panics
    /// Never: writing to memory does not fail.
    #[must_use]
    pub fn render_html(&self) -> String {
        let (scene, panels) = self.scene();
        let entries = self.entries();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name()).collect();
        let runs: Vec<Value> = self
            .runs
            .iter()
            .map(|run| {
                let mut value = json!(run.history);
                value["colour"] = json!(run.colour);
                value["label"] = json!(run.label);
                value
            })
            .collect();
        let page = Page {
            title: format!("Memory over time: {}", names.join(", ")),
            palette: style_sheet(),
            dark: dark_rules(&scene, ":root[data-scheme=\"dark\"] "),
            picture: svg(&scene, ""),
            data: json!({ "width": scene.width, "panels": panels, "runs": runs, "groups": CAUSE_LEGEND }),
        };
        page.render().expect("writing to memory does not fail")
    }
}
