//! The memory of singleton classes, by the class of the objects that they belong to.

use std::collections::{BTreeMap, HashSet};

use super::paths::{Level, Paths};
use super::{Node, ObjectGraph};

/// The singleton classes of a class's objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SingletonClasses {
    /// The number of objects that have one.
    pub objects: u64,
    /// The bytes of the slots and chunks that are reached through them: methods, blocks, tables. Headers included, resident
    /// or not.
    pub bytes: u64,
}

/// The memory that the singleton classes of objects lead to, by the index of the objects' class.
pub(crate) fn singleton_classes(
    graph: &ObjectGraph<'_>,
    paths: &Paths,
) -> BTreeMap<u32, SingletonClasses> {
    let mut found: BTreeMap<u32, SingletonClasses> = BTreeMap::new();
    // A singleton class that is reached through another one counts for its own object.
    let all: HashSet<u32> = graph.space.singletons.iter().map(|&(_, it)| graph.slot(it)).collect();
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
                // Blocks that refer to nothing have no paths, unless retained sizes are asked for.
                let is_leaf =
                    matches!(graph.node(to), Node::Memory(it) if !graph.pointers.is_inner(it));
                let is_its = match is_leaf {
                    true => level == Level::Named && leaves.insert(to),
                    false => paths.parent(to) == Some(number) && !all.contains(&to),
                };
                if is_its {
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
