//! What retains the objects of a dump: the object before each on a shortest path from a root.

use std::collections::VecDeque;

use super::lines::{DumpError, Ignored, Input, Line, References, read};
use super::names::Names;
use super::survey::Classes;

/// The most references of a dump.
const MAX_REFERENCES: usize = 1 << 30;
/// The objects of a path that are shown at either end, and those of the longest path.
const SHOWN: usize = 6;
const MAX_STEPS: usize = 1 << 20;
const NONE: u32 = u32::MAX;

/// The objects of a dump, by their places in the list of addresses.
#[derive(Default)]
pub(super) struct Paths {
    addresses: Vec<u64>,
    /// The object before each on its path; [`NONE`] for the first one, and for garbage.
    parents: Vec<u32>,
    /// The name of the root of each, or the last class on its path; 0 if nothing retains it. Empty if the lines have it.
    roots: Vec<u32>,
    /// True if the dump has no roots, so that it is not known what is garbage.
    has_no_roots: bool,
}

/// The references of a dump.
struct Graph {
    /// Those of an object begin at its place here, and end with [`NONE`].
    firsts: Vec<u32>,
    all: Vec<u32>,
    /// The objects to which roots refer, and the names of these.
    roots: Vec<(u32, u32)>,
    is_internal: Vec<bool>,
    /// The name of each class and module.
    class_names: Vec<u32>,
}

/// The objects whose references are followed next: internal objects last.
#[derive(Default)]
struct Waiting {
    next: VecDeque<u32>,
    later: VecDeque<u32>,
}

/// A path to an object: the name of its root, if that is not in the lines, and its objects.
pub(super) type Path = (Option<String>, Vec<u64>);

/// Stands for the objects of a long path that are not shown.
pub(super) const LEFT_OUT: u64 = 0;

impl Graph {
    fn read(
        file: &mut dyn Input,
        objects: &Paths,
        classes: &Classes,
        names: &mut Names,
    ) -> Result<Self, DumpError> {
        let count = objects.addresses.len();
        let mut graph = Self {
            firsts: vec![NONE; count],
            all: Vec::new(),
            roots: Vec::new(),
            is_internal: vec![false; count],
            class_names: vec![0; count],
        };
        read(file, |line: Line<'_, References>| {
            let References(references) = &line.references;
            let to = references.iter().chain([&line.class.0]);
            let to = to.filter_map(|at| objects.index(*at));
            if line.is_root() {
                let name = names.number(line.root.bytes());
                graph.roots.extend(to.map(|it| (it, name)));
            } else if let (true, Some(at)) = (line.is_object(), objects.index(line.address.0)) {
                let at = at as usize;
                graph.firsts[at] = graph.all.len() as u32;
                graph.all.extend(to.chain([NONE]));
                graph.is_internal[at] = line.kind.is("IMEMO");
                if line.is_class() {
                    graph.class_names[at] = classes.name(line.address.0).unwrap_or_default();
                }
            }
            let count = graph.all.len().max(graph.roots.len());
            if count > MAX_REFERENCES { Err(DumpError::TooMuch) } else { Ok(()) }
        })?;
        Ok(graph)
    }

    /// The references of an object.
    fn of(&self, at: u32) -> impl Iterator<Item = u32> + '_ {
        let its = self.all.get(self.firsts[at as usize] as usize..).unwrap_or_default();
        its.iter().copied().take_while(|it| *it != NONE)
    }
}

impl Waiting {
    fn push(&mut self, at: u32, graph: &Graph) {
        match graph.is_internal[at as usize] {
            true => self.later.push_back(at),
            false => self.next.push_back(at),
        }
    }

    fn pop(&mut self) -> Option<u32> {
        self.next.pop_front().or_else(|| self.later.pop_front())
    }
}

impl Paths {
    fn index(&self, at: u64) -> Option<u32> {
        self.addresses.binary_search(&at).ok().map(|it| it as u32)
    }

    /// Reads the paths that rbloat has written.
    pub(super) fn of_parents(file: &mut dyn Input, addresses: Vec<u64>) -> Result<Self, DumpError> {
        let parents = vec![NONE; addresses.len()];
        let mut paths = Self { addresses, parents, ..Self::default() };
        read(file, |line: Line<'_, Ignored>| {
            let parent = line.rbloat.as_ref().and_then(|own| paths.index(own.parent.0));
            if let (Some(at), Some(parent)) = (paths.index(line.address.0), parent) {
                paths.parents[at as usize] = parent;
            }
            Ok(())
        })?;
        Ok(paths)
    }

    /// Finds shortest paths over references. Those over internal objects are found last, and those from stacks behind them: caches and stacks
    /// refer to what something else retains.
    pub(super) fn of_references(
        file: &mut dyn Input,
        addresses: Vec<u64>,
        classes: &Classes,
        names: &mut Names,
    ) -> Result<Self, DumpError> {
        let count = addresses.len();
        let (parents, roots) = (vec![NONE; count], vec![0; count]);
        let mut paths = Self { addresses, parents, roots, has_no_roots: false };
        let graph = Graph::read(file, &paths, classes, names)?;
        paths.has_no_roots = graph.roots.is_empty();
        let [unnamed, stacks] = [&b"root"[..], b"machine_context"].map(|it| names.number(it));
        let mut waiting = Waiting::default();
        for is_stack in [false, true] {
            for &(at, name) in graph.roots.iter().filter(|it| (it.1 == stacks) == is_stack) {
                if paths.reach(at, NONE, if name == 0 { unnamed } else { name }) {
                    waiting.push(at, &graph);
                }
            }
            while let Some(from) = waiting.pop() {
                let class = Some(graph.class_names[from as usize]).filter(|it| *it != 0);
                let root = class.unwrap_or(paths.roots[from as usize]);
                for at in graph.of(from) {
                    if paths.reach(at, from, root) {
                        waiting.push(at, &graph);
                    }
                }
            }
        }
        Ok(paths)
    }

    /// Notes the path to an object. Returns false if it has one.
    fn reach(&mut self, at: u32, parent: u32, root: u32) -> bool {
        let its_root = &mut self.roots[at as usize];
        let is_first = *its_root == 0;
        if is_first {
            (*its_root, self.parents[at as usize]) = (root, parent);
        }
        is_first
    }

    /// The name of the root of an object, or of the last class on its path; `None` for garbage.
    pub(super) fn root(&self, at: u64) -> Option<u32> {
        let root = self.roots.get(self.index(at)? as usize).copied().filter(|it| *it != 0);
        if self.has_no_roots { Some(0) } else { root }
    }

    /// The path to an object.
    pub(super) fn to(&self, at: u64, names: &Names) -> Path {
        let Some(last) = self.index(at) else { return Path::default() };
        let above = |at: &u32| self.parents.get(*at as usize).copied().filter(|it| *it != NONE);
        let mut path: Vec<u32> = std::iter::successors(Some(last), above).take(MAX_STEPS).collect();
        path.reverse();
        let root = path.first().and_then(|it| self.roots.get(*it as usize)).filter(|it| **it != 0);
        let root = root.map(|it| names.text(*it).to_owned());
        let mut objects: Vec<u64> = path.iter().map(|it| self.addresses[*it as usize]).collect();
        if objects.len() > 2 * SHOWN {
            objects.splice(SHOWN..objects.len() - SHOWN, [LEFT_OUT]);
        }
        (root, objects)
    }
}
