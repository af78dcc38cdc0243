//! One HTML file with a flame graph, which needs nothing else.

use askama::Template;
use serde_json::{Value, json};

use super::{Stacks, Weight, name};
use crate::draw::{self, style_sheet};

const STYLE: &str = concat!(include_str!("page/flame.css"), include_str!("page/graph.css"));
/// The script of a flame graph; it needs [`draw::SCRIPT`].
pub(crate) const GRAPH: &str = include_str!("page/graph.js");
const SCRIPT: &str = include_str!("page/flame.js");

#[derive(Template)]
#[template(path = "stacks/page/flame.html")]
struct Page {
    title: String,
    palette: String,
    width_means: &'static str,
    data: Value,
}

impl Stacks {
    /// Returns the flame graph as an HTML document, which loads nothing and works from disk.
    ///
    /// # Panics
    /// Never: writing to memory does not fail.
    #[must_use]
    pub fn html(&self) -> String {
        let names: Vec<String> = self.frames.iter().map(name).collect();
        let row = |row: &super::Row| json!([row.weight, row.frames, row.task]);
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let page = Page {
            title: self.summary.clone(),
            palette: style_sheet(),
            width_means: match self.weight {
                Weight::GrownBytes => "growth of RSS in it and in all that it called",
                Weight::KeptObjects => {
                    "number of objects that it and all that it called allocated, and that stay"
                }
            },
            data: json!({
                "weight": self.weight, "names": names, "stacks": rows, "tasks": self.tasks,
                "unknown": self.unknown,
            }),
        };
        page.render().expect("writing to memory does not fail")
    }
}
