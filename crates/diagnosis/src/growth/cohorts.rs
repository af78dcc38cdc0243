//! Objects that are still there in later snapshots: objects of the same class at the same address.
//!
//! If an object dies and another object of its class takes the slot, it counts as the same, unless it was old before and
//! is young now. So the number of survivors may be too high. It is too low after GC.compact. The number of lasting newcomers does
//! not depend on ages.
//!
//! A root *keeps* the objects that the next snapshot has, too, retained by the same root and old by then. Objects that come and go do not
//! count. So garbage neither hides growth nor looks like it, and without collections between the snapshots nothing is
//! known to be kept. A snapshot that was taken while a major collection marked does not know which objects are old, and is left out.

use std::collections::HashMap;
use std::iter::Peekable;

use formats::{ClassChange, KeptChange, PlaceRow, Rate, Snapshot, Trajectory, UnchangedRow};
use ledger::{MEMORY_OF_EXTENSIONS, MapBlock, RetainedBy, Use};
use linux::Address;

use super::course::rates_with_latest;
use crate::path::ARROW;
use crate::sizes::Sizes;
use crate::statistics::mean_with_interval;

/// Roots that may be old words, or are no roots of the program's.
const NO_ROOTS: [&str; 2] = ["(stacks)", MEMORY_OF_EXTENSIONS];
/// The maximum number of roots in a diff.
const MAX_ROOTS: usize = 20;
/// The largest change, in bytes: numbers of a document are exact up to this one.
const MAX_BYTES: f64 = 9_007_199_254_740_992.0;
/// The maximum number of pairs of a root and a class. No real process has as many.
const MAX_PAIRS: usize = 1 << 20;

/// Counts, for each class, three groups of objects in the last snapshot: those that existed in the first one, the new
/// ones, and the new ones that existed in the second to last snapshot. Returns what roots keep, most growth first, and what they had in
/// all snapshots, most memory first; `None` if there are fewer than three snapshots, or one of them does not know the roots.
pub(super) fn count(
    snapshots: &[&Snapshot],
    classes: &mut [ClassChange],
) -> Option<(Vec<KeptChange>, Vec<UnchangedRow>)> {
    let rows: HashMap<String, usize> =
        classes.iter().enumerate().map(|(index, class)| (class.name.clone(), index)).collect();
    let mut names = Names::default();
    let mut looks: Vec<_> = snapshots.iter().map(|it| Look::new(it, &mut names)).collect();
    let knows_roots = |it: &&Snapshot| !it.memory_map.roots.of_objects.is_empty();
    let aged: Vec<usize> =
        (0..snapshots.len()).filter(|&index| snapshots[index].report.knows_ages()).collect();
    let unix_ms = |index: usize| snapshots[index].report.capture.unix_ms;
    let mut kept = (aged.len() >= 3 && snapshots.iter().all(knows_roots)).then(|| Kept {
        times: aged.iter().map(|&it| unix_ms(it)).collect(),
        counts: HashMap::new(),
    });
    let row_of_class: Vec<Option<usize>> =
        names.classes.all.iter().map(|name| rows.get(*name).copied()).collect();
    let (mut objects, mut of_aged) = (Vec::new(), Vec::new());
    while next(&mut looks, &mut objects) {
        if let Some(class) = objects.last().and_then(|it| row_of_class[it.as_ref()?.class]) {
            survive(&mut classes[class], &objects);
        }
        if let Some(kept) = &mut kept {
            of_aged.clear();
            of_aged.extend(aged.iter().map(|&index| objects[index]));
            kept.add(&of_aged);
        }
    }
    let last = snapshots[*aged.last()?];
    let kept = kept?;
    let unchanged = kept.unchanged(&names, last);
    Some((kept.changes(&names, last), unchanged))
}

/// The names of classes and roots, by number.
#[derive(Default)]
struct Names<'a> {
    classes: Numbered<'a>,
    roots: Numbered<'a>,
}

#[derive(Default)]
struct Numbered<'a> {
    all: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Numbered<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.all.push(name);
            self.all.len() - 1
        })
    }
}

/// An object in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Object {
    class: usize,
    /// The root that retains it; `None` for garbage, and if there is no such root.
    root: Option<usize>,
    /// True if its root is not known.
    is_unknown: bool,
    /// `None` if the snapshot does not know that.
    is_old: Option<bool>,
}

impl Object {
    /// Returns true if an object at the same address in a later snapshot is probably this one.
    fn is(&self, later: &Self) -> bool {
        self.class == later.class && (self.is_old, later.is_old) != (Some(true), Some(false))
    }

