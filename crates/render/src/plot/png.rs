//! A scene as a PNG: for a ticket or a chat.

use crate::draw::{Canvas, Letters};

use super::Plot;
use super::colours::rgb;
use super::scene::{Element, Scene};

/// Each pixel is so many rows of so many finer ones, of whose colours it has the mean.
const FINE: usize = 3;
/// Dashes and gaps, in pixels.
const DASH: [f64; 2] = [4.0, 3.0];

impl Plot {
    /// The picture as a PNG, 1200 pixels wide, on a light ground.
    #[must_use]
    pub fn render_png(&self) -> Vec<u8> {
        let scene = self.scene().0;
        let mut fine = Fine::new(&scene);
        scene.elements.iter().for_each(|element| fine.draw_shape(element));
        let mut canvas = fine.coarse();
        for element in &scene.elements {
            if let Element::Text { x, y, anchor, fill, text } = element {
                let place = (x.round() as i32, y.round() as i32);
                canvas.text(place, *anchor, Letters::Small, rgb(fill), text);
            }
        }
        canvas.encode()
    }
}

/// Fine pixels.
struct Fine {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Fine {
    /// For a scene.
    fn new(scene: &Scene) -> Self {
        let (width, height) = (scene.width as usize * FINE, scene.height.ceil() as usize * FINE);
        Self { width, height, pixels: vec![rgb("ground"); width * height] }
    }

    fn draw_shape(&mut self, element: &Element) {
        match element {
            Element::Rect { x, y, width, height, fill } => {
                let (right, bottom) = (x + width, y + height);
                self.fill(&[(*x, *y), (right, *y), (right, bottom), (*x, bottom)], rgb(fill));
            }
            Element::Area { points, fill } => self.fill(points, rgb(fill)),
            Element::Line { points, stroke, width, dashed } => {
                let mut walked = 0.0;
                for pair in points.windows(2) {
                    self.stroke(pair[0], pair[1], *width, rgb(stroke), dashed.then_some(walked));
                    walked += length(pair[0], pair[1]);
                }
            }
            Element::Text { .. } => {}
        }
    }

    /// A straight line; a dashed one begins so far into its dashes.
    fn stroke(
        &mut self,
        from: (f64, f64),
        to: (f64, f64),
        width: f64,
        colour: [u8; 3],
        dash: Option<f64>,
    ) {
        let length = length(from, to);
        let at = |along: f64| {
            let share = if length > 0.0 { along / length } else { 0.0 };
            (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share)
        };
        let Some(walked) = dash else {
            self.stripe(from, to, width, colour);
            return;
        };
        let period = DASH[0] + DASH[1];
        let mut begin = -(walked % period);
        while begin < length {
            let (one, other) = (begin.max(0.0), (begin + DASH[0]).min(length));
            if other > one {
                self.stripe(at(one), at(other), width, colour);
            }
            begin += period;
        }
    }

    /// A rectangle along a line, a little longer than that, so that the next one meets it.
    fn stripe(&mut self, from: (f64, f64), to: (f64, f64), width: f64, colour: [u8; 3]) {
        let length = length(from, to).max(1e-9);
        let half = width / 2.0;
        let (x, y) = ((to.0 - from.0) / length * half, (to.1 - from.1) / length * half);
        let (from, to) = ((from.0 - x / 2.0, from.1 - y / 2.0), (to.0 + x / 2.0, to.1 + y / 2.0));
        let corners = [
            (from.0 - y, from.1 + x),
            (to.0 - y, to.1 + x),
            (to.0 + y, to.1 - x),
            (from.0 + y, from.1 - x),
        ];
        self.fill(&corners, colour);
    }

    /// Fills a polygon: of each row of fine pixels what lies between one edge and the next.
    fn fill(&mut self, points: &[(f64, f64)], colour: [u8; 3]) {
        let fine = |value: f64| value * FINE as f64;
        let rows = points.iter().map(|point| fine(point.1));
        let top = rows.clone().fold(f64::MAX, f64::min).max(0.0) as usize;
        let bottom = (rows.fold(0.0, f64::max).ceil() as usize).min(self.height);
        for row in top..bottom {
            let y = row as f64 + 0.5;
            let mut crossings: Vec<f64> = Vec::new();
            for (index, one) in points.iter().enumerate() {
                let other = points[(index + 1) % points.len()];
                let (one_y, other_y) = (fine(one.1), fine(other.1));
                if (one_y <= y) != (other_y <= y) {
                    let share = (y - one_y) / (other_y - one_y);
                    crossings.push(fine(one.0) + share * (fine(other.0) - fine(one.0)));
                }
            }
            crossings.sort_by(f64::total_cmp);
            for pair in crossings.chunks_exact(2) {
                let from = (pair[0].round().max(0.0) as usize).min(self.width);
                let to = (pair[1].round().max(0.0) as usize).min(self.width);
                if from < to {
                    self.pixels[row * self.width + from..row * self.width + to].fill(colour);
                }
            }
        }
    }

    /// Pixels as they are shown.
    fn coarse(&self) -> Canvas {
        let (width, height) = (self.width / FINE, self.height / FINE);
        let mut pixels = Vec::with_capacity(width * height);
        for y in 0..height {
            for x in 0..width {
                let mut sums = [0_usize; 3];
                for row in 0..FINE {
                    let from = (y * FINE + row) * self.width + x * FINE;
                    for pixel in &self.pixels[from..from + FINE] {
                        for (sum, part) in sums.iter_mut().zip(pixel) {
                            *sum += usize::from(*part);
                        }
                    }
                }
                pixels.push(sums.map(|sum| (sum / (FINE * FINE)) as u8));
            }
        }
        Canvas::new(width, pixels)
    }
}

fn length(from: (f64, f64), to: (f64, f64)) -> f64 {
    (to.0 - from.0).hypot(to.1 - from.1)
}
