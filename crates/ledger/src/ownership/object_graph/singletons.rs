//! The memory of singleton classes, by the class of the objects that they belong to.

use std::collections::{BTreeMap, HashSet};

use super::ObjectGraph;
use super::paths::{Level, Paths};

/// The singleton classes of a class's objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SingletonClasses {
    /// The number of objects that have one.
    pub objects: u64,
    /// The bytes of the slots and chunks that are reached through them: methods, blocks, tables. Headers included, resident
    /// or not.
    pub bytes: u64,
}

/// The memory that is reached first through the singleton classes of objects, by the index of the objects' class.
pub(crate) fn singleton_classes(
    graph: &ObjectGraph<'_>,
    paths: &Paths,
) -> BTreeMap<u32, SingletonClasses> {
    let mut found: BTreeMap<u32, SingletonClasses> = BTreeMap::new();
    let mut leaves = HashSet::new();
    for &(object, singleton) in &graph.space.singletons {
        let singleton = graph.slot(singleton);
        // Another path leads to the class if several objects seem to have it.
        let is_its = paths.parent(singleton) == Some(graph.slot(object));
        let Some(class) = graph.class_of(object).filter(|_| is_its) else { continue };
        let sum = found.entry(class).or_default();
        sum.objects += 1;
        let (mut stack, mut children) = (vec![singleton], Vec::new());
        while let Some(number) = stack.pop() {
            sum.bytes += graph.own_bytes(number);
            graph.of_node(graph.node(number), |to, level| {
                // Blocks that refer to nothing have no paths.
                let is_leaf = level == Level::Named && !paths.has_place(to);
                if paths.parent(to) == Some(number) || is_leaf && leaves.insert(to) {
                    children.push(to);
                }
            });
            children.sort_unstable();
            children.dedup();
            stack.append(&mut children);
        }
    }
    found
}
