//! The output folder of a comparison: the table, the JSON, the chart, and a recording of each run.

use std::path::Path;

use formats::{Comparison, to_json};
use output::Folder;
use render::Plot;
use supervise::Journal;

use crate::commands::recordings;
use crate::failure::Failure;

pub(crate) struct ComparisonFolder {
    folder: Folder,
    /// The recordings of runs that succeeded, by their names.
    recordings: Vec<String>,
}

/// The recording of a run, by its name in the folder.
pub(crate) struct RunRecording(String);

impl ComparisonFolder {
    /// Creates the folder at this path if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        Ok(Self { folder: Folder::create(path)?, recordings: Vec::new() })
    }

    /// Creates the recording of a run.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn record(
        &self,
        setting: &str,
        number: u32,
    ) -> Result<(RunRecording, Journal), Failure> {
        let name = format!("{}-{number}.jsonl", file_name(setting));
        let journal = Journal::new(self.folder.output(&name)?.publish()?, None)?;
        Ok((RunRecording(name), journal))
    }

    /// Keeps the recording of a run that succeeded, and removes any other.
    pub(crate) fn keep(&mut self, RunRecording(name): RunRecording, is_whole: bool) {
        if is_whole {
            self.recordings.push(name);
        } else {
            // If it cannot be removed, its last line still shows how much was recorded.
            let _ = self.folder.remove(&name);
        }
    }

    /// Writes the table, the JSON and the chart.
    ///
    /// # Errors
    /// If a file cannot be written, or a recording was changed meanwhile.
    pub(crate) fn write(&self, comparison: &Comparison) -> Result<(), Failure> {
        let write = |name: &str, text: &str| self.folder.output(name)?.write(text.as_bytes());
        write("comparison.json", &to_json(comparison, &render::recommendation(comparison)))?;
        write("comparison.md", &render::comparison(comparison))?;
        let mut plot = Plot::default();
        for name in &self.recordings {
            let recording =
                recordings::Input::new(self.folder.path_of(name), self.folder.read(name))?;
            plot.add(&recording.name(), &recording.read()?);
        }
        Ok(write("comparison.svg", &plot.render_svg())?)
    }
}

/// Escapes the name of a setting for a file name.
fn file_name(setting: &str) -> String {
    let escaped = |char: char| match char {
        '-' | '_' | '.' | '=' => char.to_string(),
        _ if char.is_alphanumeric() => char.to_string(),
        _ => char.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
    };
    setting.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_setting_is_called_like_a_file_elsewhere_or_like_another_one() {
        assert_eq!(file_name("arena2"), "arena2");
        assert_eq!(file_name("../a b"), "..%2Fa%20b");
        assert_eq!(file_name("..%2Fa"), "..%252Fa");
        assert_eq!(file_name("größer"), "größer");
    }
}
