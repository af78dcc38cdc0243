//! The growth between two or more snapshots by cause, class, owner and arena, and a verdict on it.
//!
//! The JSON is part of rbloat's stable interface.

use ledger::{Cause, InterpreterKind, WasteKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kept::{KeptLine, KeptUnknown};
use crate::{Confidence, Content, MadeBy, RootUses, Unread, names};

/// The document of `rbloat diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// The snapshots. Those of one process are sorted by time, unless one of them is a core.
    pub points: Vec<DiffPoint>,
    /// The snapshots whose memory was not read. They are not among `points`, unless fewer than two others are left. Empty in
    /// older documents.
    #[serde(default)]
    pub unread: Vec<UnreadPoint>,
    /// True if all snapshots are of one process. Otherwise there are no rates, survivors and arenas.
    pub same_process: bool,
    /// The time between the first and the last snapshot.
    pub seconds: f64,
    /// The verdict on what changed.
    pub verdict: DiffVerdict,
    /// RSS.
    pub rss_bytes: Trajectory,
    /// The causes. In each snapshot they add up to `rss_bytes`.
    pub causes: Vec<CauseChange>,
    /// The 100 classes that changed most.
    pub classes: Vec<ClassChange>,
    /// The 100 owners of malloc'ed memory that changed most.
    pub owners: Vec<OwnerChange>,
    /// The 100 files whose bytecode changed most. Empty in older documents.
    #[serde(default)]
    pub code: Vec<CodeChange>,
    /// The kinds of the interpreter's memory that changed, the largest change first. Empty in older documents.
    #[serde(default)]
    pub interpreter: Vec<InterpreterChange>,
    /// The 20 groups of objects whose unused memory (docs/waste.md) changed most. A group that may have been too small for the
    /// list of a snapshot is left out. Empty in older documents.
    #[serde(default)]
    pub waste: Vec<WasteChange>,
    /// The 20 roots that keep most more than before. Roots with fewer than 64 objects, and stacks, are left out. Snapshots with
    /// `gc_marking` do not count. `null` for fewer than three others, for different processes, and if a snapshot has no owners or
    /// is of an earlier release.
    #[serde(default)]
    pub kept: Option<Vec<KeptChange>>,
    /// The 20 roots with most memory in objects that were old in all snapshots: each at the same address, of the same class, and
    /// retained by the same constant or variable. An object that took the slot of another one counts as the same. Snapshots count as for
    /// `kept`, and so do roots; it is `null` if `kept` is. Memory does not show whether the program reads these objects.
    #[serde(default)]
    pub unchanged: Option<Vec<UnchangedRow>>,
    /// For one process, how its new objects were sampled between the snapshots. `null` for other sources and for fewer than three
    /// snapshots, if the process could not be sampled or the last snapshot failed, and in older documents.
    #[serde(default)]
    pub kept_sampling: Option<DiffSampling>,
    /// The code that uses the roots of `kept[]` in the last snapshot, as in a report. Empty in older documents.
    #[serde(default)]
    pub root_uses: Vec<RootUses>,
    /// Native memory that stays, by owner, the largest growth first: at most 100 owners with growth or `open` blocks, beside
    /// those of `owners[]` that grew. Only sizes of blocks count of which the owner loses at most one byte for 32 new ones; sizes
    /// with fewer than 64 new blocks are counted together. Blocks that are freed, and allocated again at the same addresses,
    /// count as the same. `null` for fewer than three snapshots, for different processes, if a snapshot has no owners, and in
    /// older documents.
    #[serde(default)]
    pub kept_native: Option<Vec<KeptNative>>,
    /// The 100 dominators (docs/json.md#retained-sizes) that changed most. `null` unless all snapshots were taken with
    /// `--retained`.
    #[serde(default)]
    pub dominators: Option<Vec<DominatorChange>>,
    /// The arenas. Empty for different processes.
    pub arenas: Vec<ArenaChange>,
    /// The owners that keep free memory resident, as in `malloc.pinned_by` of a report. The largest change comes first. Owners
    /// that a report does not list are in `(others)` there. `null` unless owners were searched for in all snapshots.
    #[serde(default)]
    pub pins: Option<Vec<PinChange>>,
    /// The slabs of each size class (jemalloc). The largest change of `free_bytes` comes first. `null` unless the heap was read
    /// in all snapshots.
    #[serde(default)]
    pub size_classes: Option<Vec<SizeClassChange>>,
    /// As in a report: of the last snapshot, with `--who`. Otherwise `null`.
    pub made_by: Option<Vec<MadeBy>>,
}

