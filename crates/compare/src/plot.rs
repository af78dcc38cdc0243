//! RSS over time, a line for each run: one SVG that needs nothing else.

use std::fmt::Write;

use crate::{Comparison, Run};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
/// Colours that are told apart by most eyes, one for each setting (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#444444", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"];
/// More points than this on a line say no more.
const MOST_POINTS: usize = 600;
const MB: f64 = 1_048_576.0;

impl Comparison {
    /// RSS of every run over time as an SVG document, a colour for each setting.
    #[must_use]
    pub fn render_svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("a string takes what is written");
        svg
    }

    fn draw(&self, out: &mut String) -> std::fmt::Result {
        let samples = || self.runs.iter().flat_map(|run| &run.samples);
        let seconds = samples().map(|sample| sample.ms / 1e3).fold(1.0, f64::max);
        let most = samples().map(|sample| sample.rss_bytes as f64 / MB).fold(1.0, f64::max);
        let (step, top) = scale(most);
        let x = |at: f64| LEFT + at / seconds * (WIDTH - LEFT - RIGHT);
        let y = |mb: f64| HEIGHT - BOTTOM - mb / top * (HEIGHT - TOP - BOTTOM);
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\" role=\"img\">\n<title>RSS of {} under each setting</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
            escape(&self.command.join(" "))
        )?;
        let mut mb = 0.0;
        while mb <= top {
            let at = y(mb);
            writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mb:.0} MB</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            )?;
            mb += step;
        }
        let (step, _) = scale(seconds);
        let mut at = 0.0;
        while at <= seconds {
            writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{at:.0} s</text>",
                x(at),
                HEIGHT - BOTTOM + 18.0
            )?;
            at += step;
        }
        for (index, setting) in self.settings.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            for run in self.runs.iter().filter(|run| run.setting == setting.setting) {
                let points: Vec<String> = thinned(run)
                    .map(|(seconds, mb)| format!("{:.1},{:.1}", x(seconds), y(mb)))
                    .collect();
                writeln!(
                    out,
                    "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" stroke-opacity=\"0.8\" \
                     points=\"{}\"/>",
                    points.join(" ")
                )?;
            }
            let line = TOP + 18.0 * index as f64;
            writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                WIDTH - RIGHT + 14.0,
                line - 2.0,
                WIDTH - RIGHT + 34.0,
                line + 4.0,
                escape(&setting.setting)
            )?;
        }
        writeln!(out, "</svg>")
    }
}

/// The time in seconds and RSS in MB of a run's samples: of many neighbours the highest.
fn thinned(run: &Run) -> impl Iterator<Item = (f64, f64)> {
    let group = run.samples.len().div_ceil(MOST_POINTS).max(1);
    run.samples.chunks(group).filter_map(|group| {
        let highest = group.iter().max_by_key(|sample| sample.rss_bytes)?;
        Some((highest.ms / 1e3, highest.rss_bytes as f64 / MB))
    })
}

/// A round step for some five lines up to `most`, and the first multiple of it that is not below that.
fn scale(most: f64) -> (f64, f64) {
    let rough = most / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|&step| step >= rough).unwrap_or(rough).max(1.0);
    (step, (most / step).ceil() * step)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
