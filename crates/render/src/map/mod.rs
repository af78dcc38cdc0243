//! The map of a process: every page of its memory, as a page for a browser and as a PNG.

mod html;
mod overview;
mod png;

pub use html::map_html;
pub(crate) use html::{PALETTE, escape};
pub use png::map_png;