impl Content for Diff {
    const KIND: &'static str = "diff";
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffPoint {
    /// The source, as given to the command.
    pub source: String,
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// The allocator with its version, such as `jemalloc 5.3.0`. Empty in older documents.
    #[serde(default)]
    pub allocator: String,
    /// The time of the capture, in ms since 1970.
    pub unix_ms: u64,
    /// The time since the process started. `null` for a core.
    pub uptime_ms: Option<u64>,
    /// The number of its threads.
    pub threads: u64,
    /// `ruby.gc.disabled` of the report. `null` in older documents, too.
    #[serde(default)]
    pub gc_disabled: Option<bool>,
    /// `ruby.gc.marking` of the report. `null` in older documents, too.
    #[serde(default)]
    pub gc_marking: Option<bool>,
    /// `ruby.gc.collections` of the report. `null` in older documents, too.
    #[serde(default)]
    pub collections: Option<u64>,
    /// `ruby.gc.major_collections` of the report. `null` in older documents, too.
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
    /// Its RSS, which needs no pause. 0 in older documents.
    #[serde(default)]
    pub rss_bytes: u64,
}

/// A number at each point, and how it changed from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trajectory {
    /// A number for each point.
    pub at: Vec<u64>,
    /// The last number minus the first.
    pub change: i64,
}

/// A cause: its resident bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CauseChange {
    /// The cause.
    #[serde(with = "names::cause")]
    #[schemars(schema_with = "names::cause::schema")]
    pub cause: Cause,
    /// Its bytes.
    pub bytes: Trajectory,
}

/// The objects of a class, and the memory that they hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassChange {
    /// The class.
    pub name: String,
    /// Its objects.
    pub objects: Trajectory,
    /// Their slots and the memory that they hold.
    pub bytes: Trajectory,
    /// The objects that a root retains, so without garbage. `null` if the class is not among the 20 largest of each snapshot.
    #[serde(default)]
    pub reachable_objects: Option<Trajectory>,
    /// Their bytes. `null` as `reachable_objects`.
    #[serde(default)]
    pub reachable_bytes: Option<Trajectory>,
    /// The bytes that would be freed if all objects of the class went away. `null` unless all snapshots were taken with
    /// `--retained`.
    #[serde(default)]
    pub retained_bytes: Option<Trajectory>,
    /// Objects in the last snapshot that were in the first one too (same address, same class, not younger). 0 if owners were not
    /// searched for.
    pub survivors: u64,
    /// The other objects in the last snapshot. 0 if owners were not searched for.
    pub newcomers: u64,
    /// The newcomers that have survived three collections.
    pub old_newcomers: u64,
    /// The newcomers that the last but one snapshot had, too. 0 for two snapshots.
    #[serde(default)]
    pub lasting_newcomers: u64,
    /// The rate of growth. `null` for different processes.
    pub objects_per_hour: Option<f64>,
    /// A retaining path of these objects, from the root that gained most bytes of them; if the class gained no objects, from the
    /// one that retains most. `"(many roots)"` if no root gained a large part. `null` if the growth is garbage.
    pub kept_by: Option<String>,
    /// The bytes of the class that this root gained, at least. 0 if `kept_by` is `null` or `"(many roots)"`, or if no root gained
    /// any.
    pub kept_by_bytes: u64,
    /// The number of the class's objects that this root retains. `null` if `kept_by_bytes` is 0, or if a snapshot does not list
    /// the root.
    #[serde(default)]
    pub kept_by_objects: Option<Trajectory>,
}

/// The memory of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnerChange {
    /// Its name.
    pub owner: String,
    /// Its kind, as in a report.
    pub kind: String,
    /// The cause of the memory. `null` as in a report.
    #[serde(with = "names::cause_or_none")]
    #[schemars(schema_with = "names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    /// Its resident bytes.
    pub bytes: Trajectory,
}

/// The bytecode of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeChange {
    /// The file.
    pub path: String,
    /// The number of its iseqs.
    pub iseqs: Trajectory,
    /// Their bytes, slots included.
    pub bytes: Trajectory,
}

/// The interpreter's memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterpreterChange {
    /// The kind, as in a report.
    #[serde(with = "crate::names::interpreter_kind")]
    #[schemars(schema_with = "crate::names::interpreter_kind::schema")]
    pub kind: InterpreterKind,
    /// Its bytes, slots included.
    pub bytes: Trajectory,
}

