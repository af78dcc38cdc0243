//! The retainers of objects: the shortest path to each object from a root that has a name.

mod path;
#[cfg(test)]
mod tests;

pub use path::{ARROW, CONTAINERS};

use std::cmp::Reverse;
use std::collections::HashMap;

use fastrand::Rng;
use linux::both;
use ruby::Slot;

use crate::ownership::bits::Bits;
use crate::ownership::object_graph::{Family, Node, ObjectGraph, Paths};
use crate::ownership::owner::Retainer;
use path::{Alike, Path, Step, add_step, add_step_before, shown};

/// The greatest number of objects whose paths are compared to find a typical one. At least half as many are compared, unless the objects
/// have fewer bytes than that.
const MAX_PICKS: usize = 64;
/// The number of steps of all these paths together: a path in a linked list may have millions. Then one object is enough.
pub(crate) const MAX_COMPARED_STEPS: usize = 1 << 20;

/// The greatest number of objects of which it is known whether another root retains them.
const MAX_COMPARED_ROOTS: usize = 16;
/// The number of nodes on the path to such an object whose referrers are found.
const MAX_WAY: usize = 1 << 10;

/// Roots are joined to their family if the one that retains most has less than one in this many of the bytes ...
const SCATTERED: u64 = 8;
/// ... and if the family has at least this many that retain some.
const MIN_FAMILY: usize = 16;

/// The sums of the objects that a root retains.
#[derive(Debug, Clone)]
pub(crate) struct Retained {
    objects: u64,
    bytes: u64,
    /// For every `step` bytes, the object that has a random one of them, so that an object is picked in proportion to its bytes. At regular
    /// distances, objects that take turns in memory would have picks of one kind only.
    picks: Vec<u32>,
    step: u64,
    /// The byte whose object is picked next.
    next: u64,
    chance: Rng,
}

impl Retained {
    pub(crate) fn new() -> Self {
        Self {
            objects: 0,
            bytes: 0,
            picks: Vec::new(),
            step: 1,
            next: 0,
            chance: Rng::with_seed(0),
        }
    }

