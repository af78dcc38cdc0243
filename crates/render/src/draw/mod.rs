//! Pictures: scenes of few kinds of shapes, the colours and the font that they use, and how they become SVG and PNG.

mod font;
mod groups;
mod palette;
mod png;
mod scene;
mod svg;

pub(crate) use font::{cut, line_width, wrap};
pub(crate) use groups::{CAUSE_LEGEND, group_of};
pub(crate) use palette::{Colour, SERIES, style_sheet};
pub(crate) use png::{encode, rasterize};
pub(crate) use scene::{Anchor, Element, Scene, TEXT_SIZE};
pub(crate) use svg::{dark_rules, svg};

/// The part of a page's script that the pages share.
pub(crate) const SCRIPT: &str = include_str!("common.js");
