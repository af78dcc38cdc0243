use ledger::FileAccount;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MappedFile {
    /// The path as the kernel shows it, ` (deleted)` included.
    pub path: String,
    /// Pages that the process changed.
    pub private_bytes: u64,
    /// The part of `private_bytes` that is in no file: variables of a library that begin as zeros (.bss). 0 in older documents.
    #[serde(default)]
    pub zeroed_bytes: u64,
    /// Pages of the kernel's cache.
    pub shared_bytes: u64,
    /// The part of `shared_bytes` that RSS counts again, because the same page of the file is mapped several times.
    pub repeated_bytes: u64,
    /// The number of mappings.
    pub mappings: u64,
    /// The number of mappings of the most-mapped part. 1 for libraries, whose mappings cover different parts.
    pub times: u64,
    /// True for shared memory, and for files in tmpfs. False in older documents.
    #[serde(default)]
    pub is_in_memory: bool,
    /// The part of `shared_bytes` in mappings through which the process may change the file. 0 in older documents.
    #[serde(default)]
    pub writable_bytes: u64,
}

impl MappedFile {
    /// Its part of RSS.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.private_bytes.saturating_add(self.shared_bytes)
    }
}

impl From<&FileAccount> for MappedFile {
    fn from(file: &FileAccount) -> Self {
        Self {
            path: file.path.clone(),
            private_bytes: file.private_bytes,
            zeroed_bytes: file.zeroed_bytes,
            shared_bytes: file.shared_bytes,
            repeated_bytes: file.repeated_bytes,
            mappings: file.mappings,
            times: file.times,
            is_in_memory: file.is_in_memory,
            writable_bytes: file.writable_bytes,
        }
    }
}
