//! A picture as a list of few kinds of elements, which each format draws in its way.

use crate::draw::Anchor;

/// A picture: elements in the order in which they are drawn, on a ground of this size, in pixels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scene {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) elements: Vec<Element>,
}

/// Something that is drawn. Colours are called by their names.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Element {
    Rect { x: f64, y: f64, width: f64, height: f64, fill: &'static str },
    Area { points: Vec<(f64, f64)>, fill: &'static str },
    Line { points: Vec<(f64, f64)>, stroke: &'static str, width: f64, dashed: bool },
    Text { x: f64, y: f64, anchor: Anchor, fill: &'static str, text: String },
}

/// How wide a character is at most, in pixels, so that texts can be cut to fit.
pub(super) const CHARACTER: f64 = 7.0;

impl Scene {
    pub(super) fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: &'static str) {
        self.elements.push(Element::Rect { x, y, width, height, fill });
    }

    pub(super) fn line(&mut self, points: Vec<(f64, f64)>, stroke: &'static str, width: f64) {
        self.elements.push(Element::Line { points, stroke, width, dashed: false });
    }

    pub(super) fn dashed(&mut self, points: Vec<(f64, f64)>, stroke: &'static str, width: f64) {
        self.elements.push(Element::Line { points, stroke, width, dashed: true });
    }

    /// A text whose foot is at `y`.
    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, fill: &'static str, text: &str) {
        let (x, y) = at;
        self.elements.push(Element::Text { x, y, anchor, fill, text: text.into() });
    }
}
