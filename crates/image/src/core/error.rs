use std::io;
use std::path::PathBuf;

/// The reason why a core file cannot be read. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is not a core file.
    #[error("{} is not a core file: {what}", path.display())]
    NoCore {
        /// The file.
        path: PathBuf,
        /// The actual kind of file, as a clause.
        what: String,
    },
    /// The CPU is not supported.
    #[error("{} is the core of a program for {machine}; rbloat reads those of x86-64 and aarch64", path.display())]
    ForeignCpu {
        /// The file.
        path: PathBuf,
        /// The CPU.
        machine: String,
    },
    /// The file is cut short or altered.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage, as a clause.
        what: String,
    },
}
