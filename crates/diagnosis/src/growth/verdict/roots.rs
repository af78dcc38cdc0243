//! The roots that keep more and more objects.

use std::collections::BTreeMap;

use formats::{
    ClassChange, Confidence, Diff, DiffKind, DiffPoint, DiffVerdict, Doubt, KeptChange, Subject,
};

use super::changes::{
    Changes, EXPLAINS, MIN_SECONDS, MIN_SNAPSHOTS, Part, SURE_SECONDS, largest, least, verdict,
};
use super::largest::{ISEQS, has_more_objects};
use crate::growth::course::{
    Course, course, end_slower, fall, is_steady, rates_with_latest, slows_down,
};
use crate::path::{leads_through_method, root_of};

/// Growth has ended if the last rate is below this part of the mean rate before.
pub(super) const ENDED: f64 = 0.25;
/// A second root is named if it keeps at least this part of what the largest one keeps: one in five.
pub(super) const PART_OF_LARGEST: i64 = 5;
/// The least change that a diff lists, in bytes.
pub const MIN_LISTED: u64 = 16 << 10;
/// The part of the mean rate below which the begin of its interval shows no growth, and that from which on the rate is sure.
const CHANCE: f64 = 0.1;
const SURE: f64 = 0.5;
/// An object is old after three collections.
const MIN_COLLECTIONS: u64 = 3;
/// The root of all threads.
const THREADS: &str = "(threads)";

/// The verdict on the root that keeps more and more objects: the largest leak, or else the largest growth. `None` if there is neither
/// that is much beside the growth of RSS.
pub(super) fn kept(diff: Changes<'_>) -> Option<DiffVerdict> {
    let least = diff.rss_bytes.change / EXPLAINS;
    let rows = || growing_roots(diff, least_kept(diff)).filter(|row| row.bytes >= least);
    let verdicts = || rows().filter_map(|row| verdict_on_root(diff, row));
    verdicts().find(|it| it.kind == DiffKind::ManagedLeak).or_else(|| verdicts().next())
}

/// The growth of the root that keeps more and more, however short the time is: these objects do not come and go.
pub(super) fn kept_shortly(diff: Changes<'_>) -> Option<DiffVerdict> {
    let times = times_of_ages(diff);
    let least = least_kept(diff).max(diff.rss_bytes.change / EXPLAINS);
    let is_steady = |row: &&KeptChange| {
        let times = &times[..row.objects.at.len().min(times.len())];
        !is_in_use(row) && course(&row.objects, times) == Course::Steady
    };
    let row = growing_roots(diff, least).find(is_steady)?;
    let hours = diff.seconds / 3600.0;
    let growth = verdict(diff, Some(hours), DiffKind::Growth, Subject::Objects, row.bytes);
    Some(DiffVerdict {
        cause: largest(diff, Part::Managed),
        class: row.class.clone(),
        root: Some(row.root.clone()),
        bytes_per_hour: row.bytes_per_hour.map_or(growth.bytes_per_hour, |rate| Some(rate.mean)),
        doubt: Some(Doubt::FewSnapshots),
        confidence: Confidence::Low,
        ..growth
    })
}

/// Returns true if the root of a class keeps its objects more and more slowly, and other roots do not: it may be a cache that fills beside
/// a leak.
pub(super) fn root_slows_down(diff: Changes<'_>, class: &ClassChange) -> bool {
    let times: Vec<u64> = diff.points.iter().map(|point| point.unix_ms).collect();
    has_more_objects(class)
        && times.len() > MIN_SNAPSHOTS
        && !slows_down(class.growing_objects(), &times)
        && class.kept_by_objects.as_ref().is_some_and(|objects| slows_down(objects, &times))
}

/// Returns true if the root of a class keeps more objects at no steady rate: those in use are retained, too, and become old in jumps.
/// Without enough collections, what a root keeps is not known.
pub(super) fn root_is_uneven(diff: Changes<'_>, class: &ClassChange) -> bool {
    let root = class.kept_by.as_deref().map(root_of);
    let times = times_of_ages(diff);
    has_more_objects(class)
        && diff.points.windows(2).all(|pair| grows_old(&pair[0], &pair[1]))
        && diff.kept.iter().filter(|row| root == Some(&row.root)).any(|row| {
            row.latest_change
                .is_some_and(|latest| !is_steady(&rates_with_latest(&row.objects, latest, &times)))
        })
}

/// Returns true if there were enough collections between two snapshots for objects to become old.
fn grows_old(before: &DiffPoint, after: &DiffPoint) -> bool {
    let collections = after.collections.zip(before.collections);
    collections.is_some_and(|(after, before)| after.saturating_sub(before) >= MIN_COLLECTIONS)
}

/// The same for the class that a root keeps most of.
fn fills_up(diff: Changes<'_>, row: &KeptChange) -> bool {
    let is_of_row = |class: &&ClassChange| {
        Some(&class.name) == row.class.as_ref()
            && class.kept_by.as_deref().map(root_of) == Some(&row.root)
    };
    diff.classes.iter().find(is_of_row).is_some_and(|class| root_slows_down(diff, class))
}

