//! Recordings as a picture: the memory of all of them in one panel, and the causes of each, stacked, in another.
//! Recordings with the same label, such as the runs of a comparison under one setting, share a colour and a line of
//! the head.

mod head;
mod history;
mod html;
mod members;
mod rise;
mod runs;
mod scale;

use diagnosis::{MemorySeries, Setting};
use formats::Recording;
use ledger::Size;
use serde::Serialize;

use crate::draw::{
    Anchor, CAUSE_LEGEND, Colour, SERIES, Scene, TEXT_SIZE, dark_rules, encode, line_width,
    rasterize, svg, wrap,
};
use history::{Event, History, Mark, Point};
use members::{RecordedMember, members};
pub(crate) use scale::byte_marks;
use scale::time_marks;

/// The width of a picture, and that of one for a phone.
const WIDTH: f64 = 1200.0;
const NARROW: f64 = 420.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const MEMORY_HEIGHT: f64 = 340.0;
const CAUSES_HEIGHT: f64 = 240.0;
const LINE: f64 = 18.0;
const RISE_HEIGHT: f64 = 6.0;
/// Groups of causes that never reach this share of the highest stack are thinner than a line: the legend counts them.
const MIN_SHARE_IN_LEGEND: f64 = 0.01;
/// The rows for the texts of kills. Each run has one, and further runs share them.
const ROWS_OF_KILLS: usize = 8;
/// The most characters of a command, and of a label.
const MAX_NAME: usize = 100;
/// The highest limit that is drawn, as a multiple of the highest curve. A higher one would flatten the curves, so only
/// the title names it.
const MAX_LIMIT_IN_PICTURE: f64 = 2.5;

/// A picture of some recordings.
#[derive(Debug, Clone, Default)]
pub struct Plot {
    runs: Vec<Run>,
}

/// The part of a recording that is drawn: it is small, however long the recording is.
#[derive(Debug, Clone)]
struct Run {
    history: History,
    members: Vec<RecordedMember>,
    pid: i32,
    command: String,
    label: Option<String>,
    stable: String,
    /// The reason for which there is no history of its causes, if there is none.
    without_causes: Option<&'static str>,
    colour: Colour,
}

/// An area with axes, in pixels of the scene. The page's script reads it too.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Panel {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    seconds: f64,
    bytes: f64,
    /// The run whose causes are shown; `None` for the curves of all.
    run: Option<usize>,
}

impl Plot {
    /// Adds a recording with its name.
    pub fn add(&mut self, name: &str, recording: &Recording) {
        let label = label(recording);
        let alike = self.runs.iter().find(|run| run.label.is_some() && run.label == label);
        let colour = alike.map_or_else(|| self.new_colour(label.as_deref()), |run| run.colour);
        self.runs.push(Run::new(name, recording, colour));
    }

    /// Returns the colour of a new entry. A setting that rbloat has by itself has the same colour in every picture.
    fn new_colour(&self, label: Option<&str>) -> Colour {
        let built_in = Setting::ALL.iter().position(|setting| Some(setting.name()) == label);
        let next = match label {
            Some(_) => Setting::ALL.len() + self.entries().len(),
            None => self.entries().len(),
        };
        SERIES[built_in.unwrap_or(next) % SERIES.len()]
    }

    /// Returns the picture as SVG: light or dark as the reader prefers it.
    #[must_use]
    pub fn render_svg(&self) -> String {
        let scene = self.scene(WIDTH).0;
        let dark = dark_rules(&scene, "");
        let style =
            format!("<style>@media screen and (prefers-color-scheme: dark) {{ {dark} }}</style>");
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned() + &svg(&scene, &style)
    }

    /// Returns the picture as PNG, 1200 pixels wide, on a light ground.
    #[must_use]
    pub fn render_png(&self) -> Vec<u8> {
        encode(&rasterize(&self.scene(WIDTH).0))
    }

    /// Returns the picture in this width, and its panels.
    fn scene(&self, width: f64) -> (Scene, Vec<Panel>) {
        let mut scene = Scene::new(width);
        let mut panels = Vec::new();
        let seconds = self.runs.iter().map(|run| run.history.seconds).fold(0.0, f64::max).max(1.0);
        let mut top = self.draw_head(&mut scene, 12.0);
        top = self.draw_runs(&mut scene, top);
        panels.push(self.draw_memory(&mut scene, &mut top, seconds));
        for (index, run) in self.runs.iter().enumerate() {
            match run.without_causes {
                None => panels.push(run.draw_causes(&mut scene, &mut top, seconds, index)),
                // The runs of a comparison are captured at most once.
                Some(_) if run.label.is_some() => {}
                Some(reason) => {
                    let text = format!("No causes of {}: {reason}", run.history.name);
                    top = draw_lines(&mut scene, top, Colour::Dim, &text) + 20.0;
                }
            }
        }
        scene.height = top;
        (scene, panels)
    }

