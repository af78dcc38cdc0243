//! The account of a family of processes.

use ledger::{Cause, Sharing, Write};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Capture, CauseRow, Content, FindingRow, Group, Server, Trajectory};

/// The document of `rbloat report --tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Family {
    /// The value of `RUBY_VERSION`. `null` if no member could be read.
    pub ruby_version: Option<String>,
    /// The processes, the oldest first, and then the others by their start.
    pub members: Vec<FamilyMember>,
    /// The sum of RSS over the members.
    pub rss_bytes: u64,
    /// The sum of PSS over the members.
    pub pss_bytes: u64,
    /// The memory of the family: the sum over `causes`.
    pub memory_bytes: u64,
    /// The part of it that other processes map, too. `null` if that is unknown.
    pub outside_bytes: Option<u64>,
    /// True if rbloat could not see which pages are the same, for lack of `CAP_SYS_ADMIN`.
    pub is_estimated: bool,
    /// The memory by cause. A page that several members share counts for the cause that it has in the first of them.
    pub causes: Vec<FamilyCause>,
    /// The `copied_bytes` of all members by cause.
    pub copied: Vec<CauseRow>,
    /// The owners of copied malloc'ed memory, at most ten. `null` with `--owners 0`.
    pub copied_owners: Option<Vec<CopiedOwner>>,
    /// The reasons of the copies, largest first. They add up to the `copied_bytes` of the members.
    pub writes: Vec<WriteRow>,
    /// Bytecode that members have and their parents do not. `null` with `--owners 0`, or if files are unknown.
    pub late_code: Option<LateCode>,
    /// The contents of pages, compared with `--identical`. `null` otherwise.
    pub identical: Option<IdenticalPages>,
    /// The server, by the command lines. `null` for other programs.
    pub server: Option<Server>,
    /// The steps that let the family share more.
    pub steps: Vec<FamilyStep>,
    /// The control group. `null` without one, and if it could not be found.
    pub group: Option<Group>,
    /// The rest of the group's memory, with `--cgroup`. `null` otherwise, and if the group does not count memory.
    pub group_parts: Option<GroupParts>,
    /// Observations, as in a report.
    pub findings: Vec<FindingRow>,
}

impl Content for Family {
    const KIND: &'static str = "family";
}

/// A process of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyMember {
    /// The process.
    pub pid: i32,
    /// The time of its start, in clock ticks since boot. With the pid it identifies the process.
    pub started_ticks: u64,
    /// Its parent. `null` if that is not a member.
    pub parent: Option<i32>,
    /// True if its parent has ended. It is unknown then which memory it copied.
    pub is_orphan: bool,
    /// Its command line.
    pub command: String,
    /// Its RSS, as the kernel counts it (`smaps_rollup`).
    pub rss_bytes: u64,
    /// Its PSS, as the kernel counts it.
    pub pss_bytes: u64,
    /// Its pages that no other member maps.
    pub private_bytes: u64,
    /// The part of them whose parent has another page at the same address.
    pub copied_bytes: u64,
    /// The reasons of its copies, largest first. They add up to `copied_bytes`.
    pub writes: Vec<MemberWrite>,
    /// The capture of its memory. `null` if it could not be captured, for example because it ended before; there is a finding then,
    /// and the exit status is 6.
    pub capture: Option<Capture>,
}

