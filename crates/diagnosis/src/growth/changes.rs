//! The same causes, classes, owners and arenas in several reports, side by side.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use formats::{
    Arena, Class, DominatorRow, FileCode, InterpreterChange, InterpreterPart, KeptBy, Owner,
    PinRow, Report, SizeClass,
};
use formats::{
    ArenaChange, CauseChange, ClassChange, CodeChange, DominatorChange, OwnerChange, PinChange,
    SizeClassChange, Trajectory,
};
use ledger::{Cause, InterpreterKind};

use crate::path::{class_of_hidden, is_hidden, root_of};
use crate::verdict::mapper;

/// The maximum number of classes, and of owners, in a diff.
const MAX_ROWS: usize = 100;

/// The class whose objects refer to most of the unknown memory, if the mappings grew by at least half as much as this memory.
pub(crate) fn growing_mapper(reports: &[&Report]) -> Option<String> {
    let [first, .., last] = reports else { return None };
    let (row, class) = mapper(last)?;
    let mapped = |report: &Report| -> (u64, u64) {
        let rows = report.unknown.iter().find(|it| it.permissions == row.permissions);
        rows.map_or((0, 0), |it| (it.mapped_bytes, it.resident_bytes))
    };
    let ((before, first_bytes), (after, bytes)) = (mapped(first), mapped(last));
    let grew = bytes.saturating_sub(first_bytes);
    let is_mapped = after.saturating_sub(before) >= grew / 2;
    is_mapped.then(|| class.to_owned())
}

pub(crate) fn causes(reports: &[&Report]) -> Vec<CauseChange> {
    let Some(last) = reports.last() else { return Vec::new() };
    let names = last.causes.iter().map(|row| row.cause);
    let bytes = |report: &Report, cause: Cause| {
        report.causes.iter().find(|row| row.cause == cause).map_or(0, |row| row.bytes)
    };
    names
        .map(|cause| CauseChange {
            cause,
            bytes: Trajectory::new(reports.iter().map(|report| bytes(report, cause))),
        })
        .collect()
}

/// Returns a row of numbers for each key, in the order of the keys. A number is zero if the report does not have the key.
pub(super) fn by_key<'a, K: Ord, V>(
    reports: &[&'a Report],
    rows: impl Fn(&'a Report) -> Vec<(K, V)>,
    add: impl Fn(&mut [u64], V),
    width: usize,
) -> BTreeMap<K, Vec<u64>> {
    let mut all = BTreeMap::new();
    for (point, report) in reports.iter().enumerate() {
        for (key, row) in rows(report) {
            let numbers = all.entry(key).or_insert_with(|| vec![0; width * reports.len()]);
            add(&mut numbers[width * point..][..width], row);
        }
    }
    all
}

/// Returns the columns of a row of numbers as trajectories.
pub(super) fn series<const N: usize>(numbers: &[u64]) -> [Trajectory; N] {
    std::array::from_fn(|column| Trajectory::new(numbers.iter().skip(column).step_by(N).copied()))
}

/// The rows of a report by class: a report may have tens of thousands of classes.
#[derive(Default)]
struct ByClass<'a> {
    classes: HashMap<&'a str, Vec<&'a Class>>,
    owners: HashMap<&'a str, Vec<&'a Owner>>,
}

impl<'a> ByClass<'a> {
    fn of(report: &'a Report) -> Self {
        let mut all = Self::default();
        for class in report.ruby.iter().flat_map(|ruby| &ruby.classes) {
            all.classes.entry(&class.name).or_default().push(class);
        }
        for owner in report.owners.iter().flatten() {
            all.owners.entry(&owner.owner).or_default().push(owner);
        }
        all
    }

    fn classes(&self, name: &str) -> impl Iterator<Item = &'a Class> {
        self.classes.get(name).into_iter().flatten().copied()
    }

    fn owners(&self, name: &str) -> impl Iterator<Item = &'a Owner> {
        self.owners.get(name).into_iter().flatten().copied()
    }

    /// The bytes that objects of a class have allocated, but that are not resident: a large buffer grows by doubling its room,
    /// which it then fills.
    fn absent_bytes(&self, name: &str) -> u64 {
        let absent = |owner: &Owner| {
            let held = owner.exclusive_bytes.saturating_add(owner.shared_bytes);
            held.saturating_sub(owner.resident_bytes.unwrap_or(held))
        };
        self.owners(name).map(absent).fold(0, u64::saturating_add)
    }
}

