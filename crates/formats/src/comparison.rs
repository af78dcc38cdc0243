use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Content};

/// The document of `rbloat compare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Comparison {
    pub command: Vec<String>,
    pub load: Option<String>,
    pub settle_seconds: f64,
    pub settings: Vec<TriedSetting>,
    pub missing: Vec<MissingSetting>,
    pub failed: Vec<FailedRun>,
    pub runs: Vec<Run>,
    pub medians: Vec<Medians>,
    pub recommendation: Recommendation,
}

impl Content for Comparison {
    const KIND: &'static str = "comparison";
}

/// A setting that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct TriedSetting {
    pub setting: String,
    pub environment: Vec<(String, String)>,
}

/// A setting that could not be tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct MissingSetting {
    pub setting: String,
    pub needs: String,
}

/// A run that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct FailedRun {
    pub setting: String,
    pub number: u32,
    pub why: String,
}

/// One run of the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Run {
    pub setting: String,
    pub number: u32,
    pub rss_peak_bytes: u64,
    pub rss_end_bytes: u64,
    pub rss_settled_bytes: Option<u64>,
    pub wall_ms: f64,
    pub user_ms: f64,
    pub system_ms: f64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub load: Option<LoadResult>,
    pub samples: Vec<RunPoint>,
}

/// RSS at some time of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct RunPoint {
    pub ms: f64,
    pub rss_bytes: u64,
}

/// The runs of one setting together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Medians {
    pub setting: String,
    pub runs: u32,
    pub rss_peak_bytes: Spread,
    pub rss_end_bytes: Spread,
    pub rss_settled_bytes: Option<Spread>,
    pub wall_ms: Spread,
    pub user_ms: Spread,
    pub system_ms: Spread,
    pub minor_faults: Spread,
    pub requests_per_second: Option<Spread>,
    pub failures: Option<u64>,
    pub p50_ms: Option<Spread>,
    pub p99_ms: Option<Spread>,
    pub max_ms: Option<Spread>,
}

/// The median, minimum and maximum of a measurement, and its difference from the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The difference from the baseline's median, in percent; `None` for the baseline, and for differences within noise.
    pub differs_percent: Option<f64>,
    /// The probability of the difference by chance alone; `None` for the baseline, and if it cannot be estimated.
    #[serde(default)]
    pub p: Option<f64>,
}

impl Medians {
    /// The remaining memory: after the time to settle, or at the end of a command that ended.
    #[must_use]
    pub fn left_bytes(&self) -> &Spread {
        self.rss_settled_bytes.as_ref().unwrap_or(&self.rss_end_bytes)
    }
}

/// The recommended setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Recommendation {
    pub setting: String,
    pub reason: Reason,
    pub saves_bytes: f64,
    pub saves_percent: f64,
    pub peak_percent: Option<f64>,
    pub slower_percent: Option<f64>,
    pub confidence: Confidence,
    pub passed_over: Vec<PassedOver>,
}

/// The reason for a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The setting saves enough memory and costs little time.
    Saves,
    /// No other setting does. The recommended one is the first.
    NoneSaves,
    /// Only one setting was tried.
    OnlyOne,
    /// No setting has enough runs to be compared with the first one.
    TooFewRuns,
}

/// A setting that was not recommended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see Recommendation")]
pub struct PassedOver {
    pub setting: String,
    #[serde(flatten)]
    pub because: Drawback,
}

/// The reason why a setting was not recommended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "because", rename_all = "snake_case")]
#[expect(missing_docs, reason = "see Recommendation")]
pub enum Drawback {
    /// The memory that remains differs by no more than noise.
    Noise,
    /// Noise cannot be estimated from a single run.
    TooFewRuns,
    SavesLittle {
        bytes: f64,
        percent: f64,
    },
    UsesMore {
        bytes: f64,
    },
    FailedRequests {
        count: u64,
    },
    SlowerTail {
        percent: f64,
    },
    Slower {
        saves_bytes: f64,
        percent: f64,
    },
    /// A setting that saves more is recommended.
    SavesLess {
        saves_bytes: f64,
    },
    /// A simpler setting, which saves nearly as much, is recommended.
    LessSimple {
        saves_bytes: f64,
    },
}

/// The result of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct LoadResult {
    pub requests: u64,
    #[serde(default)]
    pub failures: u64,
    #[serde(default)]
    pub requests_per_second: Option<f64>,
    #[serde(default)]
    pub p50_ms: Option<f64>,
    #[serde(default)]
    pub p99_ms: Option<f64>,
    #[serde(default)]
    pub max_ms: Option<f64>,
}
