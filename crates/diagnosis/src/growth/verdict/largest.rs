//! The memory in use that grew most.

use std::cmp::Reverse;

use formats::{
    ClassChange, Confidence, Diff, DiffKind, DiffPoint, DiffVerdict, Doubt, KeptNative,
    OwnerChange, Subject, Trajectory,
};
use ledger::{CONTAINERS, Cause};

use super::changes::{Changes, Part, Sums, largest};
use crate::growth::course::{Course, course, rates, slows_down};
use crate::path::{ARROW, WEAK_MAPS, class_of, class_of_hidden, is_hidden, leads_through_method};

/// A buffer grows as fast as before if its last rate is at least this part of its first one.
const EVEN: f64 = 0.8;

/// A class grew by the number of its objects if that rose by more than this fraction.
const MORE_OBJECTS_FRACTION: u64 = 100;

/// The part of the growth of all objects that a class needs to be named: one in four.
pub(super) const MIN_SHARE: i64 = 4;
/// Blocks come and go if at least one in this many new ones is gone. If a library replaces all blocks, most new ones are at the addresses
/// of freed ones.
const MANY_GONE: u64 = 5;
/// The name of the kind of objects that bytecode is.
pub(super) const ISEQS: &str = "(imemo_iseq)";

/// The class whose one object wraps the virtual machine: its memory are tables of the interpreter, whose growth follows from the
/// growth of what is in them.
const VM: &str = "RubyVM";
/// A library that adds memory to the same objects for this many seconds does more than fill caches.
const FILLED_SECONDS: f64 = 600.0;
/// The number of additional threads that is an accumulation of threads.
const MANY_THREADS: u64 = 8;

/// Causes that may hold Ruby's memory too: of another allocator than glibc's, or without a search for owners.
pub(super) const OWNERS_UNKNOWN: [Cause; 2] = [Cause::MallocInUse, Cause::Unknown];

/// The memory in use that grew most.
pub(super) struct Largest<'a> {
    pub(super) subject: Subject,
    pub(super) cause: Option<Cause>,
    pub(super) class: Option<&'a ClassChange>,
    /// Of a class, with the memory of the objects that its objects retain.
    pub(super) bytes: Trajectory,
}

