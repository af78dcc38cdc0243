//! Scenes as SVG. Colours are written out for a light ground, so that all viewers show them. Viewers that know style
//! sheets take those of a dark ground if the reader prefers it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::palette::Scheme;
use super::{Anchor, Colour, Element, Scene, TEXT_SIZE};

/// Returns the element `svg` of a scene, with `style` in it.
pub(crate) fn svg(scene: &Scene, style: &str) -> String {
    let (width, height) = (scene.width, scene.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"{TEXT_SIZE}\">{style}\n"
    );
    let ground = Element::Rect { x: 0.0, y: 0.0, width, height, fill: Colour::Ground };
    for element in std::iter::once(&ground).chain(&scene.elements) {
        write_element(&mut svg, element);
    }
    svg + "</svg>\n"
}

fn write_element(svg: &mut String, element: &Element) {
    // Writing into a String does not fail.
    let _ = match element {
        Element::Rect { x, y, width, height, fill } => writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"{}/>",
            paint("fill", *fill)
        ),
        Element::Area { points, fill } => {
            writeln!(svg, "<path d=\"{}z\"{}/>", path(points), paint("fill", *fill))
        }
        Element::Line { points, .. } if points.is_empty() => Ok(()),
        Element::Line { points, stroke, width, dashed } => writeln!(
            svg,
            "<path d=\"{}\" fill=\"none\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{}{}/>",
            path(points),
            if *dashed { " stroke-dasharray=\"4 3\"" } else { "" },
            paint("stroke", *stroke)
        ),
        Element::Text { x, y, anchor, size, fill, text } => {
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let size = match *size {
                TEXT_SIZE => String::new(),
                size => format!(" font-size=\"{size}\""),
            };
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{size}{}>{}</text>",
                paint("fill", *fill),
                escape(text)
            )
        }
    };
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    path
}

fn paint(what: &str, colour: Colour) -> String {
    format!(" {what}=\"{}\" class=\"{what}-{}\"", colour.hex(Scheme::Light), colour.name())
}

/// Escapes text for XML, and drops the characters that XML cannot contain.
fn escape(text: &str) -> String {
    let text =
        text.replace(|it: char| it.is_control() || matches!(it, '\u{fffe}' | '\u{ffff}'), "");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the rules that put a scene on a dark ground, for elements below those that `scope` selects.
pub(crate) fn dark_rules(scene: &Scene, scope: &str) -> String {
    let mut paints = BTreeSet::from([("fill", Colour::Ground)]);
    for element in &scene.elements {
        paints.insert(match element {
            Element::Rect { fill, .. }
            | Element::Area { fill, .. }
            | Element::Text { fill, .. } => ("fill", *fill),
            Element::Line { stroke, .. } => ("stroke", *stroke),
        });
    }
    let rule = |(what, colour): (&str, Colour)| {
        format!("{scope}.{what}-{}{{{what}:{}}}", colour.name(), colour.hex(Scheme::Dark))
    };
    paints.into_iter().map(rule).collect::<Vec<_>>().join(" ")
}
