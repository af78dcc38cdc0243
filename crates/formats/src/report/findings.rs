use ledger::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alarm::{Alarm, GroupMember};
use crate::names;
use crate::report::finding_figures::{
    ArenaProblem, CacheProblem, CacheUnit, CachesProblem, DifferentFile, HeapPart, MissingFile,
    ResidencyEvidence, RssCount, RubyPart,
};

/// The severity of a finding.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// All figures are right.
    Note,
    /// A part of the report may be incomplete.
    Warning,
    /// A part is missing.
    Error,
}

/// An observation about the capture or the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FindingRow {
    /// It follows from the kind. The most severe findings come first.
    pub severity: FindingSeverity,
    /// The kind, with its figures.
    #[serde(flatten)]
    pub kind: FindingKind,
    /// The place in memory that it concerns. `null` if there is none.
    pub address: Option<String>,
}

/// The kind of a finding, with its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FindingKind {
    /// The memory was not read. `capture.unread` has the reason.
    MemoryUnread,
    /// The process has no library that serves malloc.
    MallocNotFound,
    /// rbloat cannot read the heap of the allocator.
    MallocUnsupported {
        /// The allocator.
        allocator: String,
    },
    /// The heap could not be read.
    MallocUnread {
        /// The message of the error.
        error: String,
    },
    /// Several modules export malloc, and their order is unknown.
    AllocatorUnknown {
        /// Their names.
        modules: Vec<String>,
    },
    /// A reference to malloc is not resolved yet, so the first module that exports malloc counts as the allocator.
    AllocatorAssumed {
        /// The module with this reference.
        caller: String,
        /// The module that counts as the allocator.
        module: String,
    },
    /// An arena could not be read. Its memory is in `unknown`.
    ArenaUnread {
        /// Its address.
        arena: String,
        /// True for the main arena.
        main: bool,
        /// The reason.
        problem: ArenaProblem,
        /// The message of the error.
        error: String,
    },
    /// An arena is not in the allocator's list.
    ArenaUnlisted {
        /// Its number. `null` for glibc.
        number: Option<u64>,
    },
    /// An arena has used jemalloc's huge pages, whose free memory is in `unknown`.
    HugePagesUsed,
    /// An extent of jemalloc could not be read. Its memory is in `unknown`.
    ExtentUnread {
        /// The message of the error.
        error: String,
    },
    /// Parts of jemalloc's heap were being changed.
    HeapChanging {
        /// The kind of parts.
        part: HeapPart,
        /// Their number.
        count: u64,
        /// Their bytes in `unknown`. `null` if none are.
        bytes: Option<u64>,
    },
    /// Blocks in thread caches count as in use, since the caches were not found.
    ThreadCachesUnknown {
        /// The reason.
        problem: CachesProblem,
    },
    /// Blocks in thread caches count as in use, since the caches do not agree with the heap.
    ThreadCachesRejected {
        /// The number of threads or regions that do not agree.
        misfits: u64,
        /// The number of threads with caches, or of regions in caches.
        all: u64,
        /// The things that were counted.
        unit: CacheUnit,
    },
    /// The cache of one thread was not read, or in part.
    ThreadCacheUnread {
        /// The thread.
        tid: i32,
        /// The reason.
        problem: CacheProblem,
        /// The message of the error. `null` unless the cache is invalid.
        error: Option<String>,
    },
    /// glibc's parameters were not found, so mmapped chunks are unknown.
    MmappedChunksUnknown,
    /// glibc counts other mmapped chunks than were found.
    MmappedChunksMiscounted {
        /// The number of chunks that glibc counts.
        counted_chunks: u64,
        /// The bytes that glibc counts.
        counted_bytes: u64,
        /// The number of chunks that were found.
        found_chunks: u64,
        /// Their bytes.
        found_bytes: u64,
    },
    /// glibc's count of mmapped bytes is too high.
    MmappedBytesDrifted {
        /// The excess.
        bytes: u64,
        /// The number of mmapped chunks.
        chunks: u64,
        /// The excess of each resize.
        step_bytes: u64,
    },
    /// Another user of brk(2) has memory between the segments of the main arena.
    ForeignBrkMemory {
        /// The bytes of it.
        bytes: u64,
    },
    /// The process does not run Ruby.
    RubyNotFound,
    /// Ruby has no classes yet.
    RubyStarting {
        /// Its version.
        version: String,
    },
    /// rbloat cannot read the heap of the garbage collector.
    CollectorUnsupported {
        /// Ruby's version.
        version: String,
        /// The collector.
        collector: String,
    },
    /// Ruby's heap could not be read.
    RubyUnread {
        /// Ruby's version.
        version: String,
        /// The check that failed.
        error: String,
    },
    /// A layout of Ruby's structures could not be derived.
    RubyLayoutUnknown {
        /// The missing or inexact part.
        part: RubyPart,
    },
    /// The layouts of some types of objects could not be derived, so all of their words count as pointers.
    ObjectLayoutsUnknown {
        /// The types (`"T_ARRAY"` …).
        types: Vec<String>,
    },
    /// There are more constants and variables than rbloat reads.
    RootsLeftOut,
    /// A part of Ruby's transient heap could not be read.
    TransientHeapUnread {
        /// The bytes of it.
        bytes: u64,
    },
    /// Slots are swapped out.
    SlotsUnread {
        /// Their number.
        slots: u64,
    },
    /// No object is marked: there was no garbage collection yet, or one has just begun.
    NoMarks,
    /// There are no page states, so memory was not searched for further heap pages.
    HeapPagesUnsearched,
    /// Memory that may have pointers could not be read, so owners may be missing.
    PointersUnread {
        /// The bytes of it.
        bytes: u64,
        /// True if it is not in the core, false if it is swapped out.
        in_core: bool,
    },
    /// A chunk has more pointers than rbloat keeps.
    PointersLeftOut {
        /// The number of pointers that were left out.
        pointers: u64,
    },
    /// The process has more chunks and objects than rbloat traces.
    OwnersUnknown {
        /// Their number.
        nodes: u64,
        /// The maximum.
        max: u64,
    },
    /// The causes do not add up to RSS.
    RssDiffers {
        /// Their sum.
        bytes: u64,
        /// The lower bound of RSS.
        min_bytes: u64,
        /// The upper bound of RSS.
        max_bytes: u64,
        /// The source of the count.
        counted_by: RssCount,
    },
    /// Two parts of rbloat claim the same memory.
    ClaimedTwice {
        /// The number of such ranges.
        ranges: u64,
        /// The cause of the first one, which has it.
        #[serde(with = "names::cause")]
        #[schemars(schema_with = "names::cause::schema")]
        cause: Cause,
        /// The other cause of the first one.
        #[serde(with = "names::cause")]
        #[schemars(schema_with = "names::cause::schema")]
        other: Cause,
    },
    /// The environment cannot be read, so advice may already be in effect.
    EnvironmentUnknown,
    /// The forked copy has ended, but is still in the process table.
    CopyLeft {
        /// The process that it is a zombie of.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// The reason for which `rbloat agent` saved this snapshot.
    GroupAlarm {
        /// The alarm.
        alarm: Alarm,
        /// The memory that the group used.
        used_bytes: u64,
        /// The limit of the group.
        limit_bytes: u64,
        /// The part of `used_bytes` in files in memory (tmpfs) and shared memory.
        #[serde(default)]
        shmem_bytes: u64,
        /// The other processes of the group with most memory.
        #[serde(default)]
        others: Vec<GroupMember>,
        /// The time from this capture to the kill, if the alarm is `killed`.
        #[serde(default)]
        after_ms: Option<u64>,
    },
    /// The control group of a family was not found.
    GroupLimitUnknown,
    /// A member of a family ended before it was read.
    ProcessEnded {
        /// The process.
        pid: i32,
    },
    /// A member of a family could not be examined, so the account lacks it.
    ProcessUnread {
        /// The process.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// The pages of a member of a family are known, but its memory was not read.
    ProcessUnexplained {
        /// The process.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// A member of a family was not trimmed.
    ProcessNotTrimmed {
        /// The process.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// The core ends before its last segment.
    CoreTruncated {
        /// The bytes that are missing.
        bytes: u64,
    },
    /// Private memory was not dumped.
    CoreMemoryMissing {
        /// The bytes that are missing.
        bytes: u64,
    },
    /// The core lacks stacks, since gdb could not read their guard pages.
    CoreStacksMissing {
        /// The number of their threads.
        threads: u64,
    },
    /// Segments are invalid, and were left out.
    CoreSegmentsInvalid {
        /// Their number.
        segments: u64,
    },
    /// The core does not name the mapped files.
    CoreFilesUnknown,
    /// The core has no threads.
    CoreThreadsMissing,
    /// RSS is an estimate, since a core has no page states.
    CoreResidencyEstimated {
        /// The evidence for resident pages.
        evidence: ResidencyEvidence,
    },
    /// It is unknown how much of mapped files was resident.
    CoreFileResidencyUnknown {
        /// The bytes of these mappings.
        bytes: u64,
    },
    /// Mapped files could not be opened.
    CoreFilesMissing {
        /// The first ones.
        files: Vec<MissingFile>,
        /// The number of files that are not listed.
        others: u64,
    },
    /// Files have other build ids than the mapped ones.
    CoreFilesDiffer {
        /// The first ones.
        files: Vec<DifferentFile>,
        /// The number of files that are not listed.
        others: u64,
    },
    /// The core has no build ids of mapped files, which may differ.
    CoreFilesUnproven {
        /// The first ones.
        paths: Vec<String>,
        /// The number of files that are not listed.
        others: u64,
    },
    /// Ruby may have freed its heap before a signal ended it.
    CoreWithoutObjects,
    /// A finding by another version of rbloat: earlier ones wrote a sentence instead of a kind.
    #[serde(untagged)]
    Other {
        /// The name of the kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// The sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        what: Option<String>,
    },
}

impl FindingKind {
    /// Returns the severity of a finding of this kind.
    #[must_use]
    pub fn severity(&self) -> FindingSeverity {
        use FindingSeverity::{Error, Note, Warning};
        match self {
            Self::CoreTruncated { .. }
            | Self::CoreMemoryMissing { .. }
            | Self::CoreSegmentsInvalid { .. }
            | Self::CoreFilesUnknown
            | Self::MemoryUnread
            | Self::MallocNotFound
            | Self::MallocUnsupported { .. }
            | Self::MallocUnread { .. }
            | Self::AllocatorUnknown { .. }
            | Self::MmappedChunksUnknown
            | Self::RubyNotFound
            | Self::RubyStarting { .. }
            | Self::CollectorUnsupported { .. }
            | Self::RubyUnread { .. }
            | Self::ProcessUnread { .. }
            | Self::ProcessUnexplained { .. }
            | Self::ProcessNotTrimmed { .. } => Error,
            Self::CoreStacksMissing { .. }
            | Self::CoreThreadsMissing
            | Self::CoreFilesMissing { .. }
            | Self::CoreFilesDiffer { .. }
            | Self::CoreFilesUnproven { .. }
            | Self::ArenaUnread { .. }
            | Self::ArenaUnlisted { .. }
            | Self::ExtentUnread { .. }
            | Self::ThreadCachesUnknown { .. }
            | Self::ThreadCachesRejected { .. }
            | Self::ThreadCacheUnread { problem: CacheProblem::Invalid, .. }
            | Self::MmappedChunksMiscounted { .. }
            | Self::RubyLayoutUnknown {
                part: RubyPart::ClassNames | RubyPart::SingletonClasses | RubyPart::InternalTypes,
            }
            | Self::TransientHeapUnread { .. }
            | Self::SlotsUnread { .. }
            | Self::PointersUnread { .. }
            | Self::PointersLeftOut { .. }
            | Self::OwnersUnknown { .. }
            | Self::RssDiffers { .. }
            | Self::ClaimedTwice { .. }
            | Self::GroupLimitUnknown
            | Self::ProcessEnded { .. } => Warning,
            Self::CoreResidencyEstimated { .. }
            | Self::CoreFileResidencyUnknown { .. }
            | Self::CoreWithoutObjects
            | Self::AllocatorAssumed { .. }
            | Self::HugePagesUsed
            | Self::HeapChanging { .. }
            | Self::ThreadCacheUnread { .. }
            | Self::MmappedBytesDrifted { .. }
            | Self::ForeignBrkMemory { .. }
            | Self::RubyLayoutUnknown { .. }
            | Self::ObjectLayoutsUnknown { .. }
            | Self::RootsLeftOut
            | Self::NoMarks
            | Self::HeapPagesUnsearched
            | Self::EnvironmentUnknown
            | Self::CopyLeft { .. }
            | Self::GroupAlarm { .. }
            | Self::Other { .. } => Note,
        }
    }
}

impl From<FindingKind> for FindingRow {
    fn from(kind: FindingKind) -> Self {
        Self { severity: kind.severity(), kind, address: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> FindingRow {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_kind_is_a_field_beside_its_figures() {
        let kind = FindingKind::ForeignBrkMemory { bytes: 64 };
        let row = FindingRow { address: Some("0x7f00".into()), ..FindingRow::from(kind) };
        let json =
            r#"{"severity":"note","kind":"foreign_brk_memory","bytes":64,"address":"0x7f00"}"#;
        assert_eq!(serde_json::to_string(&row).unwrap(), json);
        assert_eq!(read(json), row);
    }

    /// Earlier versions wrote sentences, and later ones have other kinds or figures.
    #[test]
    fn findings_of_other_versions_are_read() {
        let old = r#"{"severity":"warning","what":"a sentence","address":null}"#;
        let row = read(old);
        assert_eq!(row.severity, FindingSeverity::Warning);
        assert_eq!(row.kind, FindingKind::Other { kind: None, what: Some("a sentence".into()) });
        assert_eq!(serde_json::to_string(&row).unwrap(), old);
        for (kind, figures) in [("a_later_kind", ""), ("slots_unread", r#","slots":"some""#)] {
            let row =
                read(&format!(r#"{{"severity":"error","kind":"{kind}"{figures},"address":null}}"#));
            let kind = FindingKind::Other { kind: Some(kind.into()), what: None };
            assert_eq!((row.severity, row.kind), (FindingSeverity::Error, kind));
        }
    }
}
