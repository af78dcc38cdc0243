use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The memory of a process's control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct ReportGroup {
    pub usage_bytes: u64,
    pub limit_bytes: Option<u64>,
    pub processes: u64,
    pub processes_bytes: u64,
    pub unmapped_shmem_bytes: u64,
    pub unmapped_cache_bytes: u64,
    pub kernel_bytes: u64,
    pub files: Vec<TmpfsFile>,
}

/// A file in memory that a process of the group has open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct TmpfsFile {
    pub path: String,
    pub bytes: u64,
    pub is_deleted: bool,
    pub pid: i32,
}