    fn draw_memory(&self, scene: &mut Scene, top: &mut f64, seconds: f64) -> Panel {
        let most = self.runs.iter().map(|run| run.history.most()).max().unwrap_or(0).max(1) as f64;
        let mut limits: Vec<u64> = self.runs.iter().filter_map(|run| run.history.limit).collect();
        limits.sort_unstable();
        limits.dedup();
        let (near, far): (Vec<u64>, Vec<u64>) =
            limits.into_iter().partition(|&limit| limit as f64 <= most * MAX_LIMIT_IN_PICTURE);
        let highest = near.last().map_or(most, |&limit| most.max(limit as f64));
        let far: Vec<String> = far.iter().map(|&limit| Size(limit).to_string()).collect();
        let beyond = match far.len() {
            0 => String::new(),
            _ => format!("; limit {} not in the picture", far.join(", ")),
        };
        let points = || self.runs.iter().flat_map(|run| &run.history.points);
        let mut title = "RSS (line)".to_owned();
        if points().any(|point| point.processes > 1) {
            title += ", PSS (thin line)";
        }
        if points().any(|point| point.group.is_some()) {
            title += ", control group (dashed)";
        }
        if self.runs.iter().any(|run| !run.history.rises.is_empty()) {
            title += ", growth whose code is known (bars)";
        }
        title += &beyond;
        *top = draw_lines(scene, *top + 8.0, Colour::Ink, &title) + 8.0;
        let panel = Panel::new(scene, *top, MEMORY_HEIGHT, seconds, highest * 1.06, None);
        panel.draw_axes(scene);
        if points().next().is_none() {
            let at = (panel.left + 12.0, panel.top + 24.0);
            scene.text(
                at,
                Anchor::Start,
                Colour::Dim,
                "No samples: the recording ended before the first one.",
            );
        }
        *top += MEMORY_HEIGHT + 44.0;
        for limit in near {
            let y = panel.y(limit as f64);
            scene.dashed(vec![(panel.left, y), (panel.right, y)], Colour::InUse, 1.5);
            let text = format!("limit {}", Size(limit));
            scene.text((panel.left + 6.0, y - 5.0), Anchor::Start, Colour::InUse, &text);
        }
        for run in &self.runs {
            run.draw_rises(scene, &panel);
            run.draw_curves(scene, &panel);
        }
        self.label_curves(scene, &panel);
        for (row, run) in self.runs.iter().enumerate() {
            let kills = run.history.marks.iter().filter(|mark| mark.event == Event::OomKill);
            let kills: Vec<&Mark> = kills.collect();
            // With several runs, the colour shows whose kill it is.
            let colour = if self.runs.len() == 1 { Colour::InUse } else { run.colour };
            draw_kills(scene, &panel, &kills, colour, row);
            // The drops of many runs would hide the curves.
            let drops = run.history.marks.iter().filter(|mark| mark.event == Event::Drop);
            drops
                .filter(|_| run.label.is_none())
                .for_each(|mark| draw_drop(scene, &panel, mark, &run.history));
        }
        panel
    }
}

impl Plot {
    /// Writes the name of each setting at the end of its first curve, one below the other.
    fn label_curves(&self, scene: &mut Scene, panel: &Panel) {
        let entries = self.entries();
        let labelled = entries.iter().filter(|entry| entry.is_labelled());
        let above = |point: &Point| panel.y(point.rss as f64) - 5.0;
        let end = |run: &Run| run.history.points.last().map(above);
        let mut labels: Vec<_> =
            labelled.filter_map(|entry| Some((end(entry.runs[0])?, entry))).collect();
        labels.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut free_from = panel.top + TEXT_SIZE;
        for (y, entry) in labels {
            let y = y.max(free_from);
            if y > panel.bottom {
                return;
            }
            scene.text((panel.right - 4.0, y), Anchor::End, entry.runs[0].colour, entry.name());
            free_from = y + TEXT_SIZE + 2.0;
        }
    }
}

/// Returns the beginning of the label of a recording.
fn label(recording: &Recording) -> Option<String> {
    recording.start.label.as_ref().map(|label| label.chars().take(MAX_NAME).collect())
}