impl<'a> Largest<'a> {
    pub(super) fn of(diff: Changes<'a>, sums: &'a Sums) -> Self {
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
    pub(super) fn code(diff: Changes<'a>, sums: &Sums) -> Self {
        let iseqs = diff.classes.iter().find(|class| class.name == ISEQS);
        let class = iseqs.filter(|iseqs| 2 * iseqs.bytes.change >= sums.code.change);
        let cause = largest(diff, Part::Code);
        Self { subject: Subject::Code, cause, class, bytes: sums.code.clone() }
    }

    pub(super) fn native(diff: Changes<'a>, sums: &'a Sums) -> Self {
        let Some(owner) = native_owner(diff) else { return Self::native_cause(diff, sums) };
        let subject = match owner.cause {
            Some(Cause::NativeUnreachable) => Subject::Unreachable,
            _ => Subject::Native,
        };
        let class = diff.classes.iter().find(|it| it.name == owner.owner);
        Self { subject, cause: owner.cause, class, bytes: owner.bytes.clone() }
    }

    /// Unknown memory to which the objects of one class refer.
    pub(super) fn mapped(diff: Changes<'a>) -> Option<Self> {
        let class = diff.classes.iter().find(|class| Some(&class.name[..]) == diff.mapper)?;
        let row = diff.causes.iter().find(|row| row.cause == Cause::Unknown)?;
        // Garbage refers to a part of it.
        let live = class.growing_objects().at.iter().zip(&class.objects.at);
        let bytes = row.bytes.at.iter().zip(live).map(|(&bytes, (&live, &all))| {
            let part = u128::from(bytes) * u128::from(live) / u128::from(all.max(1));
            u64::try_from(part).unwrap_or(bytes).min(bytes)
        });
        Some(Self {
            subject: Subject::Objects,
            cause: Some(Cause::Unknown),
            class: Some(class),
            bytes: Trajectory::new(bytes),
        })
    }

    /// The same if there are more and more of these objects.
    pub(super) fn mapped_by_more(diff: Changes<'a>) -> Option<Self> {
        Self::mapped(diff).filter(|it| it.class.is_some_and(has_more_objects))
    }

    /// The cause of native memory that grew most, with any owner.
    fn native_cause(diff: Changes<'a>, sums: &'a Sums) -> Self {
        let cause = largest(diff, Part::Native);
        let mapped = Self::mapped(diff).filter(|_| cause == Some(Cause::Unknown));
        if let Some(mapped) = mapped {
            return mapped;
        }
        let row = diff.causes.iter().find(|row| Some(row.cause) == cause);
        let bytes = row.map_or(&sums.native, |row| &row.bytes).clone();
        Self { subject: Subject::Native, cause, class: None, bytes }
    }

    /// The class whose objects grew most. `of` returns the memory that counts: that of all objects, or of those that something
    /// retains.
    pub(super) fn managed(
        diff: Changes<'a>,
        sums: &'a Sums,
        of: fn(&ClassChange) -> &Trajectory,
    ) -> Self {
        let threads = new_threads(diff).map(|class| (class, class.growing_bytes().clone()));
        match threads {
            Some((class, bytes)) => Self::class(diff, Some(class), bytes),
            None => Self::classes(diff, sums, of)
                .next()
                .unwrap_or_else(|| Self::class(diff, None, sums.managed.clone())),
        }
    }

    /// The classes whose objects grew, the largest growth first.
    pub(super) fn classes(
        diff: Changes<'a>,
        sums: &Sums,
        of: fn(&ClassChange) -> &Trajectory,
    ) -> impl Iterator<Item = Self> {
        let least = sums.managed.change / MIN_SHARE;
        let explains =
            move |class: &&ClassChange| class.bytes.change > 0 && class.bytes.change >= least;
        let is_named = |class: &&ClassChange| match is_hidden(&class.name) {
            true => explains(class) && is_managed(diff, class),
            false => class.name != VM,
        };
        let mut classes: Vec<_> = diff.classes.iter().filter(is_named).collect();
        classes.sort_by_key(|class| Reverse(of(class).change));
        classes.into_iter().take_while(explains).filter_map(move |class| {
            let (class, bytes) = owning(diff, class, of);
            (!is_hidden(&class.name)).then(|| Self::class(diff, Some(class), bytes))
        })
    }

    fn class(diff: Changes<'a>, class: Option<&'a ClassChange>, bytes: Trajectory) -> Self {
        Self { subject: Subject::Objects, cause: largest(diff, Part::Managed), class, bytes }
    }

    pub(super) fn course(&self, diff: Changes<'_>) -> Course {
        course(self.values(), &times(diff))
    }

    /// Returns true if its bytes grow more and more slowly.
    pub(super) fn levels_off(&self, diff: Changes<'_>) -> bool {
        course(&self.bytes, &times(diff)) == Course::LevelsOff
    }

    /// Returns true if it grows more slowly at the end.
    pub(super) fn slows_down(&self, diff: Changes<'_>) -> bool {
        slows_down(self.values(), &times(diff))
    }

    /// The number of objects, or the bytes.
    fn values(&self) -> &Trajectory {
        match self.class {
            // The number of a class's objects fluctuates less with garbage than the memory that they hold.
            Some(class) if has_more_objects(class) && self.subject == Subject::Objects => {
                class.growing_objects()
            }
            _ => &self.bytes,
        }
    }

    /// Returns true for objects that are released when running methods return, and for weak maps, which grow with what others retain.
    pub(super) fn is_only_in_use(&self) -> bool {
        let is_of = |class: &ClassChange| {
            class.kept_by.as_deref().is_some_and(leads_through_method)
                || WEAK_MAPS.contains(&class.name.as_str())
        };
        self.subject == Subject::Objects && self.class.is_some_and(is_of)
    }

    /// Returns true if the memory that grew lasts: most of its objects are still there, or the owner of native memory is known and
    /// keeps its blocks.
    pub(super) fn lasts(&self, diff: Changes<'_>) -> bool {
        let owners_unknown = self.cause.is_some_and(|cause| OWNERS_UNKNOWN.contains(&cause));
        match (self.subject, self.class) {
            (Subject::Unreachable, _) => self.has_lasting_blocks(diff),
            (Subject::Native, None) => {
                !owners_unknown && native_owner(diff).is_some() && self.has_lasting_blocks(diff)
            }
            // The memory of code counts with its garbage.
            (Subject::Code, Some(class)) if is_mostly_garbage(class) => false,
            (_, Some(class)) if has_more_objects(class) => {
                let at = &class.growing_objects().at;
                let grown = at.iter().rev().nth(1).zip(at.first());
                let grown = grown.map_or(0, |(before, first)| before.saturating_sub(*first));
                class.kept_by.is_some() && 2 * class.lasting_newcomers >= grown.max(1)
            }
            // Objects that were there before grew.
            (subject, Some(class)) => {
                let before = class.growing_objects().at.first().copied().unwrap_or(0);
                let is_native = subject == Subject::Native;
                2 * class.survivors >= before.max(1)
                    && (!is_native || self.has_lasting_blocks(diff))
            }
            _ => false,
        }
    }

    /// Returns false if most native memory that grew has sizes whose blocks come and go.
    fn has_lasting_blocks(&self, diff: Changes<'_>) -> bool {
        blocks_of_largest(diff).is_none_or(|row| 2 * row.grown_bytes >= self.bytes.change)
    }

    /// Returns true if memory that [lasts](Self::lasts) cannot be other memory at the same addresses. malloc may hand out the address of a
    /// freed block again for one of the same size, but nothing can free memory that nothing points to.
    pub(super) fn is_sure_to_last(&self) -> bool {
        self.subject != Subject::Native || self.class.is_some_and(has_more_objects)
    }

    /// Returns true if a library may just have filled caches of objects that were there before.
    pub(super) fn may_be_caches(&self, diff: Changes<'_>) -> bool {
        let Some(class) = self.class else { return false };
        let is_held =
            |it: &&OwnerChange| it.owner == class.name && it.cause == Some(Cause::NativeHeld);
        let is_most = |held: &OwnerChange| 2 * held.bytes.change >= self.bytes.change;
        may_be_caches(diff, class) && diff.owners.iter().find(is_held).is_some_and(is_most)
    }

    /// Returns true for objects that were there before if they grow more slowly than at first: a table fills the room that it has.
    pub(super) fn may_fill_up(&self, diff: Changes<'_>) -> bool {
        let is_buffer = self.class.is_some_and(|class| !has_more_objects(class));
        let rates = rates(&self.bytes, &times(diff));
        let slows_down =
            rates.last().zip(rates.first()).is_some_and(|(last, first)| last < &(EVEN * first));
        self.subject == Subject::Objects && is_buffer && slows_down
    }

    /// Returns true if few of the objects that were new in the last but one snapshot are still there, or if blocks of native memory come
    /// and go.
    pub(super) fn is_turned_over(&self, diff: Changes<'_>) -> bool {
        if matches!(self.subject, Subject::Native | Subject::Unreachable) {
            let comes_and_goes =
                |row: &KeptNative| row.gone > 0 && MANY_GONE * row.gone >= row.all_newcomers;
            return !self.has_lasting_blocks(diff)
                && blocks_of_largest(diff).is_some_and(comes_and_goes);
        }
        let has_newcomers = self.class.is_some_and(has_more_objects);
        self.subject == Subject::Objects && has_newcomers && !self.lasts(diff)
    }

    pub(super) fn verdict(
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
            owner: None,
            bytes,
            bytes_per_hour: hours.map(|hours| bytes as f64 / hours),
            doubt,
            confidence,
        }
    }
}

