//! Objects that are still there in later snapshots: objects of the same class at the same address.
//!
//! If an object dies and another object of its class takes the slot, it counts as the same, unless it was old before and
//! is young now. So the number of survivors may be too high. It is too low after GC.compact, and if the first snapshot was
//! taken during a collection, which marks young objects too. The number of lasting newcomers does not depend on ages.
//!
//! What a root keeps is counted without the objects that come and go: those that the next snapshot has, too, retained by the same
//! root, and old by then. So garbage neither hides growth nor looks like it, and without collections between the snapshots nothing is
//! known to be kept.

use std::collections::HashMap;
use std::iter::Peekable;

use formats::{ClassChange, KeptChange, Snapshot, Trajectory};
use ledger::{MapBlock, RetainedBy, Use};
use linux::Address;

/// The stacks of threads have words of earlier calls, and objects that come and go.
const STACKS: &str = "(stacks)";
/// The maximum number of roots in a diff.
const MAX_ROOTS: usize = 20;

/// Counts, for each class, three groups of objects in the last snapshot: those that existed in the first one, the new
/// ones, and the new ones that existed in the second to last snapshot. Returns what roots keep, most growth first; `None` if there
/// are fewer than three snapshots, or one of them does not know the roots.
pub(super) fn count(
    snapshots: &[&Snapshot],
    classes: &mut [ClassChange],
) -> Option<Vec<KeptChange>> {
    let rows: HashMap<String, usize> =
        classes.iter().enumerate().map(|(index, class)| (class.name.clone(), index)).collect();
    let mut names = Names::default();
    let mut looks: Vec<_> = snapshots.iter().map(|it| Look::new(it, &mut names)).collect();
    let knows_roots = |it: &&Snapshot| !it.memory_map.roots.of_objects.is_empty();
    let mut kept = (snapshots.len() >= 3 && snapshots.iter().all(knows_roots))
        .then(|| Kept { snapshots: snapshots.len(), counts: HashMap::new() });
    let row_of_class: Vec<Option<usize>> =
        names.classes.all.iter().map(|name| rows.get(*name).copied()).collect();
    let mut objects = Vec::new();
    while next(&mut looks, &mut objects) {
        if let Some(class) = objects.last().and_then(|it| row_of_class[it.as_ref()?.class]) {
            survive(&mut classes[class], &objects);
        }
        if let Some(kept) = &mut kept {
            kept.add(&objects);
        }
    }
    Some(kept?.changes(&names, snapshots.last()?, classes))
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
    /// The root that retains it; `None` for garbage, and if it is not known.
    root: Option<usize>,
    is_old: bool,
}

impl Object {
    /// Returns true if an object at the same address in a later snapshot is probably this one.
    fn is(&self, later: &Self) -> bool {
        self.class == later.class && (!self.is_old || later.is_old)
    }

    /// Returns true if it is this one, and still retained by the same root. Slots are used again, mostly by objects of the same
    /// class: only an old object has lived through the collections since.
    fn is_kept(&self, later: &Self) -> bool {
        self.class == later.class && later.is_old && self.root.is_some() && self.root == later.root
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
        let roots: Vec<Option<usize>> = map
            .roots
            .names
            .iter()
            .map(|name| (name != STACKS).then(|| names.roots.number(name)))
            .collect();
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
                is_old: block.used == Use::OldSlot,
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
    class.old_newcomers += u64::from(last.is_old);
    let before = between.last().copied().flatten();
    class.lasting_newcomers += u64::from(before.is_some_and(|it| it.class == last.class));
}

/// What each root keeps, by class.
struct Kept {
    snapshots: usize,
    counts: HashMap<(usize, usize), Counts>,
}

struct Counts {
    /// In each snapshot but the last, the objects that the next one has, too.
    lasting: Vec<u64>,
    /// The objects that were new in the second snapshot, and those of them that all later ones have.
    newcomers: u64,
    kept: u64,
}

impl Kept {
    fn add(&mut self, objects: &[Option<Object>]) {
        let is_kept = |pair: &[Option<Object>]| {
            pair[0].zip(pair[1]).is_some_and(|(one, other)| one.is_kept(&other))
        };
        for (index, pair) in objects.windows(2).enumerate() {
            if is_kept(pair)
                && let Some(counts) = pair[0].and_then(|object| self.of(&object))
            {
                counts.lasting[index] += 1;
            }
        }
        let [first, Some(second), ..] = objects else { return };
        if !first.is_some_and(|first| first.is_kept(second))
            && let Some(counts) = self.of(second)
        {
            counts.newcomers += 1;
            counts.kept += u64::from(objects[1..].windows(2).all(is_kept));
        }
    }

