//! The output folder of a comparison: the table, the JSON, the chart, and a recording of each run.

use std::path::{Path, PathBuf};

use formats::{Comparison, to_json};

use crate::commands::plot;
use crate::failure::Failure;
use crate::output;

pub(crate) struct ComparisonFolder {
    path: PathBuf,
    /// The recordings of runs that succeeded.
    recordings: Vec<PathBuf>,
}

impl ComparisonFolder {
    /// Creates the folder at this path if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let unwritable = |source| Failure::Unwritable { path: path.into(), source };
        std::fs::create_dir_all(path).map_err(unwritable)?;
        Ok(Self { path: path.into(), recordings: Vec::new() })
    }

    /// Returns the path for the recording of a run.
    pub(crate) fn recording(&self, setting: &str, number: u32) -> PathBuf {
        self.path.join(format!("{}-{number}.jsonl", file_name(setting)))
    }

    /// Keeps the recording of a run that succeeded, and removes any other.
    pub(crate) fn keep(&mut self, recording: PathBuf, is_whole: bool) {
        if is_whole {
            self.recordings.push(recording);
        } else {
            // If it cannot be removed, its last line still shows how much was recorded.
            let _ = std::fs::remove_file(recording);
        }
    }

    /// Writes the table, the JSON and the chart.
    ///
    /// # Errors
    /// If a file cannot be written, or a recording was changed meanwhile.
    pub(crate) fn write(&self, comparison: &Comparison) -> Result<(), Failure> {
        let write = |name: &str, text: &str| output::write(&self.path.join(name), text.as_bytes());
        write("comparison.json", &to_json(comparison, &render::recommendation(comparison)))?;
        write("comparison.md", &render::comparison(comparison))?;
        write("comparison.svg", &plot::plot(&self.recordings, false)?.render_svg())
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
