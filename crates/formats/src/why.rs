//! The JSON of `rbloat why`: the reason why an object, a chunk, or the objects of a class exist. Part of rbloat's stable
//! interface, described in docs/json.md.

use ledger::{Explanation, Referrer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Capture, Content, FindingRow, KeptBy, ProcessSummary, Report};

/// The document of `rbloat why`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Why {
    pub process: ProcessSummary,
    pub capture: Capture,
    pub subject: WhySubject,
    pub paths: Vec<KeptBy>,
    pub referrers: Vec<WhyReferrer>,
    pub dominators: Vec<WhyReferrer>,
    #[serde(default)]
    pub findings: Vec<FindingRow>,
}

impl Content for Why {
    const KIND: &'static str = "why";
}

/// An object, a chunk, or the objects of a class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Why")]
pub struct WhySubject {
    pub kind: WhyKind,
    pub name: String,
    pub address: Option<String>,
    pub objects: u64,
    pub bytes: u64,
    pub retained_objects: Option<u64>,
    pub retained_bytes: u64,
}

/// The kind of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhyKind {
    /// One object.
    Object,
    /// A chunk of malloc's.
    Chunk,
    /// All objects of a class.
    Class,
}

/// Objects of one class, or a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Why")]
pub struct WhyReferrer {
    pub name: String,
    pub count: u64,
    pub address: Option<String>,
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