/// The roots that keep at least so many bytes more than before, most first: without those of which most objects that were new in the
/// second snapshot are gone.
fn growing_roots<'a>(diff: Changes<'a>, least: i64) -> impl Iterator<Item = &'a KeptChange> {
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
    let all_times = times_of_ages(diff);
    let times = &all_times[..row.objects.at.len().min(all_times.len())];
    let seconds = times.last()?.saturating_sub(*times.first()?) as f64 / 1e3;
    // The intervals are not exact.
    if seconds.round() < MIN_SECONDS {
        return None;
    }
    let (kind, doubt, confidence) = match course(&row.objects, times) {
        Course::Steady if is_in_use(row) => {
            (DiffKind::Growth, Some(Doubt::Unproven), Confidence::Low)
        }
        // Which of the last objects will stay is not known yet, but if there are hardly more of them, the growth has ended.
        Course::Steady if has_ended(row, &all_times) || may_be_chance(row) => {
            (DiffKind::Growth, Some(Doubt::Uneven), Confidence::Low)
        }
        Course::Steady if fills_up(diff, row) => {
            (DiffKind::Growth, Some(Doubt::Unproven), Confidence::Low)
        }
        Course::Steady if diff.seconds >= SURE_SECONDS && is_sure(row, &all_times) => {
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
        bytes_per_hour: row.bytes_per_hour.map_or(verdict.bytes_per_hour, |rate| Some(rate.mean)),
        doubt,
        confidence,
        ..verdict
    })
}

/// Returns true for variables of running methods, which are released when the methods return.
fn is_in_use(row: &KeptChange) -> bool {
    row.root == THREADS || row.path.as_deref().is_some_and(leads_through_method)
}

/// Returns true if the interval of the rate of what a root keeps begins with nearly nothing.
fn may_be_chance(row: &KeptChange) -> bool {
    row.objects_per_hour.is_some_and(|rate| rate.low <= CHANCE * rate.mean)
}

/// The times of the snapshots that show ages, in milliseconds.
fn times_of_ages(diff: Changes<'_>) -> Vec<u64> {
    let points = diff.points.iter().filter(|point| point.has_ages());
    points.map(|point| point.unix_ms).collect()
}

/// Returns true if what a root keeps grew as fast in the last interval as before, after at least two others.
fn is_sure(row: &KeptChange, times: &[u64]) -> bool {
    let Some(latest) = row.latest_change else { return false };
    let rates = rates_with_latest(&row.objects, latest, times);
    let is_precise = row.objects_per_hour.is_none_or(|rate| rate.low >= SURE * rate.mean);
    rates.len() >= MIN_SNAPSHOTS && is_steady(&rates) && !end_slower(&rates) && is_precise
}

/// Returns true if the number of a root's old objects hardly grew between the last two snapshots, compared with what the root keeps, or if
/// it has grown more slowly from snapshot to snapshot.
fn has_ended(row: &KeptChange, times: &[u64]) -> bool {
    let Some(latest) = row.latest_change else { return false };
    let rates = rates_with_latest(&row.objects, latest, times);
    let Some((last, before)) = rates.split_last() else { return false };
    let mean = before.iter().sum::<f64>() / before.len().max(1) as f64;
    *last < ENDED * mean || fall(&rates)
}

/// The least memory that a root keeps more than before which is growth, in bytes. It has no garbage, so it fluctuates less than
/// totals.
pub(super) fn least_kept(diff: Changes<'_>) -> i64 {
    least(diff) as i64 / 4
}

/// Returns the root that keeps most more than before, at a steady rate, if that is too little for a verdict.
pub(super) fn slow_root(diff: Changes<'_>) -> Option<&KeptChange> {
    let leaks = |row: &&KeptChange| {
        verdict_on_root(diff, row).is_some_and(|it| it.kind == DiffKind::ManagedLeak)
    };
    growing_roots(diff, MIN_LISTED as i64).find(leaks)
}

/// Returns the root other than that of the verdict that keeps most more than before, if that is growth, and much beside the largest.
#[must_use]
pub fn kept_besides(diff: &Diff) -> Option<&KeptChange> {
    let verdict = &diff.verdict;
    if matches!(verdict.kind, DiffKind::Stable | DiffKind::Shrank) || diff.seconds < MIN_SECONDS {
        return None;
    }
    let least = least_kept(diff.into());
    let largest = growing_roots(diff.into(), least).next()?.bytes;
    // The root of code that is defined again keeps its bytecode.
    let name = match verdict.subject {
        Subject::Code => Some(ISEQS),
        _ => verdict.class.as_deref(),
    };
    let class = diff.classes.iter().find(|it| Some(it.name.as_str()) == name);
    let path = class.and_then(|class| class.kept_by.as_deref());
    let root = verdict.root.as_deref().or_else(|| path.map(root_of));
    let mut others = growing_roots(diff.into(), least).filter(|row| root != Some(&row.root));
    others.next().filter(|other| other.bytes >= largest / PART_OF_LARGEST)
}

/// Returns the root that retains more than half of the growth of a verdict on objects of many classes.
#[must_use]
pub fn root_of_most(diff: &Diff) -> Option<&str> {
    let mut roots = BTreeMap::<&str, i64>::new();
    for class in &diff.classes {
        if let Some(path) = &class.kept_by {
            let gain = i64::try_from(class.kept_by_bytes).unwrap_or(i64::MAX);
            let bytes = roots.entry(root_of(path)).or_default();
            *bytes = bytes.saturating_add(gain.min(class.growing_bytes().change).max(0));
        }
    }
    // Lists of the interpreter, and many roots, have names in parentheses.
    roots.retain(|root, _| !root.starts_with('('));
    let (root, bytes) = roots.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    (2 * bytes > diff.verdict.bytes).then_some(root)
}
