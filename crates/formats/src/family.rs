//! The account of a family of processes.

use ledger::{Cause, Sharing, Write};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Capture, CauseRow, Content, FindingRow, Group, Trajectory};

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
    pub started_ticks: u64,
    /// `None` if its parent is not a member.
    pub parent: Option<i32>,
    /// True if it was forked from a process that has ended.
    pub is_orphan: bool,
    pub command: String,
    pub rss_bytes: u64,
    pub pss_bytes: u64,
    pub private_bytes: u64,
    pub copied_bytes: u64,
    /// The reasons of its copies, largest first. They add up to `copied_bytes`.
    pub writes: Vec<MemberWrite>,
    /// `None` if it ended before it was captured.
    pub capture: Option<Capture>,
}

/// The copied pages of a member with one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct MemberWrite {
    #[serde(with = "crate::names::write")]
    #[schemars(schema_with = "crate::names::write::schema")]
    pub reason: Write,
    pub bytes: u64,
}

impl Family {
    /// The time of the first capture, in milliseconds since 1970; `None` if no member was captured.
    #[must_use]
    pub fn unix_ms(&self) -> Option<u64> {
        self.members.iter().filter_map(|it| it.capture.as_ref()).map(|it| it.unix_ms).min()
    }

    /// Checks that the numbers of an account from a file fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sum: u64 = self.causes.iter().map(FamilyCause::total).sum();
        if sum != self.memory_bytes {
            let memory = self.memory_bytes;
            return Err(format!("its causes add up to {sum} bytes, but the family has {memory}"));
        }
        if self.causes.iter().any(|row| row.private_bytes.len() != self.members.len()) {
            return Err("a cause has not one figure for each process".into());
        }
        let fits = |it: &FamilyMember| {
            let written: u64 = it.writes.iter().map(|row| row.bytes).sum();
            it.copied_bytes <= it.private_bytes
                && it.private_bytes <= self.memory_bytes
                && written <= it.copied_bytes
        };
        match self.members.iter().find(|it| !fits(it)) {
            Some(it) => Err(format!("the figures of process {} do not fit together", it.pid)),
            None => Ok(()),
        }
    }
}

/// The pages of a member by the members that map them, for a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPages {
    /// The number of members.
    pub processes: u64,
    /// True if it is not known which pages are the same.
    pub is_estimated: bool,
    /// Runs of resident pages, ascending: the number of the first, their number, and the members that map them.
    pub pages: Vec<(u64, u64, Sharing)>,
}

/// The document of `rbloat diff --tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct FamilyDiff {
    pub points: Vec<FamilyPoint>,
    pub seconds: f64,
    pub memory_bytes: Trajectory,
    /// The members that are at all points, by the growth of their private memory.
    pub members: Vec<MemberChange>,
    pub started: Vec<i32>,
    pub ended: Vec<i32>,
    /// The private memory of the workers that are at all points, largest change first.
    pub causes: Vec<crate::CauseChange>,
    /// The copies of the workers that are at all points, largest change first.
    pub writes: Vec<WriteChange>,
    /// `None` if no worker is at all points, or no time passed.
    pub worker: Option<WorkerGrowth>,
    pub limit: Option<FamilyLimit>,
    pub outlook: Outlook,
}

impl Content for FamilyDiff {
    const KIND: &'static str = "family_diff";
}

/// An account of a family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct FamilyPoint {
    pub source: String,
    pub unix_ms: u64,
    pub processes: u64,
    pub is_estimated: bool,
}

/// The private memory of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct MemberChange {
    pub pid: i32,
    pub parent: Option<i32>,
    pub command: String,
    pub private_bytes: Trajectory,
    /// The part of it that was shared with the parent.
    pub copied_bytes: Trajectory,
}

/// The copies with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct WriteChange {
    #[serde(with = "crate::names::write")]
    #[schemars(schema_with = "crate::names::write::schema")]
    pub reason: Write,
    pub bytes: Trajectory,
}

/// The growth of a worker: the mean of all workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct WorkerGrowth {
    pub workers: u64,
    pub private_bytes_per_minute: f64,
    pub copied_bytes_per_minute: f64,
}

/// The limit of the control group of a family, and its use at the last point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct FamilyLimit {
    pub limit_bytes: u64,
    pub usage_bytes: u64,
    /// The part of the usage that the kernel gives up before it kills a process.
    pub cache_bytes: u64,
}

/// The future of a family, as far as its past shows it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outlook {
    /// Two points show no trend.
    TooEarly,
    /// Workers started or ended meanwhile.
    OtherWorkers,
    /// The memory of the family does not grow.
    NoGrowth,
    /// It grew more and more slowly.
    LevelsOff,
    /// Its growth changed from interval to interval.
    Uneven,
    /// It grows steadily.
    Grows {
        /// The growth of the memory of the whole family.
        bytes_per_minute: f64,
        /// The time until the limit is reached; `None` if there is no limit.
        seconds_to_limit: Option<f64>,
    },
}

/// The memory that is charged to a control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Family")]
pub struct GroupParts {
    /// `None` if the kernel hides it.
    pub charged_elsewhere_bytes: Option<u64>,
    pub others: Vec<OtherProcess>,
    pub unmapped_cache_bytes: u64,
    /// 0 in older documents, where `unmapped_cache_bytes` includes it.
    #[serde(default)]
    pub unmapped_shmem_bytes: u64,
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
    /// Run a Ruby whose collector does not write to bytecode.
    NewerRuby {
        /// The copied bytes of bytecode whose contents are the same as the parent's.
        copied_bytes: u64,
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
