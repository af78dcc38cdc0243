//! The room that objects have, in their slots or outside.

use linux::Address;

use crate::layout::st_table::{StTable, least_capacity, table_bytes};

/// The bytes of an entry of a Set's table: a hash and a key (`set_table_entry` in st.c).
const MEMBER_BYTES: u64 = 16;

/// The room of an object: memory as it was requested from malloc, without the terminator of a string, or its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The start of the memory. A table may have its bins elsewhere.
    pub start: Address,
    /// The unit of the room.
    pub unit: Unit,
    /// The number of units in use.
    pub used: u64,
    /// The number of units that there is room for.
    pub capacity: u64,
}

/// The units in which the room of objects is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Bytes of a string.
    Byte,
    /// Elements of an array.
    Element,
    /// Entries of a hash.
    Entry,
    /// Elements of a Set that is written in C (from 4.0 on).
    Member,
    /// Variables of an object.
    Variable,
    /// The same, in a table of names, if the class has objects of too many shapes.
    Named,
    /// Bytes of a buffer that an IO reads into or writes from. It keeps them until it is closed.
    Buffered,
    /// Elements of a queue that is a ring in C (from 4.1 on).
    Queued,
    /// Bytes of a slot that is larger than its object needs: what is in use are those of the smallest slot that would do.
    Slot,
    /// The same, for an object with variables. Its class has had objects with more of them, so a copy has such a slot, too.
    Shape,
}

impl Room {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_for(self.capacity)
    }

    /// The bytes in use. Of the bins of a table, as many are in use as a table for its entries has.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        match self.entry_bytes() {
            Some(entry) => {
                let least = self.least_capacity();
                self.used * entry + self.bytes_for(least) - least * entry
            }
            None => self.bytes_for(self.used),
        }
    }

    /// The bytes that the object would request again for what it has in use.
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        match self.unit {
            Unit::Variable | Unit::Named | Unit::Buffered | Unit::Shape => self.bytes(),
            _ => self.bytes_for(self.least_capacity()),
        }
    }

    fn bytes_for(&self, units: u64) -> u64 {
        match self.entry_bytes() {
            Some(entry) => table_bytes(units, entry),
            None => match self.unit {
                Unit::Byte | Unit::Buffered | Unit::Slot | Unit::Shape => units,
                _ => units.saturating_mul(8),
            },
        }
    }

    fn least_capacity(&self) -> u64 {
        match self.entry_bytes() {
            Some(_) => least_capacity(self.used).min(self.capacity),
            None => self.used,
        }
    }

    fn entry_bytes(&self) -> Option<u64> {
        match self.unit {
            Unit::Entry | Unit::Named => Some(StTable::ENTRY_BYTES),
            Unit::Member => Some(MEMBER_BYTES),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those of `features` in st.c: {4, 5, 0, 0}, {5, 6, 0, 0x8}, {8, 9, 1, 0x80}, {18, 19, 2, 0x40000} in words.
    #[test]
    fn bins_are_as_large_as_the_numbers_of_entries_need() {
        let room = |used, capacity| Room { start: Address(0), unit: Unit::Entry, used, capacity };
        let sizes = [(16, 0), (32, 0x8), (256, 0x80), (1 << 18, 0x4_0000)];
        for (capacity, bin_words) in sizes {
            assert_eq!(room(0, capacity).bytes(), capacity * 24 + bin_words * 8, "{capacity}");
        }
        // Ten entries get a table for sixteen, and sixteen get one for thirty-two.
        let emptied = room(10, 1 << 18);
        assert_eq!((emptied.used_bytes(), emptied.least_bytes()), (240, 16 * 24));
        let full = room(16, 1 << 18);
        assert_eq!((full.used_bytes(), full.least_bytes()), (16 * 24 + 64, 32 * 24 + 64));
        assert_eq!(Room { unit: Unit::Member, ..emptied }.least_bytes(), 16 * 16);
    }

    #[test]
    fn variables_keep_their_room_when_they_are_copied() {
        let room = Room { start: Address(0), unit: Unit::Variable, used: 3, capacity: 8 };
        assert_eq!((room.bytes(), room.used_bytes(), room.least_bytes()), (64, 24, 64));
        let named = Room { unit: Unit::Named, ..room };
        assert_eq!((named.bytes(), named.used_bytes(), named.least_bytes()), (192, 72, 192));
        let elements = Room { unit: Unit::Element, ..room };
        assert_eq!(elements.least_bytes(), 24);
    }
}
