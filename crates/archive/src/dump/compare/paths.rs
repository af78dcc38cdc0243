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

/// A path to an object: the name of its root, if that is not in the lines, and its objects.
pub(super) type Path = (Option<String>, Vec<u64>);

/// Stands for the objects of a long path that are not shown.
pub(super) const LEFT_OUT: u64 = 0;

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

    /// Finds shortest paths over references. Those over internal objects are found last: caches refer to what something else retains.
    pub(super) fn of_references(
        file: &mut dyn Input,
        addresses: Vec<u64>,
        classes: &Classes,
        names: &mut Names,
    ) -> Result<Self, DumpError> {
        let count = addresses.len();
        let mut paths = Self { addresses, ..Self::default() };
        // Those of an object begin at its place, and end with none.
        let (mut firsts, mut all) = (vec![NONE; count], vec![NONE]);
        let (mut roots, mut is_internal) = (Vec::new(), vec![false; count]);
        let mut class_names = vec![0; count];
        read(file, |line: Line<'_, References>| {
            let References(references) = &line.references;
            let to = references.iter().chain([&line.class.0]).filter_map(|at| paths.index(*at));
            if line.is_root() {
                let name = names.number(line.root.bytes());
                roots.extend(to.map(|it| (it, name)));
            } else if let (true, Some(at)) = (line.is_object(), paths.index(line.address.0)) {
                firsts[at as usize] = all.len() as u32;
                all.extend(to);
                all.push(NONE);
                is_internal[at as usize] = line.kind.is("IMEMO");
                if line.is_class() {
                    class_names[at as usize] = classes.name(line.address.0).unwrap_or_default();
                }
            }
            if all.len().max(roots.len()) > MAX_REFERENCES {
                Err(DumpError::TooMuch)
            } else {
                Ok(())
            }
        })?;
        paths.has_no_roots = roots.is_empty();
        (paths.parents, paths.roots) = (vec![NONE; count], vec![0; count]);
        let (mut next, mut later) = (VecDeque::new(), VecDeque::new());
        let unnamed = names.number(b"root");
        for (at, name) in roots {
            if paths.reach(at, NONE, if name == 0 { unnamed } else { name }) {
                if is_internal[at as usize] { later.push_back(at) } else { next.push_back(at) }
            }
        }
        while let Some(from) = next.pop_front().or_else(|| later.pop_front()) {
            let from_at = from as usize;
            let class = Some(class_names[from_at]).filter(|it| *it != 0);
            let root = class.unwrap_or(paths.roots[from_at]);
            let its = all.get(firsts[from_at] as usize..).unwrap_or_default();
            for at in its.iter().copied().take_while(|it| *it != NONE) {
                if paths.reach(at, from, root) {
                    if is_internal[at as usize] { later.push_back(at) } else { next.push_back(at) }
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