/// The memory that objects of a class, which a root retains, have and do not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WasteChange {
    /// The kind. This and the next fields are as in `waste.groups[]` of a report.
    #[serde(with = "crate::names::waste_kind")]
    #[schemars(schema_with = "crate::names::waste_kind::schema")]
    pub kind: WasteKind,
    /// The class.
    pub class: String,
    /// The path that retains most of it.
    pub path: String,
    /// The objects that do not use all of their memory.
    pub objects: Trajectory,
    /// The bytes that they requested.
    pub bytes: Trajectory,
    /// The part in use.
    pub used_bytes: Trajectory,
    /// The resident part of the rest.
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
pub struct KeptChange {
    /// The root.
    pub root: String,
    /// The class with more than half of what the root keeps more, or `null`.
    pub class: Option<String>,
    /// A path to the objects of this class; without a class, the first steps that the paths to most of this memory have in
    /// common. Or `null`.
    pub path: Option<String>,
    /// For each snapshot but the last: its objects that the next one has too, retained by the same root and old by then.
    pub objects: Trajectory,
    /// By how many old objects the root has more in the last snapshot than in the one before. `null` in older documents.
    #[serde(default)]
    pub latest_change: Option<i64>,
    /// The growth of `objects`, from the rates between snapshots; that of the last one is `latest_change`. `null` for fewer than
    /// three rates, and in older documents.
    #[serde(default)]
    pub objects_per_hour: Option<Rate>,
    /// The same in bytes.
    #[serde(default)]
    pub bytes_per_hour: Option<Rate>,
    /// About the memory by which `objects` grew, from the mean object of the root.
    pub bytes: i64,
    /// Objects that the root retained in the second and third snapshot, but not in the first.
    pub newcomers: u64,
    /// The newcomers that all later snapshots have, too.
    pub kept: u64,
    /// The objects of the root in the last snapshot that are old and were sampled when they were new, before the last but one. `null` if
    /// the process was not sampled until the last snapshot.
    pub samples: Option<u64>,
    /// True if ten or more samples are of `class`. Then only these count.
    #[serde(default)]
    pub samples_of_class: bool,
    /// The class of more than half of the samples, or `null`.
    #[serde(default)]
    pub sampled_class: Option<String>,
    /// The lines that made the samples. Empty for fewer than ten.
    pub made_by: Vec<KeptLine>,
}

/// Objects of one root that were old in all snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnchangedRow {
    /// The constant, or the variable of a class or of the program.
    pub root: String,
    /// The line that set the constant, or defined the class of the variable, in the last snapshot: `file:line`. `null` if unknown.
    pub line: Option<String>,
    /// The class with more than half of the bytes, or `null`.
    pub class: Option<String>,
    /// The number of objects.
    pub objects: u64,
    /// About the memory of these objects, from the mean objects of their classes.
    pub bytes: u64,
    /// The memory of the last snapshot that nothing but the root reaches, also that of other objects
    /// (`dominators[].retained_bytes`). `null` without `--retained`, and if the report does not list the root.
    pub exclusive_bytes: Option<u64>,
}

/// The sampling of new objects between the snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffSampling {
    /// The reason why there are no samples, or `null`.
    pub unknown: Option<KeptUnknown>,
    /// As in docs/json.md#kept.
    pub ticks: u64,
    /// As in docs/json.md#kept.
    pub seen: u64,
    /// As in docs/json.md#kept.
    pub ambiguous: u64,
    /// As in docs/json.md#kept.
    pub collections: u64,
    /// As in docs/json.md#kept.
    pub major_collections: u64,
}

/// A rate with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// The mean.
    pub mean: f64,
    /// The lower bound of its interval of 95 %.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// The native memory that an owner keeps: blocks of sizes of which it frees hardly any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptNative {
    /// Its name.
    pub owner: String,
    /// Its kind, as in a report.
    pub kind: String,
    /// The cause of the memory.
    #[serde(with = "names::cause")]
    #[schemars(schema_with = "names::cause::schema")]
    pub cause: Cause,
    /// For each snapshot but the last: its blocks that the next one has too, with the same owner, address and size.
    pub blocks: Trajectory,
    /// Their bytes.
    pub bytes: Trajectory,
    /// By how many resident bytes there are more of them in the last snapshot than in the one before.
    pub latest_bytes: i64,
    /// The same from the first to the last, with large blocks that grow but do not become more.
    pub grown_bytes: i64,
    /// Blocks that the second snapshot has and the first does not.
    pub newcomers: u64,
    /// The newcomers that all later snapshots have, too.
    pub kept: u64,
    /// Of the sizes that grew: blocks that were new in a snapshot before the last.
    pub all_newcomers: u64,
    /// The blocks of `all_newcomers` that were freed since, or have another size.
    pub gone: u64,
    /// Of the sizes that do not count: blocks that the second snapshot has and the first does not, and that all later ones have.
    /// They may stay, or be others at the same addresses.
    pub open: u64,
    /// Their bytes.
    pub open_bytes: u64,
}