/// Draws the OOM kills of one run as lines through the panel. Their texts are in the run's row. If one would cover the
/// next line, the first one has the number of all.
fn draw_kills(scene: &mut Scene, panel: &Panel, kills: &[&Mark], colour: Colour, row: usize) {
    let y = panel.top + 12.0 + LINE * (row % ROWS_OF_KILLS) as f64;
    let places: Vec<f64> = kills.iter().map(|kill| panel.x(kill.t)).collect();
    for &x in &places {
        scene.line(vec![(x, panel.top), (x, panel.bottom)], colour, 1.5);
    }
    let width = |text: &str| line_width(text, TEXT_SIZE) + 8.0;
    let mut gaps = places.windows(2).zip(kills);
    let texts: Vec<String> = if gaps.all(|(x, kill)| x[1] - x[0] >= width(&kill.text)) {
        kills.iter().map(|kill| kill.text.clone()).collect()
    } else {
        vec![format!("{} OOM kills", kills.iter().map(|kill| kill.count).sum::<u64>())]
    };
    for (text, &x) in texts.iter().zip(&places) {
        // At the edge the text is on the other side.
        let is_at_edge = x + width(text) > panel.right;
        let left = if is_at_edge { x - width(text) } else { x + 4.0 };
        // Over lines and curves.
        scene.rect([left - 2.0, y - 11.0, width(text) - 4.0, 14.0], Colour::Panel);
        scene.text((left, y), Anchor::Start, colour, text);
    }
}

fn draw_drop(scene: &mut Scene, panel: &Panel, drop: &Mark, history: &History) {
    let x = panel.x(drop.t);
    let after = history.points.iter().find(|point| point.t >= drop.t);
    let y = panel.y(after.map_or(0.0, |point| point.rss as f64)) + 4.0;
    let triangle = vec![(x, y), (x - 4.0, y + 7.0), (x + 4.0, y + 7.0)];
    scene.area(triangle, Colour::Dim);
}

impl Run {
    fn new(name: &str, recording: &Recording, colour: Colour) -> Self {
        let history = History::of(name, recording);
        let command = match &recording.start.command {
            Some(words) => words.join(" "),
            None => recording.processes().next().map_or(String::new(), |it| it.command.clone()),
        };
        let without_causes = without_causes(recording, &history);
        let plain = command.chars().filter(|char| !char.is_control());
        Self {
            history,
            members: members(recording),
            pid: recording.start.pid,
            command: plain.take(MAX_NAME).collect(),
            label: label(recording),
            stable: crate::stable_point(&MemorySeries::of(recording)),
            without_causes,
            colour,
        }
    }

    /// Draws a bar at the bottom for each rise whose code is known.
    fn draw_rises(&self, scene: &mut Scene, panel: &Panel) {
        for rise in &self.history.rises {
            let (left, right) = (panel.x(rise.from), panel.x(rise.to));
            let place = [left, panel.bottom - RISE_HEIGHT, (right - left).max(2.0), RISE_HEIGHT];
            scene.rect(place, self.colour);
        }
    }

    fn draw_curves(&self, scene: &mut Scene, panel: &Panel) {
        let points = &self.history.points;
        let curve = |value: fn(&Point) -> Option<u64>| -> Vec<(f64, f64)> {
            let known = points.iter().filter_map(|point| Some((point.t, value(point)?)));
            known.map(|(t, bytes)| (panel.x(t), panel.y(bytes as f64))).collect()
        };
        scene.dashed(curve(|point| point.group), self.colour, 1.0);
        // The PSS of a single process is about its RSS.
        if points.iter().any(|point| point.processes > 1) {
            scene.line(curve(|point| point.pss.filter(|_| point.exact)), self.colour, 1.0);
        }
        let width = if self.label.is_some() { 1.2 } else { 2.0 };
        scene.line(curve(|point| Some(point.rss)), self.colour, width);
    }

    fn draw_causes(&self, scene: &mut Scene, top: &mut f64, seconds: f64, run: usize) -> Panel {
        let stacks = &self.history.stacks;
        let most =
            stacks.iter().map(|(_, sums)| sums.iter().sum::<u64>()).max().unwrap_or(1).max(1);
        *top = draw_legend(scene, *top, stacks, most);
        let title = format!("Causes of {}: RSS of its Ruby processes", self.history.name);
        *top = draw_lines(scene, *top, Colour::Ink, &title) + 8.0;
        let panel = Panel::new(scene, *top, CAUSES_HEIGHT, seconds, most as f64 * 1.06, Some(run));
        panel.draw_axes(scene);
        let mut floor = vec![0_u64; stacks.len()];
        for (index, group) in CAUSE_LEGEND.iter().enumerate() {
            let ceiling: Vec<u64> =
                stacks.iter().zip(&floor).map(|((_, sums), floor)| floor + sums[index]).collect();
            let edge = |values: &[u64]| -> Vec<(f64, f64)> {
                let points = stacks.iter().zip(values);
                points.map(|((t, _), bytes)| (panel.x(*t), panel.y(*bytes as f64))).collect()
            };
            if ceiling != floor {
                let mut points = edge(&ceiling);
                points.extend(edge(&floor).into_iter().rev());
                scene.area(points, group.colour);
            }
            floor = ceiling;
        }
        *top += CAUSES_HEIGHT + 44.0;
        panel
    }
}

