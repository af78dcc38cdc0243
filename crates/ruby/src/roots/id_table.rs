//! Tables by the IDs of names (`struct rb_id_table` in id_table.c).

use std::cell::Cell;
use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::word::word;

/// More entries than a table of names has.
const MAX_ENTRIES: u64 = 1 << 20;
/// More entries, including free ones, than all tables of a program have.
const MAX_IN_ALL: u64 = 1 << 23;

/// The number of entries that may still be read: false sizes must not make a walk endless.
pub(crate) struct Budget(Cell<u64>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Cell::new(MAX_IN_ALL))
    }

    /// Takes this many entries; `None`, from then on for all callers, if there are fewer left.
    pub(crate) fn spend(&self, entries: u64) -> Option<()> {
        let left = self.0.get().checked_sub(entries);
        self.0.set(left.unwrap_or(0));
        left.map(|_| ())
    }

    /// Returns true if nothing can be read any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// The bytes of a table, without its entries.
pub const ID_TABLE_BYTES: usize = 24;
/// The bytes of an entry.
const ENTRY_BYTES: u64 = 16;

/// A table that is plausible.
struct Table {
    capacity: u64,
    count: u64,
    entries: Address,
}

impl Table {
    /// A table has three 32-bit numbers (the capacity, the number of entries, and the number of entries that were ever in
    /// use) and a pointer to its entries: a key of 32 bits (0 in free entries), a collision flag, and a value; the same from
    /// 2.7 to 4.0. Keys are the serial numbers of names.
    fn from_bytes(bytes: &[u8; ID_TABLE_BYTES]) -> Option<Self> {
        let number = |at: usize| {
            u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")))
        };
        let (capacity, count, used) = (number(0), number(4), number(8));
        let entries = Address(word(bytes, 16));
        let fits = match capacity {
            0 => entries.0 == 0,
            _ => capacity.is_power_of_two() && entries.0 != 0 && entries.is_aligned(8),
        };
        let is_plausible = fits && capacity <= MAX_ENTRIES && count <= used && used <= capacity;
        is_plausible.then_some(Self { capacity, count, entries })
    }
}

/// The memory of the entries of the table that a block with these first bytes may be. The words behind these bytes are no part
/// of it.
#[must_use]
pub fn entries_of_id_table(bytes: &[u8; ID_TABLE_BYTES]) -> Option<Range<Address>> {
    // The program fills the table with zeros at first, so the gap behind the numbers has them.
    let table = Table::from_bytes(bytes).filter(|_| bytes[12..16] == [0; 4])?;
    Some(table.entries..table.entries.offset(table.capacity * ENTRY_BYTES))
}

/// The keys and values of the table at `at`; `None` if no table is there.
pub(crate) fn read(image: &Image<'_>, at: Address, budget: &Budget) -> Option<Vec<(u32, u64)>> {
    if at.0 == 0 || !at.is_aligned(8) {
        return None;
    }
    let mut header = [0; ID_TABLE_BYTES];
    image.read_exact(at, &mut header).ok()?;
    let Table { capacity, count, entries } = Table::from_bytes(&header)?;
    if capacity == 0 {
        return Some(Vec::new());
    }
    image.read_u64(entries).ok()?;
    budget.spend(capacity)?;
    // The capacity may be false, so room is made only for entries that can be read.
    let mut found = Vec::new();
    let mut bytes = [0; 4096];
    for first in (0..capacity * ENTRY_BYTES).step_by(bytes.len()) {
        let part = &mut bytes[..((capacity * ENTRY_BYTES - first) as usize).min(4096)];
        image.read_exact(entries.offset(first), part).ok()?;
        let entries =
            part.chunks_exact(ENTRY_BYTES as usize).map(|it| (word(it, 0) as u32, word(it, 8)));
        found.extend(entries.filter(|(key, _)| *key != 0));
    }
    (found.len() as u64 == count).then_some(found)
}
