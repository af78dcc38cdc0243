//! The lines of code that allocate what stays: samples that outlived the observation, joined with the objects that a snapshot
//! at its end has.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use formats::{
    Diff, Kept, KeptClass, KeptGrowth, KeptJudgement, KeptLine, KeptRoot, KeptStack, KeptUnknown,
    Snapshot, milliseconds,
};
use ledger::{Gem, MapBlock, RetainedBy, Use};
use linux::Address;
use sampler::{Frame, KeptObject, KeptProfile};

use crate::path::{ARROW, class_of, is_hidden, root_of};
use crate::who::frame as who_frame;

/// The roots and the lines of a class, at most.
const MAX_ROOTS: usize = 5;
const MAX_LINES: usize = 20;
/// The number of objects of a class must grow by this multiple of its square root: as much as one that does not grow varies by chance
/// in 1 of 700 observations.
const MIN_DEVIATIONS: f64 = 3.0;
/// The samples of the second half of the time for each one of the first half, at most.
const MAX_SHIFT: u64 = 4;
/// The least number of samples of the second half that shows anything: as many, and none of the first half, are chance in 1 of 32 cases.
const MIN_LATE: u64 = 5;
/// The growth, in objects of a class, from which a root is reported without a line.
const MIN_GROWTH: u64 = 100;
/// The root of objects that only threads refer to: they are in use.
const STACKS: &str = "(stacks)";
/// The lists of the interpreter whose entries stay until a program removes them.
const LISTS: [&str; 4] = ["(at_exit)", "(finalizers)", "(TracePoints)", "(signal handlers)"];
/// The maximum number of pairs of a root and a class. No real process has as many.
const MAX_PAIRS: usize = 1 << 20;

/// How the objects were sampled.
#[derive(Debug, Clone, Copy)]
pub struct KeptSampling {
    /// The ticks of a second of a thread's processor time.
    pub rate: u32,
    /// The age at which objects count, at the end.
    pub older_than: Duration,
}

/// The number of objects of each class that something retains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainedObjects {
    classes: BTreeMap<String, u64>,
    /// The objects of each class that a root of the program retains, by the names of both.
    of_roots: BTreeMap<String, BTreeMap<String, u64>>,
    /// The resident bytes of native memory, which are no objects.
    native_bytes: u64,
}

/// Counts the objects of each class that something but a thread's stack retains; `None` if it is not known what retains objects.
#[must_use]
pub fn retained_objects(snapshot: &Snapshot) -> Option<RetainedObjects> {
    let native_bytes = native_bytes(snapshot);
    let mut counts = RetainedObjects { native_bytes, ..RetainedObjects::default() };
    let mut by_owner: HashMap<u32, u64> = HashMap::new();
    let mut by_pair: HashMap<(usize, u32), u64> = HashMap::new();
    for (block, by) in objects(snapshot)? {
        let Some(owner) = block.owner.filter(|_| is_kept(snapshot, by)) else { continue };
        *by_owner.entry(owner).or_default() += 1;
        if let RetainedBy::Root(root) = by
            && (by_pair.len() < MAX_PAIRS || by_pair.contains_key(&(root, owner)))
        {
            *by_pair.entry((root, owner)).or_default() += 1;
        }
    }
    for (owner, count) in by_owner {
        if let Some(class) = class(snapshot, owner) {
            *counts.classes.entry(class.to_owned()).or_default() += count;
        }
    }
    for ((root_number, owner), count) in by_pair {
        let root = root(snapshot, RetainedBy::Root(root_number));
        if let (Some(root), Some(class)) = (root, class(snapshot, owner))
            && is_of_program(root)
        {
            let classes = counts.of_roots.entry(root.to_owned()).or_default();
            *classes.entry(class.to_owned()).or_default() += count;
        }
    }
    Some(counts)
}

/// The resident bytes of native memory in use.
fn native_bytes(snapshot: &Snapshot) -> u64 {
    let native = snapshot.report.causes.iter().filter(|row| row.cause.is_native());
    native.fold(0, |sum: u64, row| sum.saturating_add(row.bytes))
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

/// Gives the result the frames of its stacks.
fn number_frames(kept: &mut Kept, profile: &KeptProfile) {
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    for frame in kept.stacks.iter_mut().flat_map(|stack| &mut stack.frames) {
        *frame = *numbers.entry(*frame).or_insert_with_key(|&number| {
            kept.frames.extend(profile.frames.get(number as usize).map(who_frame));
            kept.frames.len().saturating_sub(1) as u32
        });
    }
}

/// The stacks that made objects of a class, the one with most samples first. They share the growth of the number of objects in
/// proportion to samples.
fn stacks(class: &str, growth: u64, made: &[u32], profile: &KeptProfile) -> Vec<KeptStack> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    made.iter().for_each(|&stack| *counts.entry(stack).or_default() += 1);
    let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|&(stack, samples)| (Reverse(samples), stack));
    let (mut samples_left, mut objects_left) = (made.len() as u64, growth);
    let row = |(stack, samples): (u32, u64)| {
        let part = u128::from(objects_left) * u128::from(samples) / u128::from(samples_left);
        let objects = u64::try_from(part).unwrap_or(objects_left);
        samples_left -= samples;
        objects_left -= objects;
        let frames = profile.stacks.get(stack as usize).into_iter().flatten().rev();
        KeptStack { class: class.to_owned(), frames: frames.copied().collect(), samples, objects }
    };
    counts.into_iter().map(row).collect()
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

