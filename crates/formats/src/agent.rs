//! The state of `rbloat agent`, from which its metrics are written.

use std::collections::BTreeMap;
use std::time::Duration;

use ledger::Cause;

use crate::{CauseRow, Confidence, Group};

/// The place of a process in a fleet, by names that survive its restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The container, and where it runs.
    pub container: Container,
    /// The role of the process in the container, such as "puma worker 1".
    pub role: String,
}

/// A container, or else the control group of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Container {
    /// The namespace of Kubernetes; empty outside of it.
    pub namespace: String,
    /// The pod; empty outside of Kubernetes.
    pub pod: String,
    /// The container's name, or the beginning of its id, or the service of systemd; empty if the process is in none.
    pub name: String,
}

/// The figures about the Ruby processes of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// The Ruby processes. Several may have the same place.
    pub processes: Vec<NodeProcess>,
    /// The processes that could not be examined for lack of rights.
    pub refused: u64,
    /// The captures so far.
    pub captures: BTreeMap<CaptureOutcome, u64>,
    /// The pauses of the captures so far.
    pub pauses: Pauses,
    /// The processor time of rbloat itself.
    pub own_cpu: Duration,
    /// RSS of rbloat itself, in bytes.
    pub own_rss_bytes: u64,
}

/// A Ruby process of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeProcess {
    /// Its place.
    pub place: Place,
    /// The kernel's figures, in bytes.
    pub rss_bytes: u64,
    /// `None` if they could not be read.
    pub exact: Option<NodeMemory>,
    /// The memory of its control group.
    pub group: Option<Group>,
    /// The latest capture.
    pub captured: Option<Captured>,
}

/// The kernel's exact figures about a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "docs/json.md describes these fields of recordings")]
pub struct NodeMemory {
    pub pss_bytes: u64,
    pub uss_bytes: u64,
    pub swap_bytes: u64,
}

/// The result of a capture of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Captured {
    /// The time of the capture, in seconds since 1970.
    pub unix_seconds: f64,
    /// The causes, which add up to RSS at that time.
    pub causes: Vec<CauseRow>,
    /// The bytes that a trim would return; `None` if malloc could not be read.
    pub trim_yield_bytes: Option<u64>,
    /// The cause of the verdict; `None` if the process is healthy.
    pub verdict: Option<Cause>,
    /// The confidence in the verdict.
    pub confidence: Confidence,
    /// The allocator, with its version.
    pub allocator: String,
    /// The version of Ruby; `None` if Ruby could not be read.
    pub ruby_version: Option<String>,
}

/// The outcome of an attempt to capture a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaptureOutcome {
    /// A forked copy was read.
    Forked,
    /// The paused process was read.
    Frozen,
    /// It was not tried, since memory is short on the node.
    Pressure,
    /// It was not tried, since the memory limit leaves no room.
    NoRoom,
    /// It failed for another reason.
    Failed,
}

impl CaptureOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] =
        [Self::Forked, Self::Frozen, Self::Pressure, Self::NoRoom, Self::Failed];
}

/// A histogram of pauses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pauses {
    /// The number of pauses up to each of [`Pauses::BOUNDS`].
    pub up_to: [u64; Self::BOUNDS.len()],
    /// The number of all pauses.
    pub count: u64,
    /// The sum of all pauses.
    pub sum: Duration,
}

impl Pauses {
    /// The upper bounds of the histogram, in seconds.
    pub const BOUNDS: [f64; 8] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2];

    /// Adds a pause.
    pub fn add(&mut self, pause: Duration) {
        for (count, bound) in self.up_to.iter_mut().zip(Self::BOUNDS) {
            *count += u64::from(pause.as_secs_f64() <= bound);
        }
        self.count += 1;
        self.sum += pause;
    }
}
