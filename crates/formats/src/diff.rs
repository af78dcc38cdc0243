//! The growth between two or more snapshots by cause, class, owner and arena, and a verdict on it.
//!
//! The JSON is part of rbloat's stable interface, described in docs/json.md.

use ledger::{Cause, InterpreterKind, WasteKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kept::{KeptLine, KeptUnknown};
use crate::{Confidence, Content, MadeBy, Unread, names};

/// The document of `rbloat diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Diff {
    pub points: Vec<DiffPoint>,
    /// The snapshots that have no memory and are left out; empty in older documents.
    #[serde(default)]
    pub unread: Vec<UnreadPoint>,
    pub same_process: bool,
    pub seconds: f64,
    pub verdict: DiffVerdict,
    pub rss_bytes: Trajectory,
    pub causes: Vec<CauseChange>,
    pub classes: Vec<ClassChange>,
    pub owners: Vec<OwnerChange>,
    /// Empty in older documents.
    #[serde(default)]
    pub code: Vec<CodeChange>,
    /// Empty in older documents.
    #[serde(default)]
    pub interpreter: Vec<InterpreterChange>,
    /// Empty in older documents.
    #[serde(default)]
    pub waste: Vec<WasteChange>,
    /// `None` if it is not known, and in older documents.
    #[serde(default)]
    pub kept: Option<Vec<KeptChange>>,
    /// `None` without `--kept`, and in older documents.
    #[serde(default)]
    pub kept_sampling: Option<DiffSampling>,
    /// `None` if it is not known, and in older documents.
    #[serde(default)]
    pub kept_native: Option<Vec<KeptNative>>,
    #[serde(default)]
    pub dominators: Option<Vec<DominatorChange>>,
    pub arenas: Vec<ArenaChange>,
    #[serde(default)]
    pub pins: Option<Vec<PinChange>>,
    #[serde(default)]
    pub size_classes: Option<Vec<SizeClassChange>>,
    pub made_by: Option<Vec<MadeBy>>,
}

impl Content for Diff {
    const KIND: &'static str = "diff";
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct DiffPoint {
    pub source: String,
    pub pid: i32,
    pub command: String,
    /// The allocator with its version; empty in older documents.
    #[serde(default)]
    pub allocator: String,
    pub unix_ms: u64,
    pub uptime_ms: Option<u64>,
    pub threads: u64,
    /// `None` if it is unknown, and in older documents.
    #[serde(default)]
    pub gc_disabled: Option<bool>,
    /// True if it is not known which objects are old, since a major collection was marking. `None` as `gc_disabled`.
    #[serde(default)]
    pub gc_marking: Option<bool>,
    /// `None` as `gc_disabled`.
    #[serde(default)]
    pub collections: Option<u64>,
    #[serde(default)]
    pub major_collections: Option<u64>,
}

impl DiffPoint {
    /// Returns false if it is not known which objects are old.
    #[must_use]
    pub fn has_ages(&self) -> bool {
        self.gc_marking != Some(true)
    }
}

/// A snapshot of a process whose memory was not read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadPoint {
    /// The source, as given to the command.
    pub source: String,
    /// The reason.
    pub reason: Unread,
}

/// A number at each point, and how it changed from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct Trajectory {
    pub at: Vec<u64>,
    pub change: i64,
}

/// A cause: its resident bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct CauseChange {
    #[serde(with = "names::cause")]
    #[schemars(schema_with = "names::cause::schema")]
    pub cause: Cause,
    pub bytes: Trajectory,
}

/// The objects of a class, and the memory that they hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct ClassChange {
    pub name: String,
    pub objects: Trajectory,
    pub bytes: Trajectory,
    #[serde(default)]
    pub reachable_objects: Option<Trajectory>,
    #[serde(default)]
    pub reachable_bytes: Option<Trajectory>,
    #[serde(default)]
    pub retained_bytes: Option<Trajectory>,
    pub survivors: u64,
    pub newcomers: u64,
    pub old_newcomers: u64,
    #[serde(default)]
    pub lasting_newcomers: u64,
    pub objects_per_hour: Option<f64>,
    pub kept_by: Option<String>,
    /// The bytes of the class that the root of `kept_by` gained, at least; 0 if none is known.
    pub kept_by_bytes: u64,
    /// The number of the class's objects that this root retains in each snapshot; `None` if `kept_by_bytes` is 0, or if a
    /// snapshot does not list the root.
    #[serde(default)]
    pub kept_by_objects: Option<Trajectory>,
}