    /// Adds objects of so many bytes. The object in `slot` may be picked for them.
    pub(crate) fn add(&mut self, slot: u32, objects: u64, bytes: u64) {
        self.objects += objects;
        // Objects may claim the same huge block.
        self.bytes = self.bytes.saturating_add(bytes);
        while self.next < self.bytes {
            self.picks.push(slot);
            if self.picks.len() == MAX_PICKS {
                let chance = &mut self.chance;
                self.picks =
                    self.picks.chunks(2).map(|pair| pair[chance.usize(..pair.len())]).collect();
                self.step = self.step.saturating_mul(2);
            }
            let start = (self.picks.len() as u64).saturating_mul(self.step);
            self.next = start.saturating_add(self.chance.u64(..self.step));
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

/// A path from another root to objects.
#[derive(Clone)]
struct OtherPath {
    path: String,
    /// The class of the one object through which it leads as well as the path from the first root.
    shared: Option<String>,
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

    /// For each of `groups` groups of objects, the `max` roots that retain most of their bytes, and always the garbage among them.
    /// `group_of` returns the group of an object.
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
        let (mut retainers, picks): (Vec<_>, Vec<_>) = pairs
            .map(|(group, (even, odd))| if group % 2 == 0 { even } else { odd })
            .map(|kept| self.most_of(kept, max, &mut steps))
            .unzip();
        for (retainers, other) in retainers.iter_mut().zip(self.other_paths(&picks)) {
            if let Some(first) = retainers.first_mut() {
                first.other_path = other.as_ref().map(|it| it.path.clone());
                first.shared = other.and_then(|it| it.shared);
            }
        }
        retainers
    }

    /// For each of these lists of objects that have one root, a path from another root that retains them, too, if others retain most of them.
    fn other_paths(&self, objects: &[Vec<u32>]) -> Vec<Option<OtherPath>> {
        let mut wanted = Bits::new(self.graph.len());
        let way = |slot: &u32| self.way(self.graph.slot(*slot));
        let ways: Vec<Vec<Vec<u32>>> =
            objects.iter().map(|slots| slots.iter().map(way).collect()).collect();
        let mut nodes = ways.iter().flatten().flatten().peekable();
        if nodes.peek().is_none() {
            return vec![None; objects.len()];
        }
        nodes.for_each(|&node| _ = wanted.insert(node));
        let is_other = |from: u32, to: u32| {
            let root = self.paths.root(from);
            root != self.paths.root(to)
                && root.is_some_and(|root| self.graph.is_of_program(root))
                && !self.graph.goes_with_its_target(self.paths, from, to)
        };
        let others = self.graph.referrers(self.paths, &wanted, is_other);
        let path_of = |ways: &Vec<Vec<u32>>| {
            // For each object, the nearest node to which others refer.
            let nearest = |way: &'_ Vec<u32>| way.iter().position(|to| others.contains_key(to));
            let joins = ways.iter().filter_map(|way| Some((way, nearest(way)?)));
            let joins: Vec<(&Vec<u32>, usize)> = joins.collect();
            if 2 * joins.len() <= ways.len() {
                return None;
            }
            let referrers = |(way, at): &(&Vec<u32>, usize)| &others[&way[*at]];
            let root = |from: u32| self.paths.root(from);
            let count = |from: u32| {
                let has = |join: &&(&Vec<u32>, usize)| {
                    referrers(join).iter().any(|it| root(*it) == root(from))
                };
                joins.iter().filter(has).count()
            };
            let all =
                joins.iter().flat_map(|join| referrers(join).iter().map(move |it| (join, *it)));
            // The first one of several.
            let (join, from) = all.rev().max_by_key(|(_, from)| count(*from))?;
            let path = self.path_along(from, &join.0[..=join.1]);
            Some(OtherPath { path, shared: self.shared(&joins, ways.len()) })
        };
        ways.iter().map(path_of).collect()
    }

    /// The class of the one object, nearest to most of so many objects, through which both paths lead. Each way has the number of the node to
    /// which others refer.
    fn shared(&self, joins: &[(&Vec<u32>, usize)], objects: usize) -> Option<String> {
        let mut counts: HashMap<u32, (usize, usize)> = HashMap::new();
        for (way, at) in joins {
            for (index, &node) in way.iter().enumerate().take(at + 1).skip(1) {
                let (count, distance) = counts.entry(node).or_default();
                (*count, *distance) = (*count + 1, index.max(*distance));
            }
        }
        let is_common = |it: &(&u32, &(usize, usize))| it.1.0 * 2 > objects;
        let visible = |node: u32| match self.graph.node(node) {
            Node::Slot(slot) if self.graph.is_visible(slot) => Some(slot),
            _ => None,
        };
        let common = counts.iter().filter(is_common);
        let visible = common.filter_map(|(&node, &(_, distance))| Some((distance, visible(node)?)));
        let (_, slot) = visible.min()?;
        Some(self.graph.parts_of_name(slot)[0].to_owned())
    }

    /// The nearest nodes on the path to a node, itself first, without the root and what that refers to: a program that lets go empties
    /// it. Of what a thread retains, those behind its stack or its variables: no other owner needs to let go of the thread.
    fn way(&self, node: u32) -> Vec<u32> {
        let root = self.paths.root(node);
        let mut way = vec![node];
        let mut at = node;
        while let Some(parent) = self.paths.parent(at).filter(|it| Some(*it) != root) {
            if self.graph.is_stack(parent) {
                return way;
            }
            if self.graph.is_of_thread(parent) {
                break;
            }
            // The rest of a long list is as the beginning is.
            if way.len() == MAX_WAY {
                return way;
            }
            way.push(parent);
            at = parent;
        }
        if way.len() > 1 {
            way.pop();
        }
        way
    }

    /// The path to the first of some nodes on a way by a referrer of the last one, as text.
    fn path_along(&self, from: u32, way: &[u32]) -> String {
        let mut path = self.path_to_node(from, &mut 0);
        for &at in way.iter().rev() {
            if let Node::Slot(slot) = self.graph.node(at)
                && (at == way[0] || self.graph.is_visible(slot))
            {
                add_step(&mut path, self.graph.parts_of_name(slot));
            }
        }
        shown(path)
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
        for (index, bytes) in self.graph.bytes_beyond_slots(self.paths, is_in_group) {
            let slot = space.slots[index as usize];
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group)) {
                let root = self.paths.root(self.graph.slot(index));
                kept.of(root).add(index, 0, bytes);
            }
        }
        kept
    }

    /// Joins the roots of one family, such as those that a program defines for each tenant, if each of them retains little, and
    /// all of them most.
    fn joined_by_family(
        &self,
        mut roots: Vec<(Option<u32>, Retained)>,
    ) -> Vec<(Option<u32>, Retained)> {
        // Garbage has no root.
        let retained = || roots.iter().filter(|(root, _)| root.is_some()).map(|(_, it)| it.bytes);
        let all = retained().fold(0, u64::saturating_add);
        if roots.len() < MIN_FAMILY || retained().any(|bytes| bytes > all / SCATTERED) {
            return roots;
        }
        let family = |root: Option<u32>| self.graph.family_of(root?);
        let mut families: HashMap<Family<'_>, (usize, u64)> = HashMap::new();
        for (root, kept) in &roots {
            if let Some(family) = family(*root) {
                let (members, bytes) = families.entry(family).or_default();
                *members += 1;
                *bytes = bytes.saturating_add(kept.bytes);
            }
        }
        let is_most = |&(_, (members, bytes)): &(Family<'_>, (usize, u64))| {
            members >= MIN_FAMILY && bytes > all / 2
        };
        let Some((most, _)) = families.into_iter().find(is_most) else { return roots };
        // The order of roots is that of the slots that were found.
        roots.sort_by_key(|(root, _)| *root);
        let (members, mut others): (Vec<_>, Vec<_>) =
            roots.into_iter().partition(|(root, _)| family(*root) == Some(most));
        let mut joined = Retained::new();
        let first = members.first().and_then(|(root, _)| *root);
        for (_, kept) in members {
            if let Some(&pick) = kept.picks.first() {
                joined.add(pick, kept.objects, kept.bytes);
            }
        }
        others.push((first, joined));
        others
    }

