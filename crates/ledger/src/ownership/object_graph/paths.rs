//! The shortest path to each node.

use std::collections::VecDeque;

use super::{EVERYTHING, FIRST_NAMED, Node, ObjectGraph};

/// The reliability of a reference, best first. A node has the level at which the search reaches it: the worst level of
/// the references on its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Constants and variables of the program, and references of objects and of blocks in use.
    Named,
    /// Threads, and references of the structures of threads and fibers.
    Threads,
    /// Finalizers of objects.
    Finalizers,
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
    Level::Finalizers,
    Level::Variables,
    Level::Stacks,
    Level::Uncertain,
    Level::Deep,
];

/// The shortest paths to all nodes.
pub(crate) struct Paths {
    /// For each node the one before it.
    parents: Vec<u32>,
    /// For each node the root that its path begins with.
    roots: Vec<u32>,
    levels: Vec<Level>,
    /// The named roots whose class nothing leads to.
    pub(super) orphans: Vec<u32>,
}

impl Paths {
    /// Finds the shortest path to each node: of the best level first.
    pub(crate) fn find(graph: &ObjectGraph<'_>) -> Self {
        let mut paths = Self {
            parents: vec![EVERYTHING; graph.len()],
            roots: vec![EVERYTHING; graph.len()],
            levels: vec![Level::Unreached; graph.len()],
            orphans: Vec::new(),
        };
        let mut search = Search {
            graph,
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
    pub(super) fn level(&self, number: u32) -> Level {
        self.levels.get(number as usize).copied().unwrap_or(Level::Unreached)
    }

    /// The node before a node; `None` for the first node, and for nodes that are not reached.
    pub(crate) fn parent(&self, number: u32) -> Option<u32> {
        let is_reached = self.level(number) != Level::Unreached;
        (number != EVERYTHING && is_reached).then(|| self.parents[number as usize])
    }

    /// The root that the path to a node begins with; `None` for nodes that are not reached.
    pub(crate) fn root(&self, number: u32) -> Option<u32> {
        (self.level(number) != Level::Unreached).then(|| self.roots[number as usize])
    }
}

/// A breadth-first search, level by level.
struct Search<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a mut Paths,
    queue: VecDeque<u32>,
    /// References of later levels: from and to.
    waiting: [Vec<(u32, u32)>; LEVELS.len()],
}

impl Search<'_> {
    fn visit(&mut self, number: u32, from: u32, level: Level) {
        let graph = self.graph;
        if self.paths.level(number) != Level::Unreached || number as usize >= graph.len() {
            return;
        }
        let is_root = match graph.node(number) {
            // A word may be the address of a slot that is free.
            Node::Slot(slot) if !graph.space.slots[slot as usize].is_live() => return,
            Node::Slot(_) => false,
            // The stack of a thread belongs to it.
            Node::Memory(node) => graph.root_at(node).is_some() && from == EVERYTHING,
            _ => true,
        };
        let index = number as usize;
        self.paths.levels[index] = level;
        self.paths.parents[index] = from;
        self.paths.roots[index] = if is_root { number } else { self.paths.roots[from as usize] };
        self.queue.push_back(number);
    }

    fn run(&mut self, level: Level) {
        for (from, to) in std::mem::take(&mut self.waiting[level as usize]) {
            self.visit(to, from, level);
        }
        self.follow(level);
        if level == Level::Named {
            // Nothing leads to the class of these roots, for example the singleton class of an object.
            for index in 0..self.graph.named_roots.len() as u32 {
                let number = FIRST_NAMED + index;
                if self.paths.level(number) == Level::Unreached {
                    self.paths.orphans.push(number);
                    self.visit(number, EVERYTHING, level);
                    self.follow(level);
                }
            }
        }
    }

    fn follow(&mut self, level: Level) {
        let mut found = Vec::new();
        while let Some(number) = self.queue.pop_front() {
            self.graph.references(self.paths, number, |to, its| found.push((to, its)));
            for (to, its) in found.drain(..) {
                if its <= level {
                    self.visit(to, number, level);
                } else if self.paths.level(to) == Level::Unreached {
                    self.waiting[its as usize].push((number, to));
                }
            }
        }
    }
}
