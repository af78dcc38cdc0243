//! The shortest path to each node.

use std::collections::VecDeque;

use crate::ownership::bits::{Bits, Ranks};

use super::{EVERYTHING, Node, ObjectGraph};

/// The reliability of a reference, best first. A node has the level at which the search reaches it: the worst level of
/// the references on its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Constants and variables of the program, and references of objects and of blocks in use.
    Named,
    /// Threads, and references of the structures of threads and fibers.
    Threads,
    /// Lists of the interpreter, such as finalizers, and references to threads that have not ended.
    Lists,
    /// Variables of libraries, and thread-local ones.
    Variables,
    /// Stacks and registers, whose words may be long out of use.
    Stacks,
    /// Words that may be no pointers.
    Uncertain,
    /// Words of memory behind the structures of extensions, which mostly has numbers and text.
    Deep,
    /// Nothing: the node is unreachable.
    Unreached,
}

const LEVELS: [Level; 7] = [
    Level::Named,
    Level::Threads,
    Level::Lists,
    Level::Variables,
    Level::Stacks,
    Level::Uncertain,
    Level::Deep,
];

/// The shortest paths to nodes.
pub(crate) struct Paths {
    numbers: Numbers,
    /// For each node the one before it.
    parents: Vec<u32>,
    roots: Roots,
    levels: Vec<Level>,
}

/// The nodes of the pointer graph to which paths are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All nodes.
    All,
    /// Those that refer to others: no path leads through the others, which are most of them.
    Inner,
}

/// The places of nodes in the tables.
struct Numbers {
    /// The number of the first node of the pointer graph.
    memory: u32,
    /// The nodes of the pointer graph that have a place; `None` if all have one.
    inner: Option<Ranks>,
    count: usize,
}

impl Numbers {
    fn new(graph: &ObjectGraph<'_>, reach: Reach) -> Self {
        let memory = graph.memory(0);
        let inner = (reach == Reach::Inner).then(|| Ranks::new(graph.inner_nodes()));
        let count = inner.as_ref().map_or(graph.len(), |inner| memory as usize + inner.len());
        Self { memory, inner, count }
    }

    #[inline]
    fn place(&self, number: u32) -> Option<usize> {
        let place = match &self.inner {
            Some(inner) if number >= self.memory => self.memory + inner.of(number - self.memory)?,
            _ => number,
        };
        Some(place as usize)
    }
}

impl Paths {
    /// Finds the shortest path to each node: of the best level first.
    pub(crate) fn find(graph: &ObjectGraph<'_>, reach: Reach) -> Self {
        let numbers = Numbers::new(graph, reach);
        let mut paths = Self {
            parents: vec![EVERYTHING; numbers.count],
            roots: Roots::new(numbers.count),
            levels: vec![Level::Unreached; numbers.count],
            numbers,
        };
        let mut search = Search {
            graph,
            referring: paths.numbers.inner.as_ref().map(|inner| graph.referring_slots(inner)),
            paths: &mut paths,
            queue: VecDeque::new(),
            waiting: Default::default(),
        };
        search.visit(EVERYTHING, EVERYTHING, Level::Named);
        for level in LEVELS {
            search.run(level);
        }
        paths
    }

    /// The level at which the search reaches a node.
    #[inline]
    pub(super) fn level(&self, number: u32) -> Level {
        let level = self.numbers.place(number).and_then(|place| self.levels.get(place));
        level.copied().unwrap_or(Level::Unreached)
    }

    /// The node before a node; `None` for the first node, and for nodes that are not reached.
    pub(crate) fn parent(&self, number: u32) -> Option<u32> {
        let place = self.numbers.place(number)?;
        let is_reached = self.level(number) != Level::Unreached;
        (number != EVERYTHING && is_reached).then(|| self.parents[place])
    }

    /// Returns true if a path leads to a node.
    pub(crate) fn is_reached(&self, number: u32) -> bool {
        self.level(number) != Level::Unreached
    }

    /// The root that the path to a node begins with; `None` for nodes that are not reached.
    pub(crate) fn root(&self, number: u32) -> Option<u32> {
        let place = self.numbers.place(number)?;
        (self.level(number) != Level::Unreached).then(|| self.roots.of(place))
    }
}

/// For each node the root that its path begins with, in two bytes if there are few roots, else in four.
struct Roots {
    /// The roots, in the order in which they were reached.
    all: Vec<u32>,
    /// For each node the lower half of the index of its root.
    lower: Vec<u16>,
    /// The upper half; empty as long as all are 0.
    upper: Vec<u16>,
}