    /// The roots that retain most of a group, and some of the objects of the first one.
    fn most_of(&self, kept: Group, max: usize, steps: &mut usize) -> (Vec<Retainer>, Vec<u32>) {
        let mut kept = self.joined_by_family(kept.roots);
        // Garbage comes after all roots.
        kept.sort_by_key(|(root, kept)| (Reverse(kept.bytes), root.is_none(), *root));
        let retainer = |(root, kept): (Option<u32>, Retained)| Retainer {
            path: root.map(|_| self.typical_path(&kept.picks, steps)),
            objects: kept.objects,
            bytes: kept.bytes,
            other_path: None,
            shared: None,
        };
        let is_of_program =
            |root: &Option<u32>| root.is_some_and(|it| self.graph.is_of_program(it));
        let first = kept.first().filter(|(root, _)| is_of_program(root));
        let picks = first.map_or(&[][..], |(_, kept)| &kept.picks);
        let picks = picks.iter().step_by(picks.len() / MAX_COMPARED_ROOTS + 1).copied().collect();
        let mut roots = 0;
        kept.retain(|(root, _)| {
            roots += usize::from(root.is_some());
            root.is_none() || roots <= max
        });
        (kept.into_iter().map(retainer).collect(), picks)
    }

    /// The path that most of these objects have, which have one root.
    pub(crate) fn path_to_most(&self, objects: &Retained, steps: &mut usize) -> String {
        self.typical_path(&objects.picks, steps)
    }

    /// The path that most of these objects have.
    fn typical_path(&self, picks: &[u32], steps: &mut usize) -> String {
        let mut paths = Alike::default();
        // An object in the middle comes first, since one may be all: neighbours in a list often are neighbours in memory.
        let (before, after) = picks.split_at(picks.len() / 2);
        for &slot in after.iter().chain(before) {
            paths.add(self.path(slot, steps));
            if *steps > MAX_COMPARED_STEPS {
                break;
            }
        }
        let root = |slot: &u32| self.paths.root(self.graph.slot(*slot));
        let has_one_root = picks.iter().all(|slot| root(slot) == root(&picks[0]));
        paths.typical(has_one_root)
    }

    /// The path to the object in a slot, as text.
    pub(crate) fn path_to(&self, slot: u32) -> String {
        shown(self.path(slot, &mut 0))
    }

    /// The path to the node `to` by its referrer `from`, as text.
    pub(crate) fn path_by(&self, from: u32, to: u32) -> String {
        let mut path = self.path_to_node(from, &mut 0);
        if let Node::Slot(slot) = self.graph.node(to) {
            add_step(&mut path, self.graph.parts_of_name(slot));
        }
        shown(path)
    }

    /// The path to an object, from its root on. Counts the steps.
    fn path(&self, slot: u32, steps: &mut usize) -> Path<'_> {
        self.path_to_node(self.graph.slot(slot), steps)
    }

    fn path_to_node(&self, number: u32, steps: &mut usize) -> Path<'_> {
        let mut path = Path::new();
        let mut at = number;
        let root = self.paths.root(at);
        // Bytecode is a step to what it refers to itself, such as its literals.
        let mut refers_to_value = false;
        // No path is longer than the number of nodes.
        for _ in 0..self.graph.len() {
            *steps += 1;
            if Some(at) == root {
                path.push(Step::of(self.graph.parts_of_root(at)));
                break;
            }
            match self.graph.node(at) {
                // Internal objects mean nothing to the authors of programs, and blocks belong to the objects before them.
                Node::Slot(slot) if at == number || self.graph.is_visible(slot) => {
                    let parts = self.graph.parts_of_name(slot);
                    add_step_before(&mut path, parts);
                    refers_to_value = self.graph.is_visible(slot) && !self.graph.is_class(slot);
                }
                Node::Slot(slot) => {
                    let bytecode = self.graph.bytecode(slot).filter(|_| refers_to_value);
                    let code = bytecode.or_else(|| self.graph.defined_method(slot));
                    let parts = code.or_else(|| self.graph.parts_of_step(at));
                    parts.into_iter().for_each(|parts| add_step_before(&mut path, parts));
                    refers_to_value = false;
                }
                _ => {
                    if let Some(parts) = self.graph.parts_of_step(at) {
                        add_step_before(&mut path, parts);
                    }
                }
            }
            match self.paths.parent(at) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        path.reverse();
        path
    }
}
