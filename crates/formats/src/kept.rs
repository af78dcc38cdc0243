//! The lines of code that allocate what stays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Content, WhoFrame};

/// The document of `rbloat who --kept`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Kept {
    pub pid: i32,
    pub command: String,
    pub elapsed_ms: f64,
    pub rate: u32,
    pub older_than_ms: f64,
    pub unknown: Option<KeptUnknown>,
    pub ticks: u64,
    pub seen: u64,
    pub collections: u64,
    pub major_collections: u64,
    pub samples: u64,
    pub younger: u64,
    pub unreachable: u64,
    pub ambiguous: u64,
    pub rows: Vec<KeptRow>,
    pub growing: Vec<KeptGrowth>,
    #[serde(default)]
    pub native_bytes_before: u64,
    #[serde(default)]
    pub native_bytes_after: u64,
    #[serde(default)]
    pub object_bytes_before: u64,
    #[serde(default)]
    pub object_bytes_after: u64,
    pub frames: Vec<WhoFrame>,
    pub stacks: Vec<KeptStack>,
}

impl Content for Kept {
    const KIND: &'static str = "kept";
}

/// The reason why nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptUnknown {
    /// The process has collected no garbage meanwhile, or has not made both a minor and a major collection yet.
    NoCollections,
    /// The lists of free slots were not found: either the process allocated nothing meanwhile, or their layout is not known.
    NoFreeLists,
    /// The references between its objects could not be read.
    NoReferences,
    /// The process has ended.
    Ended,
}

/// The objects of one class that stayed, and that one root retains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Kept")]
pub struct KeptRow {
    pub class: String,
    pub root: Option<String>,
    pub path: Option<String>,
    pub samples: u64,
    pub objects_before: u64,
    pub objects_after: u64,
    #[serde(default)]
    pub bytes: u64,
    pub judgement: KeptJudgement,
    pub lines: Vec<KeptLine>,
}

impl KeptRow {
    /// By how many objects it has grown.
    #[must_use]
    pub fn growth(&self) -> u64 {
        self.objects_after.saturating_sub(self.objects_before)
    }
}

/// Whether the lines of a row can be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptJudgement {
    /// The number of objects grows, and there are enough samples of those that stay.
    Named,
    /// There are too few samples of these objects, and of all that their root retains, to name a line.
    FewSamples,
    /// There are no more such objects than before: new ones replace others.
    Replaced,
    /// Most samples are of the last part of the time: these objects do not stay for long.
    Passing,
}

impl KeptJudgement {
    /// The number of samples of a row, or of all objects that its root retains, from which a line is named.
    pub const MIN_SAMPLES: u64 = 10;
}

/// A root that retains more objects than at the beginning, whose lines are not named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Kept")]
pub struct KeptGrowth {
    pub root: String,
    pub class: String,
    pub objects_before: u64,
    pub objects_after: u64,
    pub path: String,
    pub other_objects: u64,
    pub samples: u64,
}

impl KeptGrowth {
    /// By how many objects of its class the root has grown.
    #[must_use]
    pub fn growth(&self) -> u64 {
        self.objects_after.saturating_sub(self.objects_before)
    }
}

/// A method that made objects of a class, the first line at which it was seen with one, and what it mostly called then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Kept")]
pub struct KeptLine {
    pub samples: u64,
    pub method: String,
    pub calls: Option<String>,
    pub path: Option<String>,
    pub line: Option<u64>,
}

/// A stack that made objects of a named row, as indices into the frames, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Kept")]
pub struct KeptStack {
    pub class: String,
    pub root: Option<String>,
    pub frames: Vec<u32>,
    pub samples: u64,
    pub objects: u64,
}