/// Returns true if objects whose native memory grew were there before, and the time was too short to tell it from caches that fill: an
/// SQLite database keeps 2 MB of pages, which Redmine read at a steady rate for minutes.
pub(super) fn may_be_caches(diff: Changes<'_>, class: &ClassChange) -> bool {
    !has_more_objects(class) && diff.seconds < FILLED_SECONDS
}

/// The class Thread if many threads are new.
pub(super) fn new_threads(diff: Changes<'_>) -> Option<&ClassChange> {
    let threads = |point: Option<&DiffPoint>| point.map_or(0, |point| point.threads);
    let new = threads(diff.points.last()).saturating_sub(threads(diff.points.first()));
    let is_growing =
        |class: &&ClassChange| class.growing_objects().change >= MANY_THREADS.cast_signed();
    let class = || diff.classes.iter().find(|class| class.name == "Thread").filter(is_growing);
    if new >= MANY_THREADS { class() } else { None }
}

/// Returns true if most of a class's growth is garbage.
pub(super) fn is_mostly_garbage(class: &ClassChange) -> bool {
    2 * class.growing_bytes().change < class.bytes.change
}

/// Returns the class whose objects retain the objects of `class`, if their numbers rose alike: if each session has a
/// string, the sessions leak. Returns `class` itself otherwise. Also returns the memory of both, of the classes between
/// them, and of the others whose objects the objects of the returned class retain.
fn owning<'a>(
    diff: Changes<'a>,
    class: &'a ClassChange,
    of: fn(&ClassChange) -> &Trajectory,
) -> (&'a ClassChange, Trajectory) {
    let grown = |class: &ClassChange| class.growing_objects().change;
    let path = classes_of_path(class);
    let (mut owning, mut last) = (class, class);
    let mut steps = path.len();
    // The path begins with a constant or variable, and ends with the class.
    for (index, name) in path.iter().enumerate().skip(1).rev().skip(1) {
        match diff.classes.iter().find(|class| class.name == *name) {
            // An object may have several hidden ones: the buffers of a reader, for example.
            Some(class)
                if grown(class) > 0
                    && (is_hidden(&last.name) || 2 * grown(class) >= grown(last)) =>
            {
                last = class;
            }
            _ => break,
        }
        if !CONTAINERS.contains(name) {
            (owning, steps) = (last, index + 1);
        }
    }
    // Hidden objects are parts of others, which may be as many as before: a queue, or a stream with a buffer.
    if is_hidden(&owning.name)
        && let Some(name) = class.kept_by.as_deref().and_then(class_of_hidden)
        && let Some(index) = path.iter().rposition(|it| *it == name)
        && let Some(owner) = diff.classes.iter().find(|class| class.name == name)
    {
        (owning, steps) = (owner, index + 1);
    }
    let (to_owner, between) = path.split_at(steps);
    let is_retained = |other: &ClassChange| {
        let name = other.name.as_str();
        let is_below = || classes_of_path(other).starts_with(to_owner) && is_managed(diff, other);
        name == owning.name
            || between.contains(&name)
            || (!path.is_empty() && grown(other) > 0 && is_below())
    };
    let mut bytes = of(class).clone();
    for other in diff.classes.iter().filter(|it| it.name != class.name && is_retained(it)) {
        bytes.add(of(other));
    }
    (owning, bytes)
}

