//! The retainers of objects: the shortest path to each object from a root that has a name.

use std::cmp::Reverse;
use std::collections::HashMap;

use linux::both;
use ruby::Slot;

use crate::ownership::object_graph::{Node, ObjectGraph, Paths};
use crate::ownership::owner::Retainer;

/// The number of steps of a path that are shown; those in the middle are left out.
const MAX_STEPS: usize = 8;

/// The number of objects whose paths are compared to find a typical one.
const MAX_PICKS: usize = 16;
/// The number of steps of all these paths together: a path in a linked list may have millions. Then one object is enough.
pub(crate) const MAX_COMPARED_STEPS: usize = 1 << 20;

/// The sums of the objects that a root retains.
#[derive(Debug, Clone)]
struct Retained {
    objects: u64,
    bytes: u64,
    /// One object for every `step` bytes, so that an object is picked in proportion to its bytes.
    picks: Vec<u32>,
    step: u64,
}

impl Retained {
    fn new() -> Self {
        Self { objects: 0, bytes: 0, picks: Vec::new(), step: 1 }
    }

    fn add(&mut self, slot: u32, objects: u64, bytes: u64) {
        self.objects += objects;
        // Objects may claim the same huge block.
        self.bytes = self.bytes.saturating_add(bytes);
        while (self.picks.len() as u64).saturating_mul(self.step) < self.bytes {
            if self.picks.len() == MAX_PICKS {
                let mut is_even = false;
                self.picks.retain(|_| {
                    is_even = !is_even;
                    is_even
                });
                self.step = self.step.saturating_mul(2);
            } else {
                self.picks.push(slot);
            }
        }
    }
}

/// The sums of the objects of a group, by root.
#[derive(Default)]
struct Group {
    roots: Vec<(Option<u32>, Retained)>,
    places: HashMap<Option<u32>, usize>,
    /// The place of the last one: neighbours mostly have the same root.
    last: usize,
}

impl Group {
    fn of(&mut self, root: Option<u32>) -> &mut Retained {
        if self.roots.get(self.last).is_none_or(|(last, _)| *last != root) {
            self.last = *self.places.entry(root).or_insert_with(|| {
                self.roots.push((root, Retained::new()));
                self.roots.len() - 1
            });
        }
        &mut self.roots[self.last].1
    }
}

/// The paths to all objects.
pub(crate) struct Retainers<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a Paths,
}

impl<'a> Retainers<'a> {
    pub(crate) fn new(graph: &'a ObjectGraph<'a>, paths: &'a Paths) -> Self {
        Self { graph, paths }
    }

    /// For each of `groups` groups of objects, the `max` roots that retain most of their bytes. `group_of` returns the
    /// group of an object.
    pub(crate) fn of_groups(
        &self,
        groups: usize,
        max: usize,
        group_of: impl Fn(Slot) -> Option<usize> + Sync + Copy,
    ) -> Vec<Vec<Retainer>> {
        // Large groups come first, so every other group has about half of all objects.
        let every_other = |first| {
            self.sums(groups, move |slot| group_of(slot).filter(|group| group % 2 == first))
        };
        let (even, odd) = both(|| every_other(0), || every_other(1));
        let mut steps = 0;
        let pairs = even.into_iter().zip(odd).enumerate();
        pairs
            .map(|(group, (even, odd))| if group % 2 == 0 { even } else { odd })
            .map(|kept| self.most_of(kept, max, &mut steps))
            .collect()
    }

