//! One HTML file that needs nothing else: the picture, its values, and a script that shows them.

use askama::Template;
use serde_json::{Value, json};

use crate::draw::{self, CAUSE_LEGEND, dark_rules, style_sheet, svg};

use crate::stacks::GRAPH;

use super::{NARROW, Plot, WIDTH};

const STYLE: &str =
    concat!(include_str!("page/plot.css"), include_str!("../stacks/page/graph.css"));
const SCRIPT: &str = include_str!("page/plot.js");

#[derive(Template)]
#[template(path = "plot/page/plot.html")]
struct Page {
    title: String,
    palette: String,
    dark: String,
    /// The picture for large windows, and for phones.
    pictures: [String; 2],
    data: Value,
}

impl Plot {
    /// Returns the picture as an HTML document, which loads nothing and works from disk.
    ///
    /// # Panics
    /// Never: writing to memory does not fail.
    #[must_use]
    pub fn render_html(&self) -> String {
        let scenes = [WIDTH, NARROW].map(|width| self.scene(width));
        let pictures = scenes.each_ref().map(|(scene, _)| svg(scene, ""));
        let places = scenes
            .each_ref()
            .map(|(scene, panels)| json!({ "width": scene.width, "panels": panels }));
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
            title: self.title(),
            palette: style_sheet(),
            dark: dark_rules(&scenes[0].0, ":root[data-scheme=\"dark\"] "),
            pictures,
            data: json!({ "pictures": places, "runs": runs, "groups": CAUSE_LEGEND }),
        };
        page.render().expect("writing to memory does not fail")
    }
}
