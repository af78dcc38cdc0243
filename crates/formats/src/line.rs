//! The lines of a recording's file, a stable interface: docs/formats.md describes them.
//!
//! Sizes are bytes, times are milliseconds. Fields may be added; none is renamed.

use std::ops::RangeInclusive;

use linux::proc::GroupMemory;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CauseRow, GrowthSample, Kept, Owner, Report};

/// The version of this format.
pub(crate) const SCHEMA: u32 = 1;
/// The versions that are read.
pub(crate) const READ_SCHEMAS: RangeInclusive<u64> = 1..=SCHEMA as u64;
/// The maximum number of owners of a capture.
const MAX_OWNERS: usize = 10;

/// One line of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The first line: the target and the intervals.
    Start(RecordingStart),
    /// A process was seen for the first time, or became another program by exec.
    Process(Arrival),
    /// The kernel's counters for all processes at one time.
    Sample(Sample),
    /// The causes of all resident bytes of one process.
    Causes(CauseSample),
    /// The growth of all processes by code.
    Growth(GrowthSample),
    /// The lines that allocate what stays, since the beginning.
    Kept(KeptSoFar),
    /// Something could not be read.
    Failure(ReadFailure),
    /// A process has ended.
    Gone(Departure),
    /// The last line, unless the recorder was killed.
    End(RecordingEnd),
    /// A kind of line that a later version of rbloat may write. Readers skip it.
    #[serde(other)]
    Unknown,
}

/// The target and the intervals of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/formats.md describes the fields, once for all readers")]
pub struct RecordingStart {
    pub rbloat: String,
    pub unix_ms: u64,
    pub pid: i32,
    #[serde(default)]
    pub command: Option<Vec<String>>,
    pub every_ms: u64,
    #[serde(default)]
    pub causes_every_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A process that was seen for the first time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct Arrival {
    pub t_ms: u64,
    pub pid: i32,
    pub parent: i32,
    pub started_ticks: u64,
    pub command: String,
}

/// All processes at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct Sample {
    pub t_ms: u64,
    pub exact: bool,
    pub rss_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uss_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_bytes: Option<u64>,
    pub processes: Vec<ProcessSample>,
    #[serde(default)]
    pub group: Option<Group>,
    pub recorder_cpu_ms: f64,
}

/// One process of a sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct ProcessSample {
    pub pid: i32,
    pub started_ticks: u64,
    pub state: char,
    pub rss_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uss_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    pub user_ms: u64,
    pub system_ms: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub threads: u64,
}

/// The memory of the control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// The memory that is charged to it.
    pub usage_bytes: u64,
    /// Its limit: the lower of memory.max and memory.high. `null` if it has none.
    pub limit_bytes: Option<u64>,
    /// The part of its memory in caches of files.
    pub cache_bytes: u64,
    /// Its OOM kills. `null` if the kernel does not count them.
    pub oom_kills: Option<u64>,
}

impl From<GroupMemory> for Group {
    fn from(memory: GroupMemory) -> Self {
        let GroupMemory { usage_bytes, limit_bytes, cache_bytes, oom_kills, .. } = memory;
        Self { usage_bytes, limit_bytes, cache_bytes, oom_kills }
    }
}

impl Group {
    /// Returns the number of processes that the kernel killed at the group's limit since an earlier sample; 0 if the
    /// limit differs, since the target was then moved to another group, which has another counter.
    #[must_use]
    pub fn kills_since(self, before: Self) -> u64 {
        let (Some(now), Some(then)) = (self.oom_kills, before.oom_kills) else { return 0 };
        if self.limit_bytes == before.limit_bytes { now.saturating_sub(then) } else { 0 }
    }
}

/// The result of `--kept` since the beginning of the observation: the document of `rbloat who --kept`, without stacks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct KeptSoFar {
    pub t_ms: u64,
    pub kept: Kept,
}

impl KeptSoFar {
    /// Creates a line, without the stacks, which are many.
    #[must_use]
    pub fn new(t_ms: u64, kept: Kept) -> Self {
        Self { t_ms, kept: Kept { frames: Vec::new(), stacks: Vec::new(), ..kept } }
    }
}

