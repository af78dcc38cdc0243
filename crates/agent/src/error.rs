use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use examine::defect;

/// The reason why the agent could not start, or a part of it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process cannot be examined.
    #[error(transparent)]
    Examine(#[from] examine::Error),
    /// A file or folder cannot be written.
    #[error(transparent)]
    Unwritable(#[from] output::Error),
    /// Snapshots cannot become files of an archive.
    #[error("cannot export {}: {error}", path.display())]
    NotExported {
        /// The folder of the archive.
        path: PathBuf,
        /// The reason.
        error: archive::Error,
    },
    /// Snapshots made rbloat panic. They are not in the archive.
    #[error("cannot export {}: {}", path.display(), defect(what))]
    ArchivePanicked {
        /// The folder of the archive.
        path: PathBuf,
        /// The message of the panic.
        what: String,
    },
    /// The address is taken, or is none of this machine.
    #[error("cannot listen on {address}: {source}")]
    CannotListen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// Snapshots have a server, but none are taken.
    #[error("there are no snapshots to push")]
    NoSnapshots,
    /// The system has no certificates of authorities.
    #[error("found no certificates of authorities, which are needed to push to https://")]
    NoAuthorities,
    /// A token, a certificate or a key cannot be used.
    #[error("cannot use {}: {what}", path.display())]
    UnusableSecret {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// Signals cannot be handled.
    #[error(transparent)]
    Supervise(#[from] supervise::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    NoThread(#[from] io::Error),
}