/// The memory of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct OwnerChange {
    pub owner: String,
    pub kind: String,
    #[serde(with = "names::cause_or_none")]
    #[schemars(schema_with = "names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    pub bytes: Trajectory,
}

/// The bytecode of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct CodeChange {
    pub path: String,
    pub iseqs: Trajectory,
    pub bytes: Trajectory,
}

/// The interpreter's memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct InterpreterChange {
    #[serde(with = "crate::names::interpreter_kind")]
    #[schemars(schema_with = "crate::names::interpreter_kind::schema")]
    pub kind: InterpreterKind,
    pub bytes: Trajectory,
}

/// The memory that objects of a class, which a root retains, have and do not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct WasteChange {
    #[serde(with = "crate::names::waste_kind")]
    #[schemars(schema_with = "crate::names::waste_kind::schema")]
    pub kind: WasteKind,
    pub class: String,
    pub path: String,
    pub objects: Trajectory,
    pub bytes: Trajectory,
    pub used_bytes: Trajectory,
    pub unused_bytes: Trajectory,
}

impl WasteChange {
    /// Returns true if the unused room grew, and hardly what is in use: by less than a tenth of that.
    #[must_use]
    pub fn is_room_only(&self) -> bool {
        self.unused_bytes.change > 0
            && self.bytes.change > 0
            && self.used_bytes.change < self.bytes.change / 10
    }
}

/// The objects that a root keeps: without those that come and go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct KeptChange {
    pub root: String,
    pub class: Option<String>,
    pub path: Option<String>,
    pub objects: Trajectory,
    #[serde(default)]
    pub latest_change: Option<i64>,
    /// `None` for fewer than three rates, and in older documents.
    #[serde(default)]
    pub objects_per_hour: Option<Rate>,
    #[serde(default)]
    pub bytes_per_hour: Option<Rate>,
    pub bytes: i64,
    pub newcomers: u64,
    pub kept: u64,
    pub samples: Option<u64>,
    #[serde(default)]
    pub samples_of_class: bool,
    #[serde(default)]
    pub sampled_class: Option<String>,
    pub made_by: Vec<KeptLine>,
}

/// The sampling of new objects between the snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct DiffSampling {
    pub unknown: Option<KeptUnknown>,
    pub ticks: u64,
    pub seen: u64,
    pub ambiguous: u64,
    pub collections: u64,
    pub major_collections: u64,
}

/// A rate with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct Rate {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

/// The native memory that an owner keeps: blocks of sizes of which it frees hardly any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct KeptNative {
    pub owner: String,
    pub kind: String,
    #[serde(with = "names::cause")]
    #[schemars(schema_with = "names::cause::schema")]
    pub cause: Cause,
    pub blocks: Trajectory,
    pub bytes: Trajectory,
    pub latest_bytes: i64,
    pub grown_bytes: i64,
    pub newcomers: u64,
    pub kept: u64,
    pub all_newcomers: u64,
    pub gone: u64,
    pub open: u64,
    pub open_bytes: u64,
}

/// A constant, thread or object, or all like it: the memory that would be freed if it went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct DominatorChange {
    pub kind: String,
    pub name: String,
    pub retained_bytes: Trajectory,
}

/// An arena, by its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct ArenaChange {
    pub address: String,
    pub main: bool,
    pub in_use_bytes: Trajectory,
    pub kept_bytes: Trajectory,
}

/// The free resident memory that the blocks of one owner keep from being returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct PinChange {
    pub owner: String,
    pub kind: String,
    pub blocks: Trajectory,
    pub bytes: Trajectory,
}

/// The slabs of one size class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Diff")]
pub struct SizeClassChange {
    pub region_bytes: u64,
    pub slabs: Trajectory,
    pub regions: Trajectory,
    pub in_use: Trajectory,
    pub free_bytes: Trajectory,
}

