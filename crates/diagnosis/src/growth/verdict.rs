//! The verdict on a diff: a pure function of its numbers.

use std::cmp::Reverse;

use formats::{
    CauseChange, ClassChange, CodeChange, Confidence, Diff, DiffKind, DiffPoint, DiffVerdict,
    Doubt, KeptChange, OwnerChange, Subject, Trajectory,
};
use ledger::{Cause, CauseGroup};

use super::course::{Course, course, rates};

/// The least change that is growth, in bytes, and as a fraction of RSS.
const MIN_BYTES: u64 = 1 << 20;
const MIN_FRACTION: u64 = 100;

/// A buffer grows as fast as before if its last rate is at least this part of its first one.
const EVEN: f64 = 0.8;
/// Snapshots that are closer together do not show that nothing grows.
const MIN_SECONDS: f64 = 10.0;
/// A class grew by the number of its objects if that rose by more than this fraction.
const MORE_OBJECTS_FRACTION: u64 = 100;
/// A leak takes as many snapshots, and one more for high confidence.
const MIN_SNAPSHOTS: usize = 3;
/// The part of the growth of RSS that a leak must explain to be the verdict: one in ten.
const EXPLAINS: i64 = 10;
/// The part of the growth of all objects that a class needs to be named: one in four.
const MIN_SHARE: i64 = 4;
/// The name of the kind of objects that bytecode is.
const ISEQS: &str = "(imemo_iseq)";
/// The root of all threads.
const THREADS: &str = "(threads)";
/// The class whose one object wraps the virtual machine: its memory are tables of the interpreter, whose growth follows from the
/// growth of what is in them.
const VM: &str = "RubyVM";
/// The number of additional threads that is an accumulation of threads.
const MANY_THREADS: u64 = 8;

/// The parts of a process whose growth means different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Managed,
    Code,
    Native,
    Free,
}

/// Returns the part that a cause belongs to; `None` for files and malloc's overhead.
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
        CauseGroup::Files => None,
    }
}

/// Causes that may hold Ruby's memory too: of another allocator than glibc's, or without a search for owners.
const OWNERS_UNKNOWN: [Cause; 2] = [Cause::MallocInUse, Cause::Unknown];

/// The parts of a diff that its verdict follows from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes<'a> {
    pub(super) points: &'a [DiffPoint],
    /// True if fewer than two snapshots have the process's memory.
    pub(super) is_unread: bool,
    pub(super) same_process: bool,
    pub(super) seconds: f64,
    pub(super) rss_bytes: &'a Trajectory,
    pub(super) causes: &'a [CauseChange],
    pub(super) classes: &'a [ClassChange],
    pub(super) owners: &'a [OwnerChange],
    pub(super) code: &'a [CodeChange],
    pub(super) kept: &'a [KeptChange],
}

impl<'a> From<&'a Diff> for Changes<'a> {
    fn from(diff: &'a Diff) -> Self {
        Self {
            points: &diff.points,
            is_unread: diff.verdict.doubt == Some(Doubt::Unread),
            same_process: diff.same_process,
            seconds: diff.seconds,
            rss_bytes: &diff.rss_bytes,
            causes: &diff.causes,
            classes: &diff.classes,
            owners: &diff.owners,
            code: &diff.code,
            kept: diff.kept.as_deref().unwrap_or_default(),
        }
    }
}