/// Returns false for hidden objects that are code, and true for hidden ones that may belong to objects of programs.
fn is_managed(diff: Changes<'_>, class: &ClassChange) -> bool {
    let mut owners = diff.owners.iter().filter(|owner| owner.owner == class.name);
    !is_hidden(&class.name) || owners.any(|owner| owner.cause == Some(Cause::RubyMalloc))
}

/// The root and the classes of the path that retains most objects of a class. A step may also have a number, or the name of a thread
/// and its method.
fn classes_of_path(class: &ClassChange) -> Vec<&str> {
    let steps = class.kept_by.iter().flat_map(|path| path.split(ARROW));
    steps.map(class_of).collect()
}

/// Returns true if a class grew by the number of its objects, not by the memory of existing ones.
#[must_use]
pub fn has_more_objects(class: &ClassChange) -> bool {
    let objects = class.growing_objects();
    let before = objects.at.first().unwrap_or(&0);
    objects.change > 0 && objects.change as u64 >= before / MORE_OBJECTS_FRACTION
}

/// Returns the hidden objects that are parts of the objects of a class, such as the buffer of a stream, if these parts grew more than the
/// objects themselves.
#[must_use]
pub fn growing_part<'a>(diff: &'a Diff, class: &ClassChange) -> Option<&'a ClassChange> {
    let whole =
        |part: &ClassChange| part.kept_by.as_deref().and_then(class_of_hidden) == Some(&class.name);
    let parts = diff.classes.iter().filter(|part| is_hidden(&part.name) && whole(part));
    let part = parts.max_by_key(|part| part.growing_bytes().change)?;
    (part.growing_bytes().change > class.growing_bytes().change).then_some(part)
}

/// The times of the snapshots, in milliseconds.
pub(super) fn times(diff: Changes<'_>) -> Vec<u64> {
    diff.points.iter().map(|point| point.unix_ms).collect()
}

pub(super) fn native_owner(diff: Changes<'_>) -> Option<&OwnerChange> {
    let is_native = |owner: &&OwnerChange| owner.cause.is_some_and(Cause::is_native);
    let largest = diff.owners.iter().filter(is_native).max_by_key(|owner| owner.bytes.change);
    largest.filter(|owner| owner.bytes.change > 0)
}

/// The blocks of the owner whose native memory grew most; `None` if they are not known.
pub(super) fn blocks_of_largest<'a>(diff: Changes<'a>) -> Option<&'a KeptNative> {
    let owner = native_owner(diff)?;
    let mut rows = diff.kept_native.into_iter().flatten();
    rows.find(|row| {
        row.owner == owner.owner && row.kind == owner.kind && Some(row.cause) == owner.cause
    })
}
