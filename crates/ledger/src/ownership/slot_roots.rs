use std::collections::HashMap;

use crate::memory_map::{FIRST_ROOT, NOTHING, UNKNOWN};
use crate::ownership::object_graph::{ObjectGraph, Paths};

/// A root needs this number of objects to have a name: most constants retain a few.
const MIN_OBJECTS: u64 = 64;

/// The root that retains each object.
pub(crate) struct SlotRoots {
    /// The names of the roots that retain many objects.
    pub(crate) names: Vec<String>,
    /// For each slot the number in [`MapRoots::of_objects`](crate::MapRoots::of_objects).
    pub(crate) of_slots: Vec<u16>,
}

impl SlotRoots {
    /// The roots that the paths to all objects begin with.
    pub(crate) fn find(graph: &ObjectGraph<'_>, paths: &Paths) -> Self {
        let slots = graph.space.slots.len() as u32;
        let root = |slot| paths.root(graph.slot(slot));
        let is_live = |slot: &u32| graph.space.slots[*slot as usize].is_live();
        let mut objects: HashMap<u32, u64> = HashMap::new();
        for root in (0..slots).filter(is_live).filter_map(root) {
            *objects.entry(root).or_default() += 1;
        }
        // Roots of one name are one, such as the stacks of threads.
        let mut by_name: HashMap<&str, u64> = HashMap::new();
        for (&root, objects) in &objects {
            *by_name.entry(graph.root_name(root)).or_default() += objects;
        }
        by_name.retain(|_, objects| *objects >= MIN_OBJECTS);
        let mut names: Vec<&str> = by_name.into_keys().collect();
        names.sort_unstable();
        let number = |root: &u32| {
            let index = names.binary_search(&graph.root_name(*root)).ok();
            let number = index.and_then(|index| u16::try_from(index).ok()?.checked_add(FIRST_ROOT));
            (*root, number.unwrap_or(UNKNOWN))
        };
        let numbers: HashMap<u32, u16> = objects.keys().map(number).collect();
        let number = |slot| match root(slot) {
            Some(root) => numbers.get(&root).copied().unwrap_or(UNKNOWN),
            None => NOTHING,
        };
        let of_slots = (0..slots).map(number).collect();
        Self { of_slots, names: names.into_iter().map(str::to_owned).collect() }
    }
}