/// Returns the verdict on `diff`. `hours` is the time between its first and last snapshot, `None`
/// for different processes.
pub(super) fn judge(diff: Changes<'_>, hours: Option<f64>) -> DiffVerdict {
    let sums = Sums::of(diff);
    let least = least(diff) as i64;
    let rss = diff.rss_bytes.change;
    if diff.is_unread {
        return DiffVerdict {
            doubt: Some(Doubt::Unread),
            confidence: Confidence::Low,
            ..verdict(diff, hours, DiffKind::Growth, Subject::Rss, rss)
        };
    }
    if !diff.same_process {
        let cause = diff.causes.iter().max_by_key(|row| row.bytes.change.unsigned_abs());
        let class = diff.classes.first().filter(|class| {
            class.bytes.change.unsigned_abs() >= rss.unsigned_abs() / MIN_SHARE.unsigned_abs()
        });
        return DiffVerdict {
            cause: cause.map(|row| row.cause),
            class: class.map(|class| class.name.clone()),
            // Two runs of a program differ by chance, too.
            confidence: Confidence::Low,
            ..verdict(diff, hours, DiffKind::Difference, Subject::Rss, rss)
        };
    }
    if let Some(leak) = leak(diff, &sums, hours, least) {
        return leak;
    }
    let kept = kept(diff);
    if let Some(leak) = kept.as_ref().filter(|kept| kept.kind == DiffKind::ManagedLeak) {
        return leak.clone();
    }
    let verdict = verdict_on_totals(diff, &sums, hours, least);
    // Objects that come and go hide or feign growth.
    let is_about_the_rest = match verdict.doubt {
        Some(doubt) => matches!(doubt, Doubt::Garbage | Doubt::Turnover | Doubt::NothingInUse),
        None => matches!(verdict.kind, DiffKind::Stable | DiffKind::Shrank),
    };
    kept.filter(|_| is_about_the_rest).unwrap_or(verdict)
}

/// The verdict that follows from changes of totals.
fn verdict_on_totals(
    diff: Changes<'_>,
    sums: &Sums,
    hours: Option<f64>,
    least: i64,
) -> DiffVerdict {
    let rss = diff.rss_bytes.change;
    let verdict = |kind, subject, bytes| verdict(diff, hours, kind, subject, bytes);
    // Free memory explains the growth if it is most of it. Otherwise memory in use does, since its growth may continue.
    if sums.in_use() >= least && 2 * sums.in_use() >= sums.free.change {
        return growth(diff, sums, hours);
    }
    if rss >= least && sums.free.change >= rss / 2 {
        let cause = largest(diff, Part::Free);
        return DiffVerdict {
            cause,
            ..verdict(DiffKind::Retention, Subject::Free, sums.free.change)
        };
    }
    if sums.in_use() >= least {
        return growth(diff, sums, hours);
    }
    if rss >= least {
        let row = diff.causes.iter().max_by_key(|row| row.bytes.change);
        let bytes = row.map_or(0, |row| row.bytes.change);
        return DiffVerdict {
            cause: row.map(|row| row.cause),
            doubt: Some(Doubt::NothingInUse),
            confidence: Confidence::Medium,
            ..verdict(DiffKind::Growth, Subject::Cause, bytes)
        };
    }
    if rss <= -least {
        return verdict(DiffKind::Shrank, Subject::Rss, rss);
    }
    verdict(DiffKind::Stable, Subject::InUse, sums.in_use())
}

/// A verdict without a doubt.
fn verdict(
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
        bytes,
        bytes_per_hour: hours.map(|hours| bytes as f64 / hours),
        doubt: None,
        // Growth over hours does not show within seconds.
        confidence: if diff.seconds < MIN_SECONDS { Confidence::Low } else { Confidence::High },
    }
}

/// The verdict on the root that keeps more and more objects: the largest leak, or else the largest growth. `None` if there is neither
/// that is much beside the growth of RSS.
fn kept(diff: Changes<'_>) -> Option<DiffVerdict> {
    let least = diff.rss_bytes.change / EXPLAINS;
    let rows = || growing_roots(diff).filter(|row| row.bytes >= least);
    let verdicts = || rows().filter_map(|row| verdict_on_root(diff, row));
    verdicts().find(|it| it.kind == DiffKind::ManagedLeak).or_else(|| verdicts().next())
}

/// The roots that keep more than before, most first: without those for which that is little, and those of which most objects that were
/// new in the second snapshot are gone.
fn growing_roots<'a>(diff: Changes<'a>) -> impl Iterator<Item = &'a KeptChange> {
    let least = least_kept(diff);
    // More threads, and what they refer to, have a verdict of their own.
    let has_more_threads =
        diff.classes.iter().any(|it| it.name == "Thread" && has_more_objects(it));
    diff.kept.iter().filter(move |row| {
        row.bytes >= least
            && 2 * row.kept >= row.newcomers.max(1)
            && !(has_more_threads && row.root == THREADS)
    })
}