    fn of(&mut self, object: &Object) -> Option<&mut Counts> {
        let new = || Counts { lasting: vec![0; self.snapshots - 1], newcomers: 0, kept: 0 };
        Some(self.counts.entry((object.root?, object.class)).or_insert_with(new))
    }

    /// The roots, by the memory of what they keep.
    fn changes(
        self,
        names: &Names<'_>,
        last: &Snapshot,
        classes: &[ClassChange],
    ) -> Vec<KeptChange> {
        let mut of_roots: HashMap<usize, Vec<(&str, Counts)>> = HashMap::new();
        for ((root, class), counts) in self.counts {
            of_roots.entry(root).or_default().push((names.classes.all[class], counts));
        }
        let sizes = Sizes { last, classes };
        let row = |(root, classes): (usize, Vec<(&str, Counts)>)| {
            sizes.change(names.roots.all[root], &classes)
        };
        let mut rows: Vec<KeptChange> = of_roots.into_iter().filter_map(row).collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.root.cmp(&b.root)));
        rows.truncate(MAX_ROOTS);
        rows
    }
}

/// The mean sizes of objects.
struct Sizes<'a> {
    last: &'a Snapshot,
    classes: &'a [ClassChange],
}

impl Sizes<'_> {
    /// What a root keeps of all classes; `None` if it is not more than before.
    fn change(&self, root: &str, classes: &[(&str, Counts)]) -> Option<KeptChange> {
        let lasting = |counts: &Counts| Trajectory::new(counts.lasting.iter().copied());
        let bytes = |(class, counts): &(&str, Counts)| {
            (self.of_object(class, root) * lasting(counts).change as f64) as i64
        };
        let mut all = classes.iter().map(|(_, counts)| lasting(counts));
        let mut objects = all.next()?;
        all.for_each(|it| objects.add(&it));
        // Kinds of internal objects, whose names are in parentheses, mean nothing to programs.
        let visible = classes.iter().filter(|(class, _)| !class.starts_with('('));
        let (class, _) = visible.max_by_key(|it| (bytes(it), it.0))?;
        let change = KeptChange {
            root: root.to_owned(),
            class: (*class).to_owned(),
            path: self.path(class, root),
            objects,
            bytes: classes.iter().map(bytes).fold(0, i64::saturating_add),
            newcomers: classes.iter().map(|(_, counts)| counts.newcomers).sum(),
            kept: classes.iter().map(|(_, counts)| counts.kept).sum(),
        };
        (change.objects.change > 0 && change.bytes > 0).then_some(change)
    }

    /// The path from a root to the objects of a class in the last snapshot.
    fn path(&self, class: &str, root: &str) -> Option<String> {
        self.retainers(class, root).find_map(|it| it.path.clone())
    }

    fn retainers(&self, class: &str, root: &str) -> impl Iterator<Item = &formats::KeptBy> {
        let owners = self.last.report.owners.iter().flatten();
        let of_class = owners.filter(move |owner| owner.owner == class);
        of_class.flat_map(|owner| &owner.kept_by).filter(move |it| {
            it.path.as_deref().and_then(|path| path.split(" → ").next()) == Some(root)
        })
    }

    /// The mean size of an object, with the memory that it holds: of those that the root retains if that is known, otherwise
    /// of all that something retains.
    fn of_object(&self, class: &str, root: &str) -> f64 {
        let mean = |bytes: u64, objects: u64| bytes as f64 / objects.max(1) as f64;
        let of_root = self.retainers(class, root).next().map(|it| mean(it.bytes, it.objects));
        let row = || self.classes.iter().find(|row| row.name == class);
        let of_change =
            || row().map(|row| mean(row.growing_bytes().last(), row.growing_objects().last()));
        let owner = || self.last.report.owners.iter().flatten().find(|it| it.owner == class);
        let of_owner = || owner().map(|it| mean(it.bytes(), it.objects));
        of_root.or_else(of_change).or_else(of_owner).unwrap_or(0.0)
    }
}
