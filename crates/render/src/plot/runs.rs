//! The runs of a comparison: a mark for each, and the median of each setting.

use ledger::Size;

use crate::draw::{Anchor, Colour, Scene, TEXT_SIZE, cut, line_width};

use super::head::Entry;
use super::{LINE, Plot, RIGHT, Run};

const ROW: f64 = 22.0;
const MARK: f64 = 7.0;
const MARGIN: f64 = 16.0;
/// Room for the text of the median behind the marks.
const LABEL: f64 = 78.0;
/// The most pixels of a setting's name, and of all names as a share of the picture.
const MAX_NAME: f64 = 190.0;
const MAX_NAMES_SHARE: f64 = 0.4;

/// A figure of a run, with its title.
type Measure = (&'static str, fn(&Run) -> u64);
const MEASURES: [Measure; 2] = [("Highest RSS", peak), ("RSS at the end", last)];

fn peak(run: &Run) -> u64 {
    run.history.points.iter().map(|point| point.rss).max().unwrap_or(0)
}

fn last(run: &Run) -> u64 {
    run.history.points.last().map_or(0, |point| point.rss)
}

impl Plot {
    /// Draws the highest and the last RSS of each run if all runs have a setting, and returns the end.
    pub(super) fn draw_runs(&self, scene: &mut Scene, mut top: f64) -> f64 {
        let entries = self.entries();
        if entries.is_empty() || !entries.iter().all(Entry::is_labelled) {
            return top;
        }
        let names = entries.iter().map(|entry| line_width(entry.name(), TEXT_SIZE));
        let room = MAX_NAME.min(scene.width * MAX_NAMES_SHARE);
        let left = MARGIN + names.fold(0.0, f64::max).min(room) + 12.0;
        let most = self.runs.iter().map(peak).max().unwrap_or(0).max(1) as f64;
        for (title, measure) in MEASURES {
            top += LINE + 10.0;
            let title = format!("{title}: a mark for each run, a line at the median");
            scene.text((MARGIN, top), Anchor::Start, Colour::Ink, &title);
            top += 8.0;
            let place = [left, top, scene.width - RIGHT - left, ROW * entries.len() as f64];
            scene.rect(place, Colour::Panel);
            for entry in &entries {
                draw_row(scene, entry, measure, [left, top], most, room);
                top += ROW;
            }
        }
        top + 12.0
    }
}

/// Draws the runs of a setting in a row, with its name and the median.
fn draw_row(
    scene: &mut Scene,
    entry: &Entry<'_>,
    measure: fn(&Run) -> u64,
    [left, top]: [f64; 2],
    most: f64,
    room: f64,
) {
    let colour = entry.runs[0].colour;
    let middle = top + ROW / 2.0;
    let name = cut(entry.name(), TEXT_SIZE, room);
    scene.text((left - 8.0, middle + 4.0), Anchor::End, Colour::Ink, name);
    let width = scene.width - RIGHT - LABEL - left - MARK;
    let x = |bytes: u64| left + MARK + width * (bytes as f64 / most);
    let mut values: Vec<u64> = entry.runs.iter().map(|run| measure(run)).collect();
    values.sort_unstable();
    for &bytes in &values {
        scene.rect([x(bytes) - MARK / 2.0, middle - MARK / 2.0, MARK, MARK], colour);
    }
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    let median = low + (high - low) / 2;
    let at = x(median);
    scene.line(vec![(at, top + 2.0), (at, top + ROW - 2.0)], Colour::Ink, 2.0);
    let behind = x(values[values.len() - 1]) + MARK;
    scene.text((behind + 3.0, middle + 4.0), Anchor::Start, Colour::Dim, &Size(median).to_string());
}
