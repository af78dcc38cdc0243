//! Drawing: pixels and letters.

mod canvas;

pub(crate) use canvas::{Anchor, Canvas, Letters};
