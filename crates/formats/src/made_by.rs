//! The code that touched a part of a process's memory, by the samples of `rbloat who`.

use ledger::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// The memory of one cause, or of one owner, and the code that touched it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadeBy {
    /// The cause of this part of the memory. `null` for the sum of small owners.
    #[serde(with = "names::cause_or_none")]
    #[schemars(schema_with = "names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    /// Its owner. `null` for free and unknown memory.
    pub owner: Option<String>,
    /// The bytes of this part.
    pub bytes: u64,
    /// The part of them whose code is known.
    pub known_bytes: u64,
    /// Up to 20 rows of code. Empty for blocks of `(nobody)` without mappings of their own: malloc may have used their memory before.
    pub code: Vec<Maker>,
}

/// Code that touched memory: an innermost line of the application, and the method that it called.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Maker {
    /// The bytes that it touched first.
    pub bytes: u64,
    /// The innermost method of the application.
    pub method: String,
    /// The method that it called, or `null`.
    pub calls: Option<String>,
    /// Its file. `null` if it is unknown.
    pub path: Option<String>,
    /// Its line. `null` if it is unknown.
    pub line: Option<u64>,
    /// The request or job, or `null`.
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
