//! The sizes of objects in a snapshot, by class and root.

use std::collections::HashMap;

use formats::{KeptBy, Owner, Snapshot};

use crate::path::root_of;

/// The sizes in a snapshot.
pub(crate) struct Sizes<'a> {
    pub(crate) roots: HashMap<&'a str, u64>,
    owners: HashMap<&'a str, &'a Owner>,
}

impl<'a> Sizes<'a> {
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let roots = snapshot.memory_map.roots.roots.iter();
        let owners = snapshot.report.owners.iter().flatten();
        Self {
            roots: roots.map(|root| (root.name.as_str(), root.bytes)).collect(),
            owners: owners.map(|owner| (owner.owner.as_str(), owner)).collect(),
        }
    }

    /// The objects of a class that a root retains, if the report lists them.
    pub(crate) fn retainer(&self, class: &str, root: &str) -> Option<&'a KeptBy> {
        let is_root = |it: &&KeptBy| it.path.as_deref().map(root_of) == Some(root);
        self.owners.get(class)?.kept_by.iter().find(is_root)
    }

    /// The mean size of a class's objects: of those that the root retains, unless these are nearly all. The size of all has memory
    /// behind their blocks, too.
    pub(crate) fn mean(&self, class: &str, root: &str) -> f64 {
        let mean = |bytes: u64, objects: u64| bytes as f64 / objects.max(1) as f64;
        match (self.retainer(class, root), self.owners.get(class)) {
            (Some(it), Some(owner)) if it.objects < owner.objects / 10 * 9 => {
                mean(it.bytes, it.objects)
            }
            (_, Some(owner)) => mean(owner.bytes(), owner.objects),
            (_, None) => 0.0,
        }
    }
}