/// `None` if the growth slows down, or was observed too shortly.
fn verdict_on_root(diff: Changes<'_>, row: &KeptChange) -> Option<DiffVerdict> {
    // The objects of a snapshot are compared with the next one, so the last one has no number.
    let points = diff.points.get(..row.objects.at.len())?;
    let times: Vec<u64> = points.iter().map(|point| point.unix_ms).collect();
    let seconds = times.last()?.saturating_sub(*times.first()?) as f64 / 1e3;
    if seconds < MIN_SECONDS {
        return None;
    }
    let (kind, doubt, confidence) = match course(&row.objects, &times) {
        // Variables of running methods are released when the methods return.
        Course::Steady if row.root == THREADS => {
            (DiffKind::Growth, Some(Doubt::Unproven), Confidence::Low)
        }
        Course::Steady if points.len() > MIN_SNAPSHOTS => {
            (DiffKind::ManagedLeak, None, Confidence::High)
        }
        Course::Steady => (DiffKind::ManagedLeak, None, Confidence::Medium),
        Course::TooEarly => (DiffKind::Growth, Some(Doubt::FewSnapshots), Confidence::Low),
        Course::Uneven => (DiffKind::Growth, Some(Doubt::Uneven), Confidence::Low),
        Course::LevelsOff => return None,
    };
    let verdict = verdict(diff, Some(seconds / 3600.0), kind, Subject::Objects, row.bytes);
    Some(DiffVerdict {
        cause: largest(diff, Part::Managed),
        class: row.class.clone(),
        root: Some(row.root.clone()),
        doubt,
        confidence,
        ..verdict
    })
}

/// The least memory that a root keeps more than before which is growth, in bytes. It has no garbage, so it fluctuates less than
/// totals.
fn least_kept(diff: Changes<'_>) -> i64 {
    least(diff) as i64 / 4
}

/// Returns the root that keeps most more than before, if that is growth, and the verdict does not name it.
#[must_use]
pub fn kept_besides(diff: &Diff) -> Option<&KeptChange> {
    let verdict = &diff.verdict;
    if matches!(verdict.kind, DiffKind::Stable | DiffKind::Shrank) || diff.seconds < MIN_SECONDS {
        return None;
    }
    let largest = growing_roots(diff.into()).next()?;
    let class = diff.classes.iter().find(|it| Some(&it.name) == verdict.class.as_ref());
    let path = class.and_then(|class| class.kept_by.as_deref());
    let root = verdict.root.as_deref().or_else(|| path?.split(" → ").next());
    (root != Some(&largest.root)).then_some(largest)
}

/// Returns the least change that is growth, in bytes.
#[must_use]
pub fn least_growth(diff: &Diff) -> u64 {
    least(diff.into())
}

fn least(diff: Changes<'_>) -> u64 {
    let first_rss = diff.rss_bytes.at.first().copied().unwrap_or(0);
    MIN_BYTES.max(first_rss / MIN_FRACTION)
}

/// Returns the change of memory in use, and of free memory that malloc or Ruby keeps, in bytes.
#[must_use]
pub fn totals(diff: &Diff) -> (i64, i64) {
    let sums = Sums::of(diff.into());
    (sums.in_use(), sums.free.change)
}

/// The sums of the parts.
struct Sums {
    managed: Trajectory,
    code: Trajectory,
    native: Trajectory,
    free: Trajectory,
}

impl Sums {
    fn of(diff: Changes<'_>) -> Self {
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

    fn in_use(&self) -> i64 {
        self.managed.change + self.code.change + self.native.change
    }
}

/// The memory in use that grew most.
struct Largest<'a> {
    subject: Subject,
    cause: Option<Cause>,
    class: Option<&'a ClassChange>,
    /// Of a class, with the memory of the objects that its objects retain.
    bytes: Trajectory,
}