/// The copied pages of a member with one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberWrite {
    /// The reason, as in `writes[]` of the family.
    #[serde(with = "crate::names::write")]
    #[schemars(schema_with = "crate::names::write::schema")]
    pub reason: Write,
    /// The bytes.
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
pub struct FamilyDiff {
    /// The accounts, the oldest first.
    pub points: Vec<FamilyPoint>,
    /// The time between the first and the last account.
    pub seconds: f64,
    /// The memory of the family.
    pub memory_bytes: Trajectory,
    /// The processes that are in all accounts, the fastest growth of `private_bytes` first.
    pub members: Vec<MemberChange>,
    /// The ids of processes that are in the last account but not in the first.
    pub started: Vec<i32>,
    /// The other way round.
    pub ended: Vec<i32>,
    /// The private memory of all workers that are in all accounts, largest change first. A worker is a member whose parent is
    /// one, or has ended.
    pub causes: Vec<crate::CauseChange>,
    /// Their copied pages, largest change first.
    pub writes: Vec<WriteChange>,
    /// The mean of these workers. `null` if there is none, or no time passed.
    pub worker: Option<WorkerGrowth>,
    /// The limit of the control group at the last account. `null` if no limit is known.
    pub limit: Option<FamilyLimit>,
    /// The future, as far as the past shows it.
    pub outlook: Outlook,
}

impl Content for FamilyDiff {
    const KIND: &'static str = "family_diff";
}

/// An account of a family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyPoint {
    /// The source, as given to the command.
    pub source: String,
    /// The time of the first capture, in ms since 1970.
    pub unix_ms: u64,
    /// The number of processes.
    pub processes: u64,
    /// True if it could not be seen which pages are the same.
    pub is_estimated: bool,
}

/// The private memory of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberChange {
    /// The process.
    pub pid: i32,
    /// Its parent. `null` if that is not a member.
    pub parent: Option<i32>,
    /// Its command line.
    pub command: String,
    /// Its pages that no other member maps.
    pub private_bytes: Trajectory,
    /// The part of them that was shared with the parent.
    pub copied_bytes: Trajectory,
}

/// The copies with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WriteChange {
    /// The reason, as in `writes[]` of a family.
    #[serde(with = "crate::names::write")]
    #[schemars(schema_with = "crate::names::write::schema")]
    pub reason: Write,
    /// The bytes.
    pub bytes: Trajectory,
}

/// The growth of a worker: the mean of all workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerGrowth {
    /// Their number.
    pub workers: u64,
    /// The growth of private memory.
    pub private_bytes_per_minute: f64,
    /// The part of it that was shared before.
    pub copied_bytes_per_minute: f64,
}

/// The limit of the control group of a family, and its use at the last point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyLimit {
    /// The limit.
    pub limit_bytes: u64,
    /// The memory that is charged to the group.
    pub usage_bytes: u64,
    /// The part of it in caches of files, which the kernel gives up before it kills a process.
    pub cache_bytes: u64,
}

/// The future of a family, as far as its past shows it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outlook {
    /// Fewer than three accounts.
    TooEarly,
    /// Processes started or ended.
    OtherWorkers,
    /// Less than 1 MiB, or 0.1 %.
    NoGrowth,
    /// The last rate is below a quarter of the highest.
    LevelsOff,
    /// The rate of an interval is below half the mean.
    Uneven,
    /// It grows steadily.
    Grows {
        /// The growth of the whole family.
        bytes_per_minute: f64,
        /// The time until the limit is reached. `null` without a limit.
        seconds_to_limit: Option<f64>,
    },
}

/// The memory that is charged to a control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupParts {
    /// The part of `memory_bytes` that is charged to other groups. `null` if the kernel hides it.
    pub charged_elsewhere_bytes: Option<u64>,
    /// Processes of the group that are not Ruby.
    pub others: Vec<OtherProcess>,
    /// Caches of files on disks that no process maps.
    pub unmapped_cache_bytes: u64,
    /// Files in tmpfs and shared memory that no process maps, which the kernel can only swap. 0 in older documents, where
    /// `unmapped_cache_bytes` includes it.
    #[serde(default)]
    pub unmapped_shmem_bytes: u64,
    /// Page tables, stacks and buffers of the kernel.
    pub kernel_bytes: u64,
    /// The rest of `group.usage_bytes`. Negative if more was explained.
    pub unexplained_bytes: i64,
}

/// A process of the control group that is not Ruby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherProcess {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Its PSS.
    pub pss_bytes: u64,
}