/// The verdict on what changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffVerdict {
    /// The kind of change.
    pub kind: DiffKind,
    /// The memory that changed most.
    pub subject: Subject,
    /// The cause that changed most within `subject`; `None` if there is none.
    #[serde(with = "names::cause_or_none")]
    #[schemars(schema_with = "names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    /// The class whose objects changed most; `None` if that does not explain the change.
    pub class: Option<String>,
    /// The root that keeps more and more objects, if the verdict follows from `Diff::kept`.
    #[serde(default)]
    pub root: Option<String>,
    /// The owner that keeps more and more native memory, if the verdict follows from `Diff::kept_native`.
    #[serde(default)]
    pub owner: Option<String>,
    /// The change of `subject`, in bytes.
    pub bytes: i64,
    /// The same for each hour; `None` for different processes.
    pub bytes_per_hour: Option<f64>,
    /// The reason for which growth is no leak; `None` if there is no growth, or a leak.
    pub doubt: Option<Doubt>,
    /// The confidence in the verdict.
    pub confidence: Confidence,
}

/// The memory that a verdict is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Ruby's objects and the memory that they hold.
    Objects,
    /// Native memory of one owner or cause.
    Native,
    /// Native memory that nothing points to.
    Unreachable,
    /// Classes, methods, bytecode and machine code.
    Code,
    /// Memory that is free but kept.
    Free,
    /// One cause, of any kind.
    Cause,
    /// Everything in use.
    InUse,
    /// All of RSS.
    Rss,
}

/// A reason for which growth may be no leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// It slows down.
    LevelsOff,
    /// The program's own code was loaded.
    CodeIsLoaded,
    /// Nobody knows who holds the memory: owners were not searched for, or cannot be found.
    OwnersUnknown,
    /// Most of it is garbage that the GC has not collected.
    Garbage,
    /// Most of it is garbage, because the GC is disabled.
    GcDisabled,
    /// There are too few snapshots: two, or three if the verdict has a root or an owner.
    FewSnapshots,
    /// It grows unevenly.
    Uneven,
    /// It grows steadily, but nothing proves a leak, for example within ten seconds.
    Unproven,
    /// It comes and goes: few of the objects that were new in the last but one snapshot are still there, or a part of the new blocks
    /// of native memory is gone.
    Turnover,
    /// Nothing in use grew, but RSS did.
    NothingInUse,
    /// Fewer than two snapshots have the process's memory.
    Unread,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    /// Ruby objects accumulate at a steady rate.
    ManagedLeak,
    /// Native memory, which the GC does not know of, accumulates at a steady rate.
    NativeLeak,
    /// Code is defined again and again at a steady rate.
    CodeLeak,
    /// Memory in use or pages of files grew, and it is open whether that continues.
    Growth,
    /// Memory in use grew more and more slowly, or grew by the program's own code.
    WarmUp,
    /// RSS grew, but memory in use did not.
    Retention,
    /// Nothing grew.
    Stable,
    /// RSS fell.
    Shrank,
    /// The snapshots are of different processes, so that nothing grew or fell.
    Difference,
}

impl ClassChange {
    /// The objects that count for growth: the reachable ones if they are known, otherwise all, with garbage.
    #[must_use]
    pub fn growing_objects(&self) -> &Trajectory {
        self.reachable_objects.as_ref().unwrap_or(&self.objects)
    }

    /// The bytes of [`growing_objects`](Self::growing_objects).
    #[must_use]
    pub fn growing_bytes(&self) -> &Trajectory {
        self.reachable_bytes.as_ref().unwrap_or(&self.bytes)
    }
}

impl Trajectory {
    /// The trajectory of the numbers at each point.
    #[must_use]
    pub fn new(at: impl Iterator<Item = u64>) -> Self {
        let at: Vec<u64> = at.collect();
        let change = match (at.first(), at.last()) {
            (Some(&first), Some(&last)) => last.wrapping_sub(first) as i64,
            _ => 0,
        };
        Self { at, change }
    }

    /// The last number.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.at.last().copied().unwrap_or(0)
    }

    /// Adds another trajectory, point by point.
    pub fn add(&mut self, other: &Self) {
        self.at.iter_mut().zip(&other.at).for_each(|(sum, part)| *sum += part);
        self.change += other.change;
    }
}