/// The frame that made an object, and the name of what it called.
type Made<'a> = (&'a Frame, Option<&'a str>);
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

/// The objects of a snapshot, and what retains each; `None` if that is not known.
fn objects(snapshot: &Snapshot) -> Option<impl Iterator<Item = (MapBlock, RetainedBy)> + '_> {
    let map = &snapshot.memory_map;
    (!map.roots.of_objects.is_empty()).then(|| {
        let blocks = map.areas.iter().flat_map(|area| map.blocks(area));
        blocks.filter(|block| block.used.is_object()).zip(map.roots.of_objects())
    })
}

fn class(snapshot: &Snapshot, owner: u32) -> Option<&str> {
    let owners = snapshot.report.owners.as_ref()?;
    owners.get(owner as usize).map(|it| it.owner.as_str())
}

fn root(snapshot: &Snapshot, by: RetainedBy) -> Option<&str> {
    match by {
        RetainedBy::Root(root) => {
            snapshot.memory_map.roots.roots.get(root).map(|it| it.name.as_str())
        }
        RetainedBy::Nothing | RetainedBy::Unknown => None,
    }
}

/// Returns true for a constant or variable of the program, and for lists to which programs add. Other roots, such as the interpreter's
/// variables, threads and their variables, also reach objects in use.
fn is_of_program(root: &str) -> bool {
    !root.starts_with(['(', '[']) || LISTS.contains(&root)
}

/// Returns false for a young object. If the snapshot does not know ages, those of the samples decide alone.
fn is_old(snapshot: &Snapshot, block: MapBlock) -> bool {
    block.used == Use::OldSlot || !snapshot.report.knows_ages()
}

/// Returns true unless the object is garbage, or in use by a thread alone.
fn is_kept(snapshot: &Snapshot, by: RetainedBy) -> bool {
    by != RetainedBy::Nothing && root(snapshot, by) != Some(STACKS)
}

/// The lines that made objects, those of a method together, the most samples first.
fn lines<'a>(made: impl Iterator<Item = (Made<'a>, f64)>) -> Vec<KeptLine> {
    type Method<'a> = (&'a str, Option<&'a str>);
    type Places<'a> = Vec<(Option<u32>, Option<&'a str>)>;
    let mut methods: BTreeMap<Method<'_>, (f64, Places<'_>)> = BTreeMap::new();
    for ((frame, calls), weight) in made {
        let method = methods.entry((frame.label.as_str(), frame.path.as_deref())).or_default();
        method.0 += weight;
        method.1.push((frame.line, calls));
    }
    let line = |((method, path), (weight, places)): (Method<'_>, (f64, Places<'_>))| {
        let first = places.iter().filter_map(|it| it.0).min();
        // What other lines called has nothing to do with this one.
        let at_first = || places.iter().filter(|it| it.0 == first);
        let mut callees: BTreeMap<&str, usize> = BTreeMap::new();
        for callee in at_first().filter_map(|it| it.1) {
            *callees.entry(callee).or_default() += 1;
        }
        let most = callees.into_iter().max_by_key(|it| it.1);
        let line = KeptLine {
            samples: places.len() as u64,
            method: method.to_owned(),
            calls: most.filter(|it| it.1 * 2 > at_first().count()).map(|it| it.0.to_owned()),
            path: path.map(str::to_owned),
            line: first.map(u64::from),
        };
        (weight, line)
    };
    let mut lines: Vec<(f64, KeptLine)> = methods.into_iter().map(line).collect();
    lines.sort_by(|one, other| {
        other.0.total_cmp(&one.0).then_with(|| other.1.samples.cmp(&one.1.samples))
    });
    lines.truncate(MAX_LINES);
    lines.into_iter().map(|(_, line)| line).collect()
}

