//! The lines of code that allocate what stays: samples that outlived the observation, joined with the objects that a snapshot
//! at its end has.

mod dumps;
mod lines;
mod objects;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use formats::{
    Diff, DiffSampling, Kept, KeptGrowth, KeptJudgement, KeptRow, KeptUnknown, RootUses, Snapshot,
    milliseconds,
};
use linux::Address;
use sampler::{KeptObject, KeptProfile};

use crate::path::{ARROW, class_of, is_hidden, root_of};
use crate::sizes::Sizes;
use lines::{lines, number_frames, stacks};
use objects::{class, is_kept, is_of_program, is_old, native_bytes, object_bytes, objects, root};

pub use dumps::add_lines_to_dumps;
pub use objects::{RetainedObjects, retained_objects};

/// The roots without a line that are listed, at most.
const MAX_ROOTS: usize = 5;
/// A number of objects must grow by this multiple of its square root: as much as one that does not grow varies by chance
/// in 1 of 700 observations.
const MIN_DEVIATIONS: f64 = 3.0;
/// The least number of samples of the second half that shows anything if there are none of the first half, and how many more for each
/// one of these: chance in 1 of 1000 cases. Both halves have as many new objects that were seen.
const MIN_LATE: u64 = 10;
const MAX_SHIFT: u64 = 3;
/// The most bytes of a row: numbers of a JSON document are exact up to this one.
const MAX_BYTES: f64 = 9_007_199_254_740_992.0;
/// The growth, in objects of a class, from which a root is reported without a line.
const MIN_GROWTH: u64 = 100;

/// How the objects were sampled.
#[derive(Debug, Clone, Copy)]
pub struct KeptSampling {
    /// The ticks of a second of a thread's processor time.
    pub rate: u32,
    /// The age at which objects count, at the end.
    pub older_than: Duration,
}

/// Sums up the objects of the process `pid`, which runs `command`, that stayed: those of the profile that are older than a limit
/// and that something retains in the snapshot `after`. `before` has the objects at the beginning. Without a profile there are only the
/// roots that retain more.
#[must_use]
pub fn kept(
    (pid, command): (i32, &str),
    sampling: KeptSampling,
    profile: Result<&KeptProfile, KeptUnknown>,
    before: &RetainedObjects,
    after: &Snapshot,
) -> Kept {
    let unknown = profile.err();
    let no_profile = KeptProfile::default();
    let profile = profile.unwrap_or(&no_profile);
    let KeptProfile { ticks, seen, ambiguous, collections, major_collections, .. } = *profile;
    let mut kept = Kept {
        pid,
        command: command.to_owned(),
        elapsed_ms: milliseconds(profile.elapsed),
        rate: sampling.rate,
        older_than_ms: milliseconds(sampling.older_than),
        ticks,
        seen,
        ambiguous,
        collections,
        major_collections,
        younger: profile.young,
        native_bytes_before: before.native_bytes,
        native_bytes_after: native_bytes(after),
        rss_bytes_before: before.rss_bytes,
        rss_bytes_after: after.report.process.rss_bytes,
        object_bytes_before: before.object_bytes,
        object_bytes_after: object_bytes(after),
        ..Kept::default()
    };
    let (Some(retained), Some(objects)) = (retained_objects(after), objects(after)) else {
        kept.unknown = Some(KeptUnknown::NoReferences);
        return kept;
    };
    let paths = paths(after);
    kept.unknown = unknown.or((collections == 0).then_some(KeptUnknown::NoCollections));
    if kept.unknown.is_some() {
        kept.growing = growing(before, &retained, &[], &paths);
        kept.root_uses = uses_of(&kept.growing, after);
        return kept;
    }
    let samples: HashMap<Address, &KeptObject> =
        profile.objects.iter().map(|it| (it.slot, it)).collect();
    let mut rows: BTreeMap<(&str, Option<&str>), Vec<&KeptObject>> = BTreeMap::new();
    let mut found = 0;
    for (block, by) in objects {
        let Some(&object) = samples.get(&block.address) else { continue };
        found += 1;
        let class = block.owner.and_then(|owner| class(after, owner));
        match class.filter(|_| is_old(after, block) && is_kept(after, by)) {
            Some(_) if object.age < sampling.older_than => kept.younger += 1,
            Some(class) => rows.entry((class, root(after, by))).or_default().push(object),
            None => kept.unreachable += 1,
        }
    }
    // Their slots are free by now.
    kept.unreachable += samples.len() as u64 - found;
    let middle = middle(profile, sampling.older_than);
    let sizes = Sizes::of(after);
    let mut rows: Vec<(KeptRow, Vec<&KeptObject>)> = rows
        .into_iter()
        .map(|((class, root), samples)| {
            let mut row =
                row(class, counts(before, &retained, class, root), &samples, middle, profile);
            row.root = root.map(str::to_owned);
            row.bytes = bytes(&sizes, &row, root);
            row.path = root.and_then(|root| paths.get(&(root, class))).map(|&it| it.to_owned());
            (row, samples)
        })
        .collect();
    let early = |samples: &[&KeptObject]| count_early(samples, middle);
    name_by_root(rows.iter_mut().map(|(row, samples)| (early(samples), row)).collect());
    kept.samples = rows.iter().map(|it| it.0.samples).sum();
    // Objects of the interpreter belong to others.
    rows.sort_by_key(|(it, _)| {
        let is_named = it.judgement == KeptJudgement::Named;
        (!is_named, is_hidden(&it.class), Reverse(it.growth()), Reverse(it.samples))
    });
    let named = rows.iter().filter(|it| it.0.judgement == KeptJudgement::Named);
    let made = |samples: &[&KeptObject]| samples.iter().map(|it| it.stack).collect::<Vec<_>>();
    kept.stacks = named.flat_map(|(row, samples)| stacks(row, &made(samples), profile)).collect();
    kept.rows = rows.into_iter().map(|it| it.0).collect();
    number_frames(&mut kept, profile);
    kept.growing = growing(before, &retained, &kept.rows, &paths);
    kept.root_uses = uses_of(&kept.growing, after);
    kept
}

