//! The tables of a JIT compiler: what it knows of the code that it made, in malloc's memory.

use allocator::glibc::Malloc;
use ruby::ObjectSpace;

use crate::owners::pointers::Pointers;
use crate::places::{Place, Places};

/// The class of bytecode.
const ISEQ: &str = "(imemo_iseq)";
/// From what bytecode names as its code's to a block of that lead at most so many pointers: a list
/// by instruction, a list of versions, the block.
const MAX_HOPS: u32 = 3;
/// Chunks that are looked at behind one pointer.
const MAX_LOOKS: u32 = 256;

/// The chunks from which the tables of a JIT compiler are reached; none where there is no code of one.
///
/// Bytecode (an iseq) that was compiled names what the compiler has for it, and there each block of
/// code names its bytecode, as nothing else does that bytecode has (`Block` in yjit/src/core.rs,
/// `block_t` in yjit_core.h of 3.1). So no offset is needed.
pub(crate) fn tables(
    malloc: &Malloc,
    space: &ObjectSpace,
    pointers: &Pointers,
    places: &Places<'_>,
) -> Vec<u32> {
    if space.jit_code.is_empty() {
        return Vec::new();
    }
    let is_iseq: Vec<bool> =
        space.classes.iter().map(|class| class.name.as_deref() == Some(ISEQ)).collect();
    let mut tables = Vec::new();
    for (slot, address) in space.references.iter() {
        let class = space.slots.get(slot as usize).map_or(u32::MAX, |slot| slot.class);
        if is_iseq.get(class as usize) != Some(&true) {
            continue;
        }
        let Place::Chunk { index: body, is_start: true } = places.at(address) else { continue };
        for edge in pointers.of(body).0.iter().filter(|edge| !edge.is_weak()) {
            let mut search =
                Search { chunks: malloc.chunks.len(), pointers, slot, looks: MAX_LOOKS };
            if edge.to() != body && search.is_named_from(edge.to(), MAX_HOPS) {
                tables.push(edge.to());
            }
        }
    }
    tables
}

/// Looks for memory that names an object's slot.
struct Search<'a> {
    chunks: usize,
    pointers: &'a Pointers,
    slot: u32,
    looks: u32,
}

impl Search<'_> {
    fn is_named_from(&mut self, node: u32, hops: u32) -> bool {
        if self.looks == 0 || node as usize >= self.chunks {
            return false;
        }
        self.looks -= 1;
        let (edges, slots) = self.pointers.of(node);
        slots.iter().any(|slot| slot.to() == self.slot)
            || hops > 0
                && edges
                    .iter()
                    .any(|edge| !edge.is_weak() && self.is_named_from(edge.to(), hops - 1))
    }
}
