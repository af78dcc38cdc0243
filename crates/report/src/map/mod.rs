//! The picture of a process: every page of its memory, as a page for a browser and as a PNG.

mod html;
mod overview;
mod png;

pub use html::{PALETTE, escape};