    /// Returns true if one at the same address in another snapshot has the same class and root.
    fn is_alike(&self, other: &Self) -> bool {
        self.class == other.class && self.root.is_some() && self.root == other.root
    }

    /// Returns true if one at the same address in a later snapshot is this one, and still retained by the same root. Slots are used
    /// again, mostly by objects of the same class: only an old object has lived through the collections since.
    fn is_kept(&self, later: &Self) -> bool {
        self.is_alike(later) && later.is_old == Some(true)
    }
}

/// The objects of a snapshot, ascending by address. Those without a class are left out.
struct Look<'a> {
    objects: Peekable<Box<dyn Iterator<Item = (Address, Object)> + 'a>>,
}

impl<'a> Look<'a> {
    fn new(snapshot: &'a Snapshot, names: &mut Names<'a>) -> Self {
        let owners = snapshot.report.owners.iter().flatten();
        let classes: Vec<usize> = owners.map(|it| names.classes.number(&it.owner)).collect();
        let map = &snapshot.memory_map;
        let knows_ages = snapshot.report.knows_ages();
        let number = |name: &'a str, names: &mut Names<'a>| {
            (!NO_ROOTS.contains(&name)).then(|| names.roots.number(name))
        };
        let roots: Vec<Option<usize>> =
            map.roots.roots.iter().map(|root| number(&root.name, names)).collect();
        let by = map.roots.of_objects().chain(std::iter::repeat(RetainedBy::Unknown));
        let blocks = map.areas.iter().flat_map(|area| map.blocks(area));
        let objects = blocks.filter(|block| block.used.is_object()).zip(by);
        let object = move |(block, by): (MapBlock, RetainedBy)| {
            let object = Object {
                class: *classes.get(block.owner? as usize)?,
                root: match by {
                    RetainedBy::Root(root) => *roots.get(root)?,
                    RetainedBy::Nothing | RetainedBy::Unknown => None,
                },
                is_unknown: by == RetainedBy::Unknown,
                is_old: knows_ages.then_some(block.used == Use::OldSlot),
            };
            Some((block.address, object))
        };
        let objects: Box<dyn Iterator<Item = _>> = Box::new(objects.filter_map(object));
        Self { objects: objects.peekable() }
    }
}

