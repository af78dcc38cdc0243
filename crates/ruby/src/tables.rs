//! Ruby's tables by the numbers of names.

use std::cell::Cell;

use capture::{Address, Image, Memory};

use crate::word::word;

/// More entries than a table of names has.
const MOST_ENTRIES: u64 = 1 << 20;
/// More entries than all tables of a program have, free ones included.
const MOST_IN_ALL: u64 = 1 << 23;

/// How many entries of tables may still be read: sizes that lie must not make a walk endless.
pub(crate) struct Budget(Cell<u64>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Cell::new(MOST_IN_ALL))
    }

    /// Takes so many entries; `None`, also for all that ask later, where there are not so many.
    pub(crate) fn spend(&self, entries: u64) -> Option<()> {
        let left = self.0.get().checked_sub(entries);
        self.0.set(left.unwrap_or(0));
        left.map(|_| ())
    }

    /// Whether nothing can be read any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// The keys and values of the `struct rb_id_table` at `at`; `None` where there is none.
///
/// It has three 32-bit numbers, its capacity, its entries and those that were ever in use, and a
/// pointer to its entries: a key of 32 bits (0 where it is free), whether another collided with
/// it, and a value (id_table.c; the same from 2.7 to 4.0). Keys are the serial numbers of names.
pub(crate) fn read_id_table(
    image: &Image<'_>,
    at: Address,
    budget: &Budget,
) -> Option<Vec<(u32, u64)>> {
    if at.0 == 0 || !at.is_aligned(8) {
        return None;
    }
    let mut header = [0; 24];
    image.read_exact(at, &mut header).ok()?;
    let number =
        |at: usize| u64::from(u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes")));
    let (capacity, count, used) = (number(0), number(4), number(8));
    let entries = Address(word(&header, 16));
    let fits = capacity.is_power_of_two() || capacity == 0;
    if !fits || capacity > MOST_ENTRIES || count > used || used > capacity {
        return None;
    }
    if capacity == 0 {
        return Some(Vec::new());
    }
    if entries.0 == 0 || !entries.is_aligned(8) {
        return None;
    }
    image.read_u64(entries).ok()?;
    budget.spend(capacity)?;
    // Only what can be read is made room for.
    let mut found = Vec::new();
    let mut bytes = [0; 4096];
    for first in (0..capacity * 16).step_by(bytes.len()) {
        let part = &mut bytes[..((capacity * 16 - first) as usize).min(4096)];
        image.read_exact(entries.offset(first), part).ok()?;
        let entries = part.chunks_exact(16).map(|it| (word(it, 0) as u32, word(it, 8)));
        found.extend(entries.filter(|(key, _)| *key != 0));
    }
    (found.len() as u64 == count).then_some(found)
}

/// The keys and values of the `struct st_table` at `at`; `None` where there is none, or it has more
/// than `most` entries.
///
/// Its entries' bound is at 40, the entries are at 48, each a hash, a key and a value
/// (include/ruby/st.h; the same from 2.7 to 4.0).
pub(crate) fn read_st_table(image: &Image<'_>, at: Address, most: u64) -> Option<Vec<(u64, u64)>> {
    let bound = image.read_u64(at.offset(40)).ok()?;
    let entries = image.read_address(at.offset(48)).ok()?;
    if bound > most {
        return None;
    }
    let mut bytes = vec![0; bound as usize * 24];
    image.read_exact(entries, &mut bytes).ok()?;
    Some(bytes.chunks_exact(24).map(|it| (word(it, 8), word(it, 16))).collect())
}
