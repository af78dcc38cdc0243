//! What grew between two looks at a process, or more: by cause, by class, by owner, by arena; and whether
//! that is a leak.
//!
//! The JSON is part of rbloat's stable interface, described in docs/json.md.

mod changes;
mod survivors;
mod text;
mod verdict;

use serde::{Deserialize, Serialize};

use crate::{SCHEMA, Snapshot};

/// What `rbloat diff` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Diff {
    pub schema: u32,
    pub points: Vec<Point>,
    pub same_process: bool,
    pub seconds: f64,
    pub verdict: DiffVerdict,
    pub rss_bytes: Series,
    pub causes: Vec<CauseChange>,
    pub classes: Vec<ClassChange>,
    pub owners: Vec<OwnerChange>,
    pub arenas: Vec<ArenaChange>,
}

/// One look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct Point {
    pub source: String,
    pub pid: i32,
    pub command: String,
    pub unix_ms: u64,
    pub uptime_ms: Option<u64>,
    pub threads: u64,
}

/// A number at each point, and how it changed from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct Series {
    pub at: Vec<u64>,
    pub change: i64,
}

/// A cause: its resident bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct CauseChange {
    pub cause: String,
    pub bytes: Series,
}

/// The objects of a class, and what they hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct ClassChange {
    pub name: String,
    pub objects: Series,
    pub bytes: Series,
    pub survivors: u64,
    pub newcomers: u64,
    pub old_newcomers: u64,
    pub objects_per_hour: Option<f64>,
    pub kept_by: Option<String>,
}

/// What an owner of malloc'ed memory holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct OwnerChange {
    pub owner: String,
    pub kind: String,
    pub cause: String,
    pub bytes: Series,
}

/// An arena, by its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct ArenaChange {
    pub address: String,
    pub main: bool,
    pub in_use_bytes: Series,
    pub kept_bytes: Series,
}

/// What it comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Diff")]
pub struct DiffVerdict {
    pub kind: DiffKind,
    pub cause: Option<String>,
    pub class: Option<String>,
    pub bytes: i64,
    pub bytes_per_hour: Option<f64>,
    pub confidence: String,
    pub summary: String,
    pub evidence: Vec<String>,
    pub falsified_by: String,
}

/// What kind of change it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    /// Objects that Ruby knows of pile up at a steady rate.
    ManagedLeak,
    /// So does memory that the GC does not know of.
    NativeLeak,
    /// What is in use grew, or pages of files; whether it goes on cannot be told yet.
    Growth,
    /// What is in use grew, less and less, or by the program's own code.
    WarmUp,
    /// RSS grew, what is in use did not.
    Retention,
    /// Nothing grew.
    Stable,
    /// RSS fell.
    Shrank,
}

impl Diff {
    /// Compares two or more snapshots, each with its name: of one process in the order of their making, of several
    /// and of cores in the order given.
    #[must_use]
    pub fn new(snapshots: &[(String, Snapshot)]) -> Self {
        let same_process = snapshots.windows(2).all(|pair| {
            let [one, other] = [&pair[0].1.report.process, &pair[1].1.report.process];
            // A core does not tell when its process was started.
            one.pid == other.pid
                && (one.started_ticks == other.started_ticks
                    || one.started_ticks.is_none()
                    || other.started_ticks.is_none())
        });
        let mut snapshots: Vec<_> = snapshots.iter().collect();
        // A core was made when its file was written to last, or copied: then whoever gives the order knows better.
        let is_core = |snapshot: &Snapshot| snapshot.report.capture.method == "core";
        if same_process && !snapshots.iter().any(|(_, snapshot)| is_core(snapshot)) {
            snapshots.sort_by_key(|(_, snapshot)| snapshot.report.capture.unix_ms);
        }
        let points: Vec<Point> = snapshots
            .iter()
            .map(|(source, snapshot)| {
                let (process, capture) = (&snapshot.report.process, &snapshot.report.capture);
                Point {
                    source: source.clone(),
                    pid: process.pid,
                    command: process.command.clone(),
                    unix_ms: capture.unix_ms,
                    uptime_ms: process.uptime_ms,
                    threads: process.threads,
                }
            })
            .collect();
        let milliseconds = match (points.first(), points.last()) {
            (Some(first), Some(last)) => last.unix_ms.saturating_sub(first.unix_ms),
            _ => 0,
        };
        let seconds = milliseconds as f64 / 1e3;
        let reports: Vec<_> = snapshots.iter().map(|(_, snapshot)| &snapshot.report).collect();
        let hours = (same_process && seconds > 0.0).then_some(seconds / 3600.0);
        let mut diff = Self {
            schema: SCHEMA,
            same_process,
            seconds,
            rss_bytes: Series::new(reports.iter().map(|report| report.process.rss_bytes)),
            causes: changes::causes(&reports),
            classes: changes::classes(&reports, hours),
            owners: changes::owners(&reports),
            arenas: if same_process { changes::arenas(&reports) } else { Vec::new() },
            verdict: DiffVerdict::nothing(),
            points,
        };
        if let ([(_, first), .., (_, last)], true) = (&snapshots[..], same_process) {
            survivors::count(first, last, &mut diff.classes);
        }
        diff.verdict = verdict::judge(&diff, hours);
        diff
    }

    /// The diff as JSON, one object, with a line's end.
    #[must_use]
    pub fn render_json(&self) -> String {
        let mut json =
            serde_json::to_string_pretty(self).expect("a diff has string keys and finite numbers");
        json.push('\n');
        json
    }
}

impl Series {
    fn new(at: impl Iterator<Item = u64>) -> Self {
        let at: Vec<u64> = at.collect();
        let change = match (at.first(), at.last()) {
            (Some(&first), Some(&last)) => last.wrapping_sub(first) as i64,
            _ => 0,
        };
        Self { at, change }
    }

    fn last(&self) -> u64 {
        self.at.last().copied().unwrap_or(0)
    }

    /// Adds another one, point by point.
    fn add(&mut self, other: &Self) {
        self.at.iter_mut().zip(&other.at).for_each(|(sum, part)| *sum += part);
        self.change += other.change;
    }
}