impl<'a> Largest<'a> {
    fn of(diff: Changes<'a>, sums: &'a Sums) -> Self {
        let most = sums.managed.change.max(sums.code.change).max(sums.native.change);
        // A thread holds its stack beside the memory of its object.
        if most == sums.native.change && new_threads(diff).is_none() {
            let native = Self::native(diff, sums);
            let is_most = 2 * native.bytes.change >= sums.native.change;
            return if is_most { native } else { Self::native_cause(diff, sums) };
        }
        if most == sums.code.change {
            return Self::code(diff, sums);
        }
        Self::managed(diff, sums, |class| match is_mostly_garbage(class) {
            true => &class.bytes,
            false => class.growing_bytes(),
        })
    }

    /// Its class are the iseqs if they are most of it.
    fn code(diff: Changes<'a>, sums: &Sums) -> Self {
        let iseqs = diff.classes.iter().find(|class| class.name == ISEQS);
        let class = iseqs.filter(|iseqs| 2 * iseqs.bytes.change >= sums.code.change);
        let cause = largest(diff, Part::Code);
        Self { subject: Subject::Code, cause, class, bytes: sums.code.clone() }
    }

    fn native(diff: Changes<'a>, sums: &'a Sums) -> Self {
        let Some(owner) = native_owner(diff) else { return Self::native_cause(diff, sums) };
        let subject = match owner.cause {
            Some(Cause::NativeUnreachable) => Subject::Unreachable,
            _ => Subject::Native,
        };
        let class = diff.classes.iter().find(|it| it.name == owner.owner);
        Self { subject, cause: owner.cause, class, bytes: owner.bytes.clone() }
    }

    /// The cause of native memory that grew most, whoever owns it.
    fn native_cause(diff: Changes<'a>, sums: &'a Sums) -> Self {
        let cause = largest(diff, Part::Native);
        let row = diff.causes.iter().find(|row| Some(row.cause) == cause);
        let bytes = row.map_or(&sums.native, |row| &row.bytes).clone();
        Self { subject: Subject::Native, cause, class: None, bytes }
    }

    /// The class whose objects grew most. `of` returns the memory that counts: that of all objects, or of those that something
    /// retains.
    fn managed(diff: Changes<'a>, sums: &'a Sums, of: fn(&ClassChange) -> &Trajectory) -> Self {
        let threads = new_threads(diff).map(|class| (class, class.growing_bytes().clone()));
        match threads {
            Some((class, bytes)) => Self::class(diff, Some(class), bytes),
            None => Self::classes(diff, sums, of)
                .next()
                .unwrap_or_else(|| Self::class(diff, None, sums.managed.clone())),
        }
    }

    /// The classes whose objects grew, the largest growth first.
    fn classes(
        diff: Changes<'a>,
        sums: &Sums,
        of: fn(&ClassChange) -> &Trajectory,
    ) -> impl Iterator<Item = Self> {
        let least = sums.managed.change / MIN_SHARE;
        // Kinds of internal objects, whose names are in parentheses, mean nothing to programs.
        let is_visible = |class: &&ClassChange| !class.name.starts_with('(') && class.name != VM;
        let mut classes: Vec<_> = diff.classes.iter().filter(is_visible).collect();
        classes.sort_by_key(|class| Reverse(of(class).change));
        let explains =
            move |class: &&ClassChange| class.bytes.change > 0 && class.bytes.change >= least;
        classes.into_iter().take_while(explains).map(move |class| {
            let (class, bytes) = owning(diff, class, of);
            Self::class(diff, Some(class), bytes)
        })
    }

    fn class(diff: Changes<'a>, class: Option<&'a ClassChange>, bytes: Trajectory) -> Self {
        Self { subject: Subject::Objects, cause: largest(diff, Part::Managed), class, bytes }
    }

    fn course(&self, diff: Changes<'_>) -> Course {
        let times: Vec<u64> = diff.points.iter().map(|point| point.unix_ms).collect();
        match self.class {
            // The number of a class's objects fluctuates less with garbage than the memory that they hold.
            Some(class) if has_more_objects(class) && self.subject == Subject::Objects => {
                course(class.growing_objects(), &times)
            }
            _ => course(&self.bytes, &times),
        }
    }