/// Returns the classes by the size of their change, the largest first. `hours` is the time between the snapshots.
pub(crate) fn classes(
    reports: &[&Report],
    hours: Option<f64>,
    mapper: Option<&str>,
) -> Vec<ClassChange> {
    let rows = by_key(
        reports,
        |report| {
            let classes = report.ruby.iter().flat_map(|ruby| &ruby.classes);
            classes.map(|class| (class.name.as_str(), class)).collect()
        },
        |numbers, class: &Class| {
            numbers[0] += class.objects;
            numbers[1] += class.slot_bytes + class.malloc_bytes;
        },
        2,
    );
    // The verdict on native memory asks for the objects that hold it, and that on mappings for those that refer to them.
    let native: BTreeSet<&str> = reports
        .iter()
        .flat_map(|report| report.owners.iter().flatten())
        .filter(|owner| owner.cause == Some(Cause::NativeHeld))
        .map(|owner| owner.owner.as_str())
        .collect();
    // A verdict on hidden objects names the object that they are parts of.
    let owners = reports.last().into_iter().flat_map(|report| report.owners.iter().flatten());
    let hidden = owners.filter(|owner| is_hidden(&owner.owner));
    let whole: BTreeSet<&str> = hidden
        .filter_map(|owner| owner.kept_by.first()?.path.as_deref())
        .filter_map(class_of_hidden)
        .collect();
    let is_wanted =
        |name: &str| native.contains(name) || mapper == Some(name) || whole.contains(name);
    let reports: Vec<ByClass<'_>> = reports.iter().map(|report| ByClass::of(report)).collect();
    let reports = reports.as_slice();
    let mut classes: Vec<_> = rows
        .into_iter()
        .map(|(name, numbers)| {
            let [objects, bytes] = series::<2>(&numbers);
            let resident = bytes.at.iter().zip(reports);
            let bytes = Trajectory::new(
                resident.map(|(bytes, report)| bytes.saturating_sub(report.absent_bytes(name))),
            );
            let [reachable_objects, reachable_bytes] = reachable(reports, name);
            let (kept_by, gain) = retainer(reports, name);
            ClassChange {
                reachable_objects,
                reachable_bytes,
                retained_bytes: retained_size(reports, name),
                name: name.into(),
                kept_by_bytes: gain.bytes,
                kept_by_objects: kept_by
                    .as_deref()
                    .filter(|_| gain.bytes > 0)
                    .and_then(|path| objects_of_root(reports, name, root_of(path))),
                kept_by,
                objects_per_hour: hours.map(|hours| objects.change as f64 / hours),
                objects,
                bytes,
                survivors: 0,
                newcomers: 0,
                old_newcomers: 0,
                lasting_newcomers: 0,
            }
        })
        .filter(|class| {
            let changes =
                [&class.objects, &class.bytes, class.growing_objects(), class.growing_bytes()];
            changes.iter().any(|it| it.change != 0) || is_wanted(&class.name)
        })
        .collect();
    // Garbage may hide the change of what something retains.
    let change = |class: &ClassChange| {
        class.bytes.change.unsigned_abs().max(class.growing_bytes().change.unsigned_abs())
    };
    classes.sort_by_key(|class| (Reverse(change(class)), class.name.clone()));
    let mut rows = 0..MAX_ROWS;
    classes.retain(|class| rows.next().is_some() || is_wanted(&class.name));
    classes
}

/// Returns the number of a class's objects that are no garbage, and their bytes; `None` if a report does not know that,
/// since the class was too small.
fn reachable(reports: &[ByClass<'_>], class: &str) -> [Option<Trajectory>; 2] {
    let reachable = |report: &ByClass<'_>| {
        let (objects, bytes) = report.classes(class).fold((0, 0), |(objects, bytes), it| {
            (objects + it.objects, bytes + it.slot_bytes + it.malloc_bytes)
        });
        let mut roots = report.owners(class).flat_map(|owner| &owner.kept_by).peekable();
        if objects > 0 && roots.peek().is_none() {
            return None;
        }
        let garbage = roots.filter(|root| root.path.is_none());
        let garbage =
            garbage.fold((0, 0), |(objects, bytes), it| (objects + it.objects, bytes + it.bytes));
        // Garbage was in use, so that it is resident.
        let bytes =
            u64::saturating_sub(bytes, garbage.1).saturating_sub(report.absent_bytes(class));
        Some((u64::saturating_sub(objects, garbage.0), bytes))
    };
    let sums: Option<Vec<(u64, u64)>> = reports.iter().map(reachable).collect();
    let series =
        |of: fn(&(u64, u64)) -> u64| sums.as_ref().map(|sums| Trajectory::new(sums.iter().map(of)));
    [series(|sums| sums.0), series(|sums| sums.1)]
}

