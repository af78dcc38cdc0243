//! The tables of Sets, which Ruby has written in C since 4.0.
//!
//! `struct set_table` in internal/set_table.h: the capacity as a power of two in its first byte, then the type, the number of entries, the
//! first entry in use, the bound of the entries that were ever in use, and the entries. From 4.1 on the first entry in use is in the
//! upper half of the first word. The numbers of the entries (bins) lie behind the entries.

use linux::Address;

use crate::layout::room::{Room, Unit};
use crate::layout::st_table::{MAX_CAPACITY_LOG2, TableLayout};
use crate::model::content::{Content, Form};
use crate::word::word;

/// The words of an entry: a hash and a key.
pub(crate) const ENTRY_WORDS: u64 = 2;

/// The words of a table.
pub(crate) fn words(layout: TableLayout) -> usize {
    match layout {
        TableLayout::OwnBins => 6,
        TableLayout::BinsBehindEntries => 5,
    }
}

/// The memory of the entries of the table with these bytes; `None` if its numbers contradict each other.
pub(crate) fn entries_of(layout: TableLayout, table: &[u8]) -> Option<(Address, Content)> {
    let (room, bound) = room_and_bound(layout, table)?;
    Some((room.start, Content::new(Form::Members, bound * ENTRY_WORDS)))
}

/// The room of the table with these bytes; `None` if its numbers contradict each other.
pub(crate) fn room(layout: TableLayout, table: &[u8]) -> Option<Room> {
    room_and_bound(layout, table).map(|(room, _)| room)
}

/// The room of a table, and the number of entries that were ever in use.
pub(crate) fn room_and_bound(layout: TableLayout, table: &[u8]) -> Option<(Room, u64)> {
    let at = |number: usize| word(table, 8 * number);
    let (first, bound, entries) = match layout {
        TableLayout::OwnBins => (at(3), at(4), at(5)),
        TableLayout::BinsBehindEntries => (at(0) >> 32, at(3), at(4)),
    };
    let (capacity_log2, used) = (at(0) & 0xff, at(2));
    let is_table = capacity_log2 <= MAX_CAPACITY_LOG2
        && bound <= 1 << capacity_log2
        && first.checked_add(used).is_some_and(|end| end <= bound)
        && entries != 0;
    let capacity = 1 << (capacity_log2 & 63);
    let room = Room { start: Address(entries), unit: Unit::Member, used, capacity };
    is_table.then_some((room, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: [u64; 6]) -> Vec<u8> {
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// There is room for 16 entries. The first 9 were in use; the first 2 of them have gone, and 5 are left.
    #[test]
    fn only_entries_that_were_in_use_count() {
        let (old, new) = (TableLayout::OwnBins, TableLayout::BinsBehindEntries);
        let of_40 = [0x0504, 0x2000, 5, 2, 9, 0x3000];
        let of_41 = [2 << 32 | 0x0504, 0x2000, 5, 9, 0x3000, 0];
        let found = Some((Address(0x3000), Content::new(Form::Members, 18)));
        assert_eq!(entries_of(old, &bytes(of_40)), found);
        assert_eq!(entries_of(new, &bytes(of_41)), found);
    }

    #[test]
    fn a_table_whose_numbers_contradict_each_other_is_none() {
        let is_table = |table| entries_of(TableLayout::OwnBins, &bytes(table)).is_some();
        assert!(is_table([4, 0x2000, 7, 2, 9, 0x3000]));
        let wrong = [
            [3, 0x2000, 7, 2, 9, 0x3000],
            [4, 0x2000, 8, 2, 9, 0x3000],
            [4, 0x2000, u64::MAX, 2, 9, 0x3000],
            [64, 0x2000, 7, 2, 9, 0x3000],
            [63, 0x2000, 7, 2, 1 << 63, 0x3000],
            [4, 0x2000, 0, 0, 0, 0],
        ];
        for table in wrong {
            assert!(!is_table(table), "{table:x?}");
        }
    }
}
