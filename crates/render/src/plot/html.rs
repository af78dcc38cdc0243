//! One HTML file that needs nothing else: the picture, its values, and a script that shows them.

use askama::Template;
use serde_json::{Value, json};

use crate::draw::{self, CAUSE_LEGEND, dark_rules, style_sheet, svg};

use crate::kept::write_result;
use crate::stacks::GRAPH;
use crate::text::without_styles;

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
    /// The names of recordings with `--kept`, and its results.
    kept: Vec<(String, String)>,
}

/// The columns of a result of `--kept` in the page.
const KEPT_WIDTH: usize = 140;

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
        let kept = self.runs.iter().filter_map(|run| {
            let mut text = String::new();
            let kept = run.history.kept.as_ref()?;
            write_result(kept, &mut text, KEPT_WIDTH).expect("a string takes all text");
            Some((run.history.name.clone(), without_styles(&text)))
        });
        let page = Page {
            title: self.title(),
            palette: style_sheet(),
            dark: dark_rules(&scenes[0].0, ":root[data-scheme=\"dark\"] "),
            pictures,
            kept: kept.collect(),
            data: json!({ "pictures": places, "runs": runs, "groups": CAUSE_LEGEND }),
        };
        page.render().expect("writing to memory does not fail")
    }
}