/// The causes of all resident bytes of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct CauseSample {
    pub t_ms: u64,
    pub pid: i32,
    pub started_ticks: u64,
    pub command: String,
    pub ruby_version: Option<String>,
    pub allocator: String,
    pub rss_bytes: u64,
    pub causes: Vec<CauseRow>,
    #[serde(with = "crate::names::cause_or_healthy")]
    #[schemars(schema_with = "crate::names::cause_or_healthy::schema")]
    pub verdict: Option<ledger::Cause>,
    pub trim_yield_bytes: Option<u64>,
    pub slots_live: Option<u64>,
    pub slots_free: Option<u64>,
    pub method: crate::CaptureMethod,
    pub pause_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<Vec<Owner>>,
    pub recorder_cpu_ms: f64,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct ReadFailure {
    pub t_ms: u64,
    pub pid: i32,
    pub what: String,
}

/// A process that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct Departure {
    pub t_ms: u64,
    pub pid: i32,
    pub started_ticks: u64,
}

/// The reason for the end of a recording, and its cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see RecordingStart")]
pub struct RecordingEnd {
    pub t_ms: u64,
    pub why: EndReason,
    #[serde(default)]
    pub exit_status: Option<i32>,
    #[serde(default)]
    pub signal: Option<i32>,
    pub samples: u64,
    pub exact_samples: u64,
    pub captures: u64,
    #[serde(default)]
    pub searches: Option<u64>,
    #[serde(default)]
    pub searches_planned: Option<u64>,
    pub recorder_cpu_ms: f64,
}

/// The reason for the end of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EndReason {
    /// The recorded process ended.
    #[serde(rename = "the target ended")]
    TargetEnded,
    /// The recorder was asked to stop.
    #[serde(rename = "interrupted")]
    Interrupted,
    /// The requested time was over.
    #[serde(rename = "the time was over")]
    TimeOver,
}

#[derive(Serialize)]
struct Versioned<'a> {
    schema: u32,
    #[serde(flatten)]
    line: &'a Line,
}

impl Line {
    /// Returns the line as in the file: a JSON object and a line break.
    ///
    /// # Panics
    /// Never: every line can be written as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let line = Versioned { schema: SCHEMA, line: self };
        serde_json::to_string(&line).expect("keys are text, numbers are finite") + "\n"
    }

    /// Returns the time of the line, in ms since the recording began.
    #[must_use]
    pub fn t_ms(&self) -> Option<u64> {
        match self {
            Self::Start(_) | Self::Unknown => None,
            Self::Process(line) => Some(line.t_ms),
            Self::Sample(line) => Some(line.t_ms),
            Self::Causes(line) => Some(line.t_ms),
            Self::Growth(line) => Some(line.t_ms),
            Self::Kept(line) => Some(line.t_ms),
            Self::Failure(line) => Some(line.t_ms),
            Self::Gone(line) => Some(line.t_ms),
            Self::End(line) => Some(line.t_ms),
        }
    }
}

impl CauseSample {
    /// Extracts a sample from a report. Causes without bytes are left out, and so are small owners.
    #[must_use]
    pub fn new(t_ms: u64, report: Report, recorder_cpu_ms: f64) -> Self {
        let report = report.brief(MAX_OWNERS);
        let Report { process, capture, causes, malloc, ruby, owners, verdict, .. } = report;
        Self {
            t_ms,
            pid: process.pid,
            started_ticks: process.started_ticks.unwrap_or(0),
            command: process.command,
            ruby_version: process.ruby_version,
            allocator: process.allocator,
            rss_bytes: process.rss_bytes,
            causes: causes.into_iter().filter(|row| row.bytes > 0).collect(),
            verdict: verdict.cause,
            trim_yield_bytes: malloc.map(|malloc| malloc.trim_yield_bytes),
            slots_live: ruby.as_ref().map(|ruby| ruby.slots_live),
            slots_free: ruby.as_ref().map(|ruby| ruby.slots_free),
            method: capture.method,
            pause_ms: capture.pause_ms,
            owners,
            recorder_cpu_ms,
        }
    }
}
