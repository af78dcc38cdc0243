//! The memory of single large objects: what they have room for, and what they use of it. The words are those of
//! [`object_layouts`](crate::layout::object_layouts); the caller verifies that the addresses are those that the object refers to.

use image::{Image, Memory};
use linux::Address;

use crate::layout::object_layouts::{
    ARRAY_EMBEDDED, HASH_TABLE_WORD, STRING_NOT_EMBEDDED, WORDS_WITH_TABLE_POINTER,
};
use crate::layout::st_table::{StTable, TableLayout};
use crate::model::slot::SlotType;
use crate::word::word;

/// The table of the Hash in a slot of `slot_bytes` bytes; `None` if it cannot have one.
#[must_use]
pub fn table_of_hash(
    image: &Image<'_>,
    layout: TableLayout,
    slot: Address,
    slot_bytes: u32,
) -> Option<StTable> {
    let table = match slot_bytes as usize / 8 {
        WORDS_WITH_TABLE_POINTER => image.read_address(slot.offset(16)).ok()?,
        _ => slot.offset(8 * HASH_TABLE_WORD as u64),
    };
    let mut bytes = vec![0; layout.bytes() as usize];
    image.read_exact(table, &mut bytes).ok()?;
    layout.table(&bytes)
}

/// The contents of a string or array that are not in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The string or array that owns the memory. An object that shares nothing has its capacity there, which is no address of an
    /// object.
    pub owner: Address,
    /// The first byte.
    pub start: Address,
    /// The length in bytes.
    pub bytes: u64,
}

impl Slice {
    /// The contents of the string or array in a slot; `None` if they are in the slot.
    #[must_use]
    pub fn of(image: &Image<'_>, slot: Address) -> Option<Self> {
        let mut bytes = [0; 40];
        image.read_exact(slot, &mut bytes).ok()?;
        let [flags, length, third, fourth] = [0, 16, 24, 32].map(|at| word(&bytes, at));
        let (is_outside, start, owner, unit) = match SlotType::of_flags(flags) {
            SlotType::STRING => (flags & STRING_NOT_EMBEDDED != 0, third, fourth, 1),
            SlotType::ARRAY => (flags & ARRAY_EMBEDDED == 0, fourth, third, 8),
            _ => return None,
        };
        let bytes = length.checked_mul(unit)?;
        is_outside.then_some(Self { owner: Address(owner), start: Address(start), bytes })
    }
}