/// Finds the objects of each snapshot at the next address that has one; returns false at the end.
fn next(looks: &mut [Look<'_>], objects: &mut Vec<Option<Object>>) -> bool {
    objects.clear();
    let heads = looks.iter_mut().filter_map(|look| look.objects.peek());
    let Some(at) = heads.map(|(address, _)| *address).min() else { return false };
    let object = |look: &mut Look<'_>| look.objects.next_if(|it| it.0 == at).map(|it| it.1);
    objects.extend(looks.iter_mut().map(object));
    true
}

/// Counts the objects at one address for the class of the last one.
fn survive(class: &mut ClassChange, objects: &[Option<Object>]) {
    let [first, between @ .., Some(last)] = objects else { return };
    if first.is_some_and(|first| first.is(last)) {
        class.survivors += 1;
        return;
    }
    class.newcomers += 1;
    class.old_newcomers += u64::from(last.is_old == Some(true));
    let before = between.last().copied().flatten();
    class.lasting_newcomers += u64::from(before.is_some_and(|it| it.class == last.class));
}

/// The objects that each root keeps, by class.
struct Kept {
    /// The times of the snapshots, in milliseconds.
    times: Vec<u64>,
    counts: HashMap<(usize, usize), Counts>,
}

#[derive(Clone)]
struct Counts {
    /// All objects of each snapshot.
    all: Vec<u64>,
    /// All objects of the last snapshot, also those whose root is unknown in another one: the bytes of a root are theirs.
    of_last: u64,
    /// The old objects of each snapshot.
    old: Vec<u64>,
    /// In each snapshot but the last, the objects that the next one has, too.
    lasting: Vec<u64>,
    /// The objects that the second and the third snapshot have and the first does not, and those of them that all later ones have.
    newcomers: u64,
    kept: u64,
    /// The objects that were old in all snapshots.
    throughout: u64,
}

impl Counts {
    fn none(snapshots: usize) -> Self {
        let (all, lasting) = (vec![0; snapshots], vec![0; snapshots - 1]);
        Self { old: all.clone(), all, of_last: 0, lasting, newcomers: 0, kept: 0, throughout: 0 }
    }

    fn add(&mut self, other: &Self) {
        let sum = |sums: &mut [u64], parts: &[u64]| {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        };
        sum(&mut self.all, &other.all);
        sum(&mut self.old, &other.old);
        sum(&mut self.lasting, &other.lasting);
        self.of_last += other.of_last;
        self.newcomers += other.newcomers;
        self.kept += other.kept;
        self.throughout += other.throughout;
    }

    /// The change of the lasting objects.
    fn grown(&self) -> i64 {
        Trajectory::new(self.lasting.iter().copied()).change
    }
}

impl Kept {
    fn add(&mut self, objects: &[Option<Object>]) {
        if let Some(counts) = objects.last().and_then(|last| self.of(last.as_ref()?)) {
            counts.of_last += 1;
        }
        // A root with few objects is unknown, and would seem to grow by all of them when it has more.
        if objects.iter().flatten().any(|object| object.is_unknown) {
            return;
        }
        let is_kept = |pair: &[Option<Object>]| {
            pair[0].zip(pair[1]).is_some_and(|(one, other)| one.is_kept(&other))
        };
        for (index, object) in objects.iter().enumerate() {
            if let Some(counts) = object.and_then(|object| self.of(&object)) {
                counts.all[index] += 1;
                counts.old[index] += u64::from(object.is_some_and(|it| it.is_old == Some(true)));
                counts.lasting.get_mut(index).into_iter().for_each(|lasting| {
                    *lasting += u64::from(is_kept(&objects[index..=index + 1]));
                });
            }
        }
        if let [Some(first), .., Some(_)] = objects
            && first.is_old == Some(true)
            && objects.windows(2).all(is_kept)
            && let Some(counts) = self.of(first)
        {
            counts.throughout += 1;
        }
        let [first, Some(second), ..] = objects else { return };
        let is_new = !first.is_some_and(|first| first.is_alike(second));
        if is_new
            && is_kept(&objects[1..3])
            && let Some(counts) = self.of(second)
        {
            counts.newcomers += 1;
            counts.kept += u64::from(objects[1..].windows(2).all(is_kept));
        }
    }

    fn of(&mut self, object: &Object) -> Option<&mut Counts> {
        let pair = (object.root?, object.class);
        if self.counts.len() >= MAX_PAIRS && !self.counts.contains_key(&pair) {
            return None;
        }
        Some(self.counts.entry(pair).or_insert_with(|| Counts::none(self.times.len())))
    }

    /// The roots whose objects were old in all snapshots, by their memory.
    fn unchanged(&self, names: &Names<'_>, last: &Snapshot) -> Vec<UnchangedRow> {
        let mut of_roots: HashMap<usize, Vec<(&str, u64)>> = HashMap::new();
        for ((root, class), counts) in self.counts.iter().filter(|it| it.1.throughout > 0) {
            let class = (names.classes.all[*class], counts.throughout);
            of_roots.entry(*root).or_default().push(class);
        }
        // Threads, lists of the interpreter and memory of libraries have names in parentheses, and variables of threads in brackets.
        of_roots.retain(|root, _| !names.roots.all[*root].starts_with(['(', '[']));
        let sizes = Sizes::of(last);
        let row = |(root, classes): (usize, Vec<(&str, u64)>)| {
            let root = names.roots.all[root];
            let bytes = |(class, objects): &(&str, u64)| sizes.mean(class, root) * *objects as f64;
            let total: f64 = classes.iter().map(bytes).sum();
            let is_most = |it: &&(&str, u64)| !it.0.starts_with('(') && 2.0 * bytes(it) > total;
            let dominators = last.report.dominators.iter().flatten();
            let is_root = |kind: &str| kind == "constant" || kind == "variable";
            let its = dominators.clone().find(|it| it.name == root && is_root(&it.kind));
            UnchangedRow {
                root: root.to_owned(),
                line: PlaceRow::of_root(&last.report.places, root).map(PlaceRow::line),
                class: classes.iter().find(is_most).map(|it| it.0.to_owned()),
                objects: classes.iter().map(|it| it.1).sum(),
                bytes: total.min(MAX_BYTES) as u64,
                exclusive_bytes: its.map(|it| it.retained_bytes),
            }
        };
        let mut rows: Vec<UnchangedRow> = of_roots.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.root.cmp(&b.root)));
        rows.truncate(MAX_ROOTS);
        rows
    }

    /// The roots that keep more than before, by the memory of that.
    fn changes(self, names: &Names<'_>, last: &Snapshot) -> Vec<KeptChange> {
        let mut of_roots: HashMap<usize, Vec<(&str, Counts)>> = HashMap::new();
        for ((root, class), counts) in self.counts {
            of_roots.entry(root).or_default().push((names.classes.all[class], counts));
        }
        let sizes = Sizes::of(last);
        let row = |(root, classes): (usize, Vec<(&str, Counts)>)| {
            sizes.change(names.roots.all[root], &self.times, &classes)
        };
        let mut rows: Vec<KeptChange> = of_roots.into_iter().filter_map(row).collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.root.cmp(&b.root)));
        rows.truncate(MAX_ROOTS);
        rows
    }
}

