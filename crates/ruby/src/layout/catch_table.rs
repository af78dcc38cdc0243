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

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with a `rescue` and an `ensure`, whose bytecode is at odd places.
    fn table() -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (kind, iseq) in [(3_u32, 0x7f00_0000_1000_u64), (5, 0x7f00_0000_2000)] {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(iseq.to_le_bytes());
            bytes.extend([0; 16]);
        }
        bytes
    }

    #[test]
    fn the_bytecode_of_each_clause_is_found() {
        let table = table();
        assert_eq!(catch_table_bytes(&table[..CATCH_TABLE_HEAD_BYTES]), Some(table.len()));
        let iseqs: Vec<u64> = iseqs_of_catch_table(&table).unwrap().collect();
        assert_eq!(iseqs, [0x7f00_0000_1000, 0x7f00_0000_2000]);
    }

    #[test]
    fn no_length_and_no_type_is_trusted() {
        let mut long = table();
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(catch_table_bytes(&long[..CATCH_TABLE_HEAD_BYTES]), None);
        let mut even = table();
        even[4 + ENTRY_BYTES] = 4;
        assert!(iseqs_of_catch_table(&even).is_none());
        assert_eq!(catch_table_bytes(&[]), None);
        assert!(iseqs_of_catch_table(&[]).is_none());
    }
}
