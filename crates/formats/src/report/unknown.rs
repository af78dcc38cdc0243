use ledger::UnknownMappings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Anonymous mappings with the same permissions, whose memory rbloat cannot fully account for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnknownRow {
    /// Their permissions (`rw-`).
    pub permissions: String,
    /// Their number.
    pub mappings: u64,
    /// Their size.
    pub mapped_bytes: u64,
    /// Their resident bytes without any other cause.
    pub resident_bytes: u64,
    /// Their resident bytes in transparent huge pages. 0 in older documents.
    #[serde(default)]
    pub huge_bytes: u64,
    /// The address of the mapping with most of them.
    pub largest: String,
    /// The file that is mapped directly before or behind it, or `null`.
    pub beside: Option<String>,
    /// The class whose objects refer to more than half of these bytes, or `null`.
    #[serde(default)]
    pub owner: Option<String>,
    /// The bytes to which they refer. 0 in older documents.
    #[serde(default)]
    pub owner_bytes: u64,
}

impl From<&UnknownMappings> for UnknownRow {
    fn from(mappings: &UnknownMappings) -> Self {
        Self {
            permissions: mappings.permissions.clone(),
            mappings: mappings.mappings,
            mapped_bytes: mappings.mapped_bytes,
            resident_bytes: mappings.resident_bytes,
            huge_bytes: mappings.huge_bytes,
            largest: mappings.largest.start.to_string(),
            beside: mappings.beside.clone(),
            owner: mappings.owner.clone(),
            owner_bytes: mappings.owner_bytes,
        }
    }
}
