//! The lines of code that allocate what stays: samples that outlived the observation, joined with the objects that a snapshot
//! at its end has.

mod lines;
mod objects;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use formats::{
    Diff, Kept, KeptClass, KeptGrowth, KeptJudgement, KeptRoot, KeptUnknown, Snapshot, milliseconds,
};
use linux::Address;
use sampler::{KeptObject, KeptProfile};

use crate::path::{ARROW, class_of, is_hidden, root_of};
use lines::{line, lines, number_frames, stacks};
use objects::{class, is_kept, is_of_program, is_old, native_bytes, objects, root};

pub use objects::{RetainedObjects, retained_objects};

/// The roots of a class, at most.
const MAX_ROOTS: usize = 5;
/// The number of objects of a class must grow by this multiple of its square root: as much as one that does not grow varies by chance
/// in 1 of 700 observations.
const MIN_DEVIATIONS: f64 = 3.0;
/// The samples of the second half of the time for each one of the first half, at most.
const MAX_SHIFT: u64 = 4;
/// The least number of samples of the second half that shows anything: as many, and none of the first half, are chance in 1 of 32 cases.
const MIN_LATE: u64 = 5;
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
/// and that something retains in the snapshot `after`. `before` has the objects at the beginning.
#[must_use]
pub fn kept(
    (pid, command): (i32, &str),
    sampling: KeptSampling,
    profile: &KeptProfile,
    before: &RetainedObjects,
    after: &Snapshot,
) -> Kept {
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
        ..Kept::default()
    };
    if collections == 0 {
        kept.unknown = Some(KeptUnknown::NoCollections);
        return kept;
    }
    let (Some(retained), Some(objects)) = (retained_objects(after), objects(after)) else {
        kept.unknown = Some(KeptUnknown::NoReferences);
        return kept;
    };
    let samples: HashMap<Address, &KeptObject> =
        profile.objects.iter().map(|it| (it.slot, it)).collect();
    let mut classes: BTreeMap<&str, Class<'_>> = BTreeMap::new();
    let mut found = 0;
    for (block, by) in objects {
        let Some(&object) = samples.get(&block.address) else { continue };
        found += 1;
        let class = block.owner.and_then(|owner| class(after, owner));
        match class.filter(|_| is_old(after, block) && is_kept(after, by)) {
            Some(_) if object.age < sampling.older_than => kept.younger += 1,
            Some(class) => classes.entry(class).or_default().add(object, root(after, by)),
            None => kept.unreachable += 1,
        }
    }
    // Their slots are free by now.
    kept.unreachable += samples.len() as u64 - found;
    let longest = profile.objects.iter().map(|it| it.age).max().unwrap_or_default();
    let middle = (longest + sampling.older_than) / 2;
    let count =
        |counts: &RetainedObjects, class: &str| counts.classes.get(class).copied().unwrap_or(0);
    let stacks_of = |class: &Class<'_>| class.samples.iter().map(|it| it.0.stack).collect();
    let of_root = |counts: &RetainedObjects, root: &str, class: &str| {
        counts.of_roots.get(root).and_then(|classes| classes.get(class)).copied().unwrap_or(0)
    };
    let made: HashMap<&str, Vec<u32>> =
        classes.iter().map(|(&name, class)| (name, stacks_of(class))).collect();
    kept.classes = classes
        .into_iter()
        .map(|(name, class)| {
            let counts = (count(before, name), count(&retained, name));
            let growth = counts.1.saturating_sub(counts.0);
            let grown = |root: &str| {
                let (first, last) = (of_root(before, root, name), of_root(&retained, root, name));
                // A root may have become the one with the shortest path to objects that are not new.
                is_of_program(root).then(|| last.saturating_sub(first).min(growth))
            };
            class.finish(name, counts, grown, middle, profile)
        })
        .collect();
    name_by_root(&mut kept.classes);
    let named = kept.classes.iter().filter(|it| it.judgement == KeptJudgement::Named);
    kept.stacks = named
        .flat_map(|class| {
            let growth = class.objects_after.saturating_sub(class.objects_before);
            stacks(&class.class, growth, &made[class.class.as_str()], profile)
        })
        .collect();
    number_frames(&mut kept, profile);
    kept.growing = growing(before, &retained, &kept.classes, &paths(after));
    kept.samples = kept.classes.iter().map(|it| it.samples).sum();
    // Objects of the interpreter belong to others.
    kept.classes.sort_by_key(|it| {
        (it.judgement != KeptJudgement::Named, is_hidden(&it.class), Reverse(it.samples))
    });
    kept
}

/// The samples of a class, and the roots that retain them.
#[derive(Default)]
struct Class<'a> {
    samples: Vec<(&'a KeptObject, Option<&'a str>)>,
}

impl<'a> Class<'a> {
    fn add(&mut self, object: &'a KeptObject, root: Option<&'a str>) {
        self.samples.push((object, root));
    }