/// The memory of a family with one cause. Each page frame counts once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyCause {
    /// The cause.
    #[serde(with = "crate::names::cause")]
    #[schemars(schema_with = "crate::names::cause::schema")]
    pub cause: Cause,
    /// The bytes that all members share.
    pub shared_by_all_bytes: u64,
    /// The bytes that some members share.
    pub shared_by_some_bytes: u64,
    /// The bytes of one member each, in the order of the members.
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
pub struct CopiedOwner {
    /// Its name.
    pub name: String,
    /// The cause of the memory.
    #[serde(with = "crate::names::cause")]
    #[schemars(schema_with = "crate::names::cause::schema")]
    pub cause: Cause,
    /// The copied bytes, headers of chunks included.
    pub bytes: u64,
}

/// The copied pages with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WriteRow {
    /// Each copied page is compared with the page of the parent and counts for one reason: the last one in this list that any of
    /// its words has. `"same"` (the contents are the same again), `"collector"` (marks and ages by the garbage collector),
    /// `"allocator"` (malloc's headers and free memory), `"freed_slots"` (objects were freed), `"new_objects"` (new objects in
    /// slots that were free), `"code"` (inline and method caches, methods, classes), `"objects"` (objects were changed in their
    /// slots), `"contents"` (the memory that objects hold was changed), `"other"` (stacks, libraries), `"unread"` (one of the
    /// pages could not be read).
    #[serde(with = "crate::names::write")]
    #[schemars(schema_with = "crate::names::write::schema")]
    pub reason: Write,
    /// The bytes of these pages.
    pub bytes: u64,
    /// The classes that were written to, at most five, largest first. For `"same"`, the classes of everything on these pages.
    pub owners: Vec<WrittenOwner>,
}

/// An owner of memory that was written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrittenOwner {
    /// Its name.
    pub name: String,
    /// The bytes.
    pub bytes: u64,
}

/// Code that members loaded after the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LateCode {
    /// The number of its files.
    pub files: u64,
    /// The bytecode in all members.
    pub bytes: u64,
    /// The part of it that would be saved if it existed once.
    pub repeated_bytes: u64,
    /// Its gems, at most ten, as in `interpreter.gems[]` of a report.
    pub gems: Vec<LateGem>,
    /// The largest files, at most ten.
    pub largest_files: Vec<LateFile>,
}

/// A gem of which members loaded code after the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LateGem {
    /// The name.
    pub name: String,
    /// The version. `null` if the path does not have it.
    pub version: Option<String>,
    /// The number of its files.
    pub files: u64,
    /// Its bytecode in all members.
    pub bytes: u64,
}

/// A file that members loaded after the fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LateFile {
    /// The path.
    pub path: String,
    /// The number of members that loaded it.
    pub members: u64,
    /// Its bytecode in all members.
    pub bytes: u64,
}

/// The pages of a family by their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdenticalPages {
    /// The bytes that were compared.
    pub read_bytes: u64,
    /// The bytes of different pages.
    pub distinct_bytes: u64,
}

/// A step that lets a family share more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum FamilyStep {
    /// Collect garbage and compact the heap before the fork.
    PrepareHeap {
        /// Pages that differ only by the work of the collector, freed slots and new objects.
        copied_bytes: u64,
        /// True if Ruby has `Process.warmup`.
        has_warmup: bool,
    },
    /// Run a newer Ruby. Only for Ruby 3.3, whose collector writes to bytecode without changing it.
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
    /// Fork the workers again from one of them that has run for a while. Only for Puma and Pitchfork.
    Refork {
        /// The process id of the worker with most code and caches of its own.
        worker: i32,
        /// An estimate of what the others would share: their private `ruby.vm`.
        shared_bytes: u64,
        /// The number of other workers.
        workers: u64,
    },
    /// Choose other settings of malloc, or return its free memory.
    ReturnFreeMemory {
        /// Private `malloc.unreturned` and `malloc.fragmented`.
        free_bytes: u64,
        /// The process id of the member with most of it.
        member: i32,
    },
}