/// The frame that made an object, and what it called: the innermost frame of the application from the one on that held it, else the
/// innermost one.
fn line(profile: &KeptProfile, stack: u32) -> Option<Made<'_>> {
    let frames = profile.stacks.get(stack as usize)?.iter();
    let frames: Vec<&Frame> =
        frames.filter_map(|&frame| profile.frames.get(frame as usize)).collect();
    let is_application =
        |it: &&Frame| it.path.is_some() && Gem::of(it.path.as_deref()).is_application();
    let index = frames
        .iter()
        .position(is_application)
        .or_else(|| frames.iter().position(|frame| frame.path.is_some()))
        .or((!frames.is_empty()).then_some(0))?;
    let calls = index.checked_sub(1).map(|callee| frames[callee].label.as_str());
    Some((frames[index], calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(label: &str, line: u32) -> Frame {
        let path = if line == 0 { None } else { Some("/srv/app/audit.rb".into()) };
        Frame { label: label.into(), path, line: Some(line).filter(|&line| line > 0) }
    }

    /// Samples of the ages 10 to 60 s, in `Audit#note` at two lines, and in Array.new.
    fn profile(count: u64) -> KeptProfile {
        let object = |number: u64| KeptObject {
            slot: Address(number * 40),
            stack: (number % 3) as u32,
            age: Duration::from_secs(10 + number * 50 / count),
        };
        KeptProfile {
            frames: vec![frame("Audit#note", 9), frame("Audit#note", 8), frame("Array.new", 0)],
            stacks: vec![vec![0], vec![1], vec![2, 1]],
            objects: (0..count).map(object).collect(),
            ..KeptProfile::default()
        }
    }

    fn class(profile: &KeptProfile, before: u64, after: u64) -> KeptClass {
        let mut class = Class::default();
        profile.objects.iter().for_each(|it| class.add(it, Some("Audit::LOG")));
        let grown = |_: &str| Some(after.saturating_sub(before));
        class.finish("Audit", (before, after), grown, Duration::from_secs(35), profile)
    }

    /// "About 16 of 20 samples were made in Object#ya → Psych.load", and "kept by C::E": slow code, which made 1 of 17 objects.
    #[test]
    fn slow_code_is_not_named_for_what_fast_code_made() {
        let mut profile = profile(20);
        profile.frames = vec![frame("Object#slow", 3), frame("Object#fast", 8)];
        profile.stacks = vec![vec![0], vec![1]];
        let mut class = Class::default();
        for (number, object) in profile.objects.iter_mut().enumerate() {
            object.stack = u32::from(number % 5 == 0);
        }
        for object in &profile.objects {
            class.add(object, Some(if object.stack == 0 { "SLOW" } else { "FAST" }));
        }
        let grown = |root: &str| Some(if root == "FAST" { 16_000 } else { 1_000 });
        let row = class.finish("Array", (0, 17_000), grown, Duration::from_secs(35), &profile);
        assert_eq!((row.lines[0].method.as_str(), row.lines[0].samples), ("Object#fast", 4));
        assert_eq!((row.roots[0].name.as_str(), row.roots[0].objects), ("FAST", Some(16_000)));
    }

    #[test]
    fn a_class_with_enough_samples_and_more_objects_than_before_is_named() {
        let row = class(&profile(30), 1000, 5000);
        assert_eq!((row.judgement, row.samples), (KeptJudgement::Named, 30));
        let line = KeptLine {
            samples: 30,
            method: "Audit#note".into(),
            calls: None,
            path: Some("/srv/app/audit.rb".into()),
            line: Some(8),
        };
        assert_eq!(row.lines, [line]);
        assert_eq!(
            row.roots,
            [KeptRoot { name: "Audit::LOG".into(), samples: 30, objects: Some(4000) }]
        );
    }

    #[test]
    fn nine_samples_name_nothing() {
        assert_eq!(class(&profile(9), 0, 5000).judgement, KeptJudgement::FewSamples);
        assert_eq!(class(&profile(10), 0, 5000).judgement, KeptJudgement::Named);
    }

    /// A leak whose ten samples were of three classes had no name.
    #[test]
    fn the_samples_of_a_root_name_all_its_classes() {
        let of_root = |count: u64, root: &str| {
            let mut row = class(&profile(count), 0, 5000);
            row.roots[0].name = root.into();
            row
        };
        let judgements = |mut classes: Vec<KeptClass>| {
            name_by_root(&mut classes);
            classes.into_iter().map(|it| it.judgement).collect::<Vec<_>>()
        };
        let (few, named) = (KeptJudgement::FewSamples, KeptJudgement::Named);
        let [log, list] = ["Audit::LOG", "List"];
        assert_eq!(judgements(vec![of_root(4, log), of_root(3, log), of_root(3, log)]), [named; 3]);
        assert_eq!(judgements(vec![of_root(4, log), of_root(5, log)]), [few; 2]);
        assert_eq!(judgements(vec![of_root(6, log), of_root(6, list)]), [few; 2]);
        let mut replaced = of_root(8, log);
        replaced.judgement = KeptJudgement::Replaced;
        assert_eq!(judgements(vec![of_root(4, log), replaced]), [few, KeptJudgement::Replaced]);
    }

    #[test]
    fn objects_that_replace_others_name_nothing() {
        assert_eq!(class(&profile(30), 5000, 5029).judgement, KeptJudgement::Replaced);
        assert_eq!(class(&profile(30), 5000, 4000).judgement, KeptJudgement::Replaced);
        // A number varies by its square root.
        assert_eq!(class(&profile(30), 10_000, 10_299).judgement, KeptJudgement::Replaced);
        assert_eq!(class(&profile(30), 10_000, 10_300).judgement, KeptJudgement::Named);
    }

    #[test]
    fn roots_that_retain_more_are_reported_without_a_line() {
        let retained = |roots: &[(&str, &str, u64)]| {
            let mut it = RetainedObjects::default();
            for &(root, class, count) in roots {
                it.of_roots.entry(root.into()).or_default().insert(class.into(), count);
            }
            it
        };
        let before = retained(&[
            ("REGISTRY", "String", 100),
            ("BUS", "Proc", 400),
            ("CACHE", "Entry", 5000),
            ("LOG", "Audit", 9),
            ("JOBS", "Job", 1),
            ("LIST", "Item", 7),
        ]);
        let after = [("BUS", "Proc", 700), ("BUS", "String", 650), ("CACHE", "Entry", 5200)];
        let later = [("LOG", "Audit", 900), ("NEW", "String", 9000)];
        let further = [("REGISTRY", "String", 9000), ("JOBS", "Job", 900), ("LIST", "Item", 107)];
        let mut after = retained(&[&after[..], &later[..], &further[..]].concat());
        // It was empty, and its class has as many more objects.
        after.of_roots.insert("EMPTY".into(), [("Row".into(), 500)].into());
        after.classes.insert("Row".into(), 500);
        let named = class(&profile(30), 0, 5000);
        let named = KeptClass {
            roots: vec![KeptRoot { name: "LOG".into(), samples: 30, objects: Some(30) }],
            ..named
        };
        let paths: Paths<'_> = [
            (("REGISTRY", "String"), "REGISTRY → Hash → Thread \"worker\" → String"),
            (("BUS", "Proc"), "BUS → Array → Proc (/srv/app/bus.rb:3)"),
            (("BUS", "String"), "BUS → Array → String"),
            (("JOBS", "Job"), "JOBS → Thread::Queue → Job"),
            (("CACHE", "Entry"), "CACHE → Hash → Entry"),
            (("LOG", "Audit"), "LOG → Array → Audit"),
            (("NEW", "String"), "NEW → String"),
            (("EMPTY", "Row"), "EMPTY → Array → Row"),
        ]
        .into();
        let rows = growing(&before, &after, &[named], &paths);
        let row = |root: &str, class: &str, objects_before, objects_after, path: &str| {
            let (root, class, path) = (root.into(), class.into(), path.into());
            KeptGrowth { root, class, objects_before, objects_after, path }
        };
        // CACHE varies by chance, LOG has a line, NEW is not known before and its class has no more objects, a thread may have in
        // use what REGISTRY retains, and the path of LIST is not known.
        let jobs = row("JOBS", "Job", 1, 900, "JOBS → Thread::Queue → Job");
        let bus = row("BUS", "Proc", 400, 700, "BUS → Array → Proc (/srv/app/bus.rb:3)");
        let empty = row("EMPTY", "Row", 0, 500, "EMPTY → Array → Row");
        assert_eq!(rows, [jobs, empty, bus]);
        assert!(is_of_program("(at_exit)") && !is_of_program("(threads)"));
    }

    #[test]
    fn objects_of_the_last_moments_name_nothing() {
        let mut profile = profile(30);
        profile.objects.iter_mut().take(26).for_each(|it| it.age = Duration::from_secs(12));
        assert_eq!(class(&profile, 0, 5000).judgement, KeptJudgement::Passing);
    }

    /// One sample of the second half was "these objects do not stay for long".
    #[test]
    fn a_few_samples_of_the_last_moments_show_nothing() {
        let of_samples = |count: u64| {
            let mut profile = profile(count);
            profile.objects.iter_mut().for_each(|it| it.age = Duration::from_secs(12));
            class(&profile, 0, 5000).judgement
        };
        assert_eq!([of_samples(1), of_samples(4)], [KeptJudgement::FewSamples; 2]);
        assert_eq!(of_samples(5), KeptJudgement::Passing);
    }
}
