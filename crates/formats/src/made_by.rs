//! The code that touched a part of a process's memory, by the samples of `rbloat who`.

use ledger::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// The memory of one cause, or of one owner, and the code that touched it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Report")]
pub struct MadeBy {
    #[serde(with = "names::cause_or_none")]
    #[schemars(schema_with = "names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    pub owner: Option<String>,
    pub bytes: u64,
    pub known_bytes: u64,
    pub code: Vec<Maker>,
}

/// Code that touched memory: an innermost line of the application, and the method that it called.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[expect(missing_docs, reason = "see Report")]
pub struct Maker {
    pub bytes: u64,
    pub method: String,
    pub calls: Option<String>,
    pub path: Option<String>,
    pub line: Option<u64>,
    pub task: Option<String>,
}

/// The pages that code touched first, for a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadePages {
    /// The code that touched most.
    pub code: Vec<Maker>,
    /// Runs of pages, ascending: the number of the first, their number, and the index of their code. The index behind the
    /// last one is that of all other code.
    pub pages: Vec<(u64, u64, u32)>,
}
