#![doc = include_str!("../README.md")]

mod agent;
mod alarm;
mod comparison;
mod confidence;
mod csv;
mod deployment;
mod diff;
mod dump_diff;
mod explanations;
mod family;
mod fit;
mod growth_sample;
mod kept;
mod line;
mod made_by;
mod names;
mod page_size;
mod processes;
mod recording;
mod report;
mod snapshot;
mod stability;
mod trim;
mod untrusted;
mod verdict;
mod who;
mod why;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use agent::{
    ArchiveOutcome, Archived, CaptureOutcome, Captured, Container, Node, NodeGroup, NodeMemory,
    NodeProcess, Owned, Pauses, Place, PushOutcome, SnapshotOutcome, StoredSnapshots, Treatment,
    TreatmentOutcome,
};
pub use alarm::{Alarm, GroupMember};
pub use comparison::{
    Comparison, Drawback, FailedRun, LoadResult, Medians, MissingSetting, PassedOver, Reason,
    Recommendation, Run, RunPoint, Spread, TriedSetting,
};
pub use confidence::Confidence;
pub use csv::{CSV_HEAD, csv_line};
pub use deployment::{Deployment, Platform, Server};
pub use diff::{
    ArenaChange, CauseChange, ClassChange, CodeChange, Diff, DiffKind, DiffPoint, DiffSampling,
    DiffVerdict, DominatorChange, Doubt, InterpreterChange, KeptChange, KeptNative, OwnerChange,
    PinChange, Rate, SizeClassChange, Subject, Trajectory, UnchangedRow, UnreadPoint, WasteChange,
};
pub use dump_diff::{DumpCount, DumpDiff, DumpGroup, DumpPoint, DumpSampling};
pub use explanations::{Explanation, Explanations};
pub use family::{
    CopiedOwner, Family, FamilyCause, FamilyDiff, FamilyLimit, FamilyMember, FamilyPoint,
    FamilyStep, GroupParts, IdenticalPages, LateCode, LateFile, LateGem, MemberChange, MemberWrite,
    OtherProcess, Outlook, SharedPages, WorkerGrowth, WriteChange, WriteRow, WrittenOwner,
};
pub use fit::{Fit, FitBasis, FitDoubt, FitModel, FitNow, FitRemedy, FitRow, FitThreads};
pub use growth_sample::{GrowthFrames, GrowthSample};
pub use kept::{Kept, KeptGrowth, KeptJudgement, KeptLine, KeptRow, KeptStack, KeptUnknown};
pub use line::{
    Arrival, CauseSample, Departure, EndReason, Group, KeptSoFar, Line, ProcessSample, ReadFailure,
    RecordingEnd, RecordingStart, Sample,
};
pub use made_by::{MadeBy, MadePages, Maker};
pub use processes::{ListedProcess, Processes};
pub use recording::{Recording, RecordingError};
pub use report::{
    Arena, ArenaProblem, ArenaSlabs, CacheProblem, CacheUnit, CachesProblem, Capture,
    CaptureMethod, CauseRow, Class, CopiesRow, DifferentFile, DominatorRow, FamilyMemory, FewRow,
    FewThings, FileCode, FindingKind, FindingRow, FindingSeverity, Gc, GemCode, HeapPart,
    Interpreter, InterpreterPart, KeptBy, KeptStacks, Malloc, MallocTuning, MappedFile, Memsize,
    MissingFile, NoCopy, Owner, PinRow, PlaceRow, ProcessSummary, Ractor, Report, ReportGroup,
    ResidencyEvidence, RootUses, RssCount, Ruby, RubyPart, SizeClass, TextRow, ThreadRow,
    TmpfsFile, UnknownRow, Unread, Waste, WasteContents, WasteGroup, WasteRow, milliseconds,
};
pub use snapshot::{FORMAT, READ_FORMATS, Section, Snapshot, SnapshotError, SnapshotKind};
pub use stability::{
    GrowthRate, MemoryLevel, MemoryMeasure, MemoryShape, RecordingStability, Stability, TimeToLimit,
};
pub use trim::{
    FamilyTrim, TrimConclusion, TrimExpectation, TrimOutcome, TrimReport, TrimWatch, WatchPoint,
};
pub use verdict::{Action, Advice, LargeGem, OtherThreads, ThreadStarter, Verdict};
pub use who::{
    Sampling, SamplingMethod, TaskKind, UnknownStacks, Who, WhoFrame, WhoKind, WhoKindShare,
    WhoLine, WhoMachineCode, WhoMethod, WhoOldObjects, WhoOrigin, WhoProcess, WhoShare, WhoStack,
    WhoTask, WhoTouched,
};
pub use why::{Why, WhyKind, WhyReferrer, WhySubject};

