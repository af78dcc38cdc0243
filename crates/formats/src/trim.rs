//! The prediction of a trim, its outcome, and its effect over time.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::milliseconds;
use crate::{Content, FindingRow};

/// The document of `rbloat trim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrimReport {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// The library that serves malloc, as in a report.
    pub allocator: String,
    /// The function that the process calls.
    pub function: String,
    /// The predicted effect.
    pub expected: TrimExpectation,
    /// The effect. `null` with `--dry-run`.
    pub outcome: Option<TrimOutcome>,
    /// RSS after the trim. `null` without `--watch`.
    pub watch: Option<TrimWatch>,
}

impl Content for TrimReport {
    const KIND: &'static str = "trim";
}

/// The document of `rbloat trim --tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyTrim {
    /// A trim of each member, in the order in which they were trimmed.
    pub members: Vec<TrimReport>,
    /// The part of the expected bytes that no other member maps, over all members. Pages that several members share are freed
    /// only when the last of them returns them. `null` if the effect on a member cannot be predicted.
    pub expected_private_bytes: Option<u64>,
    /// The sum of PSS over the family before all trims.
    pub pss_bytes_before: u64,
    /// The same after them. `null` with `--dry-run`.
    pub pss_bytes_after: Option<u64>,
    /// Members that were not trimmed. The exit status is 6 then.
    pub findings: Vec<FindingRow>,
}

impl Content for FamilyTrim {
    const KIND: &'static str = "family_trim";
}

/// The predicted effect of a trim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrimExpectation {
    /// RSS at the time of the prediction.
    pub rss_bytes: u64,
    /// The amount by which the call is expected to lower RSS. `null` if that cannot be predicted.
    pub returned_bytes: Option<u64>,
    /// The part of it that the kernel frees only when it splits huge pages.
    pub deferred_bytes: u64,
}

/// The outcome of a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrimOutcome {
    /// RSS right before the call, as `smaps_rollup` counts it.
    pub rss_bytes_before: u64,
    /// The same right after the call.
    pub rss_bytes_after: u64,
    /// The time from the release of the thread that makes the call until it has returned.
    pub call_ms: f64,
    /// True if it had returned when RSS was measured. If not, the call continues by itself.
    pub returned: bool,
}

impl TrimOutcome {
    /// The outcome of a call that took the time `call`.
    #[must_use]
    pub fn new(
        rss_bytes_before: u64,
        rss_bytes_after: u64,
        call: Duration,
        returned: bool,
    ) -> Self {
        Self { rss_bytes_before, rss_bytes_after, call_ms: milliseconds(call), returned }
    }

    /// The drop of RSS.
    #[must_use]
    pub fn returned_bytes(&self) -> u64 {
        self.rss_bytes_before.saturating_sub(self.rss_bytes_after)
    }
}

/// RSS after a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrimWatch {
    /// RSS over time.
    pub samples: Vec<WatchPoint>,
    /// The duration of the watch.
    pub seconds: f64,
    /// RSS at the end minus the lowest sample.
    pub came_back_bytes: u64,
    /// The causes that grew after the trim, largest first.
    pub came_back_as: Vec<crate::CauseRow>,
    /// At the end: free memory that another trim would return.
    pub unreturned_bytes: u64,
    /// At the end: free memory that another trim would not return (`malloc.fragmented`, `malloc.top` and `malloc.cached`).
    pub pinned_bytes: u64,
    /// At the end: the number of arenas.
    pub arenas: u64,
    /// The effect over time.
    pub conclusion: TrimConclusion,
}

/// The effect of a trim over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrimConclusion {
    /// Less than 10 % of the returned memory came back.
    Lasts,
    /// Most of what came back is free again, in whole pages.
    Burst,
    /// Most of it is free but pinned, in more than two arenas.
    Spread,
    /// Most of it is in use.
    InUse,
}

/// RSS at a time after a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchPoint {
    /// The time since the trim.
    pub seconds: f64,
    /// RSS.
    pub rss_bytes: u64,
}

impl TrimReport {
    /// A report of a prediction, without an outcome.
    #[must_use]
    pub fn new(
        process: &linux::ProcessInfo,
        allocator: String,
        function: String,
        expected: TrimExpectation,
    ) -> Self {
        let (pid, command) = (process.pid, process.command.clone());
        let (outcome, watch) = (None, None);
        Self { pid, command, allocator, function, expected, outcome, watch }
    }
}
