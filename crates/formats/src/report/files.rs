use ledger::FileAccount;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct MappedFile {
    pub path: String,
    pub private_bytes: u64,
    pub shared_bytes: u64,
    pub repeated_bytes: u64,
    pub mappings: u64,
    pub times: u64,
    /// False in reports of older versions.
    #[serde(default)]
    pub is_in_memory: bool,
    /// 0 in reports of older versions.
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
            shared_bytes: file.shared_bytes,
            repeated_bytes: file.repeated_bytes,
            mappings: file.mappings,
            times: file.times,
            is_in_memory: file.is_in_memory,
            writable_bytes: file.writable_bytes,
        }
    }
}