    /// The sums of each of `groups` groups.
    fn sums(&self, groups: usize, group_of: impl Fn(Slot) -> Option<usize>) -> Vec<Group> {
        let space = self.graph.space;
        let mut kept: Vec<Group> = (0..groups).map(|_| Group::default()).collect();
        space.sized_slots().enumerate().for_each(|(index, (slot, bytes))| {
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group)) {
                let root = self.paths.root(self.graph.slot(index as u32));
                kept.of(root).add(index as u32, 1, bytes);
            }
        });
        let is_in_group = |index: u32| group_of(space.slots[index as usize]).is_some();
        for (index, bytes) in self.graph.bytes_of_blocks(is_in_group) {
            let slot = space.slots[index as usize];
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group)) {
                let root = self.paths.root(self.graph.slot(index));
                kept.of(root).add(index, 0, bytes);
            }
        }
        kept
    }

    fn most_of(&self, kept: Group, max: usize, steps: &mut usize) -> Vec<Retainer> {
        let mut kept = kept.roots;
        // Garbage comes after all roots.
        kept.sort_by_key(|(root, kept)| (Reverse(kept.bytes), root.is_none(), *root));
        let retainer = |(root, kept): (Option<u32>, Retained)| Retainer {
            path: root.map(|_| self.typical_path(&kept.picks, steps)),
            objects: kept.objects,
            bytes: kept.bytes,
        };
        kept.into_iter().take(max).map(retainer).collect()
    }

    /// The path that most of these objects have.
    fn typical_path(&self, picks: &[u32], steps: &mut usize) -> String {
        let mut paths: Vec<(Vec<(&str, usize)>, u32)> = Vec::new();
        for &slot in picks {
            let path = self.path(slot, steps);
            // The numbers of repeated steps may differ, as in a list.
            let has_names = |(known, _): &&mut (Vec<(&str, usize)>, u32)| {
                known.iter().map(|step| step.0).eq(path.iter().map(|step| step.0))
            };
            match paths.iter_mut().find(has_names) {
                Some((_, count)) => *count += 1,
                None => paths.push((path, 1)),
            }
            if *steps > MAX_COMPARED_STEPS {
                break;
            }
        }
        // The first one of several.
        let typical = paths.into_iter().rev().max_by_key(|(_, count)| *count);
        typical.map_or_else(String::new, |(path, _)| shown(path))
    }

    /// The path to the object in a slot, as text.
    pub(crate) fn path_to(&self, slot: u32) -> String {
        shown(self.path(slot, &mut 0))
    }

    /// The path to the node `to` by its referrer `from`, as text.
    pub(crate) fn path_by(&self, from: u32, to: u32) -> String {
        let mut path = self.path_to_node(from, &mut 0);
        if let Node::Slot(slot) = self.graph.node(to) {
            add_step(&mut path, self.graph.class_name(slot));
        }
        shown(path)
    }

    /// The path to an object, from its root on: names of classes, each with its number of repetitions. Counts the
    /// steps.
    fn path(&self, slot: u32, steps: &mut usize) -> Vec<(&str, usize)> {
        self.path_to_node(self.graph.slot(slot), steps)
    }

    fn path_to_node(&self, number: u32, steps: &mut usize) -> Vec<(&str, usize)> {
        let mut names: Vec<(&str, usize)> = Vec::new();
        let mut at = number;
        let root = self.paths.root(at);
        // No path is longer than the number of nodes.
        for _ in 0..self.graph.len() {
            *steps += 1;
            if Some(at) == root {
                names.push((self.graph.root_name(at), 1));
                break;
            }
            // Internal objects mean nothing to the authors of programs, and blocks belong to the objects before them.
            if let Node::Slot(slot) = self.graph.node(at)
                && (at == number || self.graph.is_visible(slot))
            {
                add_step(&mut names, self.graph.class_name(slot));
            }
            match self.paths.parent(at) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        names.reverse();
        names
    }
}

fn add_step<'a>(path: &mut Vec<(&'a str, usize)>, name: &'a str) {
    match path.last_mut() {
        // Objects of one class share its name, and a list may have millions.
        Some((last, count)) if std::ptr::eq(*last, name) || *last == name => *count += 1,
        _ => path.push((name, 1)),
    }
}

/// A path as text, without the steps in the middle if there are many.
fn shown(mut path: Vec<(&str, usize)>) -> String {
    if path.len() > MAX_STEPS {
        path.splice(MAX_STEPS / 2..path.len() - MAX_STEPS / 2 + 1, [("…", 1)]);
    }
    let step = |(name, count): &(&str, usize)| match count {
        1 => (*name).to_owned(),
        _ => format!("{name} × {count}"),
    };
    path.iter().map(step).collect::<Vec<_>>().join(" → ")
}