    /// Returns true if the memory that grew lasts: most of its objects are still there, or its native owner is known.
    fn lasts(&self, diff: Changes<'_>) -> bool {
        let owners_unknown = self.cause.is_some_and(|cause| OWNERS_UNKNOWN.contains(&cause));
        match (self.subject, self.class) {
            (Subject::Unreachable, _) => true,
            (Subject::Native, None) => !owners_unknown && native_owner(diff).is_some(),
            (_, Some(class)) if has_more_objects(class) => {
                let at = &class.growing_objects().at;
                let grown = at.iter().rev().nth(1).zip(at.first());
                let grown = grown.map_or(0, |(before, first)| before.saturating_sub(*first));
                class.kept_by.is_some() && 2 * class.lasting_newcomers >= grown.max(1)
            }
            // Objects that were there before grew.
            (_, Some(class)) => {
                2 * class.survivors >= class.objects.at.first().copied().unwrap_or(0).max(1)
            }
            _ => false,
        }
    }

    /// Returns true for objects that were there before if they grow more slowly than at first: a table fills the room that it has.
    fn may_fill_up(&self, diff: Changes<'_>) -> bool {
        let is_buffer = self.class.is_some_and(|class| !has_more_objects(class));
        let times: Vec<u64> = diff.points.iter().map(|point| point.unix_ms).collect();
        let rates = rates(&self.bytes, &times);
        let slows_down =
            rates.last().zip(rates.first()).is_some_and(|(last, first)| last < &(EVEN * first));
        self.subject == Subject::Objects && is_buffer && slows_down
    }

    /// Returns true if few of the objects that were new in the last but one snapshot are still there.
    fn is_turned_over(&self, diff: Changes<'_>) -> bool {
        let has_newcomers = self.class.is_some_and(has_more_objects);
        self.subject == Subject::Objects && has_newcomers && !self.lasts(diff)
    }

    fn verdict(
        &self,
        kind: DiffKind,
        doubt: Option<Doubt>,
        confidence: Confidence,
        hours: Option<f64>,
    ) -> DiffVerdict {
        let bytes = self.bytes.change;
        let class = self.class.filter(|_| self.subject == Subject::Objects);
        DiffVerdict {
            kind,
            subject: self.subject,
            cause: self.cause,
            class: class.map(|class| class.name.clone()),
            root: None,
            bytes,
            bytes_per_hour: hours.map(|hours| bytes as f64 / hours),
            doubt,
            confidence,
        }
    }
}

/// The class Thread if many threads are new.
fn new_threads(diff: Changes<'_>) -> Option<&ClassChange> {
    let threads = |point: Option<&DiffPoint>| point.map_or(0, |point| point.threads);
    let new = threads(diff.points.last()).saturating_sub(threads(diff.points.first()));
    let is_growing =
        |class: &&ClassChange| class.growing_objects().change >= MANY_THREADS.cast_signed();
    let class = || diff.classes.iter().find(|class| class.name == "Thread").filter(is_growing);
    if new >= MANY_THREADS { class() } else { None }
}

