//! What `rbloat trim` says: what it expects, what came of it, and whether that lasts.

use std::time::Duration;

use ledger::{Size, percent};
use serde::{Deserialize, Serialize};

use crate::model::{SCHEMA, milliseconds};

/// What `rbloat trim` says of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct TrimReport {
    pub schema: u32,
    pub pid: i32,
    pub command: String,
    pub allocator: String,
    pub function: String,
    pub expected: Expectation,
    pub outcome: Option<Outcome>,
    pub watch: Option<Watch>,
}

/// What a trim is expected to bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct Expectation {
    pub rss_bytes: u64,
    /// `None` where it cannot be told beforehand.
    pub returned_bytes: Option<u64>,
    pub deferred_bytes: u64,
}

/// What it brought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct Outcome {
    pub rss_bytes_before: u64,
    pub rss_bytes_after: u64,
    pub call_ms: f64,
    /// Whether the function had returned when this was measured.
    pub returned: bool,
}

impl Outcome {
    /// What a call that took `call` brought.
    #[must_use]
    pub fn new(
        rss_bytes_before: u64,
        rss_bytes_after: u64,
        call: Duration,
        returned: bool,
    ) -> Self {
        Self { rss_bytes_before, rss_bytes_after, call_ms: milliseconds(call), returned }
    }

    fn returned_bytes(&self) -> u64 {
        self.rss_bytes_before.saturating_sub(self.rss_bytes_after)
    }
}

/// How RSS went on after a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct Watch {
    pub samples: Vec<Sample>,
    pub came_back_bytes: u64,
    /// Of what came back, by what it is now: causes that grew.
    pub came_back_as: Vec<crate::CauseRow>,
    pub conclusion: String,
}

/// RSS at a time after a trim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see TrimReport")]
pub struct Sample {
    pub seconds: f64,
    pub rss_bytes: u64,
}

impl TrimReport {
    /// A report before anything was done.
    #[must_use]
    pub fn new(
        process: &capture::Process,
        allocator: String,
        function: String,
        expected: Expectation,
    ) -> Self {
        let (pid, command) = (process.pid, process.command.clone());
        let (outcome, watch) = (None, None);
        Self { schema: SCHEMA, pid, command, allocator, function, expected, outcome, watch }
    }

    /// It as JSON, one object, with a line's end.
    #[must_use]
    pub fn render_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self)
            .expect("a report has string keys and finite numbers");
        json.push('\n');
        json
    }

    /// The expectation, in a line.
    #[must_use]
    pub fn render_expected(&self) -> String {
        let Expectation { rss_bytes, returned_bytes, deferred_bytes } = &self.expected;
        let Some(returned) = returned_bytes else {
            return format!(
                "{} will be called; what it returns cannot be told beforehand\n",
                self.function
            );
        };
        let deferred = match deferred_bytes {
            0 => String::new(),
            bytes => {
                format!("; {} of it deferred until the kernel splits huge pages", kilobytes(*bytes))
            }
        };
        format!(
            "expected: RSS {} → {} (-{}) by {}{deferred}\n",
            kilobytes(*rss_bytes),
            kilobytes(rss_bytes.saturating_sub(*returned)),
            kilobytes(*returned),
            self.function,
        )
    }

    /// What came of it, in a line; empty where nothing was done.
    #[must_use]
    pub fn render_outcome(&self) -> String {
        let Some(outcome) = &self.outcome else { return String::new() };
        let returned = outcome.returned_bytes();
        let of_expected = match self.expected.returned_bytes {
            Some(expected) if expected > 0 => {
                format!(", {:.0} % of the prediction", percent(returned, expected))
            }
            _ => String::new(),
        };
        let time = match outcome.returned {
            true => format!("{:.0} ms", outcome.call_ms),
            false => format!("not done after {:.0} ms, it goes on by itself", outcome.call_ms),
        };
        format!(
            "RSS {} → {} ({}{of_expected}), {time}, other threads kept running\n",
            Size(outcome.rss_bytes_before),
            Size(outcome.rss_bytes_after),
            difference(outcome.rss_bytes_before, outcome.rss_bytes_after),
        )
    }

    /// How it went on, in some lines; empty where nobody watched.
    #[must_use]
    pub fn render_watch(&self) -> String {
        let Some(watch) = &self.watch else { return String::new() };
        let mut text = String::new();
        for sample in shown(&watch.samples) {
            text += &format!("after {:>3.0} s: RSS {}\n", sample.seconds, Size(sample.rss_bytes));
        }
        text += &watch.conclusion;
        text.push('\n');
        text
    }
}

/// The samples that are worth a line: at times that double, and the last.
fn shown(samples: &[Sample]) -> Vec<&Sample> {
    let mut next = 0.0;
    let mut shown = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        if sample.seconds >= next || index + 1 == samples.len() {
            shown.push(sample);
            next = (sample.seconds * 1.9).max(0.9);
        }
    }
    shown
}

fn difference(before: u64, after: u64) -> String {
    if after > before {
        format!("+{}", Size(after - before))
    } else {
        format!("-{}", Size(before - after))
    }
}

fn kilobytes(bytes: u64) -> String {
    format!("{} kB", ledger::Count(bytes / 1024))
}
