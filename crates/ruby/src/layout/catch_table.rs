//! The clauses `rescue` and `ensure` of bytecode.
//!
//! `iseq_catch_table` (iseq.h) is packed: it begins with the number of entries, in 4 bytes. A `iseq_catch_table_entry` has its type, its
//! bytecode at 8, and four numbers.

use crate::word::word;

/// The size of an entry.
const ENTRY_BYTES: usize = 32;
const ISEQ: usize = 8;
/// The number of entries.
const HEAD_BYTES: usize = 4;
/// `enum catch_type`: the numbers 1 to 6 as Ruby's Integers.
const TYPES: [u32; 6] = [3, 5, 7, 9, 11, 13];
/// A method with more than a thousand such clauses has no table that is read.
const MAX_BYTES: usize = 32 << 10;

/// The bytes of a table whose beginning is read to find its size.
pub const CATCH_TABLE_HEAD_BYTES: usize = 8;

/// Returns the size of the catch table that begins with these bytes; `None` if they cannot begin one.
#[must_use]
pub fn catch_table_bytes(head: &[u8]) -> Option<usize> {
    let (count, kind) = (word(head, 0) as u32, (word(head, 0) >> 32) as u32);
    let bytes = (count as usize).checked_mul(ENTRY_BYTES)?.checked_add(HEAD_BYTES)?;
    (TYPES.contains(&kind) && bytes <= MAX_BYTES).then_some(bytes)
}

/// Returns the addresses of the bytecode in a catch table; `None` if these bytes are none.
#[must_use]
pub fn iseqs_of_catch_table(table: &[u8]) -> Option<impl Iterator<Item = u64> + '_> {
    let entries = table.get(HEAD_BYTES..)?.chunks_exact(ENTRY_BYTES);
    let is_table = entries.clone().all(|entry| TYPES.contains(&(word(entry, 0) as u32)));
    is_table.then(|| entries.map(|entry| word(entry, ISEQ)))
}
