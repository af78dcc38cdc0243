//! The memory over the number of workers, with the limit as a line.

use askama::Template;
use formats::{Fit, FitRow};
use ledger::Size;

use crate::draw::{
    Anchor, Colour, Scene, TEXT_SIZE, dark_rules, encode, rasterize, style_sheet, svg, wrap,
};
use crate::plot::byte_marks;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const LINE: f64 = 18.0;
const STYLE: &str = "body { margin: 1rem; background: var(--ground); } svg { width: 100%; max-width: 60rem; height: auto; }\n";
/// More bars are thinner than their numbers.
const MAX_BARS: usize = 32;

#[derive(Template)]
#[template(path = "fit/page.html")]
struct Page {
    title: String,
    palette: String,
    picture: String,
}

/// Returns the chart as SVG: light or dark as the reader prefers it.
#[must_use]
pub fn fit_svg(fit: &Fit) -> String {
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned() + &picture(fit)
}

/// Returns the chart as PNG, on a light ground.
#[must_use]
pub fn fit_png(fit: &Fit) -> Vec<u8> {
    encode(&rasterize(&scene(fit)))
}

/// Returns the chart as an HTML document, which loads nothing.
///
/// # Panics
/// Never: writing to memory does not fail.
#[must_use]
pub fn fit_html(fit: &Fit) -> String {
    let page =
        Page { title: super::fit_summary(fit), palette: style_sheet(), picture: picture(fit) };
    page.render().expect("writing to memory does not fail")
}

fn picture(fit: &Fit) -> String {
    let scene = scene(fit);
    let dark = dark_rules(&scene, "");
    svg(
        &scene,
        &format!("<style>@media screen and (prefers-color-scheme: dark) {{ {dark} }}</style>"),
    )
}

fn scene(fit: &Fit) -> Scene {
    let mut scene = Scene::new(WIDTH);
    let mut top = 12.0;
    for line in wrap(&super::fit_summary(fit), TEXT_SIZE, WIDTH - LEFT - RIGHT) {
        top += LINE;
        scene.text((LEFT, top), Anchor::Start, Colour::Ink, &line);
    }
    if !fit.rows.is_empty() {
        top += LINE;
        let legend = "Bars: the memory between peaks. Lines above them: the limit that is safe.";
        scene.text((LEFT, top), Anchor::Start, Colour::Dim, legend);
        draw_bars(&mut scene, fit, top + 12.0);
        top += HEIGHT + 12.0 + 2.0 * LINE;
    }
    scene.height = top + LINE;
    scene
}

fn draw_bars(scene: &mut Scene, fit: &Fit, top: f64) {
    let rows: &[FitRow] = &fit.rows[fit.rows.len().saturating_sub(MAX_BARS)..];
    let most = rows.iter().map(|row| row.safe_limit_bytes).max().unwrap_or(0);
    let most = most.max(fit.limit_bytes.unwrap_or(0).min(most * 2)).max(1) as f64 * 1.06;
    let (right, bottom) = (WIDTH - RIGHT, top + HEIGHT);
    let y = |bytes: f64| bottom - HEIGHT * (bytes / most).clamp(0.0, 1.0);
    scene.rect([LEFT, top, right - LEFT, HEIGHT], Colour::Panel);
    for (bytes, name) in byte_marks(most, 5.0) {
        scene.line(vec![(LEFT, y(bytes)), (right, y(bytes))], Colour::Line, 1.0);
        scene.text((LEFT - 8.0, y(bytes) + 4.0), Anchor::End, Colour::Dim, &name);
    }
    let pitch = (right - LEFT) / rows.len() as f64;
    for (row, index) in rows.iter().zip(0_u32..) {
        let left = LEFT + pitch * f64::from(index);
        let (low, high) = (y(row.expected_bytes as f64), y(row.safe_limit_bytes as f64));
        let fits = fit.max_workers.is_none_or(|max| row.workers <= max);
        let colour = if fits { Colour::Extensions } else { Colour::Kept };
        scene.rect([left + pitch * 0.2, low, pitch * 0.6, bottom - low], colour);
        let middle = left + pitch / 2.0;
        scene.line(vec![(middle, low), (middle, high)], Colour::Ink, 1.5);
        scene.line(vec![(middle - 5.0, high), (middle + 5.0, high)], Colour::Ink, 1.5);
        scene.text((middle, bottom + LINE), Anchor::Middle, Colour::Dim, &row.workers.to_string());
    }
    scene.text((LEFT, bottom + 2.0 * LINE), Anchor::Start, Colour::Dim, "workers");
    if let Some(limit) = fit.limit_bytes.filter(|limit| (*limit as f64) <= most) {
        let y = y(limit as f64);
        scene.dashed(vec![(LEFT, y), (right, y)], Colour::InUse, 1.5);
        let text = format!("limit {}", Size(limit));
        scene.text((LEFT + 6.0, y - 5.0), Anchor::Start, Colour::InUse, &text);
    }
}
