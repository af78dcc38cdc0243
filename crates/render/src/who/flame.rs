//! One HTML file with a flame graph, which needs nothing else.

use askama::Template;
use formats::Who;
use serde_json::{Value, json};

use crate::draw::{self, style_sheet};
use crate::who::{folded, task, who_summary};

const STYLE: &str = concat!(include_str!("page/flame.css"), include_str!("page/graph.css"));
/// The script of a flame graph; it needs [`draw::SCRIPT`].
pub(crate) const GRAPH: &str = include_str!("page/graph.js");
const SCRIPT: &str = include_str!("page/flame.js");

#[derive(Template)]
#[template(path = "who/page/flame.html")]
struct Page {
    title: String,
    palette: String,
    data: Value,
}

/// Returns the flame graph as an HTML document, which loads nothing and works from disk.
///
/// # Panics
/// Never: writing to memory does not fail.
#[must_use]
pub fn who_html(who: &Who) -> String {
    let names: Vec<String> = who.frames.iter().map(folded::name).collect();
    let grown = who.stacks.iter().filter(|stack| stack.bytes > 0);
    let stacks: Vec<Value> =
        grown.map(|stack| json!([stack.bytes, stack.frames, stack.task])).collect();
    let tasks: Vec<String> = who.tasks.iter().map(task).collect();
    let page = Page {
        title: who_summary(who),
        palette: style_sheet(),
        data: json!({
            "names": names, "stacks": stacks, "tasks": tasks, "unknown": who.unknown_bytes,
        }),
    };
    page.render().expect("writing to memory does not fail")
}