/// Returns the reason for which a recording has no history of causes, if it has none.
fn without_causes(recording: &Recording, history: &History) -> Option<&'static str> {
    match (history.stacks.len(), recording.start.causes_every_ms) {
        (2.., _) => None,
        (1, _) => Some("they were captured only once, and a history takes two captures."),
        (_, None | Some(0)) => Some("`rbloat record --causes-every 0` does not search for them."),
        _ => Some("none of its processes could be captured, or it ended before the first capture."),
    }
}

/// Draws a text in as many lines as it needs below `top`, and returns their end.
fn draw_lines(scene: &mut Scene, mut top: f64, colour: Colour, text: &str) -> f64 {
    for line in wrap(text, TEXT_SIZE, scene.width - LEFT - RIGHT) {
        top += LINE;
        scene.text((LEFT, top), Anchor::Start, colour, &line);
    }
    top
}

/// Draws the legend of the groups that can be seen in the stacks, in lines above them. Returns the end of the last line.
fn draw_legend(scene: &mut Scene, top: f64, stacks: &[(f64, Vec<u64>)], most: u64) -> f64 {
    let largest = |index: usize| stacks.iter().map(|(_, sums)| sums[index]).max().unwrap_or(0);
    let groups = CAUSE_LEGEND.iter().enumerate().rev().map(|(index, it)| (it, largest(index)));
    let (shown, small): (Vec<_>, Vec<_>) = groups
        .filter(|(_, bytes)| *bytes > 0)
        .partition(|(_, bytes)| *bytes as f64 >= most as f64 * MIN_SHARE_IN_LEGEND);
    let (mut x, mut y) = (LEFT, top + LINE);
    let smaller = (!small.is_empty()).then(|| (None, format!("and {} smaller", small.len())));
    let entries = shown.into_iter().map(|(it, _)| (Some(it.colour), it.label.to_owned()));
    for (colour, label) in entries.chain(smaller) {
        let swatch = if colour.is_some() { 20.0 } else { 0.0 };
        let width = swatch + line_width(&label, TEXT_SIZE) + 14.0;
        if x + width > scene.width - RIGHT {
            (x, y) = (LEFT, y + LINE);
        }
        if let Some(colour) = colour {
            scene.rect([x, y - 10.0, 14.0, 10.0], colour);
        }
        scene.text((x + swatch, y - 1.0), Anchor::Start, Colour::Dim, &label);
        x += width;
    }
    y + 8.0
}

impl Panel {
    fn new(
        scene: &Scene,
        top: f64,
        height: f64,
        seconds: f64,
        bytes: f64,
        run: Option<usize>,
    ) -> Self {
        let (left, right, bottom) = (LEFT, scene.width - RIGHT, top + height);
        Self { left, right, top, bottom, seconds, bytes, run }
    }

    fn x(&self, seconds: f64) -> f64 {
        self.left + (self.right - self.left) * (seconds / self.seconds).clamp(0.0, 1.0)
    }

    fn y(&self, bytes: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * (bytes / self.bytes).clamp(0.0, 1.0)
    }

    fn draw_axes(&self, scene: &mut Scene) {
        let place = [self.left, self.top, self.right - self.left, self.bottom - self.top];
        scene.rect(place, Colour::Panel);
        for (bytes, name) in byte_marks(self.bytes, 5.0) {
            let y = self.y(bytes);
            scene.line(vec![(self.left, y), (self.right, y)], Colour::Line, 1.0);
            scene.text((self.left - 8.0, y + 4.0), Anchor::End, Colour::Dim, &name);
        }
        for (seconds, name) in time_marks(self.seconds, if scene.width < WIDTH { 3.0 } else { 8.0 })
        {
            let x = self.x(seconds);
            scene.line(vec![(x, self.bottom), (x, self.bottom + 5.0)], Colour::Dim, 1.0);
            // The last name would be cut off at the edge.
            let anchor = if x > self.right - 30.0 { Anchor::End } else { Anchor::Middle };
            scene.text((x, self.bottom + 18.0), anchor, Colour::Dim, &name);
        }
    }
}

#[cfg(test)]
mod tests;
