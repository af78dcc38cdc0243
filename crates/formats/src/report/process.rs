use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Deployment;

/// The identity of the process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct ProcessSummary {
    pub pid: i32,
    pub started_ticks: Option<u64>,
    pub uptime_ms: Option<u64>,
    pub command: String,
    pub ruby_version: Option<String>,
    pub libc: String,
    pub allocator: String,
    pub threads: u64,
    pub rss_bytes: u64,
    pub swap_bytes: u64,
    pub lost_bytes: u64,
    #[serde(default)]
    pub locked_bytes: u64,
    #[serde(default)]
    pub locked_file_bytes: u64,
    pub deployment: Deployment,
}
