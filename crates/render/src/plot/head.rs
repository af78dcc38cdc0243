//! The head of a plot: the recordings with their colours, and whether their memory is stable.

use std::fmt::Write as _;
use std::time::Duration;

use ledger::Size;

use crate::draw::{Anchor, Colour, Scene, TEXT_SIZE, wrap};

use crate::kept::write_result;

use super::rise::Peak;
use super::{LEFT, LINE, Plot, RIGHT, Run, members};

/// A recording, or all recordings with the same label.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) runs: Vec<&'a Run>,
}

impl Plot {
    /// Returns the entries in the order in which they were added.
    pub(super) fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries: Vec<Entry<'_>> = Vec::new();
        for run in &self.runs {
            let of_label = |entry: &&mut Entry<'_>| {
                run.label.is_some() && entry.runs.iter().any(|it| it.label == run.label)
            };
            match entries.iter_mut().find(of_label) {
                Some(entry) => entry.runs.push(run),
                None => entries.push(Entry { runs: vec![run] }),
            }
        }
        entries
    }

    /// Returns the command if all runs are labelled and have the same: then the head shows it once.
    fn common_command(&self) -> Option<&str> {
        let command = self.runs.first()?.command.as_str();
        let is_same = |run: &Run| run.label.is_some() && run.command == command;
        self.runs.iter().all(is_same).then_some(command)
    }

    /// Returns a title: the commands that were recorded, and the settings that are compared.
    pub(super) fn title(&self) -> String {
        let names: Vec<&str> = self.entries().iter().map(Entry::name).collect();
        let mut commands: Vec<&str> = self.runs.iter().map(|run| run.command.as_str()).collect();
        commands.dedup();
        match self.common_command() {
            Some(command) => format!("Memory of {command}: {}", names.join(", ")),
            None => format!("Memory of {}", commands.join(", ")),
        }
    }

    /// Describes each recording in a few lines: the process, its stable point, and the lines that allocate what stays. Takes the width of
    /// the terminal.
    ///
    /// # Panics
    /// Never: a string takes all text.
    #[must_use]
    pub fn render_text(&self, width: usize) -> String {
        let common = self.common_command();
        let mut text = common.map_or_else(String::new, |command| format!("{command}\n"));
        for entry in self.entries() {
            let _ = writeln!(text, "{}", entry.title(common));
            if let Some(stable) = entry.stable() {
                let _ = writeln!(text, "  {stable}");
            }
            for run in &entry.runs {
                let history = &run.history;
                // The runs of a comparison are many.
                if !entry.is_labelled() {
                    text += &members::text(&run.members, width);
                }
                let rise = history.rises.iter().max_by_key(|rise| rise.bytes);
                let peak = history.peaks.iter().max_by_key(|peak| peak.rss);
                let rise = rise.map(|rise| rise.sentence(&history.names));
                for sentence in rise.into_iter().chain(peak.map(Peak::sentence)) {
                    let _ = writeln!(text, "  {sentence}");
                }
                if let Some(kept) = &history.kept {
                    write_result(kept, &mut text, width).expect("a string takes all text");
                }
            }
        }
        text
    }

    /// Draws the head from `top` on, and returns its end.
    pub(super) fn draw_head(&self, scene: &mut Scene, mut top: f64) -> f64 {
        let width = scene.width - LEFT - RIGHT;
        let common = self.common_command();
        for line in common.iter().flat_map(|command| wrap(command, TEXT_SIZE, width)) {
            top += LINE;
            scene.text((LEFT, top - 4.0), Anchor::Start, Colour::Ink, &line);
        }
        for entry in self.entries() {
            scene.rect([LEFT, top + 4.0, 14.0, 10.0], entry.runs[0].colour);
            let title = (entry.title(common), Colour::Ink);
            let stable = entry.stable().map(|stable| (stable.to_owned(), Colour::Dim));
            for (text, colour) in std::iter::once(title).chain(stable) {
                for line in wrap(&text, TEXT_SIZE, width - 22.0) {
                    top += LINE;
                    scene.text((LEFT + 22.0, top - 4.0), Anchor::Start, colour, &line);
                }
            }
            top += if entry.is_labelled() { 0.0 } else { 6.0 };
        }
        top
    }
}

impl<'a> Entry<'a> {
    pub(super) fn is_labelled(&self) -> bool {
        self.runs[0].label.is_some()
    }

    /// Returns the label, or the name of the only recording.
    pub(super) fn name(&self) -> &'a str {
        let first: &'a Run = self.runs[0];
        first.label.as_deref().unwrap_or(&first.history.name)
    }

    /// Describes the process, the length of the recording, and its memory.
    fn title(&self, common_command: Option<&str>) -> String {
        let first = self.runs[0];
        let who = match (self.is_labelled(), self.runs.len()) {
            (false, _) => format!("pid {}", first.pid),
            (true, 1) => "1 run".to_owned(),
            (true, number) => format!("{number} runs"),
        };
        let command = match common_command {
            Some(_) => String::new(),
            None => format!(" ({})", first.command),
        };
        let rss = |run: &Run| run.history.points.iter().map(|point| point.rss).max().unwrap_or(0);
        let last = |run: &Run| run.history.points.last().map_or(0, |point| point.rss);
        let ms = |run: &Run| (run.history.seconds * 1e3) as u64;
        format!(
            "{}: {who}{command}, {}, peak RSS {}, final RSS {}",
            self.name(),
            self.range(ms, |ms| crate::duration(Duration::from_millis(ms))),
            self.range(rss, |bytes| Size(bytes).to_string()),
            self.range(last, |bytes| Size(bytes).to_string()),
        )
    }

    /// Shows the range of a value over the runs, or one value if both ends read alike.
    fn range(&self, value: impl Fn(&Run) -> u64, show: impl Fn(u64) -> String) -> String {
        let values = || self.runs.iter().map(|run| value(run));
        let [least, most] = [values().min(), values().max()].map(|it| show(it.unwrap_or(0)));
        if least == most { least } else { format!("{least} to {most}") }
    }

    /// Returns the stable point in words. The runs of a comparison have none: they end when their work is done.
    fn stable(&self) -> Option<&str> {
        (!self.is_labelled()).then_some(self.runs[0].stable.as_str())
    }
}
