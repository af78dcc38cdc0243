use std::collections::HashMap;

use crate::memory_map::{FIRST_ROOT, MapRoot, NOTHING, UNKNOWN};
use crate::ownership::object_graph::{ObjectGraph, Paths};

/// A root needs this number of objects to have a name: most constants retain a few.
const MIN_OBJECTS: u64 = 64;

/// The root that retains each object.
pub(crate) struct SlotRoots {
    /// The roots that retain many objects, ascending by name.
    pub(crate) roots: Vec<MapRoot>,
    /// For each slot the number in [`MapRoots::of_objects`](crate::MapRoots::of_objects).
    pub(crate) of_slots: Vec<u16>,
}

impl SlotRoots {
    /// The roots that the paths to all objects begin with.
    pub(crate) fn find(graph: &ObjectGraph<'_>, paths: &Paths) -> Self {
        let root = |slot| paths.root(graph.slot(slot));
        // Roots of one name are one, such as the variables of a library.
        let mut sums: HashMap<&str, (u64, u64)> = HashMap::new();
        let mut names: HashMap<u32, &str> = HashMap::new();
        let mut add = |slot: u32, objects: u64, bytes: u64| {
            let Some(root) = root(slot) else { return };
            let name = *names.entry(root).or_insert_with(|| graph.root_name(root));
            let sum = sums.entry(name).or_default();
            // Objects may claim the same huge block.
            (sum.0, sum.1) = (sum.0 + objects, sum.1.saturating_add(bytes));
        };
        for (slot, (it, bytes)) in (0..).zip(graph.space.sized_slots()) {
            if it.is_live() {
                add(slot, 1, bytes);
            }
        }
        graph.bytes_beyond_slots(paths, |_| true).for_each(|(slot, bytes)| add(slot, 0, bytes));
        sums.retain(|_, (objects, _)| *objects >= MIN_OBJECTS);
        let map_root =
            |(name, (_, bytes)): (&str, (u64, u64))| MapRoot { name: name.into(), bytes };
        let mut roots: Vec<MapRoot> = sums.into_iter().map(map_root).collect();
        roots.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let number = |(root, name): (&u32, &&str)| {
            let index = roots.binary_search_by(|it| it.name.as_str().cmp(name)).ok();
            let number = index.and_then(|index| u16::try_from(index).ok()?.checked_add(FIRST_ROOT));
            (*root, number.unwrap_or(UNKNOWN))
        };
        let numbers: HashMap<u32, u16> = names.iter().map(number).collect();
        let number = |slot| match root(slot) {
            Some(root) => numbers.get(&root).copied().unwrap_or(UNKNOWN),
            None => NOTHING,
        };
        let of_slots = (0..graph.space.slots.len() as u32).map(number).collect();
        Self { roots, of_slots }
    }
}