/// The code that uses these roots.
fn uses_of(growing: &[KeptGrowth], after: &Snapshot) -> Vec<RootUses> {
    RootUses::of_paths(growing.iter().map(|it| it.path.as_str()), &after.report.root_uses)
}

/// The objects of a class that a root of the program retains, at the beginning and at the end; of another root, those that no root of the
/// program retains.
fn counts(
    before: &RetainedObjects,
    after: &RetainedObjects,
    class: &str,
    root: Option<&str>,
) -> (u64, u64) {
    let of_class = |of: &RetainedObjects| of.classes.get(class).copied().unwrap_or(0);
    let all = (of_class(before), of_class(after));
    let Some(root) = root.filter(|root| is_of_program(root)) else {
        let of_roots = |of: &RetainedObjects| {
            let counts = of.of_roots.values().filter_map(|classes| classes.get(class));
            counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
        };
        return (all.0.saturating_sub(of_roots(before)), all.1.saturating_sub(of_roots(after)));
    };
    let of_root = |of: &RetainedObjects| of.of_roots.get(root)?.get(class).copied();
    let last = of_root(after).unwrap_or(0);
    // A root that had none may have become the one with the shortest path to objects that are not new.
    let first = || last.saturating_sub(all.1.saturating_sub(all.0));
    (of_root(before).unwrap_or_else(first), last)
}

/// The age that half of the objects have of those that were seen so long before the end. A process may have had less to do at first, or
/// less processor time.
fn middle(profile: &KeptProfile, older_than: Duration) -> Duration {
    let counted = profile.elapsed.saturating_sub(older_than).as_secs() as usize;
    let counts = || profile.seen_by_second.iter().take(counted).map(|&it| u64::from(it));
    let all: u64 = counts().sum();
    let mut sum = 0;
    let second = counts().take_while(|count| {
        sum += count;
        2 * sum < all
    });
    profile.elapsed.saturating_sub(Duration::from_secs(second.count() as u64 + 1))
}

/// Sums up samples of one class.
fn row(
    class: &str,
    (objects_before, objects_after): (u64, u64),
    samples: &[&KeptObject],
    middle: Duration,
    profile: &KeptProfile,
) -> KeptRow {
    let early = count_early(samples, middle);
    let made: Vec<u32> = samples.iter().map(|it| it.stack).collect();
    let (lines, samples) = (lines(profile, &made), samples.len() as u64);
    let growth = objects_after.saturating_sub(objects_before);
    let judgement = if growth < least_growth(objects_before, samples) {
        KeptJudgement::Replaced
    } else if is_passing(early, samples) {
        KeptJudgement::Passing
    } else if samples < KeptJudgement::MIN_SAMPLES {
        KeptJudgement::FewSamples
    } else {
        KeptJudgement::Named
    };
    let (class, root, path) = (class.to_owned(), None, None);
    KeptRow {
        class,
        root,
        path,
        samples,
        objects_before,
        objects_after,
        bytes: 0,
        judgement,
        lines,
    }
}