impl Roots {
    fn new(nodes: usize) -> Self {
        Self { all: vec![EVERYTHING], lower: vec![0; nodes], upper: Vec::new() }
    }

    fn of(&self, place: usize) -> u32 {
        let upper = self.upper.get(place).copied().unwrap_or_default();
        self.all[usize::from(self.lower[place]) | usize::from(upper) << 16]
    }

    /// The path to a node begins with this root.
    fn begin(&mut self, place: usize, root: u32) {
        let index = self.all.len();
        self.all.push(root);
        self.lower[place] = index as u16;
        if index >> 16 > 0 && self.upper.is_empty() {
            self.upper = vec![0; self.lower.len()];
        }
        if let Some(upper) = self.upper.get_mut(place) {
            *upper = (index >> 16) as u16;
        }
    }

    /// The path to a node begins with the same root as the path to `from`.
    fn inherit(&mut self, place: usize, from: usize) {
        self.lower[place] = self.lower[from];
        if !self.upper.is_empty() {
            self.upper[place] = self.upper[from];
        }
    }
}

/// A breadth-first search, level by level.
struct Search<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a mut Paths,
    /// The objects that lead to other nodes than their class; `None` if all may.
    referring: Option<Bits>,
    queue: VecDeque<u32>,
    /// References of later levels: from and to.
    waiting: [Vec<(u32, u32)>; LEVELS.len()],
}

impl Search<'_> {
    fn visit(&mut self, number: u32, from: u32, level: Level) {
        let graph = self.graph;
        let Some(place) = self.paths.numbers.place(number) else { return };
        if self.paths.levels.get(place) != Some(&Level::Unreached) {
            return;
        }
        let is_root = match graph.node(number) {
            // A word may be the address of a slot that is free.
            Node::Slot(slot) if !graph.space.slots[slot as usize].is_live() => return,
            Node::Slot(_) => false,
            // The stack of a thread belongs to it.
            Node::Memory(node) => graph.root_at(node).is_some() && from == EVERYTHING,
            Node::Named(root) => graph.begins_paths(self.paths, root, from),
            _ => true,
        };
        self.paths.levels[place] = level;
        self.paths.parents[place] = from;
        match self.paths.numbers.place(from) {
            Some(from) if !is_root => self.paths.roots.inherit(place, from),
            _ => self.paths.roots.begin(place, number),
        }
        let leads_nowhere = match (graph.node(number), &self.referring) {
            (Node::Slot(slot), Some(referring)) => {
                let is_missing = |class| self.paths.level(class) == Level::Unreached;
                !referring.contains(slot) && !graph.class_node(slot).is_some_and(is_missing)
            }
            _ => false,
        };
        if !leads_nowhere {
            self.queue.push_back(number);
        }
    }

    fn run(&mut self, level: Level) {
        for (from, to) in std::mem::take(&mut self.waiting[level as usize]) {
            self.visit(to, from, level);
        }
        self.follow(level);
    }

    fn follow(&mut self, level: Level) {
        let graph = self.graph;
        while let Some(number) = self.queue.pop_front() {
            match graph.node(number) {
                Node::Everything | Node::ExtensionMemory => {
                    let mut found = Vec::new();
                    graph.references(self.paths, number, |to, its| found.push((to, its)));
                    found.into_iter().for_each(|(to, its)| self.find(number, to, its, level));
                }
                // Others do not depend on what was found. A large array has millions of references.
                node => graph.of_node(node, |to, its| self.find(number, to, its, level)),
            }
        }
    }

    /// Notes a reference: visits its target at once, or at a later level.
    fn find(&mut self, from: u32, to: u32, its: Level, level: Level) {
        if its <= level {
            self.visit(to, from, level);
        } else if self.paths.level(to) == Level::Unreached {
            self.waiting[its as usize].push((from, to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_roots_than_two_bytes_can_tell_apart_are_told_apart() {
        const ROOTS: u32 = 70_000;
        let mut roots = Roots::new(2 * ROOTS as usize);
        for root in 1..ROOTS {
            roots.begin(root as usize, 3 * root);
            roots.inherit((ROOTS + root) as usize, root as usize);
        }
        for root in 1..ROOTS {
            assert_eq!(roots.of(root as usize), 3 * root);
            assert_eq!(roots.of((ROOTS + root) as usize), 3 * root);
        }
        assert_eq!(roots.of(0), EVERYTHING);
    }
}
