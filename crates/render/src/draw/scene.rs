//! A picture as a list of shapes, in pixels.

use super::Colour;

/// The height of most texts.
pub(crate) const TEXT_SIZE: f64 = 12.0;

/// A picture: shapes in the order in which they are drawn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scene {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) elements: Vec<Element>,
}

/// A shape or a line of text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Element {
    Rect { x: f64, y: f64, width: f64, height: f64, fill: Colour },
    Area { points: Vec<(f64, f64)>, fill: Colour },
    Line { points: Vec<(f64, f64)>, stroke: Colour, width: f64, dashed: bool },
    Text { x: f64, y: f64, anchor: Anchor, size: f64, fill: Colour, text: String },
}

/// The part of a text's baseline that is at its coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Scene {
    /// A scene of this width on the palette's ground; its height is set when all is drawn.
    pub(crate) fn new(width: f64) -> Self {
        Self { width, height: 0.0, elements: Vec::new() }
    }

    pub(crate) fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: Colour) {
        self.elements.push(Element::Rect { x, y, width, height, fill });
    }

    pub(crate) fn area(&mut self, points: Vec<(f64, f64)>, fill: Colour) {
        self.elements.push(Element::Area { points, fill });
    }

    pub(crate) fn line(&mut self, points: Vec<(f64, f64)>, stroke: Colour, width: f64) {
        self.elements.push(Element::Line { points, stroke, width, dashed: false });
    }

    pub(crate) fn dashed(&mut self, points: Vec<(f64, f64)>, stroke: Colour, width: f64) {
        self.elements.push(Element::Line { points, stroke, width, dashed: true });
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, fill: Colour, text: &str) {
        self.large_text(at, anchor, TEXT_SIZE, fill, text);
    }

    pub(crate) fn large_text(
        &mut self,
        (x, y): (f64, f64),
        anchor: Anchor,
        size: f64,
        fill: Colour,
        text: &str,
    ) {
        self.elements.push(Element::Text { x, y, anchor, size, fill, text: text.into() });
    }
}
