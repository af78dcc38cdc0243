//! Objects that survived from one snapshot to the next: objects of the same class at the same address.
//!
//! If an object dies and another object of its class takes the slot, it counts as a survivor, unless it was old before and
//! is young now. So the number of survivors may be too high, but never too low (except after GC.compact).

use std::collections::HashMap;

use ledger::{MapBlock, MemoryMap, Use};

use formats::ClassChange;
use formats::Snapshot;

/// Counts for each class the objects in `last` that existed in `first`, and the new ones.
pub(crate) fn count(first: &Snapshot, last: &Snapshot, classes: &mut [ClassChange]) {
    let names: HashMap<String, usize> =
        classes.iter().enumerate().map(|(index, class)| (class.name.clone(), index)).collect();
    let index_of = |snapshot: &Snapshot| -> Vec<Option<usize>> {
        let owners = snapshot.report.owners.iter().flatten();
        owners.map(|owner| names.get(owner.owner.as_str()).copied()).collect()
    };
    let (was, is) = (index_of(first), index_of(last));
    let class = |classes: &[Option<usize>], block: &MapBlock| {
        classes.get(block.owner? as usize).copied().flatten()
    };
    let mut before = objects(&first.memory_map).peekable();
    for object in objects(&last.memory_map) {
        let Some(index) = class(&is, &object) else { continue };
        while before.next_if(|it| it.address < object.address).is_some() {}
        let same = before.peek().filter(|it| it.address == object.address);
        let survived = same.is_some_and(|it| {
            class(&was, it) == Some(index)
                && (it.used == Use::YoungSlot || object.used == Use::OldSlot)
        });
        let class = &mut classes[index];
        if survived {
            class.survivors += 1;
        } else {
            class.newcomers += 1;
            class.old_newcomers += u64::from(object.used == Use::OldSlot);
        }
    }
}

/// Returns the slots with objects, in ascending order.
fn objects(memory_map: &MemoryMap) -> impl Iterator<Item = MapBlock> {
    let blocks = memory_map.areas.iter().flat_map(|area| memory_map.blocks(area));
    blocks.filter(|block| block.used.is_object())
}
