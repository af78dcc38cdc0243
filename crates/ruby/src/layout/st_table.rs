//! Hash tables, which have further memory of their own.
//!
//! `struct st_table` in include/ruby/st.h: the capacity as a power of two in its first byte, then the type, the number
//! of entries, the bins, the first entry in use, the bound of the entries that were ever in use, and the entries. From 4.1 on
//! the first entry in use is in the upper half of the first word, and the bins lie behind the entries.

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::{AddressClassifier, Place};
use crate::layout::room::{Room, Unit};
use crate::model::content::{Content, Form};
use crate::word::word;

/// The places of words of a table up to 4.0.
const ENTRIES_BOUND: u64 = 5;
const ENTRIES: u64 = 6;
/// The words of an entry: a hash, a key, and a value.
const ENTRY_WORDS: u64 = 3;
/// The hash of an entry that was deleted (`RESERVED_HASH_VAL`).
pub const DELETED_HASH: u64 = u64::MAX;
/// More entries than memory has room for.
pub(crate) const MAX_CAPACITY_LOG2: u64 = 42;
/// Tables with no more entries than this have no bins (`MAX_POWER2_FOR_TABLES_WITHOUT_BINS`), and none has room for fewer than
/// the other number (`MINIMAL_POWER2`).
const MAX_LOG2_WITHOUT_BINS: u32 = 4;
const MIN_CAPACITY_LOG2: u32 = 2;

/// The bytes of a table with room for so many entries of `entry_bytes` bytes, a power of two: twice as many bins as entries, each as
/// large as the number of an entry needs (`features` in st.c).
pub(crate) fn table_bytes(capacity: u64, entry_bytes: u64) -> u64 {
    let bin_bytes = match capacity.max(1).ilog2() {
        0..=MAX_LOG2_WITHOUT_BINS => 0,
        5..8 => 1,
        8..16 => 2,
        16..32 => 4,
        _ => 8,
    };
    capacity.saturating_mul(entry_bytes + 2 * bin_bytes)
}

/// The capacity of a new table for so many entries, as `Hash#rehash` chooses it: always more than the entries (`get_power2` in st.c).
pub(crate) fn least_capacity(count: u64) -> u64 {
    let log2 = (u64::BITS - count.leading_zeros()).max(MIN_CAPACITY_LOG2);
    1 << log2.min(MAX_CAPACITY_LOG2 as u32)
}

/// Where hash tables have the numbers of their entries (bins).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableLayout {
    /// In memory of their own (up to 4.0).
    OwnBins,
    /// Behind the entries (from 4.1 on).
    BinsBehindEntries,
}

impl TableLayout {
    const fn words(self) -> usize {
        match self {
            Self::OwnBins => 7,
            Self::BinsBehindEntries => 5,
        }
    }

    /// The bytes of a table, without bins and entries.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.words() as u64 * 8
    }

    /// The table that these bytes are; `None` if they cannot be one.
    #[must_use]
    pub fn table(self, bytes: &[u8]) -> Option<StTable> {
        self.table_of(|number| word(bytes, number * 8))
    }

    /// The table that these words are, by their numbers.
    pub(crate) fn table_of(self, word: impl Fn(usize) -> u64) -> Option<StTable> {
        let capacity_log2 = word(0) & 0xff;
        let (bins, first, bound, entries) = match self {
            Self::OwnBins => (word(3), word(4), word(5), word(6)),
            Self::BinsBehindEntries => (0, word(0) >> 32, word(3), word(4)),
        };
        let (functions, count) = (word(1), word(2));
        let fits = capacity_log2 <= MAX_CAPACITY_LOG2
            && first <= bound
            && count <= bound - first
            && bound <= 1 << capacity_log2
            && bins.is_multiple_of(16)
            && entries.is_multiple_of(16)
            && entries != 0;
        let [functions, bins, entries] = [functions, bins, entries].map(Address);
        let capacity = 1 << (capacity_log2 & 63);
        fits.then_some(StTable { functions, bins, entries, count, capacity, bound })
    }
}

/// A hash table (`st_table`) of Ruby's or of an extension's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StTable {
    /// The functions that hash and compare keys (`st_hash_type`), a constant of the library that
    /// made the table.
    pub functions: Address,
    /// The address of the numbers of entries; 0 in small tables, and if they lie behind the entries.
    pub bins: Address,
    /// The address of the entries.
    pub entries: Address,
    /// The number of entries.
    pub count: u64,
    /// The number of entries that there is room for.
    pub capacity: u64,
    /// The number of entries that were ever in use. The words behind them are left over from earlier
    /// owners.
    bound: u64,
}

impl StTable {
    /// The bytes of an entry.
    pub const ENTRY_BYTES: u64 = ENTRY_WORDS * 8;

    /// The number of entries that were ever in use.
    pub(crate) fn bound(self) -> u64 {
        self.bound
    }

    /// The bytes of its bins and entries.
    pub(crate) fn bytes(self) -> u64 {
        table_bytes(self.capacity, Self::ENTRY_BYTES)
    }

    pub(crate) fn room(self, unit: Unit) -> Room {
        let Self { entries: start, count: used, capacity, .. } = self;
        Room { start, unit, used, capacity }
    }

    /// Its memory: the bins, if there are any, and the entries.
    pub fn memory(self) -> impl Iterator<Item = (Address, Content)> {
        let entries = Content::new(Form::Entries, self.bound * ENTRY_WORDS);
        let bins = (self.bins.0 != 0).then_some((self.bins, Content::BYTES));
        bins.into_iter().chain([(self.entries, entries)])
    }

    /// Returns true if its memory is where malloc's is.
    pub(crate) fn is_in_private_memory(self, classifier: &AddressClassifier<'_>) -> bool {
        self.memory().all(|(at, _)| classifier.at(at.0) == Place::Private)
    }
}

/// The keys and values of the table at `at`, up to 4.0; `None` if no table is there, or if it has more than `max` entries.
pub(crate) fn read_pairs(image: &Image<'_>, at: Address, max: u64) -> Option<Vec<(u64, u64)>> {
    let bound = image.read_u64(at.offset(ENTRIES_BOUND * 8)).ok()?;
    let entries = image.read_address(at.offset(ENTRIES * 8)).ok()?;
    if bound > max {
        return None;
    }
    let mut bytes = vec![0; (bound * ENTRY_WORDS * 8) as usize];
    image.read_exact(entries, &mut bytes).ok()?;
    let entries = bytes.chunks_exact(ENTRY_WORDS as usize * 8);
    Some(entries.map(|it| (word(it, 8), word(it, 16))).collect())
}