/// The version of the JSON documents.
pub const SCHEMA: u32 = 3;

/// A JSON document as rbloat prints it: its content, what it is, and one sentence for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Document<T> {
    /// The version of the fields. A later rbloat may add fields. If it renames or removes one, it raises this number.
    pub schema: u32,
    /// The kind of document: the name of its schema.
    pub kind: String,
    /// The result in one sentence, for people. Its wording may change; programs should read the other fields.
    pub summary: String,
    /// The content.
    #[serde(flatten)]
    pub content: T,
}

/// The content of a document.
pub trait Content: Serialize {
    /// The kind of documents with this content: the name of the file of its schema.
    const KIND: &'static str;
}

/// A function that returns a JSON Schema.
pub type Schema = fn() -> serde_json::Value;

/// The kind of each document, and its schema.
pub const SCHEMAS: [(&str, Schema); 15] = [
    (Processes::KIND, schema::<Processes>),
    (Report::KIND, schema::<Report>),
    (Diff::KIND, schema::<Diff>),
    (DumpDiff::KIND, schema::<DumpDiff>),
    (Family::KIND, schema::<Family>),
    (FamilyDiff::KIND, schema::<FamilyDiff>),
    (Comparison::KIND, schema::<Comparison>),
    (TrimReport::KIND, schema::<TrimReport>),
    (FamilyTrim::KIND, schema::<FamilyTrim>),
    (Who::KIND, schema::<Who>),
    (Kept::KIND, schema::<Kept>),
    (Why::KIND, schema::<Why>),
    (Stability::KIND, schema::<Stability>),
    (Fit::KIND, schema::<Fit>),
    (Explanations::KIND, schema::<Explanations>),
];

/// Returns a document as JSON, with a line break at its end. `summary` is its content in one sentence. Control characters
/// are escaped.
///
/// # Panics
/// If a map of the content has keys that are not strings. No content has such a map.
#[must_use]
pub fn to_json<T: Content>(content: &T, summary: &str) -> String {
    let document =
        Document { schema: SCHEMA, kind: T::KIND.into(), summary: summary.into(), content };
    let json = serde_json::to_string_pretty(&document).expect("a document has string keys");
    untrusted::escape_controls(&json) + "\n"
}

/// Reads a document that rbloat printed.
///
/// # Errors
/// If it is something else. The error says what is wrong.
pub fn from_json<T: Content + DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    /// The beginning of every document.
    #[derive(Deserialize)]
    struct Head {
        kind: String,
    }
    let head: Head = untrusted::parse_addresses(json)?;
    if head.kind != T::KIND {
        return Err(format!("it is a document of the kind `{}`", linux::one_line(&head.kind)));
    }
    untrusted::parse_addresses(json)
}

/// Returns the JSON Schema of all documents with content `T`.
#[must_use]
pub fn schema<T: Content + JsonSchema>() -> serde_json::Value {
    let schema = schemars::schema_for!(Document<T>);
    let mut schema = schema.to_value();
    schema["properties"]["kind"]["const"] = T::KIND.into();
    schema["properties"]["schema"]["const"] = SCHEMA.into();
    schema
}

/// Returns `bytes` in gzip's format.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.expect("a vector takes everything")
}