/// Returns the bytes that would be freed if all objects of a class went away; `None` if a report does not know that.
fn retained_size(reports: &[ByClass<'_>], class: &str) -> Option<Trajectory> {
    let of_class =
        |report: &ByClass<'_>| report.owners(class).find_map(|owner| owner.retained_bytes);
    let sizes: Option<Vec<u64>> = reports.iter().map(of_class).collect();
    sizes.map(|sizes| Trajectory::new(sizes.into_iter()))
}

/// Returns the changes of the dominators of all reports; `None` if one of them has no retained sizes. A dominator that a
/// report does not list, since it is too small, counts as 0 there.
pub(crate) fn dominators(reports: &[&Report]) -> Option<Vec<DominatorChange>> {
    if reports.iter().any(|report| report.dominators.is_none()) {
        return None;
    }
    let rows = by_key(
        reports,
        |report| {
            let rows = report.dominators.iter().flatten();
            rows.map(|row| ((row.kind.as_str(), row.name.as_str()), row)).collect()
        },
        |numbers, row: &DominatorRow| numbers[0] = numbers[0].saturating_add(row.retained_bytes),
        1,
    );
    let change = |((kind, name), numbers): ((&str, &str), Vec<u64>)| {
        let [retained_bytes] = series(&numbers);
        DominatorChange { kind: kind.into(), name: name.into(), retained_bytes }
    };
    let mut changes: Vec<_> = rows.into_iter().map(change).collect();
    changes.retain(|change| change.retained_bytes.change != 0);
    changes.sort_by_key(|it| (Reverse(it.retained_bytes.change.abs()), it.name.clone()));
    changes.truncate(MAX_ROWS);
    Some(changes)
}

/// A root is named if it has at least one in this many of the bytes, or of the objects, that a class gained.
const LEAST_PART: u64 = 4;
/// The name for roots each of which retains a small part.
const MANY_ROOTS: &str = "(many roots)";

/// Bytes and objects of a class.
#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    bytes: u64,
    objects: u64,
}

impl Amount {
    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, objects: self.objects.saturating_add(other.objects) }
    }

    fn beyond(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_sub(other.bytes);
        Self { bytes, objects: self.objects.saturating_sub(other.objects) }
    }

    fn has_part_of(self, all: Self) -> bool {
        self.bytes >= all.bytes / LEAST_PART || self.objects >= all.objects / LEAST_PART
    }
}

/// Returns the root that retains more of a class's objects than before: the one that gained most bytes, with its path
/// in the last report and its gain, or [`MANY_ROOTS`] if that is a small part, or none that a report lists gained any; `None` if
/// most of the gain is not retained. If the class gained no objects, because a buffer is filled that had room, it is the root that
/// retains most.
fn retainer(reports: &[ByClass<'_>], class: &str) -> (Option<String>, Amount) {
    let (Some(first), Some(last)) = (reports.first(), reports.last()) else {
        return (None, Amount::default());
    };
    let kept = |report: &ByClass<'_>| {
        let mut kept = BTreeMap::<Option<String>, (Amount, Option<String>)>::new();
        for retainer in report.owners(class).flat_map(|owner| &owner.kept_by) {
            let root = retainer.path.as_deref().map(root_of);
            let new = || (Amount::default(), retainer.path.clone());
            let (sum, _) = kept.entry(root.map(Into::into)).or_insert_with(new);
            *sum = sum.plus(Amount { bytes: retainer.bytes, objects: retainer.objects });
        }
        kept
    };
    let (before, after) = (kept(first), kept(last));
    let gained = after.into_iter().filter_map(|(root, (amount, path))| {
        let had = before.get(&root).map(|(had, _)| *had).unwrap_or_default();
        let gain = amount.beyond(had);
        (gain.bytes > 0).then_some((gain, path))
    });
    let (garbage, retained): (Vec<_>, Vec<_>) = gained.partition(|(_, path)| path.is_none());
    let sum = |gained: &[(Amount, Option<String>)]| {
        gained.iter().fold(Amount::default(), |sum, (gain, _)| sum.plus(*gain))
    };
    let listed = || last.owners(class).flat_map(|owner| &owner.kept_by);
    let all = of_class(last, class).beyond(of_class(first, class));
    // A report lists few roots. If most of the gain is in no row, roots that are too small for one retain it.
    let garbage = sum(&garbage);
    let is_most = garbage.bytes > all.bytes / 2 || garbage.objects > all.objects / 2;
    if is_most && garbage.bytes > sum(&retained).bytes {
        return (None, Amount::default());
    }
    let all = all.beyond(garbage);
    let lists_most = 3 * sum(&retained).objects >= 2 * all.objects;
    let Some((gain, path)) = retained.into_iter().max_by_key(|(gain, _)| gain.bytes) else {
        // Of a class without a list nothing is known: its objects may be garbage.
        let most = listed().max_by_key(|kept| kept.bytes);
        let path = most.and_then(|kept| match all.objects {
            0 => kept.path.clone(),
            _ => Some(MANY_ROOTS.into()),
        });
        return (path, Amount::default());
    };
    // The bytes of roots leave out room that is not resident, and mappings to which objects refer. If most bytes of the class are listed,
    // they decide alone, and so they do if many objects are not listed: the roots of those may have the large ones.
    let bytes = listed().fold(0, |sum: u64, kept| sum.saturating_add(kept.bytes));
    let are_known = bytes >= of_class(last, class).bytes / 2 || !lists_most;
    let has_part = match are_known {
        true => gain.bytes >= all.bytes / LEAST_PART,
        false => gain.has_part_of(all),
    };
    if has_part { (path, gain) } else { (Some(MANY_ROOTS.into()), Amount::default()) }
}

