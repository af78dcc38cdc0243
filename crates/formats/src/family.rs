//! The account of a family of processes.

use ledger::{Cause, Write};
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
    /// The reasons of the copies, largest first.
    pub writes: Vec<WriteRow>,
    /// The code that only some members have, beyond that of their parents; `None` if files are unknown.
    pub late_code: Option<LateCode>,
    /// `None` if pages were not compared.
    pub identical: Option<IdenticalPages>,
    pub server: Option<FamilyServer>,
    pub steps: Vec<FamilyStep>,
    pub group: Option<Group>,
    /// `None` unless the family is all Ruby processes of a control group that counts memory.
    pub group_parts: Option<GroupParts>,
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
    /// True if it was forked from a process that has ended.
    pub is_orphan: bool,
    pub command: String,
    pub rss_bytes: u64,
    pub pss_bytes: u64,
    pub private_bytes: u64,
    pub copied_bytes: u64,
    /// `None` if it ended before it was captured.
    pub capture: Option<Capture>,
}

/// The memory that is charged to a control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct GroupParts {
    /// `None` if the kernel hides it.
    pub charged_elsewhere_bytes: Option<u64>,
    pub others: Vec<OtherProcess>,
    pub unmapped_cache_bytes: u64,
    pub kernel_bytes: u64,
    pub unexplained_bytes: i64,
}

/// A process of the control group that is not Ruby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct OtherProcess {
    pub pid: i32,
    pub command: String,
    pub pss_bytes: u64,
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

/// The copied pages with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct WriteRow {
    #[serde(with = "crate::names::write")]
    #[schemars(schema_with = "crate::names::write::schema")]
    pub reason: Write,
    pub bytes: u64,
    /// Largest first.
    pub owners: Vec<WrittenOwner>,
}

/// An owner of memory that was written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct WrittenOwner {
    pub name: String,
    pub bytes: u64,
}

/// Code that members loaded after the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct LateCode {
    pub files: u64,
    pub bytes: u64,
    pub repeated_bytes: u64,
    pub gems: Vec<LateGem>,
    pub largest_files: Vec<LateFile>,
}

/// A gem of which members loaded code after the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct LateGem {
    pub name: String,
    pub version: Option<String>,
    pub files: u64,
    pub bytes: u64,
}

/// A file that members loaded after the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct LateFile {
    pub path: String,
    pub members: u64,
    pub bytes: u64,
}

/// The pages of a family by their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct IdenticalPages {
    pub read_bytes: u64,
    pub distinct_bytes: u64,
}

/// A server that forks workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FamilyServer {
    /// Puma.
    Puma,
    /// Sidekiq Enterprise's multi-process mode.
    Sidekiq,
    /// Unicorn.
    Unicorn,
    /// Pitchfork.
    Pitchfork,
    /// Passenger.
    Passenger,
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
    /// Load code before the fork.
    LoadBeforeFork {
        /// The bytes of bytecode that several members have for themselves, without those of one of them.
        repeated_bytes: u64,
        /// True if the program's own files are among it.
        has_application: bool,
    },
    /// Fork the workers again from one of them that has run for a while.
    Refork {
        /// The process id of the worker with most code and caches of its own.
        worker: i32,
        /// The bytes of code and caches that the other workers have for themselves: an estimate of what they would share.
        shared_bytes: u64,
        /// The number of other workers.
        workers: u64,
    },
    /// Choose other settings of malloc, or return its free memory.
    ReturnFreeMemory {
        /// The bytes of malloc's free memory on private pages.
        free_bytes: u64,
        /// The process id of the member with most of them.
        member: i32,
    },
}
