//! The folder that a comparison is written into: table, JSON, picture, and each run as a recording.

use std::path::{Path, PathBuf};

use formats::{Comparison, to_json};

use crate::commands::plot;
use crate::failure::Failure;
use crate::output;

pub(crate) struct ComparisonFolder {
    path: PathBuf,
    /// Those of runs that came to something.
    recordings: Vec<PathBuf>,
}

impl ComparisonFolder {
    /// The folder of this path; it is made where it is not there yet.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let unwritable = |source| Failure::Unwritable { path: path.into(), source };
        std::fs::create_dir_all(path).map_err(unwritable)?;
        Ok(Self { path: path.into(), recordings: Vec::new() })
    }

    /// Where a run is recorded.
    pub(crate) fn recording(&self, setting: &str, number: u32) -> PathBuf {
        self.path.join(format!("{}-{number}.jsonl", file_name(setting)))
    }

    /// Keeps the recording of a run that came to something, and no other one.
    pub(crate) fn keep(&mut self, recording: PathBuf, is_whole: bool) {
        if is_whole {
            self.recordings.push(recording);
        } else {
            // Where it cannot be taken away, it says of itself how far it goes.
            let _ = std::fs::remove_file(recording);
        }
    }

    /// Writes what came of all runs.
    ///
    /// # Errors
    /// Where a file cannot be written, or a recording is not what was written any more.
    pub(crate) fn write(&self, comparison: &Comparison) -> Result<(), Failure> {
        let write = |name: &str, text: &str| output::write(&self.path.join(name), text.as_bytes());
        write("comparison.json", &to_json(comparison, &render::recommendation(comparison)))?;
        write("comparison.md", &render::comparison(comparison))?;
        write("comparison.svg", &plot::plot(&self.recordings)?.render_svg())
    }
}

/// A setting's name as a part of a file's: a user may have named it as no file can be.
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
