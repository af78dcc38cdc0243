use ledger::Cause;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alarm::Alarm;
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
    /// Good to know.
    Note,
    /// A part of the report may be incomplete.
    Warning,
    /// A part of the report is missing.
    Error,
}

/// An observation about the capture or the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FindingRow {
    /// The severity, which follows from the kind.
    pub severity: FindingSeverity,
    /// The kind, with its figures.
    #[serde(flatten)]
    pub kind: FindingKind,
    /// The address that it concerns, if it is one.
    pub address: Option<String>,
}

/// The kind of a finding, with its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FindingKind {
    /// The core ends before its last segment.
    CoreTruncated {
        /// The bytes that are missing.
        bytes: u64,
    },
    /// The core lacks private memory.
    CoreMemoryMissing {
        /// The bytes that are missing.
        bytes: u64,
    },
    /// The core lacks stacks, since gdb could not read their guard pages.
    CoreStacksMissing {
        /// The number of their threads.
        threads: u64,
    },
    /// The core has invalid segments.
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
    /// Mapped files are missing.
    CoreFilesMissing {
        /// The first ones.
        files: Vec<MissingFile>,
        /// The number of the others.
        others: u64,
    },
    /// Files differ from those that the process had mapped.
    CoreFilesDiffer {
        /// The first ones.
        files: Vec<DifferentFile>,
        /// The number of the others.
        others: u64,
    },
    /// Files may differ from those that the process had mapped.
    CoreFilesUnproven {
        /// The first ones.
        paths: Vec<String>,
        /// The number of the others.
        others: u64,
    },
    /// The core has no objects: Ruby may have freed them before a signal ended it.
    CoreWithoutObjects,
    /// The memory of malloc and Ruby was not read; `capture.unread` has the reason.
    MemoryUnread,
    /// No library that serves malloc was found.
    MallocNotFound,
    /// rbloat cannot read the heap of the allocator.
    MallocUnsupported {
        /// The allocator.
        allocator: String,
    },
    /// The heap of malloc could not be read.
    MallocUnread {
        /// The message of the error.
        error: String,
    },
    /// The allocator is unknown: several modules export malloc, and their order is unknown.
    AllocatorUnknown {
        /// Their names.
        modules: Vec<String>,
    },
    /// The first module that exports malloc counts as the allocator.
    AllocatorAssumed {
        /// The module whose reference to malloc is not resolved.
        caller: String,
        /// The module that counts as the allocator.
        module: String,
    },
    /// An arena could not be read.
    ArenaUnread {
        /// The address of its structure.
        arena: String,
        /// True for the main arena.
        main: bool,
        /// The reason.
        problem: ArenaProblem,
        /// The message of the error.
        error: String,
    },
    /// An arena is not in the allocator's list of arenas.
    ArenaUnlisted {
        /// Its number, if it has one.
        number: Option<u64>,
    },
    /// An arena has used jemalloc's huge pages.
    HugePagesUsed,
    /// An extent of jemalloc could not be read.
    ExtentUnread {
        /// The message of the error.
        error: String,
    },
    /// A part of jemalloc's heap was being changed.
    HeapChanging {
        /// The part.
        part: HeapPart,
        /// The number of such parts.
        count: u64,
        /// Their bytes, which are under `unknown`; `None` if all bytes are known.
        bytes: Option<u64>,
    },
    /// Blocks in thread caches count as in use, since the caches are unknown.
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
    /// The cache of one thread could not be read, or only in part.
    ThreadCacheUnread {
        /// The thread.
        tid: i32,
        /// The reason.
        problem: CacheProblem,
        /// The message of the error, if the cache is invalid.
        error: Option<String>,
    },
    /// Mmapped chunks are unknown, since glibc's parameters were not found.
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
    /// glibc's count of mmapped bytes has grown too large.
    MmappedBytesDrifted {
        /// The bytes that glibc counts too much.
        bytes: u64,
        /// The number of mmapped chunks.
        chunks: u64,
        /// The bytes that glibc counts too much at each resize.
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
        /// The message of the error.
        error: String,
    },
    /// A layout of Ruby's structures could not be derived.
    RubyLayoutUnknown {
        /// The part of the report that is missing or inexact.
        part: RubyPart,
    },
    /// The layouts of some types of objects could not be derived.
    ObjectLayoutsUnknown {
        /// The types, such as `T_ARRAY`.
        types: Vec<String>,
    },
    /// There are more constants and variables than rbloat reads.
    RootsLeftOut,
    /// A part of Ruby's transient heap could not be read.
    TransientHeapUnread {
        /// The bytes of it.
        bytes: u64,
    },
    /// Slots of Ruby's heap are swapped out.
    SlotsUnread {
        /// Their number.
        slots: u64,
    },
    /// No object is marked.
    NoMarks,
    /// Memory was not searched for further heap pages, since there are no page states.
    HeapPagesUnsearched,
    /// Memory that may have pointers could not be read.
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
    /// The causes do not add up to the resident bytes.
    RssDiffers {
        /// The sum of the causes.
        bytes: u64,
        /// The smallest number of resident bytes by the count.
        min_bytes: u64,
        /// The largest one.
        max_bytes: u64,
        /// The source of the count.
        counted_by: RssCount,
    },
    /// Memory is claimed twice.
    ClaimedTwice {
        /// The number of such ranges.
        ranges: u64,
        /// The cause that has the first one.
        #[serde(with = "names::cause")]
        #[schemars(schema_with = "names::cause::schema")]
        cause: Cause,
        /// The cause of the other claim on it.
        #[serde(with = "names::cause")]
        #[schemars(schema_with = "names::cause::schema")]
        other: Cause,
    },
    /// The environment of the process cannot be read.
    EnvironmentUnknown,
    /// The forked copy has ended, but is still in the process table.
    CopyLeft {
        /// The process that it is a zombie of.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// The control group of the process raised an alarm, which is the reason for the snapshot.
    GroupAlarm {
        /// The alarm.
        alarm: Alarm,
        /// The memory that the group used.
        used_bytes: u64,
        /// The limit of the group.
        limit_bytes: u64,
    },
    /// The memory limit of a family is unknown.
    GroupLimitUnknown,
    /// A member of a family ended before it was read.
    ProcessEnded {
        /// The process.
        pid: i32,
    },
    /// A member of a family could not be read.
    ProcessUnread {
        /// The process.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// A member of a family was read in part: its pages are known, its memory is not.
    ProcessUnexplained {
        /// The process.
        pid: i32,
        /// The message of the error.
        error: String,
    },
    /// A member of a family could not be trimmed.
    ProcessNotTrimmed {
        /// The process.
        pid: i32,
        /// The message of the error.
        error: String,
    },
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
