//! The prediction of a trim, its outcome, and its effect over time.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::milliseconds;
use crate::{Content, FindingRow};

/// The document of `rbloat trim`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct TrimReport {
    pub pid: i32,
    pub command: String,
    pub allocator: String,
    pub function: String,
    pub expected: TrimExpectation,
    pub outcome: Option<TrimOutcome>,
    pub watch: Option<TrimWatch>,
}

impl Content for TrimReport {
    const KIND: &'static str = "trim";
}

/// The document of `rbloat trim --tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct FamilyTrim {
    pub members: Vec<TrimReport>,
    /// `None` if the effect on a member cannot be predicted.
    pub expected_private_bytes: Option<u64>,
    pub pss_bytes_before: u64,
    /// `None` for a prediction alone.
    pub pss_bytes_after: Option<u64>,
    pub findings: Vec<FindingRow>,
}

impl Content for FamilyTrim {
    const KIND: &'static str = "family_trim";
}

/// The predicted effect of a trim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct TrimExpectation {
    pub rss_bytes: u64,
    /// `None` if it cannot be predicted.
    pub returned_bytes: Option<u64>,
    pub deferred_bytes: u64,
}

/// The outcome of a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct TrimOutcome {
    pub rss_bytes_before: u64,
    pub rss_bytes_after: u64,
    pub call_ms: f64,
    /// True if the call had ended when RSS was measured.
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
#[expect(missing_docs, reason = "see TrimReport")]
pub struct TrimWatch {
    pub samples: Vec<WatchPoint>,
    pub seconds: f64,
    pub came_back_bytes: u64,
    /// The causes that grew meanwhile.
    pub came_back_as: Vec<crate::CauseRow>,
    /// Free bytes at the end that another trim would return.
    pub unreturned_bytes: u64,
    /// Free bytes at the end that it would not.
    pub pinned_bytes: u64,
    pub arenas: u64,
    pub conclusion: TrimConclusion,
}

/// The effect of a trim over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrimConclusion {
    /// Little memory came back.
    Lasts,
    /// Most of what came back is free again, in whole pages.
    Burst,
    /// Most of what came back is free again, but spread over many arenas.
    Spread,
    /// Most of what came back is in use.
    InUse,
}

/// RSS at a time after a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct WatchPoint {
    pub seconds: f64,
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
