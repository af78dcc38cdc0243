//! Shapes of 3.2: they determine the instance variables of a class.

use crate::SyntheticMemory;

/// The shape of objects without variables.
const ROOT: u64 = 0;
/// The shape of classes whose first variable is their name.
pub(super) const NAMED: u64 = 2;
/// The shape of classes whose first variable is not their name.
pub(super) const MEMBERS: u64 = 3;
/// The same, with the name as the second variable, and with room for more variables.
pub(super) const NAMED_MEMBERS: u64 = 5;

/// The names of variables, as numbers.
const CLASSPATH: u64 = 0xc1a5;
const OF_MEMBERS: u64 = 0x3e3b;

const NO_SHAPE: u64 = 0xffff_ffff;
const SHAPE_IVAR: u64 = 1;
const SHAPE_CAPACITY_CHANGE: u64 = 3;
const SHAPE_INITIAL_CAPACITY: u64 = 4;

/// The name, the number of variables, the type and the parent of each.
const ALL: [(u64, u64, u64, u64); 6] = [
    (0, 0, 0, NO_SHAPE),
    (0x0bf1, 0, SHAPE_INITIAL_CAPACITY, ROOT),
    (CLASSPATH, 1, SHAPE_IVAR, ROOT),
    (OF_MEMBERS, 1, SHAPE_IVAR, ROOT),
    (CLASSPATH, 2, SHAPE_IVAR, MEMBERS),
    (0, 2, SHAPE_CAPACITY_CHANGE, 4),
];

/// Writes the VM at `vm`, and at `list` the list of shapes that it refers to.
pub(super) fn write(memory: &mut SyntheticMemory, vm: u64, list: u64) {
    memory.write_u64(vm + 0x108, 0x5eed);
    memory.write_u64(vm + 0x110, 0x5eed);
    memory.write_u64(vm + 0x130, list);
    memory.write_u64(vm + 0x138, list);
    memory.write_u64(vm + 0x140, ALL.len() as u64);
    for (at, (name, variables, kind, parent)) in (list..).step_by(32).zip(ALL) {
        memory.write_u64(at + 8, name);
        memory.write_u64(at + 16, variables | 3 << 32);
        memory.write_u64(at + 24, kind | parent << 32);
    }
}