/// The number of a class's objects that a root retains in each report; `None` if a report has such objects and does not list the root,
/// since the list is short.
fn objects_of_root(reports: &[ByClass<'_>], class: &str, root: &str) -> Option<Trajectory> {
    let is_of_root = |kept: &&KeptBy| kept.path.as_deref().map(root_of) == Some(root);
    let objects = |report: &ByClass<'_>| {
        let retainers = report.owners(class).flat_map(|owner| &owner.kept_by);
        let objects = retainers.filter(is_of_root).map(|kept| kept.objects);
        let none = (of_class(report, class).objects == 0).then_some(0);
        objects.reduce(u64::saturating_add).or(none)
    };
    let objects: Option<Vec<u64>> = reports.iter().map(objects).collect();
    Some(Trajectory::new(objects?.into_iter()))
}

/// All bytes and objects of a class.
fn of_class(report: &ByClass<'_>, class: &str) -> Amount {
    report.classes(class).fold(Amount::default(), |sum, it| {
        let bytes = it.slot_bytes.saturating_add(it.malloc_bytes);
        sum.plus(Amount { bytes, objects: it.objects })
    })
}

pub(crate) fn owners(reports: &[&Report]) -> Vec<OwnerChange> {
    let rows = by_key(
        reports,
        |report| {
            let owners = report.owners.iter().flatten();
            owners.map(|it| ((&it.owner, &it.kind, it.cause), it)).collect()
        },
        |numbers, owner: &Owner| numbers[0] = numbers[0].saturating_add(owner.held_bytes()),
        1,
    );
    let mut owners: Vec<_> = rows
        .into_iter()
        .map(|((owner, kind, cause), numbers)| {
            let [bytes] = series(&numbers);
            OwnerChange { owner: owner.clone(), kind: kind.clone(), cause, bytes }
        })
        .filter(|owner| owner.bytes.change != 0)
        .collect();
    owners.sort_by_key(|owner| Reverse(owner.bytes.change.abs()));
    owners.truncate(MAX_ROWS);
    owners
}

/// Returns the bytecode by file, the largest change first.
pub(crate) fn code(reports: &[&Report]) -> Vec<CodeChange> {
    let rows = by_key(
        reports,
        |report| {
            let files = report.interpreter.iter().flat_map(|it| it.files.iter().flatten());
            files.filter_map(|file| Some((file.path.as_deref()?, file))).collect()
        },
        |numbers, file: &FileCode| {
            numbers[0] = numbers[0].saturating_add(file.iseqs);
            let bytes = file.slot_bytes.saturating_add(file.resident_bytes);
            numbers[1] = numbers[1].saturating_add(bytes);
        },
        2,
    );
    let change = |(path, numbers): (&str, Vec<u64>)| {
        let [iseqs, bytes] = series(&numbers);
        CodeChange { path: path.into(), iseqs, bytes }
    };
    let mut changes: Vec<_> = rows.into_iter().map(change).collect();
    changes.retain(|change| change.iseqs.change != 0);
    changes.sort_by_key(|change| Reverse(change.bytes.change.unsigned_abs()));
    changes.truncate(MAX_ROWS);
    changes
}

