//! The numbers that a verdict follows from.

use formats::{
    CauseChange, ClassChange, CodeChange, Confidence, Diff, DiffKind, DiffPoint, DiffVerdict,
    Doubt, InterpreterChange, KeptChange, KeptNative, OwnerChange, Subject, Trajectory,
    UnreadPoint,
};
use ledger::{Cause, CauseGroup};

/// The least change that is growth, in bytes, and as a fraction of RSS.
const MIN_BYTES: u64 = 1 << 20;
const MIN_FRACTION: u64 = 100;

/// Snapshots that are closer together do not show that nothing grows.
pub(super) const MIN_SECONDS: f64 = 10.0;
/// A leak needs this time for high confidence: in less, a cache that fills looks the same. It is no proof.
pub(super) const SURE_SECONDS: f64 = 60.0;
/// A leak takes as many snapshots, and one more for high confidence.
pub(super) const MIN_SNAPSHOTS: usize = 3;
/// The part of the growth of RSS that a leak must explain to be the verdict: one in ten.
pub(super) const EXPLAINS: i64 = 10;

/// The parts of a process whose growth means different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Managed,
    Code,
    Native,
    Free,
}

/// Returns the part that a cause belongs to; `None` for files, shared memory and malloc's overhead.
fn part(cause: Cause) -> Option<Part> {
    match cause.group() {
        CauseGroup::RubyObjects => Some(Part::Managed),
        CauseGroup::Interpreter | CauseGroup::Jit => Some(Part::Code),
        CauseGroup::Overhead => (cause == Cause::RubyOverhead).then_some(Part::Code),
        CauseGroup::NativeHeld
        | CauseGroup::NativeGlobal
        | CauseGroup::NativeUnreachable
        | CauseGroup::Untraced
        | CauseGroup::Stacks
        | CauseGroup::Unknown => Some(Part::Native),
        CauseGroup::FreeSlots
        | CauseGroup::Unreturned
        | CauseGroup::Fragmented
        | CauseGroup::KeptForReuse => Some(Part::Free),
        CauseGroup::Files | CauseGroup::SharedMemory => None,
    }
}

/// The parts of a diff that its verdict follows from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changes<'a> {
    pub(crate) points: &'a [DiffPoint],
    /// True if fewer than two snapshots have the process's memory.
    pub(crate) is_unread: bool,
    /// The snapshots without it.
    pub(crate) unread: &'a [UnreadPoint],
    pub(crate) same_process: bool,
    pub(crate) seconds: f64,
    pub(crate) rss_bytes: &'a Trajectory,
    pub(crate) causes: &'a [CauseChange],
    pub(crate) classes: &'a [ClassChange],
    pub(crate) owners: &'a [OwnerChange],
    pub(crate) code: &'a [CodeChange],
    pub(crate) interpreter: &'a [InterpreterChange],
    /// The class whose objects refer to most of the unknown memory, if as much more is mapped as grew; `None` if that is not known.
    pub(crate) mapper: Option<&'a str>,
    pub(crate) kept: &'a [KeptChange],
    /// `None` if it is not known.
    pub(crate) kept_native: Option<&'a Vec<KeptNative>>,
}

impl Changes<'_> {
    /// The growth of RSS up to a snapshot that was not read, if the others have less.
    pub(super) fn unread_growth(&self) -> Option<i64> {
        let unread = self.unread.iter().map(|point| point.rss_bytes).max()?;
        let (first, most) = (self.rss_bytes.at.first()?, self.rss_bytes.at.iter().max()?);
        (unread > *most).then(|| Trajectory::new([*first, unread].into_iter()).change)
    }
}

impl<'a> From<&'a Diff> for Changes<'a> {
    fn from(diff: &'a Diff) -> Self {
        Self {
            points: &diff.points,
            is_unread: diff.verdict.doubt == Some(Doubt::Unread),
            unread: &diff.unread,
            same_process: diff.same_process,
            seconds: diff.seconds,
            rss_bytes: &diff.rss_bytes,
            causes: &diff.causes,
            classes: &diff.classes,
            owners: &diff.owners,
            code: &diff.code,
            interpreter: &diff.interpreter,
            mapper: None,
            kept: diff.kept.as_deref().unwrap_or_default(),
            kept_native: diff.kept_native.as_ref(),
        }
    }
}

pub(super) fn least(diff: Changes<'_>) -> u64 {
    let first_rss = diff.rss_bytes.at.first().copied().unwrap_or(0);
    MIN_BYTES.max(first_rss / MIN_FRACTION)
}

/// The sums of the parts.
pub(super) struct Sums {
    pub(super) managed: Trajectory,
    pub(super) code: Trajectory,
    pub(super) native: Trajectory,
    pub(super) free: Trajectory,
}

impl Sums {
    pub(super) fn of(diff: Changes<'_>) -> Self {
        let sum = |of: Part| {
            let mut sum = Trajectory::new(diff.points.iter().map(|_| 0));
            for row in diff.causes.iter().filter(|row| part(row.cause) == Some(of)) {
                sum.add(&row.bytes);
            }
            sum
        };
        Self {
            managed: sum(Part::Managed),
            code: sum(Part::Code),
            native: sum(Part::Native),
            free: sum(Part::Free),
        }
    }

    pub(super) fn in_use(&self) -> i64 {
        self.managed.change + self.code.change + self.native.change
    }
}

/// A verdict without a doubt.
pub(super) fn verdict(
    diff: Changes<'_>,
    hours: Option<f64>,
    kind: DiffKind,
    subject: Subject,
    bytes: i64,
) -> DiffVerdict {
    DiffVerdict {
        kind,
        subject,
        cause: None,
        class: None,
        root: None,
        owner: None,
        bytes,
        bytes_per_hour: hours.map(|hours| bytes as f64 / hours),
        doubt: None,
        // Growth over hours does not show within seconds.
        confidence: if diff.seconds < MIN_SECONDS { Confidence::Low } else { Confidence::High },
    }
}

/// The cause of a part that grew most.
pub(super) fn largest(diff: Changes<'_>, of: Part) -> Option<Cause> {
    let rows = diff.causes.iter().filter(|row| part(row.cause) == Some(of));
    rows.max_by_key(|row| row.bytes.change).map(|row| row.cause)
}