/// The verdict that there is a leak; `None` if nothing proves one.
///
/// A leak takes at least three snapshots (four for high confidence), grows steadily, explains at least a tenth of the growth of RSS, and consists of
/// memory that lasts: objects that were new in the last but one snapshot are still there.
fn leak(diff: Changes<'_>, sums: &Sums, hours: Option<f64>, least: i64) -> Option<DiffVerdict> {
    // Growth over hours does not show within seconds.
    if diff.seconds < MIN_SECONDS {
        return None;
    }
    let is_lasting = |it: &Largest<'_>| {
        it.bytes.change > 0
            && it.course(diff) == Course::Steady
            && it.lasts(diff)
            && !it.may_fill_up(diff)
    };
    // The table of a cache grows in jumps, and its entries steadily.
    let mut grown = match new_threads(diff) {
        Some(_) => vec![Largest::managed(diff, sums, ClassChange::growing_bytes)],
        None => Largest::classes(diff, sums, ClassChange::growing_bytes)
            .find(is_lasting)
            .into_iter()
            .collect(),
    };
    let is_large = |it: &Largest<'_>| {
        it.bytes.change >= least && it.bytes.change >= diff.rss_bytes.change / EXPLAINS
    };
    // The stacks of threads, and the memory that they refer to, are native memory that the threads explain.
    if new_threads(diff).is_none() || sums.in_use() < least {
        grown.push(Largest::native(diff, sums));
        grown.retain(is_large);
    }
    if is_code_defined_again(diff, sums) {
        grown.push(Largest::code(diff, sums));
        grown.retain(is_large);
    }
    let mut leaks: Vec<Largest<'_>> = grown.into_iter().filter(is_lasting).collect();
    leaks.sort_by_key(|it| it.bytes.change);
    let leak = leaks.pop().filter(|_| diff.points.len() >= MIN_SNAPSHOTS)?;
    let unknown = diff.causes.iter().find(|row| row.cause == Cause::Unknown);
    if unknown.is_some_and(|row| row.bytes.change > leak.bytes.change) {
        return None;
    }
    let kind = match leak.subject {
        Subject::Native | Subject::Unreachable => DiffKind::NativeLeak,
        Subject::Code => DiffKind::CodeLeak,
        _ => DiffKind::ManagedLeak,
    };
    let confidence =
        if diff.points.len() > MIN_SNAPSHOTS { Confidence::High } else { Confidence::Medium };
    Some(leak.verdict(kind, None, confidence, hours))
}

/// Returns true if the GC was disabled in all snapshots.
fn is_gc_disabled(diff: Changes<'_>) -> bool {
    diff.points.iter().all(|point| point.gc_disabled == Some(true))
}

/// Returns true if most of the growth of code is bytecode of files that had bytecode before: a file that is loaded has all
/// of its bytecode at once.
fn is_code_defined_again(diff: Changes<'_>, sums: &Sums) -> bool {
    let again = diff.code.iter().filter(|file| is_defined_again(file));
    let bytes: i64 = again.map(|file| file.bytes.change).sum();
    2 * bytes >= sums.code.change.max(1)
}

/// Returns true if a file had bytecode before, and has more of it now.
#[must_use]
pub fn is_defined_again(file: &CodeChange) -> bool {
    file.iseqs.change > 0
        && file.bytes.change > 0
        && file.iseqs.at.first().is_some_and(|&iseqs| iseqs > 0)
}

/// The verdict on memory in use that grew, but is not proved to leak.
fn growth(diff: Changes<'_>, sums: &Sums, hours: Option<f64>) -> DiffVerdict {
    let largest = Largest::of(diff, sums);
    let is_native = matches!(largest.subject, Subject::Native | Subject::Unreachable);
    let are_owners_unknown =
        is_native && largest.cause.is_some_and(|cause| OWNERS_UNKNOWN.contains(&cause));
    let class = largest.class;
    // Without roots in the snapshots, nothing is known to be garbage.
    let is_garbage = class.is_some_and(|class| {
        class.reachable_objects.is_some()
            && class.objects.change > 0
            && (class.kept_by.is_none() || is_mostly_garbage(class))
    });
    let (kind, doubt, confidence) = match largest.course(diff) {
        _ if is_garbage && is_gc_disabled(diff) => {
            (DiffKind::Growth, Doubt::GcDisabled, Confidence::High)
        }
        // Buffers and tables grow in jumps: their capacity doubles.
        Course::LevelsOff if class.is_some_and(|class| !has_more_objects(class)) => {
            (DiffKind::Growth, Doubt::Uneven, Confidence::Low)
        }
        Course::LevelsOff => (DiffKind::WarmUp, Doubt::LevelsOff, Confidence::Medium),
        _ if are_owners_unknown => (DiffKind::Growth, Doubt::OwnersUnknown, Confidence::Low),
        _ if is_garbage => (DiffKind::Growth, Doubt::Garbage, Confidence::Low),
        Course::Steady if largest.subject == Subject::Code => {
            (DiffKind::Growth, Doubt::CodeIsLoaded, Confidence::Medium)
        }
        _ if largest.subject == Subject::Code
            && class.is_some()
            && !is_code_defined_again(diff, sums) =>
        {
            (DiffKind::WarmUp, Doubt::CodeIsLoaded, Confidence::Medium)
        }
        Course::TooEarly => (DiffKind::Growth, Doubt::FewSnapshots, Confidence::Low),
        Course::Uneven => (DiffKind::Growth, Doubt::Uneven, Confidence::Low),
        Course::Steady if largest.is_turned_over(diff) => {
            (DiffKind::Growth, Doubt::Turnover, Confidence::Medium)
        }
        Course::Steady if largest.may_fill_up(diff) => {
            (DiffKind::Growth, Doubt::Uneven, Confidence::Low)
        }
        Course::Steady => (DiffKind::Growth, Doubt::Unproven, Confidence::Low),
    };
    largest.verdict(kind, Some(doubt), confidence, hours)
}

