use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use examine::CaptureOptions;

use crate::push::Endpoint;

/// The tasks of the agent, and their limits.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address and port to listen on.
    pub listen: SocketAddr,
    /// The control group of the processes; `None` for all of this machine.
    pub cgroup: Option<PathBuf>,
    /// The time between two readings of the kernel's figures.
    pub every: Duration,
    /// The time between two captures of a process.
    pub causes_every: Duration,
    /// The time between two captures of a process with the owners of its memory.
    pub owners_every: Duration,
    /// The share of a processor that captures may take.
    pub share: f64,
    /// The folder for snapshots of processes near a memory limit.
    pub snapshots: Option<PathBuf>,
    /// The longest pause for a snapshot near a limit, if it is not that of other captures.
    pub hold: Option<Duration>,
    /// True if the lines that allocate what stays are recorded after a snapshot.
    pub kept: bool,
    /// The number of these snapshots to keep.
    pub max_snapshots: usize,
    /// The size of all files in that folder.
    pub max_snapshot_bytes: u64,
    /// The folder of an archive.
    pub archive: Option<PathBuf>,
    /// The size of the archive.
    pub max_archive_bytes: u64,
    /// The memory that the agent may use to find owners.
    pub max_memory: u64,
    /// True if processes are trimmed.
    pub treat: bool,
    /// The memory that a trim has to return.
    pub treat_above: u64,
    /// The file with the token that requests must have.
    pub token_file: Option<PathBuf>,
    /// The files with the certificate and its key, if connections are encrypted.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The server that gets profiles.
    pub push: Vec<Endpoint>,
    /// The file with the token for that server.
    pub push_token_file: Option<PathBuf>,
    /// The file with the certificates of authorities that vouch for that server.
    pub push_ca: Option<PathBuf>,
    /// The way to capture processes.
    pub capture: CaptureOptions,
}
