use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The memory of a process's control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportGroup {
    /// The memory that is charged to it.
    pub usage_bytes: u64,
    /// Its limit. `null` without one.
    pub limit_bytes: Option<u64>,
    /// The number of its processes.
    pub processes: u64,
    /// Their PSS.
    pub processes_bytes: u64,
    /// Files in tmpfs and shared memory that no process maps, which the kernel can only swap.
    pub unmapped_shmem_bytes: u64,
    /// Caches of files on disks that no process maps.
    pub unmapped_cache_bytes: u64,
    /// Page tables, stacks and buffers of the kernel.
    pub kernel_bytes: u64,
    /// The ten largest open files in tmpfs.
    pub files: Vec<TmpfsFile>,
}

/// A file in memory that a process of the group has open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TmpfsFile {
    /// The path.
    pub path: String,
    /// Its size in memory.
    pub bytes: u64,
    /// True if it is deleted, so that its memory is free as soon as it is closed.
    pub is_deleted: bool,
    /// A process that has it open.
    pub pid: i32,
}
