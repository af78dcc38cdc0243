//! Hash tables, which name malloc'ed memory themselves.
//!
//! `struct st_table` in include/ruby/st.h: the capacity as a power of two in its first byte, then
//! the type, the number of entries, the bins, the first entry in use, the bound of those that ever
//! were, and the entries; the same from 2.7 to 4.0.

use capture::{Address, Image, Window};

use crate::contents::{Content, Form};
use crate::object_space::References;
use crate::territory::{Place, Territory};
use crate::word::word;

/// The words of a table.
const WORDS: usize = 7;
const ENTRY_WORDS: u64 = 3;
/// More entries than memory has room for.
const MAX_CAPACITY_LOG2: u64 = 42;
/// Bytes of tables that are read at a time.
const BLOCK: usize = 64 << 10;

/// A hash table (`st_table`) of Ruby's or of an extension's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashTable {
    /// The functions that hash and compare keys, a constant of the library that made the table.
    pub functions: Address,
    /// Where the numbers of entries are; 0 in small tables.
    pub bins: Address,
    /// Where the entries are.
    pub entries: Address,
    /// For how many entries there is room.
    pub capacity: u64,
    /// How many were ever in use. Behind them are words of earlier owners.
    bound: u64,
}

impl HashTable {
    /// The bytes of a table, without bins and entries.
    pub const BYTES: u64 = WORDS as u64 * 8;

    /// The table that these bytes are; `None` if they cannot be one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::from_words(std::array::from_fn(|number| word(bytes, number * 8)))
    }

    pub(crate) fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [capacity, functions, count, bins, first, bound, entries] = words;
        let capacity_log2 = capacity & 0xff;
        let fits = capacity_log2 <= MAX_CAPACITY_LOG2
            && first <= bound
            && count <= bound - first
            && bound <= 1 << capacity_log2
            && bins.is_multiple_of(16)
            && entries.is_multiple_of(16)
            && entries != 0;
        let [functions, bins, entries] = [functions, bins, entries].map(Address);
        let capacity = 1 << (capacity_log2 & 63);
        fits.then_some(Self { functions, bins, entries, capacity, bound })
    }

    /// Its memory: the bins, if there are any, and the entries.
    pub fn memory(self) -> impl Iterator<Item = (Address, Content)> {
        let entries = Content::new(Form::Entries, self.bound * ENTRY_WORDS);
        let bins = (self.bins.0 != 0).then_some((self.bins, Content::BYTES));
        bins.into_iter().chain([(self.entries, entries)])
    }

    /// Whether its memory is where malloc's is.
    pub(crate) fn is_in(self, territory: &Territory<'_>) -> bool {
        self.memory().all(|(at, _)| territory.at(at.0) == Place::Private)
    }
}

/// Adds the memory of tables that are in malloc'ed memory (up to 3.2): each a Hash's slot, and where
/// its table is. A table that is none is searched whole.
pub(crate) fn add_references(
    image: &Image<'_>,
    territory: &Territory<'_>,
    mut tables: Vec<(u32, Address)>,
    references: &mut References,
) {
    tables.sort_unstable_by_key(|&(_, at)| at);
    let mut window = Window::new(image, BLOCK);
    let mut added = Vec::with_capacity(3 * tables.len());
    for (slot, at) in tables {
        let bytes = window.bytes(at, WORDS * 8).ok();
        let table = bytes.and_then(HashTable::from_bytes).filter(|it| it.is_in(territory));
        let content = if table.is_some() { Content::BYTES } else { Content::UNKNOWN };
        added.push((slot, at, content));
        let memory = table.into_iter().flat_map(HashTable::memory);
        added.extend(memory.map(|(at, content)| (slot, at, content)));
    }
    references.merge(added);
}