/// A constant, thread or object, or all like it: the memory that would be freed if it went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DominatorChange {
    /// Its kind, as in a report.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The bytes that would be freed if it went away.
    pub retained_bytes: Trajectory,
}

/// An arena, by its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArenaChange {
    /// Its address.
    pub address: String,
    /// True for the main arena.
    pub main: bool,
    /// Its bytes in use.
    pub in_use_bytes: Trajectory,
    /// Its free but resident bytes.
    pub kept_bytes: Trajectory,
}

/// The free resident memory that the blocks of one owner keep from being returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinChange {
    /// Its name.
    pub owner: String,
    /// Its kind, as in a report.
    pub kind: String,
    /// Its blocks beside free memory.
    pub blocks: Trajectory,
    /// Its part of that memory.
    pub bytes: Trajectory,
}

/// The slabs of one size class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SizeClassChange {
    /// The size of a region.
    pub region_bytes: u64,
    /// The number of slabs.
    pub slabs: Trajectory,
    /// The number of all regions.
    pub regions: Trajectory,
    /// The number of those in use.
    pub in_use: Trajectory,
    /// The free resident bytes.
    pub free_bytes: Trajectory,
}

/// The verdict on what changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffVerdict {
    /// The kind of change.
    pub kind: DiffKind,
    /// The memory that the verdict is about.
    pub subject: Subject,
    /// The cause that grew most within the subject. `null` if none explains the change.
    #[serde(with = "names::cause_or_none")]
    #[schemars(schema_with = "names::cause_or_none::schema")]
    pub cause: Option<Cause>,
    /// The class that grew most within the subject. `null` if none explains the change.
    pub class: Option<String>,
    /// The root of `kept[]` that the verdict is about: then `bytes` and `bytes_per_hour` are of the time up to the last snapshot
    /// but one. `null` if the verdict follows from other figures.
    #[serde(default)]
    pub root: Option<String>,
    /// The owner of `kept_native[]` (with the cause `verdict.cause`) that the verdict is about: then `bytes` and `bytes_per_hour`
    /// are of the time up to the last snapshot but one. `null` if the verdict follows from other figures.
    #[serde(default)]
    pub owner: Option<String>,
    /// The change of the subject.
    pub bytes: i64,
    /// The rate of this change. `null` for different processes, and if no time passed.
    pub bytes_per_hour: Option<f64>,
    /// The reason for which growth may be no leak. `null` for a leak, and if nothing grew.
    pub doubt: Option<Doubt>,
    /// The confidence in the verdict.
    pub confidence: Confidence,
}

/// The memory that a verdict is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Ruby objects and the memory that they hold.
    Objects,
    /// Native memory of one owner or cause.
    Native,
    /// Native memory that nothing points to.
    Unreachable,
    /// Classes, methods, bytecode and machine code.
    Code,
    /// Free memory that malloc or Ruby keeps.
    Free,
    /// The cause in `verdict.cause`.
    Cause,
    /// All memory in use.
    InUse,
    /// All resident memory.
    Rss,
}

/// A reason for which growth may be no leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// The growth slows down.
    LevelsOff,
    /// The program loaded code.
    CodeIsLoaded,
    /// Owners were not searched for, or cannot be found.
    OwnersUnknown,
    /// Most of it is garbage that the GC has not collected.
    Garbage,
    /// Most of it is garbage, because the GC is disabled.
    GcDisabled,
    /// There are too few snapshots: two, or three if the verdict has a root or an owner.
    FewSnapshots,
    /// The rate of growth changes.
    Uneven,
    /// It grows steadily, but nothing proves a leak, for example within ten seconds.
    Unproven,
    /// It comes and goes: most objects that were new in the last but one snapshot are gone, or at least a fifth of the new blocks
    /// of native memory is.
    Turnover,
    /// RSS grew, but nothing in use did.
    NothingInUse,
    /// Fewer than two snapshots have the process's memory. Only `rss_bytes` can be compared.
    Unread,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    /// Ruby objects accumulate steadily.
    ManagedLeak,
    /// Native memory accumulates steadily.
    NativeLeak,
    /// Code is defined again and again.
    CodeLeak,
    /// Memory in use grew. It is too early to tell whether that continues.
    Growth,
    /// Memory in use grew more and more slowly, or because code was loaded.
    WarmUp,
    /// Only free memory grew.
    Retention,
    /// Nothing grew.
    Stable,
    /// RSS fell.
    Shrank,
    /// The snapshots are of different processes. `verdict.subject` is `rss`, and `verdict.cause` is the cause that differs most.
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
