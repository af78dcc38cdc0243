use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Deployment;

/// The identity of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessSummary {
    /// Its process id.
    pub pid: i32,
    /// Its start, in clock ticks since the machine booted. With the pid it identifies the process. `null` for a core.
    pub started_ticks: Option<u64>,
    /// The time since it started. `null` for a core.
    pub uptime_ms: Option<u64>,
    /// Its command line.
    pub command: String,
    /// The value of `RUBY_VERSION`. `null` if Ruby could not be read.
    pub ruby_version: Option<String>,
    /// The C library: `"glibc 2.36"`, `"musl"`, `"unknown"` …
    pub libc: String,
    /// The library that serves malloc: `"glibc"`, `"jemalloc"`, `"tcmalloc"`, `"mimalloc"` …
    pub allocator: String,
    /// The number of its threads.
    pub threads: u64,
    /// Resident memory at the instant of the capture, as `smaps_rollup` counts it. It equals the sum of `causes`.
    pub rss_bytes: u64,
    /// Memory in swap. It is not resident, so no cause includes it.
    pub swap_bytes: u64,
    /// Memory that a core file lacks, since it is truncated or incomplete. It is unknown whether it was resident, so no cause
    /// includes it. If it is not 0, the exit status is 6.
    pub lost_bytes: u64,
    /// The resident memory of mappings that are locked (mlock, mlockall): a trim returns free pages of these only at the end of
    /// the heap, and the kernel takes back none. 0 in older documents.
    #[serde(default)]
    pub locked_bytes: u64,
    /// The part of them that are pages of files or shared memory. 0 in older documents.
    #[serde(default)]
    pub locked_file_bytes: u64,
    /// The start and the configuration of the process, for `report --fix`.
    pub deployment: Deployment,
}
