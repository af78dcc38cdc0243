//! The names by which users choose a process or file.

use std::path::{Path, PathBuf};

/// The name of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessName {
    /// The pid that /proc shows.
    Pid(i32),
    /// The pid in its container.
    NamespacePid(i32),
    /// A word of its command line, or its container: NAMESPACE/POD, a pod, a name or an id.
    Command(String),
}

impl From<&str> for ProcessName {
    fn from(name: &str) -> Self {
        name.parse().map_or_else(|_| Self::Command(name.to_owned()), Self::Pid)
    }
}

/// The name of a process or file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceName {
    /// A process.
    Process(ProcessName),
    /// A snapshot or a core.
    File {
        /// The file.
        path: PathBuf,
        /// The folder with the files that the process of a core had mapped.
        sysroot: Option<PathBuf>,
    },
}

impl SourceName {
    /// Returns the process or file that a word names. A number is a process; a file with a number as its name is written
    /// `./4242`. Another word is a file if there is such a file or its folder, or if it is a path from `/` or `.`, or the usual name of a
    /// snapshot or core; otherwise it is a process. `sysroot` is the folder with the files that the process of a core had mapped.
    #[must_use]
    pub fn of(word: &str, sysroot: Option<&Path>) -> Self {
        let is_usual = word.ends_with(".rbloat") || word.starts_with("core");
        // Another path may be NAMESPACE/POD.
        let is_path = word.starts_with(['/', '.', '~'])
            || word.contains('/') && Path::new(word).parent().is_some_and(Path::is_dir);
        let is_file = || sysroot.is_some() || is_usual || is_path || Path::new(word).is_file();
        match ProcessName::from(word) {
            ProcessName::Command(_) if is_file() => {
                Self::File { path: word.into(), sysroot: sysroot.map(Path::to_owned) }
            }
            process => Self::Process(process),
        }
    }
}
