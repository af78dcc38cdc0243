//! Classes that live as long as the program, so that their variables and constants begin paths.

use ruby::{NamedRoot, ObjectSpace, RootKind};

use crate::ownership::bits::Bits;

use super::paths::Paths;
use super::references::values_of;
use super::{Node, ObjectGraph, is_class};

impl ObjectGraph<'_> {
    /// Returns true if a named root is the beginning of paths: `from` is the node that leads to it. A variable of a class that constants
    /// lead to is one. A class without a constant, such as one of several that were loaded again, or that a program makes for each
    /// tenant, lives as long as whatever leads to it, and so does its variable.
    pub(super) fn begins_paths(&self, paths: &Paths, root: u32, from: u32) -> bool {
        let Some(root) = self.named_roots.get(root as usize) else { return true };
        if root.kind == RootKind::Local {
            return false;
        }
        let Node::Slot(class) = self.node(from) else { return true };
        if self.lasting_classes.contains(class) {
            return true;
        }
        match paths.parent(from).map(|parent| self.node(parent)) {
            // The singleton class of a class belongs to that.
            Some(Node::Slot(owner)) => {
                let is_its = root.name.starts_with("#<Class:") && !is_anonymous(&root.name);
                is_its && self.lasting_classes.contains(owner)
            }
            // The elements of an array, for example.
            Some(Node::Memory(node)) => self.root_at(node).is_some(),
            _ => true,
        }
    }
}

/// The classes and modules to which a constant of Object leads, directly or by other constants.
pub(super) fn lasting_classes(
    space: &ObjectSpace,
    named_roots: &[NamedRoot],
    global_roots: &[u32],
    named_in_classes: &[(u32, u32)],
) -> Bits {
    let mut lasting = Bits::new(space.slots.len());
    let class_at = |root: u32| {
        let root = named_roots.get(root as usize).filter(|it| it.kind == RootKind::Constant)?;
        let slot = space.slots.get(root.value as usize)?;
        is_class(*slot).then_some(root.value)
    };
    let mut waiting: Vec<u32> = global_roots.iter().filter_map(|&root| class_at(root)).collect();
    while let Some(class) = waiting.pop() {
        if lasting.insert(class) {
            waiting.extend(values_of(named_in_classes, class).filter_map(class_at));
        }
    }
    lasting
}

/// Returns true for the name of a root that belongs to a class without a name.
fn is_anonymous(name: &str) -> bool {
    name.starts_with("#<Class:0x") || name.starts_with("#<Module:0x")
}

/// The name of a variable or constant without the class, if that has no name: its address would make all paths different.
pub(super) fn without_anonymous_class(name: &str) -> &str {
    let start = name.find('>').filter(|_| is_anonymous(name)).map_or(0, |end| end + 1);
    name[start..].trim_start_matches(['.', ':'])
}
