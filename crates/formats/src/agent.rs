//! The state of `rbloat agent`, from which its metrics are written.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use ledger::Cause;
use linux::proc::GroupMemory;

use crate::alarm::Alarm;
use crate::{Arena, CauseRow, Confidence, Owner, Report};

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
    /// The container's name, or the beginning of its id, or the service of systemd. For the agent, else the path of the control group,
    /// which begins with a slash. Empty if the process is in none.
    pub name: String,
}

impl Container {
    /// Returns true if `name` is NAMESPACE/POD, NAMESPACE/POD/NAME, the pod, the container's name, or its id.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let Self { namespace, pod, name: own } = self;
        let is_id = || own.len() == Self::SHORT_ID && name.len() > own.len();
        let names = [
            pod.clone(),
            own.clone(),
            format!("{namespace}/{pod}"),
            format!("{namespace}/{pod}/{own}"),
        ];
        let has_name = names.iter().any(|it| it == name && !it.starts_with('/'));
        !name.is_empty() && (has_name || is_id() && name.starts_with(own.as_str()))
    }

    /// The digits of a container's id that stand for its name, as other tools print it.
    pub const SHORT_ID: usize = 12;
}

/// The figures about the Ruby processes of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// The Ruby processes. Several may have the same place.
    pub processes: Vec<NodeProcess>,
    /// Their control groups, by container.
    pub groups: BTreeMap<Container, NodeGroup>,
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
    /// The answers of the server so far, by status.
    pub answers: BTreeMap<&'static str, u64>,
    /// Trims by the agent.
    pub treatment: Treatment,
    /// The snapshots of processes near a limit; `None` if none are wanted.
    pub snapshots: Option<StoredSnapshots>,
    /// What was pushed to servers, by their kind and by outcome.
    pub pushes: BTreeMap<&'static str, BTreeMap<PushOutcome, u64>>,
    /// The archive; `None` if none is wanted.
    pub archive: Option<Archived>,
}

/// The control groups of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeGroup {
    /// The memory of the group with the least room; `None` if it could not be read, or has no process any more.
    pub memory: Option<GroupMemory>,
    /// The processes that the kernel has killed since the agent saw the first one.
    pub oom_kills: u64,
}

/// The archive that the agent writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Archived {
    /// The snapshots so far.
    pub snapshots: BTreeMap<ArchiveOutcome, u64>,
    /// The size of its files.
    pub bytes: u64,
}

/// The outcome of an attempt to write snapshots to the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArchiveOutcome {
    /// They are in the archive.
    Written,
    /// The files could not be written, as on a full disk. It is tried again.
    Failed,
    /// They are lost, since too many waited.
    Dropped,
}

impl ArchiveOutcome {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Written, Self::Failed, Self::Dropped];
}

/// Trims by the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Treatment {
    /// A process is trimmed if that returns so many bytes.
    pub above_bytes: u64,
    /// The trims so far.
    pub trims: BTreeMap<TreatmentOutcome, u64>,
    /// The bytes that they returned.
    pub returned_bytes: u64,
}

/// The outcome of a trim by the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreatmentOutcome {
    /// The process was trimmed.
    Trimmed,
    /// It was not possible to do that without harm, as when no thread was at a safe point.
    Refused,
}

impl TreatmentOutcome {
    /// All outcomes.
    pub const ALL: [Self; 2] = [Self::Trimmed, Self::Refused];
}

/// The snapshots that the agent took of processes near a memory limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSnapshots {
    /// The attempts so far.
    pub attempts: BTreeMap<(Alarm, SnapshotOutcome), u64>,
    /// The files that are kept.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// True while the growth of a process is observed by code.
    pub observes_growth: bool,
}

/// The outcome of an attempt to take a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotOutcome {
    /// The file was written.
    Written,
    /// The memory limit left no room for a capture.
    NoRoom,
    /// The process could not be captured for another reason.
    Failed,
    /// The file could not be written, as on a full disk.
    NotWritten,
}

impl SnapshotOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Written, Self::NoRoom, Self::Failed, Self::NotWritten];
}

/// A Ruby process of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeProcess {
    /// Its id in the namespace of the agent.
    pub pid: i32,
    /// Its place.
    pub place: Place,
    /// The kernel's figures, in bytes.
    pub rss_bytes: u64,
    /// `None` if they could not be read.
    pub exact: Option<NodeMemory>,
    /// The latest capture.
    pub captured: Option<Captured>,
    /// The owners of its memory, at the latest capture that found them.
    pub owned: Option<Owned>,
}

/// The kernel's exact figures about a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// PSS: its share of resident memory.
    pub pss_bytes: u64,
    /// USS: the resident memory that no other process maps.
    pub uss_bytes: u64,
    /// Its memory in swap.
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
    /// The resident memory of malloc's arenas by use, in bytes; empty if malloc could not be read.
    pub malloc: Vec<(&'static str, u64)>,
    /// The live objects by type.
    pub objects: BTreeMap<String, u64>,
}

impl From<&Report> for Captured {
    fn from(report: &Report) -> Self {
        Self {
            unix_seconds: report.capture.unix_ms as f64 / 1e3,
            causes: report.causes.clone(),
            trim_yield_bytes: report.malloc.as_ref().map(|malloc| malloc.trim_yield_bytes),
            verdict: report.verdict.cause,
            confidence: report.verdict.confidence,
            allocator: report.process.allocator.clone(),
            ruby_version: report.process.ruby_version.clone(),
            malloc: report.arenas.as_deref().map_or_else(Vec::new, states),
            objects: report.ruby.as_ref().map_or_else(BTreeMap::new, |ruby| ruby.objects.clone()),
        }
    }
}

/// Reads one figure.
type Bytes = fn(&Arena) -> u64;

/// Adds up the arenas.
fn states(arenas: &[Arena]) -> Vec<(&'static str, u64)> {
    let states: [(_, Bytes); 7] = [
        ("in_use", |arena| arena.in_use_bytes),
        ("unreturned", |arena| arena.unreturned_bytes),
        ("muzzy", |arena| arena.muzzy_bytes),
        ("fragmented", |arena| arena.fragmented_bytes),
        ("cached", |arena| arena.cached_bytes),
        ("top", |arena| arena.top_bytes),
        ("overhead", |arena| arena.overhead_bytes),
    ];
    states.map(|(name, bytes)| (name, arenas.iter().map(bytes).sum())).to_vec()
}

/// The owners of a process's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Owned {
    /// The time of the capture, in milliseconds since 1970.
    pub unix_ms: u64,
    /// RSS at that time, in bytes.
    pub rss_bytes: u64,
    /// The largest owners, the largest first.
    pub owners: Vec<Owner>,
}

impl Owned {
    /// The owners that are kept of a process. A process can have thousands.
    const MAX_OWNERS: usize = 200;

    /// Returns the owners in a report; `None` if it has none.
    #[must_use]
    pub fn of(report: &Report) -> Option<Self> {
        let mut owners = report.owners.clone()?;
        owners.sort_by_key(|owner| Reverse(owner.bytes()));
        owners.truncate(Self::MAX_OWNERS);
        Some(Self { unix_ms: report.capture.unix_ms, rss_bytes: report.process.rss_bytes, owners })
    }
}

/// The outcome of an attempt to push a profile or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PushOutcome {
    /// The server took it.
    Accepted,
    /// The server refused it.
    Refused,
    /// The server could not be reached, or could not take it then. It is tried again.
    Failed,
    /// It was not tried, since too many others wait for the server.
    Dropped,
}

impl PushOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Accepted, Self::Refused, Self::Failed, Self::Dropped];
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
