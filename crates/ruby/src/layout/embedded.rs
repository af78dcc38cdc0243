//! Structures of T_DATA objects that are in the slot, behind the words of their type (`struct RTypedData`, from 4.0 on). Ruby does not clear
//! a slot, so the words behind a structure may be left over from other objects. The size of a structure is known to its library only, so
//! this is for those to which most paths lead: Sets, and the tables of a class's method caches.

use std::collections::HashMap;

use image::{Image, Memory};
use linux::Address;

use crate::layout::object::Object;
use crate::layout::set_table;
use crate::layout::st_table::TableLayout;
use crate::word::word;

/// The word of `struct RTypedData` with the type, and its bit for objects that have their structure behind it.
const TYPE_WORD: usize = 3;
const IS_EMBEDDED: u64 = 1;
/// The place of the structure in the slot, in bytes.
pub(crate) const STRUCTURE: usize = 8 * (TYPE_WORD + 1);
/// The bits of that word that are no part of the address.
const FLAGS: u64 = 7;
/// The types whose structure is `struct rb_id_table` (id_table.c), and its words.
const ID_TABLES: [&str; 3] = ["VM/managed_id_table", "VM/marked_id_table", "VM/cc_table"];
const ID_TABLE_WORDS: usize = 3;
/// Longer than these names.
const MAX_NAME: usize = 32;
/// More types than a program has.
const MAX_TYPES: usize = 4096;

/// The words that slots with such structures have.
pub(crate) struct Embedded<'a> {
    image: &'a Image<'a>,
    layout: TableLayout,
    /// By the address of the type; `None` for types whose structure is unknown.
    words: HashMap<u64, Option<usize>>,
}

impl<'a> Embedded<'a> {
    pub(crate) fn new(image: &'a Image<'a>, layout: TableLayout) -> Self {
        Self { image, layout, words: HashMap::new() }
    }

    /// The same for other objects.
    pub(crate) fn for_others(&self) -> Self {
        Self::new(self.image, self.layout)
    }

    /// The words of this T_DATA object up to the end of its structure; `None` if its size is unknown.
    pub(crate) fn words_of(&mut self, object: &Object<'_>) -> Option<usize> {
        let word = object.word(TYPE_WORD);
        let at = word & !FLAGS;
        if at == 0 || word & IS_EMBEDDED == 0 {
            return None;
        }
        match self.words.get(&at) {
            Some(known) => *known,
            None if self.words.len() >= MAX_TYPES => None,
            None => {
                let words = words_of_type(self.image, Address(at), self.layout);
                *self.words.entry(at).or_insert(words)
            }
        }
    }
}

/// The structure in the slot with these bytes; `None` if it is elsewhere.
pub(crate) fn structure_of(slot: &[u8]) -> Option<&[u8]> {
    let is_embedded = word(slot, 8 * TYPE_WORD) & IS_EMBEDDED != 0;
    slot.get(STRUCTURE..).filter(|_| is_embedded)
}

/// The words of slots whose type is at this address, up to the end of the structure.
fn words_of_type(memory: &impl Memory, at: Address, layout: TableLayout) -> Option<usize> {
    let name = memory.read_c_string(memory.read_address(at).ok()?, MAX_NAME).ok()?;
    let words = match str::from_utf8(&name).ok()? {
        "set" => set_table::words(layout),
        name if ID_TABLES.contains(&name) => ID_TABLE_WORDS,
        _ => return None,
    };
    Some(STRUCTURE / 8 + words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types whose name is behind them.
    struct Types;

    impl Memory for Types {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let mut bytes = vec![0; 0x400];
            for (number, name) in (1..).zip(["set", "VM/cc_table", "enumerator"]) {
                bytes[number * 0x100..][..8]
                    .copy_from_slice(&(number as u64 * 0x100 + 0x80).to_le_bytes());
                bytes[number * 0x100 + 0x80..][..name.len()].copy_from_slice(name.as_bytes());
            }
            let from = bytes.get(at.0 as usize..).unwrap_or_default();
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
            count
        }
    }

    /// A Set in the slot of an earlier Array retained what the Array had, and a class what was left behind its table of method caches.
    #[test]
    fn words_behind_a_structure_are_not_its_own() {
        let words = |at, layout| words_of_type(&Types, Address(at), layout);
        let (old, new) = (TableLayout::OwnBins, TableLayout::BinsBehindEntries);
        assert_eq!([words(0x100, old), words(0x100, new)], [Some(10), Some(9)]);
        assert_eq!([words(0x200, old), words(0x200, new)], [Some(7); 2]);
        assert_eq!([words(0x300, new), words(0x400, new)], [None; 2]);
    }
}