/// The approximate memory of the objects by which a row grew, with their memory outside of slots.
fn bytes(sizes: &Sizes<'_>, row: &KeptRow, root: Option<&str>) -> u64 {
    (sizes.mean(&row.class, root.unwrap_or_default()) * row.growth() as f64).min(MAX_BYTES) as u64
}

/// The growth of a number of objects that is no chance, and at least `least`.
fn least_growth(objects_before: u64, least: u64) -> u64 {
    least.max((MIN_DEVIATIONS * (objects_before as f64).sqrt()) as u64)
}

/// The samples of the first half.
fn count_early(samples: &[&KeptObject], middle: Duration) -> u64 {
    samples.iter().filter(|it| it.age > middle).count() as u64
}

/// Returns true if so few of all samples are of the first half that their objects do not stay for long.
fn is_passing(early: u64, samples: u64) -> bool {
    samples - early >= MIN_LATE + early * MAX_SHIFT
}

/// Names rows with few samples if their root has enough in all rows that grow: what leaks is often a structure of several objects. Each
/// row comes with its samples of the first half.
fn name_by_root(rows: Vec<(u64, &mut KeptRow)>) {
    use KeptJudgement::{FewSamples, Named};
    let mut of_roots: HashMap<String, (u64, u64)> = HashMap::new();
    for (early, row) in rows.iter().filter(|it| matches!(it.1.judgement, FewSamples | Named)) {
        if let Some(root) = &row.root {
            let sums = of_roots.entry(root.clone()).or_default();
            *sums = (sums.0 + early, sums.1 + row.samples);
        }
    }
    for (_, row) in rows.into_iter().filter(|it| it.1.judgement == FewSamples) {
        let sums = row.root.as_ref().and_then(|root| of_roots.get(root));
        if let Some(&(early, samples)) = sums
            && samples >= KeptJudgement::MIN_SAMPLES
            && !is_passing(early, samples)
        {
            row.judgement = Named;
        }
    }
}

/// The paths from roots to objects, by the names of the root and of the class.
type Paths<'a> = HashMap<(&'a str, &'a str), &'a str>;

/// The paths that the report has.
fn paths(snapshot: &Snapshot) -> Paths<'_> {
    let mut paths = Paths::new();
    for owner in snapshot.report.owners.iter().flatten() {
        for path in owner.kept_by.iter().filter_map(|it| it.path.as_deref()) {
            paths.entry((root_of(path), &owner.owner)).or_insert(path);
        }
    }
    paths
}

/// The roots that retain clearly more objects of a class than before, and of which no line is named, most objects first. A root
/// that is not known before is left out, unless the class has so many more objects: it may have retained as many objects then.
fn growing(
    before: &RetainedObjects,
    after: &RetainedObjects,
    rows: &[KeptRow],
    paths: &Paths<'_>,
) -> Vec<KeptGrowth> {
    let named = rows.iter().filter(|it| it.judgement == KeptJudgement::Named);
    let named: HashSet<&str> = named.filter_map(|it| it.root.as_deref()).collect();
    let of_root = |(root, classes): (&String, &BTreeMap<String, u64>)| {
        if named.contains(root.as_str()) {
            return None;
        }
        let earlier = before.of_roots.get(root);
        let count = |of: &RetainedObjects, class: &str| of.classes.get(class).copied().unwrap_or(0);
        let row = |(class, &objects_after): (&String, &u64)| {
            let path = *paths.get(&(root.as_str(), class.as_str()))?;
            let more = count(after, class).saturating_sub(count(before, class));
            let objects_before = match earlier {
                Some(earlier) => earlier.get(class).copied().unwrap_or(0),
                None => objects_after.saturating_sub(more),
            };
            Some(KeptGrowth {
                root: root.clone(),
                class: class.clone(),
                objects_before,
                objects_after,
                path: path.to_owned(),
                other_objects: 0,
                samples: 0,
            })
        };
        let is_clear = |it: &KeptGrowth| it.growth() >= least_growth(it.objects_before, MIN_GROWTH);
        // Hidden objects belong to others of the path.
        let rows_of_classes = classes.iter().filter(|(class, _)| !class.starts_with("(T_"));
        let grown = rows_of_classes.filter_map(row);
        let grown: Vec<KeptGrowth> =
            grown.filter(|it| is_clear(it) && !is_behind_thread(&it.path)).collect();
        let all = grown.iter().fold(0, |sum: u64, it| sum.saturating_add(it.growth()));
        // The step of a Proc has its place in the program. Objects of the interpreter say least.
        let has_proc =
            |it: &KeptGrowth| it.path.split(ARROW).any(|step| step.starts_with("Proc ("));
        let first = |it: &KeptGrowth| (!has_proc(it), is_hidden(&it.class), Reverse(it.growth()));
        let mut most = grown.into_iter().min_by_key(first)?;
        most.other_objects = all - most.growth();
        let few = rows.iter().filter(|it| it.judgement == KeptJudgement::FewSamples);
        let samples = few.filter(|it| it.root.as_ref() == Some(root)).map(|it| it.samples);
        most.samples = samples.sum();
        Some(most)
    };
    let mut roots: Vec<KeptGrowth> = after.of_roots.iter().filter_map(of_root).collect();
    roots.sort_by_key(|it| Reverse(it.growth().saturating_add(it.other_objects)));
    roots.truncate(MAX_ROOTS);
    roots
}

