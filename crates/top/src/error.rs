use std::io;

/// The reason why the screen cannot be shown, or why a job of a key failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no screen to draw on.
    #[error("`rbloat top` needs a terminal: {0}")]
    NoScreen(&'static str),
    /// A process could not be examined.
    #[error(transparent)]
    Examine(#[from] examine::Error),
    /// A snapshot could not be written.
    #[error(transparent)]
    Unwritable(#[from] output::Error),
    /// A signal could not be read.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// The terminal is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}