/// Returns the interpreter's memory by kind, the largest change first.
pub(crate) fn interpreter(reports: &[&Report]) -> Vec<InterpreterChange> {
    let rows = by_key(
        reports,
        |report| {
            let kinds = report.interpreter.iter().flat_map(|it| &it.kinds);
            kinds.map(|part| (part.kind, part)).collect()
        },
        |numbers, part: &InterpreterPart| {
            let bytes = part.slot_bytes.saturating_add(part.resident_bytes);
            numbers[0] = numbers[0].saturating_add(bytes);
        },
        1,
    );
    let change = |(kind, numbers): (InterpreterKind, Vec<u64>)| {
        let [bytes] = series(&numbers);
        InterpreterChange { kind, bytes }
    };
    let mut changes: Vec<_> = rows.into_iter().map(change).collect();
    changes.retain(|change| change.bytes.change != 0);
    changes.sort_by_key(|change| Reverse(change.bytes.change.unsigned_abs()));
    changes
}

pub(crate) fn arenas(reports: &[&Report]) -> Vec<ArenaChange> {
    let rows = by_key(
        reports,
        |report| {
            let arenas = report.arenas.iter().flatten();
            arenas.map(|arena| ((!arena.main, &arena.address), arena)).collect()
        },
        |numbers, arena: &Arena| {
            numbers[0] += arena.in_use_bytes + arena.overhead_bytes;
            numbers[1] += arena.unreturned_bytes
                + arena.fragmented_bytes
                + arena.cached_bytes
                + arena.top_bytes;
        },
        2,
    );
    rows.into_iter()
        .map(|((other, address), numbers)| {
            let [in_use_bytes, kept_bytes] = series(&numbers);
            ArenaChange { address: address.clone(), main: !other, in_use_bytes, kept_bytes }
        })
        .collect()
}

/// Returns the changes of all owners that keep free memory resident; `None` if a report does not have them. An owner that
/// a report does not list, since it keeps too little, is among the others there.
pub(crate) fn pins(reports: &[&Report]) -> Option<Vec<PinChange>> {
    const OTHERS: &str = "others";
    if !have_pins(reports) || reports.iter().any(|report| report.owners.is_none()) {
        return None;
    }
    let rows = by_key(
        reports,
        |report| {
            let rows = report.malloc.iter().flat_map(|malloc| &malloc.pinned_by);
            // The row of the others has their number in its name.
            let name = |row: &'_ PinRow| {
                if row.kind == OTHERS { "(others)".into() } else { row.owner.clone() }
            };
            rows.map(|row| ((name(row), row.kind.as_str()), row)).collect()
        },
        |numbers, row: &PinRow| {
            numbers[0] = numbers[0].saturating_add(row.blocks);
            numbers[1] = numbers[1].saturating_add(row.bytes);
        },
        2,
    );
    let change = |((owner, kind), numbers): ((String, &str), Vec<u64>)| {
        let [blocks, bytes] = series(&numbers);
        PinChange { owner, kind: kind.into(), blocks, bytes }
    };
    let mut pins: Vec<_> = rows.into_iter().map(change).collect();
    pins.retain(|pin| pin.bytes.change != 0 || pin.blocks.change != 0);
    pins.sort_by_key(|pin| Reverse(pin.bytes.change.unsigned_abs()));
    Some(pins)
}

/// Returns the changes of all size classes; `None` if a report does not have them.
pub(crate) fn size_classes(reports: &[&Report]) -> Option<Vec<SizeClassChange>> {
    if !have_pins(reports) {
        return None;
    }
    let rows = by_key(
        reports,
        |report| {
            let classes = report.malloc.iter().flat_map(|malloc| &malloc.size_classes);
            classes.map(|class| (class.region_bytes, class)).collect()
        },
        |numbers, class: &SizeClass| {
            let row = [class.slabs, class.regions, class.in_use, class.free_bytes];
            numbers.iter_mut().zip(row).for_each(|(sum, part)| *sum = sum.saturating_add(part));
        },
        4,
    );
    let change = |(region_bytes, numbers): (u64, Vec<u64>)| {
        let [slabs, regions, in_use, free_bytes] = series(&numbers);
        SizeClassChange { region_bytes, slabs, regions, in_use, free_bytes }
    };
    let mut classes: Vec<_> = rows.into_iter().map(change).collect();
    classes.retain(|it| {
        [&it.slabs, &it.regions, &it.in_use, &it.free_bytes].iter().any(|it| it.change != 0)
    });
    classes.sort_by_key(|class| Reverse(class.free_bytes.change.unsigned_abs()));
    Some(classes)
}

/// Returns true if all reports have a walk of the heap, by a version that looked for pins.
fn have_pins(reports: &[&Report]) -> bool {
    reports.iter().all(|report| report.malloc.is_some())
}