    /// Sums up the samples. `grown` is by how many objects of the class a root has more, if that is known.
    fn finish(
        self,
        name: &str,
        (objects_before, objects_after): (u64, u64),
        grown: impl Fn(&str) -> Option<u64>,
        middle: Duration,
        profile: &KeptProfile,
    ) -> KeptClass {
        let samples = self.samples.len() as u64;
        let early = self.samples.iter().filter(|it| it.0.age > middle).count() as u64;
        let late = samples - early;
        let growth = objects_after.saturating_sub(objects_before);
        let judgement = if growth < least_growth(objects_before, samples) {
            KeptJudgement::Replaced
        } else if late >= MIN_LATE && late > early * MAX_SHIFT {
            KeptJudgement::Passing
        } else if samples < KeptJudgement::MIN_SAMPLES {
            KeptJudgement::FewSamples
        } else {
            KeptJudgement::Named
        };
        let mut roots: BTreeMap<&str, KeptRoot> = BTreeMap::new();
        for root in self.samples.iter().filter_map(|it| it.1) {
            let new = || KeptRoot { name: root.to_owned(), samples: 0, objects: grown(root) };
            roots.entry(root).or_insert_with(new).samples += 1;
        }
        // Code that runs for long is sampled more often, so the samples of a root share its growth.
        let weight = |root: Option<&str>| {
            let root = root.and_then(|root| roots.get(root));
            let known = root.and_then(|it| Some((it.objects?, it.samples)));
            let (objects, samples) = known.unwrap_or((growth, samples));
            objects as f64 / samples.max(1) as f64
        };
        let made = |(object, root): &(&'a KeptObject, Option<&str>)| {
            Some((line(profile, object.stack)?, weight(*root)))
        };
        let lines = lines(self.samples.iter().filter_map(made));
        let mut roots: Vec<KeptRoot> = roots.into_values().collect();
        let share = |it: &KeptRoot| {
            let part = u128::from(growth) * u128::from(it.samples) / u128::from(samples.max(1));
            it.objects.unwrap_or(u64::try_from(part).unwrap_or(growth))
        };
        roots.sort_by_key(|it| (Reverse(share(it)), Reverse(it.samples)));
        roots.truncate(MAX_ROOTS);
        let class = name.to_owned();
        KeptClass { class, samples, objects_before, objects_after, judgement, roots, lines }
    }
}

/// The growth of a number of objects that is no chance, and at least `least`.
fn least_growth(objects_before: u64, least: u64) -> u64 {
    least.max((MIN_DEVIATIONS * (objects_before as f64).sqrt()) as u64)
}

/// Names classes with few samples if the root that keeps them has enough in all classes that grow: what leaks is often a structure
/// of several objects.
fn name_by_root(classes: &mut [KeptClass]) {
    use KeptJudgement::{FewSamples, Named};
    let mut of_roots: HashMap<String, u64> = HashMap::new();
    for class in classes.iter().filter(|it| matches!(it.judgement, FewSamples | Named)) {
        for root in &class.roots {
            *of_roots.entry(root.name.clone()).or_default() += root.samples;
        }
    }
    for class in classes.iter_mut().filter(|it| it.judgement == FewSamples) {
        let most = class.roots.iter().find(|it| it.samples * 2 > class.samples);
        if most.is_some_and(|root| of_roots.get(&root.name) >= Some(&KeptJudgement::MIN_SAMPLES)) {
            class.judgement = Named;
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
    classes: &[KeptClass],
    paths: &Paths<'_>,
) -> Vec<KeptGrowth> {
    let named = classes.iter().filter(|it| it.judgement == KeptJudgement::Named);
    let named: HashSet<&str> = named.flat_map(|it| &it.roots).map(|it| it.name.as_str()).collect();
    let growth = |it: &KeptGrowth| it.objects_after.saturating_sub(it.objects_before);
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
            let (root, class, path) = (root.clone(), class.clone(), path.to_owned());
            Some(KeptGrowth { root, class, objects_before, objects_after, path })
        };
        let is_clear = |it: &KeptGrowth| growth(it) >= least_growth(it.objects_before, MIN_GROWTH);
        // A thread may have in use what it retains. Hidden objects belong to others of the path.
        let rows = classes.iter().filter(|(class, _)| !class.starts_with("(T_")).filter_map(row);
        let grown = rows.filter(|it| is_clear(it) && !it.path.split(ARROW).any(is_thread));
        // The step of a Proc has its place in the program. Objects of the interpreter say least.
        let has_proc =
            |it: &KeptGrowth| it.path.split(ARROW).any(|step| step.starts_with("Proc ("));
        grown.min_by_key(|it| (!has_proc(it), is_hidden(&it.class), Reverse(growth(it))))
    };
    let mut rows: Vec<KeptGrowth> = after.of_roots.iter().filter_map(of_root).collect();
    rows.sort_by_key(|it| Reverse(growth(it)));
    rows.truncate(MAX_ROOTS);
    rows
}

/// Returns true for a step of a path that is a thread, also with its name, its method, or a number.
fn is_thread(step: &str) -> bool {
    class_of(step) == "Thread"
}

/// Adds the lines that made the objects that roots keep. Of the samples, those count that the last snapshot has as old objects and that
/// were new before the last but one: objects in use are seldom as old.
pub fn add_lines(diff: &mut Diff, profile: &KeptProfile, last: &Snapshot) {
    let [.., before, at_end] = &diff.points[..] else { return };
    let interval = Duration::from_millis(at_end.unix_ms.saturating_sub(before.unix_ms));
    let (Some(rows), Some(objects)) = (&mut diff.kept, objects(last)) else { return };
    let samples: HashMap<Address, &KeptObject> =
        profile.objects.iter().map(|it| (it.slot, it)).collect();
    let mut of_roots: HashMap<&str, Vec<&KeptObject>> = HashMap::new();
    for (block, by) in objects {
        if is_old(last, block)
            && let Some(&object) = samples.get(&block.address)
            && object.age >= interval
            && let Some(root) = root(last, by)
        {
            of_roots.entry(root).or_default().push(object);
        }
    }
    for row in rows {
        let made = of_roots.remove(row.root.as_str()).unwrap_or_default();
        row.samples = Some(made.len() as u64);
        if made.len() as u64 >= KeptJudgement::MIN_SAMPLES {
            let made = made.iter().filter_map(|it| line(profile, it.stack));
            row.made_by = lines(made.map(|made| (made, 1.0)));
        }
    }
}
