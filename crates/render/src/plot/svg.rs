//! A scene as SVG. Colours are written out for a light ground, so that whatever shows SVG shows them; what shows
//! style sheets too takes those of a dark ground where that is wanted.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::draw::Anchor;
use crate::map::escape;

use super::Plot;
use super::colours::colour;
use super::scene::{Element, Scene};

impl Plot {
    /// The picture as SVG: light or dark as the reader prefers it.
    #[must_use]
    pub fn render_svg(&self) -> String {
        let scene = self.scene().0;
        let dark = dark_rules(&scene, "");
        let style =
            format!("<style>@media screen and (prefers-color-scheme: dark) {{ {dark} }}</style>");
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned() + &render(&scene, &style)
    }
}

/// The element `svg` of a scene, with `style` in it.
pub(super) fn render(scene: &Scene, style: &str) -> String {
    let (width, height) = (scene.width, scene.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">{style}\n"
    );
    let ground = Element::Rect { x: 0.0, y: 0.0, width, height, fill: "ground" };
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
            paint("fill", fill)
        ),
        Element::Area { points, fill } => {
            writeln!(svg, "<path d=\"{}z\"{}/>", path(points), paint("fill", fill))
        }
        Element::Line { points, .. } if points.is_empty() => Ok(()),
        Element::Line { points, stroke, width, dashed } => writeln!(
            svg,
            "<path d=\"{}\" fill=\"none\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{}{}/>",
            path(points),
            if *dashed { " stroke-dasharray=\"4 3\"" } else { "" },
            paint("stroke", stroke)
        ),
        Element::Text { x, y, anchor, fill, text } => {
            let anchor = match anchor {
                Anchor::Top | Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{}>{}</text>",
                paint("fill", fill),
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

fn paint(what: &str, name: &str) -> String {
    format!(" {what}=\"{}\" class=\"{what}-{name}\"", colour(name, false))
}

/// The rules that make a scene one on a dark ground, of elements below those that `scope` selects.
pub(super) fn dark_rules(scene: &Scene, scope: &str) -> String {
    let mut names = BTreeSet::from([("fill", "ground")]);
    for element in &scene.elements {
        match element {
            Element::Rect { fill, .. }
            | Element::Area { fill, .. }
            | Element::Text { fill, .. } => names.insert(("fill", fill)),
            Element::Line { stroke, .. } => names.insert(("stroke", stroke)),
        };
    }
    let rule = |(what, name): (&str, &str)| {
        format!("{scope}.{what}-{name}{{{what}:{}}}", colour(name, true))
    };
    names.into_iter().map(rule).collect::<Vec<_>>().join(" ")
}
