//! Recordings whose memory was judged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Content};

/// The document of `rbloat report` on recordings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stability {
    /// The memory of each recording, in the order of the arguments.
    pub recordings: Vec<RecordingStability>,
}

impl Content for Stability {
    const KIND: &'static str = "stability";
}

/// The memory of one recording over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordingStability {
    /// The name of its file, without the extension.
    pub name: String,
    /// The bytes that are judged.
    pub measure: MemoryMeasure,
    /// The development of memory.
    pub shape: MemoryShape,
    /// The confidence in the shape.
    pub confidence: Confidence,
    /// The beginning of the time that is judged, since that of the recording: the end of the warm-up.
    pub from_seconds: f64,
    /// The end of that time: the last sample.
    pub to_seconds: f64,
    /// The last value.
    pub last_bytes: u64,
    /// The range of memory, of a plateau and of a saw-tooth. Otherwise `null`.
    pub level: Option<MemoryLevel>,
    /// The rate of growth; for a saw-tooth, of its low points. `null` without an estimate.
    pub growth: Option<GrowthRate>,
    /// The time until the limit of the control group is reached at this rate, for the shape `"growth"`. Otherwise, and without a
    /// limit, `null`.
    pub limit: Option<TimeToLimit>,
    /// The most processes in a sample.
    pub max_processes: u64,
    /// The processes of the control group that the kernel killed for lack of memory meanwhile.
    pub oom_kills: u64,
}

/// The bytes that a recording's memory is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMeasure {
    /// RSS of one process.
    Rss,
    /// PSS of several processes.
    Pss,
    /// The sum of the RSS of several processes, if their PSS is not in the recording. Pages that they share count in each of
    /// them.
    SumOfRss,
}

/// The development of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryShape {
    /// It is stable.
    Plateau,
    /// It goes up and down, and does not grow.
    SawTooth,
    /// It grows.
    Growth,
    /// There are too few data, or it still slows down, rises in steps, or falls.
    TooEarly,
}

/// The range of memory after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryLevel {
    /// The 5 % quantile of a plateau, the median of the low points of a saw-tooth.
    pub low_bytes: u64,
    /// The 95 % quantile of a plateau, the median of the peaks of a saw-tooth.
    pub high_bytes: u64,
}

/// The growth of memory, with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrowthRate {
    /// The rate.
    pub bytes_per_second: f64,
    /// The lower bound of its interval of 95 %.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// The time until the memory limit is reached, with its interval of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeToLimit {
    /// The time.
    pub seconds: f64,
    /// The lower bound of its interval of 95 %.
    pub min_seconds: f64,
    /// The upper bound. `null`: possibly never.
    pub max_seconds: Option<f64>,
}