/// The rate of objects that stay; the last interval has that of old objects. `None` for fewer than three intervals.
fn rate(objects: &Trajectory, latest: i64, times: &[u64]) -> Option<Rate> {
    const HOUR: f64 = 3600.0;
    let rates = rates_with_latest(objects, latest, times);
    let (mean, low, high) = mean_with_interval(&rates)?;
    // What stays in all does not become less.
    Some(Rate { mean: mean * HOUR, low: (low * HOUR).max(0.0), high: high * HOUR })
}

impl Sizes<'_> {
    /// The growth of a root's objects of all classes; `None` if there are not more of them than before.
    fn change(&self, root: &str, times: &[u64], classes: &[(&str, Counts)]) -> Option<KeptChange> {
        let snapshots = times.len();
        let mut sum = Counts::none(snapshots);
        classes.iter().for_each(|(_, counts)| sum.add(counts));
        // Objects that stay longer, but do not become more, are no growth.
        let grown = sum.grown();
        let all = Trajectory::new(sum.all[..snapshots - 1].iter().copied());
        if grown <= 0 || all.change < grown / 2 {
            return None;
        }
        let of_class =
            |(class, counts): &(&str, Counts)| self.mean(class, root) * counts.grown() as f64;
        let total: f64 = classes.iter().map(|class| of_class(class).max(0.0)).sum();
        // The mean object of the root is as large as those by which it grew, or about so. The classes with most memory have the
        // size of memory behind their blocks, too.
        let mean = *self.roots.get(root)? as f64 / sum.of_last.max(1) as f64;
        let bytes = (mean * grown as f64).max(total).min(MAX_BYTES) as i64;
        // Kinds of internal objects, whose names are in parentheses, mean nothing to programs.
        let most = classes.iter().find(|class| {
            !class.0.starts_with('(') && of_class(class) > 0.0 && 2.0 * of_class(class) > total
        });
        let class = most.map(|(class, _)| (*class).to_owned());
        let path = match &class {
            Some(class) => self.retainer(class, root).and_then(|it| it.path.clone()),
            None => self.common_path(root, classes.iter().map(|it| (of_class(it), it.0))),
        };
        let latest = Trajectory::new(sum.old[snapshots - 2..].iter().copied()).change;
        let objects = Trajectory::new(sum.lasting.into_iter());
        let objects_per_hour = rate(&objects, latest, times);
        let of_bytes = |rate: f64| rate / grown as f64 * bytes as f64;
        let bytes_per_hour = objects_per_hour.map(|it| Rate {
            mean: of_bytes(it.mean),
            low: of_bytes(it.low),
            high: of_bytes(it.high),
        });
        let (newcomers, kept) = (sum.newcomers, sum.kept);
        let root = root.to_owned();
        let (samples, made_by) = (None, Vec::new());
        Some(KeptChange {
            root,
            class,
            path,
            objects,
            latest_change: Some(latest),
            objects_per_hour,
            bytes_per_hour,
            bytes,
            newcomers,
            kept,
            samples,
            samples_of_class: false,
            sampled_class: None,
            made_by,
        })
    }

    /// The steps that the paths to most of the memory have in common; `None` if that is only the root, or if most of the memory has no
    /// path.
    fn common_path<'b>(
        &self,
        root: &str,
        classes: impl Iterator<Item = (f64, &'b str)>,
    ) -> Option<String> {
        let mut classes: Vec<_> = classes.filter(|(bytes, _)| *bytes > 0.0).collect();
        classes.sort_by(|one, other| other.0.total_cmp(&one.0));
        let total: f64 = classes.iter().map(|(bytes, _)| bytes).sum();
        let mut common: Option<Vec<&str>> = None;
        let mut sum = 0.0;
        for (bytes, class) in classes {
            if 2.0 * sum > total {
                break;
            }
            let path = self.retainer(class, root).and_then(|it| it.path.as_deref());
            let Some(path) = path else { continue };
            let alike = |(one, other): &(&str, &str)| one == other;
            let steps = path.split(ARROW);
            common = Some(match common {
                Some(common) => {
                    common.into_iter().zip(steps).take_while(alike).map(|(step, _)| step).collect()
                }
                None => steps.collect(),
            });
            sum += bytes;
        }
        let common = common.filter(|steps| steps.len() > 1 && 2.0 * sum > total)?;
        Some(common.join(ARROW))
    }
}
