use std::ops::Range;

use crate::Address;
use crate::arch::USER_SPACE_END;

/// A table of 2^14 granules takes 64 KiB.
const TABLE_LOG2: u32 = 14;
const TABLE_ENTRIES: u64 = 1 << TABLE_LOG2;
/// An entry of the directory with this bit is the index of a table, any other a value.
const TABLE: u32 = 1 << 31;

/// A map from addresses to numbers with lookups in constant time, for walks over millions of words. Memory is divided
/// into granules, and each has one value.
///
/// 2^14 granules with one value take 4 bytes; with several values, they take a table of 64 KiB.
#[derive(Debug, Clone)]
pub struct AddressMap {
    granule_log2: u32,
    max_tables: usize,
    crowded: u32,
    /// For each 2^14 granules: the value of all, or `TABLE` and the index of a table.
    directory: Vec<u32>,
    /// The first of these that was ever set. Most words that are no pointers are below: looking them up would map pages of zeros
    /// all over the directory.
    first: u64,
    tables: Vec<Box<[u32]>>,
}

impl AddressMap {
    /// The end of the values: all are below it.
    pub const END_OF_VALUES: u32 = TABLE;

    /// Creates a map of granules of 2^`granule_log2` bytes (10 to 20), all with the value 0.
    ///
    /// It has at most `max_tables` tables, which bounds its own memory. Granules that would need another table get the
    /// value `crowded`, which is below 2^31: the caller has to search there.
    #[must_use]
    pub fn new(granule_log2: u32, max_tables: usize, crowded: u32) -> Self {
        let granule_log2 = granule_log2.clamp(10, 20);
        // Zeros from the kernel: pages that are never written take no memory.
        let directory = vec![0; (USER_SPACE_END >> (granule_log2 + TABLE_LOG2)) as usize];
        let crowded = crowded & !TABLE;
        Self { granule_log2, max_tables, crowded, directory, first: u64::MAX, tables: Vec::new() }
    }

    /// Sets the value of all granules that `range` touches. Values are below 2^31. Granules after the end of user space
    /// keep the value 0.
    pub fn set(&mut self, range: &Range<Address>, value: u32) {
        if range.start >= range.end {
            return;
        }
        let first = range.start.0.min(USER_SPACE_END) >> self.granule_log2;
        let end = range.end.align_up(1 << self.granule_log2).0.min(USER_SPACE_END);
        let end = end >> self.granule_log2;
        self.first = self.first.min(first >> TABLE_LOG2);
        let mut granule = first;
        while granule < end {
            let entry = (granule >> TABLE_LOG2) as usize;
            let next = ((granule >> TABLE_LOG2) + 1) << TABLE_LOG2;
            let is_whole = granule.is_multiple_of(TABLE_ENTRIES) && next <= end;
            if is_whole && self.directory[entry] & TABLE == 0 {
                self.directory[entry] = value & !TABLE;
            } else if let Some(table) = self.table(entry) {
                let from = (granule % TABLE_ENTRIES) as usize;
                let count = (next.min(end) - granule) as usize;
                table[from..from + count].fill(value & !TABLE);
            }
            granule = next;
        }
    }

    fn table(&mut self, entry: usize) -> Option<&mut [u32]> {
        let all = self.directory[entry];
        if all & TABLE == 0 {
            if self.tables.len() >= self.max_tables {
                self.directory[entry] = self.crowded;
                return None;
            }
            self.directory[entry] = TABLE | self.tables.len() as u32;
            self.tables.push(vec![all; TABLE_ENTRIES as usize].into());
        }
        let index = (self.directory[entry] & !TABLE) as usize;
        self.tables.get_mut(index).map(|table| &mut table[..])
    }

    /// Returns the value at `at`; 0 if none was set.
    #[inline]
    #[must_use]
    pub fn get(&self, at: Address) -> u32 {
        let granule = at.0 >> self.granule_log2;
        let index = granule >> TABLE_LOG2;
        let entry = if index < self.first { None } else { self.directory.get(index as usize) };
        let Some(&entry) = entry else { return 0 };
        if entry & TABLE == 0 {
            return entry;
        }
        self.tables[(entry & !TABLE) as usize][(granule % TABLE_ENTRIES) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_terabyte_of_one_value_takes_no_table() {
        let mut map = AddressMap::new(10, 4096, 0);
        map.set(&(Address(1 << 40)..Address(2 << 40)), 7);
        assert_eq!(map.get(Address((2 << 40) - 1)), 7);
        assert_eq!(map.get(Address(2 << 40)), 0);
        assert!(map.tables.is_empty());
    }

    #[test]
    fn a_range_larger_than_a_table_takes_none_for_its_middle() {
        let mut map = AddressMap::new(14, 1024, 2);
        map.set(&(Address(0x1000)..Address(1 << 46)), 2);
        map.set(&(Address(0x4000)..Address(1 << 46)), 1);
        assert!(map.tables.len() <= 2);
        assert_eq!(map.get(Address(0x3fff)), 2);
        assert_eq!(map.get(Address(1 << 45)), 1);
        assert_eq!(map.get(Address(1 << 46)), 0);
    }

    #[test]
    fn granules_without_a_table_are_crowded() {
        const STRETCH: u64 = TABLE_ENTRIES << 10;
        let mut map = AddressMap::new(10, 1, 9);
        map.set(&(Address(0)..Address(1024)), 1);
        map.set(&(Address(STRETCH)..Address(3 * STRETCH)), 2);
        map.set(&(Address(STRETCH)..Address(STRETCH + 1024)), 3);
        for (at, value) in [(0, 1), (1024, 0), (STRETCH, 9), (2 * STRETCH - 1, 9), (2 * STRETCH, 2)]
        {
            assert_eq!(map.get(Address(at)), value, "{at:#x}");
        }
    }

    #[test]
    fn addresses_that_no_process_has_are_without_value() {
        let mut map = AddressMap::new(12, 4096, 0);
        map.set(&(Address(u64::MAX - 5)..Address(u64::MAX)), 1);
        map.set(&(Address(9)..Address(3)), 1);
        assert_eq!(map.get(Address(u64::MAX)), 0);
        assert_eq!(map.get(Address(5)), 0);
    }

    proptest! {
        #[test]
        fn a_granule_has_the_value_that_was_set_last(
            sets in prop::collection::vec((0_u64..80 << 24, 0_u64..40 << 24, 1_u32..100), 1..12),
            probes in prop::collection::vec(0_u64..120 << 24, 50),
        ) {
            let mut map = AddressMap::new(10, 4096, 0);
            for (start, bytes, value) in &sets {
                map.set(&(Address(*start)..Address(start + bytes)), *value);
            }
            for probe in probes {
                let granule = probe & !1023;
                let touches = |(start, bytes, _): &&(u64, u64, u32)| {
                    *bytes > 0 && *start < granule + 1024 && start + bytes > granule
                };
                let expected = sets.iter().rev().find(touches).map_or(0, |(_, _, value)| *value);
                prop_assert_eq!(map.get(Address(probe)), expected);
            }
        }
    }
}
