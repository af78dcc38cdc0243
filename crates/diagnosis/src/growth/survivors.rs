//! Objects that survived from one snapshot to the next: objects of the same class at the same address.
//!
//! If an object dies and another object of its class takes the slot, it counts as a survivor, unless it was old before and
//! is young now. So the number of survivors may be too high. It is too low after GC.compact, and if the first snapshot was
//! taken during a collection, which marks young objects too. The number of lasting newcomers does not depend on ages.

use std::collections::HashMap;
use std::iter::Peekable;

use ledger::{MapBlock, MemoryMap, Use};

use formats::ClassChange;
use formats::Snapshot;

/// Counts, for each class, three groups of objects in the last snapshot: those that existed in the first one, the new
/// ones, and the new ones that existed in the second to last snapshot.
pub(crate) fn count(snapshots: &[&Snapshot], classes: &mut [ClassChange]) {
    let [first, between @ .., last] = snapshots else { return };
    let names: HashMap<String, usize> =
        classes.iter().enumerate().map(|(index, class)| (class.name.clone(), index)).collect();
    let mut first = Earlier::new(first, &names);
    let mut before = between.last().map(|before| Earlier::new(before, &names));
    let is = class_of_owners(last, &names);
    for object in objects(&last.memory_map) {
        let Some(index) = class(&is, &object) else { continue };
        let class = &mut classes[index];
        let same = first.find(&object, index);
        if same.is_some_and(|it| it.used == Use::YoungSlot || object.used == Use::OldSlot) {
            class.survivors += 1;
        } else {
            class.newcomers += 1;
            class.old_newcomers += u64::from(object.used == Use::OldSlot);
            let same = before.as_mut().is_some_and(|before| before.find(&object, index).is_some());
            class.lasting_newcomers += u64::from(same);
        }
    }
}

/// The objects of an earlier snapshot, which are looked up in ascending order.
struct Earlier<'a> {
    classes: Vec<Option<usize>>,
    objects: Peekable<Box<dyn Iterator<Item = MapBlock> + 'a>>,
}

impl<'a> Earlier<'a> {
    fn new(snapshot: &'a Snapshot, names: &HashMap<String, usize>) -> Self {
        let objects: Box<dyn Iterator<Item = MapBlock>> = Box::new(objects(&snapshot.memory_map));
        Self { classes: class_of_owners(snapshot, names), objects: objects.peekable() }
    }

    /// Returns the object of the class with this index at the address of `object`.
    fn find(&mut self, object: &MapBlock, index: usize) -> Option<&MapBlock> {
        while self.objects.next_if(|it| it.address < object.address).is_some() {}
        let classes = &self.classes;
        let same = self.objects.peek().filter(|it| it.address == object.address);
        same.filter(|it| class(classes, it) == Some(index))
    }
}

/// For each owner in a snapshot the index of its class.
fn class_of_owners(snapshot: &Snapshot, names: &HashMap<String, usize>) -> Vec<Option<usize>> {
    let owners = snapshot.report.owners.iter().flatten();
    owners.map(|owner| names.get(owner.owner.as_str()).copied()).collect()
}

fn class(classes: &[Option<usize>], block: &MapBlock) -> Option<usize> {
    classes.get(block.owner? as usize).copied().flatten()
}

/// Returns the slots with objects, in ascending order.
fn objects(memory_map: &MemoryMap) -> impl Iterator<Item = MapBlock> {
    let blocks = memory_map.areas.iter().flat_map(|area| memory_map.blocks(area));
    blocks.filter(|block| block.used.is_object())
}
