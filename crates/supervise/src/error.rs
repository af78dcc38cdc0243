use std::io;
use std::path::PathBuf;

/// A failure to start or watch programs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A recording could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Signals could not be received.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}