/// Returns true for a path through a thread, which may have in use what it retains. The objects at its end may be threads.
fn is_behind_thread(path: &str) -> bool {
    path.rsplit(ARROW).skip(1).any(is_thread)
}

/// Returns true for a step of a path that is a thread, also with its name, its method, or a number.
fn is_thread(step: &str) -> bool {
    class_of(step) == "Thread"
}

/// Adds the lines that made the objects that roots keep. Of the samples, those count that the last snapshot has as old objects and that
/// were new before the last but one: objects in use are seldom as old.
pub fn add_lines(diff: &mut Diff, profile: &Result<KeptProfile, KeptUnknown>, last: &Snapshot) {
    let profile = profile.as_ref().map_err(|&unknown| unknown);
    let profile = profile.and_then(|it| match it.collections {
        0 => Err(KeptUnknown::NoCollections),
        _ => Ok(it),
    });
    diff.kept_sampling = Some(sampling(profile));
    let Ok(profile) = profile else { return };
    let [.., before, at_end] = &diff.points[..] else { return };
    let interval = Duration::from_millis(at_end.unix_ms.saturating_sub(before.unix_ms));
    let (Some(rows), Some(objects)) = (&mut diff.kept, objects(last)) else { return };
    let samples: HashMap<Address, &KeptObject> =
        profile.objects.iter().map(|it| (it.slot, it)).collect();
    let mut of_roots: HashMap<&str, Vec<(&KeptObject, Option<&str>)>> = HashMap::new();
    for (block, by) in objects {
        if is_old(last, block)
            && let Some(&object) = samples.get(&block.address)
            && object.age >= interval
            && let Some(root) = root(last, by)
        {
            let class = block.owner.and_then(|owner| class(last, owner));
            of_roots.entry(root).or_default().push((object, class));
        }
    }
    for row in rows {
        let all = of_roots.remove(row.root.as_str()).unwrap_or_default();
        let of_class =
            || all.iter().filter(|it| row.class.is_none() || it.1 == row.class.as_deref());
        // What leaks is often a structure of several objects.
        row.samples_of_class = of_class().count() as u64 >= KeptJudgement::MIN_SAMPLES;
        let made: Vec<(&KeptObject, Option<&str>)> = match row.samples_of_class {
            true => of_class().copied().collect(),
            false => all.clone(),
        };
        row.samples = Some(made.len() as u64);
        row.sampled_class = most(made.iter().filter_map(|it| it.1), made.len());
        if made.len() as u64 >= KeptJudgement::MIN_SAMPLES {
            let stacks: Vec<u32> = made.iter().map(|it| it.0.stack).collect();
            row.made_by = lines(profile, &stacks);
        }
    }
}

/// The class of more than half of these objects.
fn most<'a>(classes: impl Iterator<Item = &'a str>, all: usize) -> Option<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    classes.for_each(|class| *counts.entry(class).or_default() += 1);
    let (class, count) = counts.into_iter().max_by_key(|it| it.1)?;
    (2 * count > all).then(|| class.to_owned())
}

fn sampling(profile: Result<&KeptProfile, KeptUnknown>) -> DiffSampling {
    match profile {
        Ok(&KeptProfile { ticks, seen, ambiguous, collections, major_collections, .. }) => {
            DiffSampling { unknown: None, ticks, seen, ambiguous, collections, major_collections }
        }
        Err(unknown) => DiffSampling { unknown: Some(unknown), ..DiffSampling::default() },
    }
}
