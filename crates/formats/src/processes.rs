//! The list of Ruby processes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Content;

/// The document of `rbloat --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Processes {
    pub processes: Vec<ListedProcess>,
    /// The processes, Ruby or not, that could not be examined for lack of permission.
    pub refused: u64,
}

impl Content for Processes {
    const KIND: &'static str = "processes";
}

/// A Ruby process in the list that bare `rbloat` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Processes")]
pub struct ListedProcess {
    pub pid: i32,
    /// Its process id within its container, if it is in one.
    pub namespace_pid: Option<i32>,
    /// Its container in Kubernetes as NAMESPACE/POD/CONTAINER; elsewhere the beginning of the container's id, or the service of
    /// systemd.
    pub container: Option<String>,
    /// The Ruby process that started it, or started its parent.
    pub parent: Option<i32>,
    pub rss_bytes: u64,
    /// `None` if the kernel does not show it.
    pub pss_bytes: Option<u64>,
    pub ruby_version: String,
    pub libc: String,
    pub allocator: String,
    pub threads: u64,
    pub command: String,
}
