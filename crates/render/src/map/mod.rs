//! The map of a process: all pages of its memory, as an HTML page and as a PNG.

mod html;
mod overview;
mod png;

pub use html::map_html;
pub use png::map_png;
