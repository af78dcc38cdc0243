//! What dumps of a process have apart.
//!
//! The JSON is part of rbloat's stable interface.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Content, KeptLine};

/// The document of `rbloat diff` of dumps: files of `rbloat dump` or of `ObjectSpace.dump_all`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DumpDiff {
    /// The dumps: two or three, in the given order.
    pub dumps: Vec<DumpPoint>,
    /// The objects that are in the second dump and not in the first. Of three dumps, those of them that the third still has. An
    /// object is the same if its address, type and class are, and no traced generation says otherwise. Garbage does not count.
    pub new: DumpCount,
    /// The objects that are only in the first of two dumps. `null` for three.
    pub gone: Option<DumpCount>,
    /// The 100 largest groups of these objects.
    pub groups: Vec<DumpGroup>,
    /// With `--who`, the observation by `rbloat who --kept`. Otherwise, and in older documents, `null`.
    #[serde(default)]
    pub sampling: Option<DumpSampling>,
}

/// An observation of a process by `rbloat who --kept`. Dumps do not tell of which process they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DumpSampling {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// The time for which its new objects were sampled.
    pub elapsed_ms: f64,
}

/// One of the dumps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DumpPoint {
    /// Its file.
    pub file: String,
    /// Its objects, with garbage.
    pub objects: u64,
    /// The lines that are no JSON. `ObjectSpace.dump_all` does not escape all names.
    pub unreadable_lines: u64,
}

/// The number of some objects, and their memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DumpCount {
    /// The objects.
    pub objects: u64,
    /// The sum of their `memsize`.
    pub bytes: u64,
}

/// The objects of a class that one line has allocated and one root retains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DumpGroup {
    /// The name of the class, or the type of objects without one.
    pub class: String,
    /// The file and line that allocated them, as `FILE:LINE`. `null` if the process traced no allocations.
    pub line: Option<String>,
    /// The root that retains them. In files of `ObjectSpace.dump_all`, the last class or module on a shortest path to them. `null`
    /// if a file has no roots.
    pub root: Option<String>,
    /// The new ones.
    pub new: DumpCount,
    /// Those that are gone. 0 for three dumps.
    pub gone: DumpCount,
    /// The address of the first new one. `null` if there is none.
    pub example: Option<String>,
    /// The names of the root and of the objects on a shortest path to that. Of a long path, `…` stands for the middle.
    pub path: Vec<String>,
    /// The samples of objects of this class that this root kept, if `--who` has named their lines and `line` is `null`. Otherwise, and
    /// in older documents, 0.
    #[serde(default)]
    pub samples: u64,
    /// The lines that made these samples.
    #[serde(default)]
    pub made_by: Vec<KeptLine>,
}

impl DumpGroup {
    /// The bytes by which the group grew.
    #[must_use]
    pub fn change(&self) -> i64 {
        let bytes = |count: DumpCount| i64::try_from(count.bytes).unwrap_or(i64::MAX);
        bytes(self.new).saturating_sub(bytes(self.gone))
    }
}

impl Content for DumpDiff {
    const KIND: &'static str = "dump_diff";
}