/// Returns true if most of a class's growth is garbage.
fn is_mostly_garbage(class: &ClassChange) -> bool {
    2 * class.growing_bytes().change < class.bytes.change
}

/// Classes of Ruby whose objects only refer to others. They say less about a program than the objects in them.
const CONTAINERS: [&str; 8] =
    ["Array", "Hash", "Set", "Proc", "Method", "Binding", "Enumerator", "Enumerator::Lazy"];

/// Returns the class whose objects retain the objects of `class`, if their numbers rose alike: if each session has a
/// string, the sessions leak. Returns `class` itself otherwise. Also returns the memory of both, and of the classes
/// between them.
fn owning<'a>(
    diff: Changes<'a>,
    class: &'a ClassChange,
    of: fn(&ClassChange) -> &Trajectory,
) -> (&'a ClassChange, Trajectory) {
    let grown = |class: &ClassChange| class.growing_objects().change;
    let (mut owning, mut bytes) = (class, of(class).clone());
    let (mut last, mut sum) = (class, bytes.clone());
    let path: Vec<&str> = class.kept_by.iter().flat_map(|path| path.split(" → ")).collect();
    // The path begins with a constant or variable, and ends with the class.
    for name in path.iter().skip(1).rev().skip(1) {
        // A step may also have a number, or the name of a thread and its method.
        let name = name.split(' ').next().unwrap_or(name);
        match diff.classes.iter().find(|class| class.name == name) {
            Some(class) if grown(class) > 0 && 2 * grown(class) >= grown(last) => {
                last = class;
                sum.add(of(class));
            }
            _ => break,
        }
        if !CONTAINERS.contains(&name) {
            (owning, bytes) = (last, sum.clone());
        }
    }
    (owning, bytes)
}

/// Returns true if a class grew by the number of its objects, not by the memory of existing ones.
#[must_use]
pub fn has_more_objects(class: &ClassChange) -> bool {
    let objects = class.growing_objects();
    let before = objects.at.first().unwrap_or(&0);
    objects.change > 0 && objects.change as u64 >= before / MORE_OBJECTS_FRACTION
}

/// The cause of a part that grew most.
fn largest(diff: Changes<'_>, of: Part) -> Option<Cause> {
    let rows = diff.causes.iter().filter(|row| part(row.cause) == Some(of));
    rows.max_by_key(|row| row.bytes.change).map(|row| row.cause)
}

/// Returns the owner of the native memory that a verdict is about; `None` if it is about no single owner's.
#[must_use]
pub fn native_owner_of_verdict(diff: &Diff) -> Option<&OwnerChange> {
    native_owner(diff.into()).filter(|owner| owner.bytes.change == diff.verdict.bytes)
}

fn native_owner(diff: Changes<'_>) -> Option<&OwnerChange> {
    let owned = [Cause::NativeHeld, Cause::NativeGlobal, Cause::NativeUnreachable];
    let is_native = |owner: &&OwnerChange| owner.cause.is_some_and(|it| owned.contains(&it));
    let largest = diff.owners.iter().filter(is_native).max_by_key(|owner| owner.bytes.change);
    largest.filter(|owner| owner.bytes.change > 0)
}
