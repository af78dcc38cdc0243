//! The objects of a snapshot, and what retains them.

use std::collections::{BTreeMap, HashMap};

use formats::Snapshot;
use ledger::{Cause, MapBlock, RetainedBy, Use};

/// The root of objects that only threads refer to: they are in use.
const STACKS: &str = "(stacks)";
/// The lists of the interpreter whose entries stay until a program removes them.
const LISTS: [&str; 7] = [
    "(at_exit)",
    "(finalizers)",
    "(TracePoints)",
    "(signal handlers)",
    "(coverage)",
    "(trace_var)",
    "(rb_gc_register_address)",
];
/// The maximum number of pairs of a root and a class. No real process has as many.
const MAX_PAIRS: usize = 1 << 20;

/// The number of objects of each class that something retains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainedObjects {
    pub(super) classes: BTreeMap<String, u64>,
    /// The objects of each class that a root of the program retains, by the names of both.
    pub(super) of_roots: BTreeMap<String, BTreeMap<String, u64>>,
    /// The resident bytes of native memory, which are no objects.
    pub(super) native_bytes: u64,
    /// The resident bytes that objects have outside of their slots.
    pub(super) object_bytes: u64,
    pub(super) rss_bytes: u64,
}

/// Counts the objects of each class that something but a thread's stack retains; `None` if it is not known what retains objects.
#[must_use]
pub fn retained_objects(snapshot: &Snapshot) -> Option<RetainedObjects> {
    let mut counts = RetainedObjects {
        native_bytes: native_bytes(snapshot),
        object_bytes: object_bytes(snapshot),
        rss_bytes: snapshot.report.process.rss_bytes,
        ..RetainedObjects::default()
    };
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
pub(super) fn native_bytes(snapshot: &Snapshot) -> u64 {
    let native = snapshot.report.causes.iter().filter(|row| row.cause.is_native());
    native.fold(0, |sum: u64, row| sum.saturating_add(row.bytes))
}

/// The resident bytes that objects have outside of their slots.
pub(super) fn object_bytes(snapshot: &Snapshot) -> u64 {
    let rows = snapshot.report.causes.iter().filter(|row| row.cause == Cause::RubyMalloc);
    rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes))
}

/// The objects of a snapshot, and what retains each; `None` if that is not known.
pub(super) fn objects(
    snapshot: &Snapshot,
) -> Option<impl Iterator<Item = (MapBlock, RetainedBy)> + '_> {
    let map = &snapshot.memory_map;
    (!map.roots.of_objects.is_empty()).then(|| {
        let blocks = map.areas.iter().flat_map(|area| map.blocks(area));
        blocks.filter(|block| block.used.is_object()).zip(map.roots.of_objects())
    })
}

pub(super) fn class(snapshot: &Snapshot, owner: u32) -> Option<&str> {
    let owners = snapshot.report.owners.as_ref()?;
    owners.get(owner as usize).map(|it| it.owner.as_str())
}

pub(super) fn root(snapshot: &Snapshot, by: RetainedBy) -> Option<&str> {
    match by {
        RetainedBy::Root(root) => {
            snapshot.memory_map.roots.roots.get(root).map(|it| it.name.as_str())
        }
        RetainedBy::Nothing | RetainedBy::Unknown => None,
    }
}

/// Returns true for a constant or variable of the program, and for lists to which programs add. Other roots, such as the interpreter's
/// variables, threads and their variables, also reach objects in use.
pub(super) fn is_of_program(root: &str) -> bool {
    !root.starts_with(['(', '[']) || LISTS.contains(&root)
}

/// Returns false for a young object. If the snapshot does not know ages, those of the samples decide alone.
pub(super) fn is_old(snapshot: &Snapshot, block: MapBlock) -> bool {
    block.used == Use::OldSlot || !snapshot.report.knows_ages()
}

/// Returns true unless the object is garbage, or in use by a thread alone.
pub(super) fn is_kept(snapshot: &Snapshot, by: RetainedBy) -> bool {
    by != RetainedBy::Nothing && root(snapshot, by) != Some(STACKS)
}
