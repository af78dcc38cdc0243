//! Recordings whose memory was judged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Content};

/// The document of `rbloat report` on recordings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Stability {
    pub recordings: Vec<RecordingStability>,
}

impl Content for Stability {
    const KIND: &'static str = "stability";
}

/// The memory of one recording over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Stability")]
pub struct RecordingStability {
    pub name: String,
    pub measure: MemoryMeasure,
    pub shape: MemoryShape,
    pub confidence: Confidence,
    /// The end of the warm-up.
    pub from_seconds: f64,
    pub to_seconds: f64,
    pub last_bytes: u64,
    /// `None` if the shape has no level.
    pub level: Option<MemoryLevel>,
    /// `None` if it is too early for a slope.
    pub growth: Option<GrowthRate>,
    /// `None` without growth or without a limit.
    pub limit: Option<TimeToLimit>,
    pub max_processes: u64,
    pub oom_kills: u64,
}

/// The bytes that a recording's memory is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMeasure {
    /// RSS of one process.
    Rss,
    /// PSS of all processes.
    Pss,
    /// The sum of RSS: pages that processes share count in each of them.
    SumOfRss,
}

/// The development of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryShape {
    /// Memory is stable.
    Plateau,
    /// Memory goes up and down, and does not grow.
    SawTooth,
    /// Memory grows.
    Growth,
    /// It is too early for a statement.
    TooEarly,
}

/// The range of memory after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Stability")]
pub struct MemoryLevel {
    pub low_bytes: u64,
    pub high_bytes: u64,
}

/// The growth of memory, with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Stability")]
pub struct GrowthRate {
    pub bytes_per_second: f64,
    pub low: f64,
    pub high: f64,
}

/// The time until the memory limit is reached, with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Stability")]
pub struct TimeToLimit {
    pub seconds: f64,
    pub min_seconds: f64,
    /// `None`: possibly never.
    pub max_seconds: Option<f64>,
}
