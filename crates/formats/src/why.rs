//! The JSON of `rbloat why`: the reason why an object, a chunk, or the objects of a class exist. Part of rbloat's stable
//! interface.

use ledger::{Explanation, Referrer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Capture, Content, FindingRow, KeptBy, ProcessSummary, Report, RootUses};

/// The document of `rbloat why`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// The process, as in a report.
    pub process: ProcessSummary,
    /// The capture, as in a report.
    pub capture: Capture,
    /// The object, chunk or class.
    pub subject: WhySubject,
    /// For an object or chunk: the shortest path by each of its referrers, the shortest first, at most ten. For a class: the
    /// roots that retain most of its objects, as of an owner. A `path` of `null` is garbage.
    pub paths: Vec<KeptBy>,
    /// The objects and roots that refer to the subject, by name, at most ten.
    pub referrers: Vec<WhyReferrer>,
    /// For an object or chunk: the objects and roots without which it would be free, the nearest first.
    pub dominators: Vec<WhyReferrer>,
    /// The code that uses the roots of `paths[]`, as in a report. Empty in older documents.
    #[serde(default)]
    pub root_uses: Vec<RootUses>,
    /// As in a report.
    #[serde(default)]
    pub findings: Vec<FindingRow>,
}

impl Content for Why {
    const KIND: &'static str = "why";
}

/// An object, a chunk, or the objects of a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhySubject {
    /// Its kind.
    pub kind: WhyKind,
    /// The class, or the owner of the chunk.
    pub name: String,
    /// The address of the object or chunk. `null` for a class.
    pub address: Option<String>,
    /// The number of objects. 0 for a chunk.
    pub objects: u64,
    /// The bytes of their slots, and of the chunks that they own: the resident ones, as in a report.
    pub bytes: u64,
    /// The number of objects that would be freed if they went away. `null` for a class.
    pub retained_objects: Option<u64>,
    /// The bytes that would be freed then (docs/json.md#retained-sizes).
    pub retained_bytes: u64,
}

/// The kind of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhyKind {
    /// One object.
    Object,
    /// A chunk of malloc'ed memory.
    Chunk,
    /// All objects of a class.
    Class,
}

/// Objects of one class, or a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhyReferrer {
    /// Their name.
    pub name: String,
    /// The number of these objects. 1 for a root.
    pub count: u64,
    /// The address of one of the objects. `null` for a root.
    pub address: Option<String>,
    /// The bytes that would be freed if it went away. `null` if they are several.
    pub retained_bytes: Option<u64>,
}

impl Why {
    /// Returns the document of an explanation. `report` is the report of the same capture.
    #[must_use]
    pub fn new(report: Report, explanation: &Explanation) -> Self {
        let kind = match explanation.address {
            None => WhyKind::Class,
            Some(_) if explanation.objects == 0 => WhyKind::Chunk,
            Some(_) => WhyKind::Object,
        };
        Self {
            root_uses: explanation.root_uses.iter().map(RootUses::from).collect(),
            process: report.process,
            capture: report.capture,
            subject: WhySubject {
                kind,
                name: explanation.name.clone(),
                address: explanation.address.map(|address| address.to_string()),
                objects: explanation.objects,
                bytes: explanation.bytes,
                retained_objects: explanation.retained_objects,
                retained_bytes: explanation.retained_bytes,
            },
            paths: explanation.paths.iter().map(KeptBy::from).collect(),
            referrers: explanation.referrers.iter().map(WhyReferrer::from).collect(),
            dominators: explanation.dominators.iter().map(WhyReferrer::from).collect(),
            findings: report.findings,
        }
    }
}

impl From<&Referrer> for WhyReferrer {
    fn from(referrer: &Referrer) -> Self {
        Self {
            name: referrer.name.clone(),
            count: referrer.count,
            address: referrer.address.map(|address| address.to_string()),
            retained_bytes: referrer.retained_bytes,
        }
    }
}
