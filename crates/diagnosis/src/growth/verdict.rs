//! The verdict on a diff: a pure function of its numbers.

mod blocks;
mod changes;
mod largest;
mod roots;

use formats::{
    CauseChange, ClassChange, CodeChange, Confidence, Diff, DiffKind, DiffVerdict, Doubt,
    KeptChange, KeptNative, OwnerChange, Subject,
};
use ledger::{Cause, InterpreterKind};

use super::course::{Course, course};
pub use blocks::{is_in_free_memory, is_native_in_free_memory, native_besides};
use blocks::{kept_native, open_blocks};
pub(super) use changes::Changes;
use changes::{
    EXPLAINS, MIN_SECONDS, MIN_SNAPSHOTS, Part, SURE_SECONDS, Sums, largest, least, verdict,
};
use largest::{
    Largest, MIN_SHARE, OWNERS_UNKNOWN, blocks_of_largest, is_mostly_garbage, native_owner,
    new_threads, times,
};
pub use largest::{growing_part, has_more_objects};
pub use roots::{MIN_LISTED, kept_besides, root_of_most};
use roots::{
    PART_OF_LARGEST, kept, kept_shortly, least_kept, root_is_uneven, root_slows_down, slow_root,
};

/// Returns the verdict on `diff`. `hours` is the time between its first and last snapshot, `None`
/// for different processes.
pub(super) fn judge(diff: Changes<'_>, hours: Option<f64>) -> DiffVerdict {
    let sums = Sums::of(diff);
    let least = least(diff) as i64;
    let rss = diff.rss_bytes.change;
    let unread = |rss| DiffVerdict {
        doubt: Some(Doubt::Unread),
        confidence: Confidence::Low,
        ..verdict(diff, hours, DiffKind::Growth, Subject::Rss, rss)
    };
    if diff.is_unread {
        return unread(rss);
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
    let kept = [kept(diff), kept_native(diff)];
    let is_leak =
        |it: &&DiffVerdict| matches!(it.kind, DiffKind::ManagedLeak | DiffKind::NativeLeak);
    let of_kept = kept.iter().flatten().filter(is_leak).max_by_key(|it| it.bytes);
    let of_totals = leak(diff, &sums, hours, least);
    if let Some(leak) = of_totals.filter(|it| !of_kept.is_some_and(|kept| explains(kept, it))) {
        return leak;
    }
    if let Some(leak) = of_kept {
        return leak.clone();
    }
    let kept = kept.into_iter().flatten().next();
    let verdict = verdict_on_totals(diff, &sums, hours, least);
    // What comes and goes hides or feigns growth, and leaves free memory: more of it than RSS rose by, if it was garbage in pages of
    // the heap. The last snapshot has no number of what stays.
    let all_time = |kept: &DiffVerdict| match kept.bytes_per_hour.zip(hours) {
        Some((rate, hours)) => kept.bytes.max((rate * hours) as i64),
        None => kept.bytes,
    };
    let is_better = |kept: &DiffVerdict| match (verdict.doubt, verdict.kind) {
        (Some(doubt), _) => {
            matches!(doubt, Doubt::Garbage | Doubt::Turnover | Doubt::NothingInUse)
        }
        (None, DiffKind::Stable | DiffKind::Shrank) => true,
        (None, DiffKind::Retention) => 2 * all_time(kept) >= verdict.bytes.min(rss),
        _ => false,
    };
    let is_gone = matches!(verdict.doubt, Some(Doubt::Garbage | Doubt::Turnover));
    let shortly = || kept_shortly(diff).filter(|_| is_gone);
    let verdict = kept.filter(is_better).or_else(shortly).unwrap_or(verdict);
    // What roots keep might have another verdict, and so might the snapshots that were left out.
    let has_aged = diff.points.iter().filter(|point| point.has_ages()).count() >= MIN_SNAPSHOTS;
    // Blocks may stay that lie among others of the same sizes, which become fewer. And what a root keeps may become much in time.
    let is_open = nothing_grew(verdict.kind) && open_blocks(diff).is_some()
        || sees_no_leak(verdict.kind) && slow_root(diff).is_some();
    let confidence = match is_open {
        true => verdict.confidence.min(Confidence::Medium),
        false => verdict.confidence,
    };
    let verdict = DiffVerdict { confidence, ..verdict };
    // What was not read may be what grew.
    let hidden = diff.unread_growth().filter(|hidden| *hidden >= least);
    if let Some(hidden) = hidden.filter(|_| nothing_grew(verdict.kind)) {
        return unread(hidden);
    }
    match has_aged || diff.points.len() < MIN_SNAPSHOTS && diff.unread.is_empty() {
        true => verdict,
        false => DiffVerdict { confidence: Confidence::Low, ..verdict },
    }
}

/// Returns true for a leak of a root that has most of the growth of a class: other roots may leak objects of the same class.
fn explains(kept: &DiffVerdict, of_class: &DiffVerdict) -> bool {
    kept.root.is_some()
        && of_class.kind == DiffKind::ManagedLeak
        && of_class.class.as_deref() != Some("Thread")
        && 2 * kept.bytes > of_class.bytes
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
    if let Some(row) = unevictable(diff)
        && row.bytes.change >= least.max(rss / 2)
        && rss >= least
        && row.bytes.change > sums.in_use().max(sums.free.change)
    {
        let (kind, doubt) = match course(&row.bytes, &times(diff)) {
            Course::TooEarly => (DiffKind::Growth, Doubt::FewSnapshots),
            Course::Uneven => (DiffKind::Growth, Doubt::Uneven),
            Course::LevelsOff => (DiffKind::WarmUp, Doubt::LevelsOff),
            Course::Steady => (DiffKind::Growth, Doubt::Unproven),
        };
        return DiffVerdict {
            cause: Some(row.cause),
            doubt: Some(doubt),
            confidence: Confidence::Low,
            ..verdict(kind, Subject::Cause, row.bytes.change)
        };
    }
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

/// The memory of files that grew most and that the kernel cannot drop: shared memory, and pages that the process changed.
fn unevictable(diff: Changes<'_>) -> Option<&CauseChange> {
    let is_it = |row: &&CauseChange| matches!(row.cause, Cause::FileShmem | Cause::FilePrivate);
    diff.causes.iter().filter(is_it).max_by_key(|row| row.bytes.change)
}

/// Returns the least change that is growth, in bytes.
#[must_use]
pub fn least_growth(diff: &Diff) -> u64 {
    least(diff.into())
}

/// Returns the growth of RSS, in bytes: up to the last snapshot that was read, or to one that was not and has more.
#[must_use]
pub fn rss_growth(diff: &Diff) -> i64 {
    Changes::from(diff).unread_growth().unwrap_or(diff.rss_bytes.change)
}

/// Returns the change of memory in use, and of free memory that malloc or Ruby keeps, in bytes.
#[must_use]
pub fn totals(diff: &Diff) -> (i64, i64) {
    let sums = Sums::of(diff.into());
    (sums.in_use(), sums.free.change)
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
            && !it.may_be_caches(diff)
    };
    // The table of a cache grows in jumps, and its entries steadily.
    let mut grown = match new_threads(diff) {
        Some(_) => vec![Largest::managed(diff, sums, ClassChange::growing_bytes)],
        None => Largest::classes(diff, sums, ClassChange::growing_bytes)
            .find(|it| {
                let slows_down = it.class.is_some_and(|class| {
                    root_slows_down(diff, class) || root_is_uneven(diff, class)
                });
                is_lasting(it) && !it.is_only_in_use() && !slows_down
            })
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
    grown.extend(Largest::mapped_by_more(diff).filter(is_large));
    if is_code_defined_again(diff, sums) {
        grown.push(Largest::code(diff, sums));
        grown.retain(is_large);
    }
    let mut leaks: Vec<Largest<'_>> = grown.into_iter().filter(is_lasting).collect();
    leaks.sort_by_key(|it| it.bytes.change);
    let leak = leaks.pop().filter(|_| diff.points.len() >= MIN_SNAPSHOTS)?;
    let unknown = diff.causes.iter().find(|row| row.cause == Cause::Unknown);
    let is_of_it = leak.cause == Some(Cause::Unknown);
    if !is_of_it && unknown.is_some_and(|row| row.bytes.change > leak.bytes.change) {
        return None;
    }
    let kind = match leak.subject {
        Subject::Native | Subject::Unreachable => DiffKind::NativeLeak,
        Subject::Code => DiffKind::CodeLeak,
        _ => DiffKind::ManagedLeak,
    };
    let is_sure = diff.points.len() > MIN_SNAPSHOTS
        && diff.seconds >= SURE_SECONDS
        && !leak.slows_down(diff)
        && leak.is_sure_to_last();
    let confidence = if is_sure { Confidence::High } else { Confidence::Medium };
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

/// Returns true if most of the growth of the interpreter's memory is code, or tables that grow with objects, or if its kinds are unknown.
fn is_of_code(diff: Changes<'_>, sums: &Sums) -> bool {
    let is_other = |kind| matches!(kind, InterpreterKind::Other | InterpreterKind::VmStacks);
    let others = diff.interpreter.iter().filter(|row| is_other(row.kind));
    2 * others.map(|row| row.bytes.change).sum::<i64>() <= sums.code.change
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
            && (class.objects.change > 0 && class.kept_by.is_none() || is_mostly_garbage(class))
    });
    let (kind, doubt, confidence) = match largest.course(diff) {
        _ if is_garbage && is_gc_disabled(diff) => {
            (DiffKind::Growth, Doubt::GcDisabled, Confidence::High)
        }
        _ if is_garbage => (DiffKind::Growth, Doubt::Garbage, Confidence::Low),
        // Buffers and tables grow in jumps: their capacity doubles. And one object may have most bytes: the number of others beside
        // it says nothing of these.
        Course::LevelsOff
            if class.is_some_and(|class| !has_more_objects(class)) || !largest.levels_off(diff) =>
        {
            (DiffKind::Growth, Doubt::Uneven, Confidence::Low)
        }
        // So does memory that a library maps.
        Course::LevelsOff if class.is_none() && largest.cause == Some(Cause::Unknown) => {
            (DiffKind::Growth, Doubt::OwnersUnknown, Confidence::Low)
        }
        Course::LevelsOff => (DiffKind::WarmUp, Doubt::LevelsOff, Confidence::Medium),
        _ if are_owners_unknown => (DiffKind::Growth, Doubt::OwnersUnknown, Confidence::Low),
        Course::Steady if largest.subject == Subject::Code && is_of_code(diff, sums) => {
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

/// Returns the owner of the native memory that a verdict is about; `None` if it is about no single owner's.
#[must_use]
pub fn native_owner_of_verdict(diff: &Diff) -> Option<&OwnerChange> {
    native_owner(diff.into()).filter(|owner| owner.bytes.change == diff.verdict.bytes)
}

/// Returns the owner of blocks that may stay although nothing grew, so that the verdict has no high confidence.
#[must_use]
pub fn open_native_blocks(diff: &Diff) -> Option<&KeptNative> {
    open_blocks(diff.into()).filter(|_| nothing_grew(diff.verdict.kind) && diff.same_process)
}

/// Returns the root that keeps more at a steady rate although the verdict sees no leak, so that this has no high confidence.
#[must_use]
pub fn slow_root_besides(diff: &Diff) -> Option<&KeptChange> {
    let is_other = |row: &&KeptChange| diff.verdict.root.as_ref() != Some(&row.root);
    let is_besides = sees_no_leak(diff.verdict.kind) && diff.same_process;
    slow_root(diff.into()).filter(is_other).filter(|_| is_besides)
}

/// The same if it keeps much more, also compared with the other roots, or if the line is known that makes what it keeps.
#[must_use]
pub fn steady_root_besides(diff: &Diff) -> Option<&KeptChange> {
    let keeps_much = |row: &KeptChange| {
        kept_besides(diff).is_some_and(|largest| {
            row.bytes >= (largest.bytes / PART_OF_LARGEST).max(least_kept(diff.into()))
        })
    };
    slow_root_besides(diff).filter(|row| !row.made_by.is_empty() || keeps_much(row))
}

/// Returns true for a verdict that nothing grew.
fn nothing_grew(kind: DiffKind) -> bool {
    matches!(kind, DiffKind::Stable | DiffKind::Shrank)
}

/// Returns true for a verdict that what grew will not grow on, or is not known to.
fn sees_no_leak(kind: DiffKind) -> bool {
    nothing_grew(kind) || matches!(kind, DiffKind::WarmUp | DiffKind::Retention | DiffKind::Growth)
}

/// Returns the blocks of the owner that a verdict is about; `None` if it is about no single owner's native memory, or if its blocks are
/// not known.
#[must_use]
pub fn native_blocks_of_verdict(diff: &Diff) -> Option<&KeptNative> {
    let verdict = &diff.verdict;
    let mut rows = diff.kept_native.iter().flatten();
    match &verdict.owner {
        Some(owner) => rows.find(|row| row.owner == *owner && Some(row.cause) == verdict.cause),
        None if matches!(verdict.subject, Subject::Native | Subject::Unreachable) => {
            native_owner_of_verdict(diff)?;
            blocks_of_largest(diff.into())
        }
        None => None,
    }
}
