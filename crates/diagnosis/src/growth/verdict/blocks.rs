//! The owners that keep more and more blocks of native memory.

use formats::{ClassChange, Confidence, Diff, DiffKind, DiffVerdict, Doubt, KeptNative, Subject};
use ledger::Cause;

use super::changes::{Changes, EXPLAINS, MIN_SECONDS, MIN_SNAPSHOTS, SURE_SECONDS, least, verdict};
use super::largest::{Largest, may_be_caches};
use super::roots::{ENDED, PART_OF_LARGEST, least_kept};
use crate::growth::course::{Course, course, slows_down};
use crate::path::root_of;

/// The verdict on the owner that keeps more and more native memory: the largest leak, or else the largest growth. `None` if there is
/// neither that is much beside the growth of RSS.
pub(super) fn kept_native(diff: Changes<'_>) -> Option<DiffVerdict> {
    let least = least_kept(diff).max(diff.rss_bytes.change / EXPLAINS);
    let rows = || {
        diff.kept_native.into_iter().flatten().filter(|row| {
            row.bytes.change >= least && row.blocks.change > 0 && is_retained(diff, row)
        })
    };
    let verdicts = || rows().filter_map(|row| verdict_on_owner(diff, row));
    verdicts().find(|it| it.kind == DiffKind::NativeLeak).or_else(|| verdicts().next())
}

/// Returns the owner with most blocks of which it is not known if they stay, if that is as much as growth in all the time. Others of the
/// same sizes come and go.
pub(super) fn open_blocks(diff: Changes<'_>) -> Option<&KeptNative> {
    let spans = diff.points.len().saturating_sub(1) as u64;
    let rows = diff.kept_native.into_iter().flatten();
    let largest = rows.max_by_key(|row| row.open_bytes);
    largest.filter(|row| row.open_bytes.saturating_mul(spans) >= least(diff))
}

/// Returns true if native memory grew mostly in pages that the process had already: malloc handed out free memory again.
#[must_use]
pub fn is_native_in_free_memory(diff: &Diff) -> bool {
    let native = diff.causes.iter().filter(|it| it.cause.is_native());
    let grown = native.fold(0_i64, |sum, it| sum.saturating_add(it.bytes.change));
    is_in_free_memory(grown, diff.rss_bytes.change)
}

/// Returns true if memory grew by more than twice as much as RSS.
#[must_use]
pub fn is_in_free_memory(grown: i64, rss_growth: i64) -> bool {
    grown > 0 && rss_growth < grown / 2
}

/// Returns the owner of a leak of native memory beside a verdict on other memory, if it is much beside that.
#[must_use]
pub fn native_besides(diff: &Diff) -> Option<&KeptNative> {
    let verdict = &diff.verdict;
    let is_native = matches!(verdict.subject, Subject::Native | Subject::Unreachable);
    if is_native || matches!(verdict.kind, DiffKind::Stable | DiffKind::Shrank) {
        return None;
    }
    let changes = Changes::from(diff);
    let least = least_kept(changes).max(verdict.bytes / PART_OF_LARGEST);
    let root = |class: &ClassChange| class.kept_by.as_deref().map(root_of).map(str::to_owned);
    let class = |name: &str| diff.classes.iter().find(|class| class.name == name);
    // What the same root retains is a part of the same leak.
    let of_verdict = verdict.class.as_deref().and_then(class).and_then(root);
    let of_verdict = verdict.root.clone().or(of_verdict);
    let is_other = |row: &KeptNative| {
        Some(&row.owner) != verdict.class.as_ref()
            && (of_verdict.is_none() || class(&row.owner).and_then(root) != of_verdict)
    };
    let others = diff.kept_native.iter().flatten();
    let others = others
        .filter(|row| row.bytes.change >= least && is_other(row) && is_retained(changes, row));
    let leaks = others.filter(|row| {
        verdict_on_owner(changes, row).is_some_and(|it| it.kind == DiffKind::NativeLeak)
    });
    leaks.max_by_key(|row| row.bytes.change)
}

/// Returns false for memory of objects that may be garbage, or come and go.
fn is_retained(diff: Changes<'_>, row: &KeptNative) -> bool {
    if row.cause != Cause::NativeHeld {
        return true;
    }
    class_of_owner(diff, row).is_some_and(|class| {
        let bytes = class.growing_bytes().clone();
        let objects = Largest { subject: Subject::Objects, cause: None, class: Some(class), bytes };
        class.kept_by.is_some() && objects.lasts(diff) && !objects.is_only_in_use()
    })
}

/// The class whose objects hold an owner's memory.
fn class_of_owner<'a>(diff: Changes<'a>, row: &KeptNative) -> Option<&'a ClassChange> {
    diff.classes.iter().find(|class| class.name == row.owner)
}

/// `None` if the growth slows down, or was observed too shortly.
fn verdict_on_owner(diff: Changes<'_>, row: &KeptNative) -> Option<DiffVerdict> {
    let all_times: Vec<u64> = diff.points.iter().map(|point| point.unix_ms).collect();
    // The blocks of a snapshot are compared with the next one, so the last one has no number.
    let times = &all_times[..row.bytes.at.len().min(all_times.len())];
    let seconds = times.last()?.saturating_sub(*times.first()?) as f64 / 1e3;
    if seconds < MIN_SECONDS {
        return None;
    }
    let latest = all_times.last()?.saturating_sub(*times.last()?) as f64 / 1e3;
    let has_ended =
        (row.latest_bytes as f64 / latest.max(1e-3)) < ENDED * row.bytes.change as f64 / seconds;
    let is_sure = row.cause == Cause::NativeUnreachable
        && times.len() > MIN_SNAPSHOTS
        && diff.seconds >= SURE_SECONDS
        && !slows_down(&row.bytes, times);
    let may_be_caches = row.cause == Cause::NativeHeld
        && class_of_owner(diff, row).is_some_and(|class| may_be_caches(diff, class));
    let (kind, doubt, confidence) = match course(&row.bytes, times) {
        Course::Steady if has_ended => (DiffKind::Growth, Some(Doubt::Uneven), Confidence::Low),
        Course::Steady if may_be_caches => {
            (DiffKind::Growth, Some(Doubt::Unproven), Confidence::Low)
        }
        Course::Steady if is_sure => (DiffKind::NativeLeak, None, Confidence::High),
        Course::Steady => (DiffKind::NativeLeak, None, Confidence::Medium),
        Course::TooEarly => (DiffKind::Growth, Some(Doubt::FewSnapshots), Confidence::Low),
        Course::Uneven => (DiffKind::Growth, Some(Doubt::Uneven), Confidence::Low),
        Course::LevelsOff => return None,
    };
    let subject = match row.cause {
        Cause::NativeUnreachable => Subject::Unreachable,
        _ => Subject::Native,
    };
    let verdict = verdict(diff, Some(seconds / 3600.0), kind, subject, row.bytes.change);
    Some(DiffVerdict {
        cause: Some(row.cause),
        owner: Some(row.owner.clone()),
        doubt,
        confidence,
        ..verdict
    })
}
