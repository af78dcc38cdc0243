//! The list of Ruby processes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Content;

/// The document of `rbloat --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Processes {
    /// The Ruby processes on the machine, by their ids.
    pub processes: Vec<ListedProcess>,
    /// The number of processes, Ruby or not, that could not be examined for lack of permission.
    pub refused: u64,
}

impl Content for Processes {
    const KIND: &'static str = "processes";
}

/// A Ruby process in the list that bare `rbloat` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedProcess {
    /// Its process id.
    pub pid: i32,
    /// Its id inside its container. `null` if it is in none.
    pub namespace_pid: Option<i32>,
    /// In Kubernetes `NAMESPACE/POD/CONTAINER`, if `/var/log/containers` can be read. Elsewhere the first twelve digits of the
    /// container's id, or the service of systemd. `null` if it is in none.
    pub container: Option<String>,
    /// The nearest ancestor that is in the list. `null` if none is.
    pub parent: Option<i32>,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Its share of that: a page that four processes share counts for a quarter. `null` if the kernel does not show it.
    pub pss_bytes: Option<u64>,
    /// The value of `RUBY_VERSION`.
    pub ruby_version: String,
    /// The C library: `"glibc 2.36"`, `"musl"`, `"unknown"` …
    pub libc: String,
    /// The library that serves malloc: `"glibc"`, `"jemalloc"`, `"tcmalloc"`, `"mimalloc"` …
    pub allocator: String,
    /// The number of its threads.
    pub threads: u64,
    /// Its command line.
    pub command: String,
}
