//! The account of a family of processes.

use ledger::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Capture, CauseRow, Content, FindingRow, Group};

/// The document of `rbloat report --tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Family {
    /// `None` if no member could be read.
    pub ruby_version: Option<String>,
    pub members: Vec<FamilyMember>,
    pub rss_bytes: u64,
    pub pss_bytes: u64,
    pub memory_bytes: u64,
    /// `None` if it is unknown which processes map a frame.
    pub outside_bytes: Option<u64>,
    pub is_estimated: bool,
    pub causes: Vec<FamilyCause>,
    pub copied: Vec<CauseRow>,
    /// The owners of copied malloc'ed memory, largest first; `None` if owners were not searched for.
    pub copied_owners: Option<Vec<CopiedOwner>>,
    pub steps: Vec<FamilyStep>,
    pub group: Option<Group>,
    pub findings: Vec<FindingRow>,
}

impl Content for Family {
    const KIND: &'static str = "family";
}

/// A process of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct FamilyMember {
    pub pid: i32,
    /// `None` if its parent is not a member.
    pub parent: Option<i32>,
    pub command: String,
    pub rss_bytes: u64,
    pub pss_bytes: u64,
    pub private_bytes: u64,
    pub copied_bytes: u64,
    /// `None` if it ended before it was captured.
    pub capture: Option<Capture>,
}

/// The memory of a family with one cause. Each page frame counts once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct FamilyCause {
    #[serde(with = "crate::names::cause")]
    #[schemars(schema_with = "crate::names::cause::schema")]
    pub cause: Cause,
    pub shared_by_all_bytes: u64,
    pub shared_by_some_bytes: u64,
    /// In the order of the members.
    pub private_bytes: Vec<u64>,
}

impl FamilyCause {
    /// The private bytes of all members.
    #[must_use]
    pub fn private_total(&self) -> u64 {
        self.private_bytes.iter().sum()
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.shared_by_all_bytes + self.shared_by_some_bytes + self.private_total()
    }
}

/// An owner of memory that members copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct CopiedOwner {
    pub name: String,
    #[serde(with = "crate::names::cause")]
    #[schemars(schema_with = "crate::names::cause::schema")]
    pub cause: Cause,
    pub bytes: u64,
}

/// A step that lets a family share more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum FamilyStep {
    /// Collect garbage and compact the heap before the fork.
    PrepareHeap {
        /// The copied bytes of slots.
        copied_bytes: u64,
        /// True if Ruby has `Process.warmup`.
        has_warmup: bool,
    },
}
