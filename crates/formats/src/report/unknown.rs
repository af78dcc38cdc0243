use ledger::UnknownMappings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Anonymous mappings with the same permissions, whose memory rbloat cannot fully account for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct UnknownRow {
    pub permissions: String,
    pub mappings: u64,
    pub mapped_bytes: u64,
    pub resident_bytes: u64,
    #[serde(default)]
    pub huge_bytes: u64,
    pub largest: String,
    pub beside: Option<String>,
    #[serde(default)]
    pub owner: Option<String>,
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
