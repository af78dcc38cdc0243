use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Confidence, Content};

/// The document of `rbloat compare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The command that was run, with its arguments.
    pub command: Vec<String>,
    /// The command of `--load`. `null` without it.
    pub load: Option<String>,
    /// The time to settle after the work.
    pub settle_seconds: f64,
    /// The settings that were tried.
    pub settings: Vec<TriedSetting>,
    /// Settings that could not be tried.
    pub missing: Vec<MissingSetting>,
    /// Runs that failed.
    pub failed: Vec<FailedRun>,
    /// All other runs.
    pub runs: Vec<Run>,
    /// The runs of each setting together.
    pub medians: Vec<Medians>,
    /// The recommended setting.
    pub recommendation: Recommendation,
}

impl Content for Comparison {
    const KIND: &'static str = "comparison";
}

/// A setting that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TriedSetting {
    /// Its name.
    pub setting: String,
    /// Pairs of a variable and its value.
    pub environment: Vec<(String, String)>,
}

/// A setting that could not be tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MissingSetting {
    /// Its name.
    pub setting: String,
    /// The missing requirement, such as a package.
    pub needs: String,
}

/// A run that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedRun {
    /// The setting.
    pub setting: String,
    /// The number of the run.
    pub number: u32,
    /// The reason.
    pub why: String,
}

/// One run of the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The setting.
    pub setting: String,
    /// The number of the run.
    pub number: u32,
    /// The maximum RSS of all processes of the run together, by the kernel's fast count, which is read every 50 ms.
    pub rss_peak_bytes: u64,
    /// Their RSS at the end of the work, exactly, from page tables.
    pub rss_end_bytes: u64,
    /// The same after the time to settle. `null` if the command had ended.
    pub rss_settled_bytes: Option<u64>,
    /// The time until the end of the work. With a load, this and the next four are of the load only.
    pub wall_ms: f64,
    /// CPU time of the program.
    pub user_ms: f64,
    /// CPU time of the kernel.
    pub system_ms: f64,
    /// Page faults without input.
    pub minor_faults: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// The figures that the load command printed. `null` without a load.
    pub load: Option<LoadResult>,
    /// RSS over time.
    pub samples: Vec<RunPoint>,
}

/// RSS at some time of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPoint {
    /// The time since the start.
    pub ms: f64,
    /// RSS.
    pub rss_bytes: u64,
}

/// The runs of one setting together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Medians {
    /// The setting.
    pub setting: String,
    /// The number of its runs.
    pub runs: u32,
    /// The figure of this name in `runs[]`.
    pub rss_peak_bytes: Spread,
    /// The figure of this name in `runs[]`.
    pub rss_end_bytes: Spread,
    /// The figure of this name in `runs[]`. `null` if a run has none.
    pub rss_settled_bytes: Option<Spread>,
    /// The figure of this name in `runs[]`.
    pub wall_ms: Spread,
    /// The figure of this name in `runs[]`.
    pub user_ms: Spread,
    /// The figure of this name in `runs[]`.
    pub system_ms: Spread,
    /// The figure of this name in `runs[]`.
    pub minor_faults: Spread,
    /// The figure of this name in `runs[].load`. `null` if a run has none.
    pub requests_per_second: Option<Spread>,
    /// The sum over the runs. `null` without a load.
    pub failures: Option<u64>,
    /// The figure of this name in `runs[].load`. `null` if a run has none.
    pub p50_ms: Option<Spread>,
    /// The figure of this name in `runs[].load`. `null` if a run has none.
    pub p99_ms: Option<Spread>,
    /// The figure of this name in `runs[].load`. `null` if a run has none.
    pub max_ms: Option<Spread>,
}

/// The median, minimum and maximum of a measurement, and its difference from the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The difference of the median from the baseline's. `null` for the baseline, and if it may be noise, or is negligible: see
    /// docs/json.md#the-test.
    pub differs_percent: Option<f64>,
    /// The probability of such a difference by chance alone, corrected for the number of settings. `null` for the baseline, with
    /// fewer than two runs, and in older documents.
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
pub struct Recommendation {
    /// The setting to use.
    pub setting: String,
    /// The reason.
    pub reason: Reason,
    /// The memory that it saves of what remains after the work. 0 if the baseline is recommended.
    pub saves_bytes: f64,
    /// The same, as a part of what remains with the baseline.
    pub saves_percent: f64,
    /// The change of the peak. `null` if it may be noise, or is negligible.
    pub peak_percent: Option<f64>,
    /// The change of the time (with a load: of requests per second). `null` if it may be noise, or is negligible.
    pub slower_percent: Option<f64>,
    /// The confidence in the saving; if the baseline is recommended, in the reasons against all others (docs/json.md#the-test).
    pub confidence: Confidence,
    /// The other settings, with the reason against each of them.
    pub passed_over: Vec<PassedOver>,
}

/// The reason for a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It saves memory at little cost.
    Saves,
    /// No other setting saves memory at little cost, so the baseline is recommended.
    NoneSaves,
    /// No other setting was tried.
    OnlyOne,
    /// No setting has two runs that can be compared with two runs of the baseline, so the baseline is kept.
    TooFewRuns,
}

/// A setting that was not recommended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PassedOver {
    /// The setting.
    pub setting: String,
    /// The reason for which it is not recommended.
    #[serde(flatten)]
    pub because: Drawback,
}

/// The reason why a setting was not recommended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "because", rename_all = "snake_case")]
pub enum Drawback {
    /// The difference of the remaining memory may be noise, or is negligible.
    Noise,
    /// It or the baseline has fewer than two runs.
    TooFewRuns,
    /// It saves less than docs/json.md#the-rule asks for.
    SavesLittle {
        /// The bytes that it saves.
        bytes: f64,
        /// The same, as a part of what remains with the baseline.
        percent: f64,
    },
    /// It leaves more memory.
    UsesMore {
        /// The bytes that it leaves more.
        bytes: f64,
    },
    /// More requests failed than under the baseline.
    FailedRequests {
        /// The number of its failed requests, over all runs.
        count: u64,
    },
    /// The 99th percentile of latency is too high.
    SlowerTail {
        /// By how much it is higher than with the baseline.
        percent: f64,
    },
    /// It is too slow.
    Slower {
        /// The bytes that it saves.
        saves_bytes: f64,
        /// The rise of the time, or the fall of requests per second.
        percent: f64,
    },
    /// The recommended setting saves more.
    SavesLess {
        /// The bytes that it saves.
        saves_bytes: f64,
    },
    /// The recommended setting saves nearly as much, and is simpler.
    LessSimple {
        /// The bytes that it saves.
        saves_bytes: f64,
    },
}

/// The result of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadResult {
    /// The number of requests.
    pub requests: u64,
    /// The number of those that failed; 0 if it was not printed.
    #[serde(default)]
    pub failures: u64,
    /// Their rate. `null`, as the next three, if it was not printed.
    #[serde(default)]
    pub requests_per_second: Option<f64>,
    /// The median of their latency.
    #[serde(default)]
    pub p50_ms: Option<f64>,
    /// Its 99th percentile.
    #[serde(default)]
    pub p99_ms: Option<f64>,
    /// The longest one.
    #[serde(default)]
    pub max_ms: Option<f64>,
}
