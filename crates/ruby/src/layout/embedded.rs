//! Structures of T_DATA objects that are in the slot, behind the words of their type (`struct RTypedData`, from 3.3 on). Ruby does not clear
//! a slot, so the words behind a structure may be left over from other objects. The size of a structure is known to its library only.
//! Many types have a list of the members that refer to objects (`RUBY_TYPED_DECL_MARKING`). The sizes of some others, which are the same
//! in all releases, are here: those of which programs have many, or to which most paths lead.

use std::collections::HashMap;

use image::{Image, Memory};
use linux::Address;

use crate::layout::object::Object;
use crate::layout::set_table;
use crate::layout::st_table::TableLayout;
use crate::word::word;

/// The word of `struct RTypedData` with the type and its bit for objects that have their structure behind it (from 4.0 on). Up to 3.4 it has
/// flags only, and the word before it has the type.
pub(crate) const TYPE_WORD: usize = 3;
const IS_EMBEDDED: u64 = 1;
/// `TYPED_DATA_EMBEDDED` in the flags (3.3, 3.4), of which there are three.
const EMBEDDED_FLAG: u64 = 2;
/// The place of the structure in the slot, in bytes.
pub(crate) const STRUCTURE: usize = 8 * (TYPE_WORD + 1);
/// The bits of that word that are no part of the address.
const FLAGS: u64 = 7;
/// The types whose structure is `struct rb_id_table` (id_table.c), and its words.
const ID_TABLES: [&str; 3] = ["VM/managed_id_table", "VM/marked_id_table", "VM/cc_table"];
const ID_TABLE_WORDS: usize = 3;
/// Other types, and the words of their structures (enumerator.c, proc.c, vm_trace.c).
const STRUCTURES: [(&str, usize); 4] =
    [("generator", 2), ("proc_entry", 3), ("method", 5), ("tracepoint", 8)];
/// The words of a `rb_backtrace_t` before its frames, of which the first has their number, and the words of a frame (3.3, vm_backtrace.c).
const BACKTRACE: &str = "backtrace";
const BACKTRACE_WORDS: usize = 3;
const FRAME_WORDS: usize = 3;
/// The place of the list of references in a type (`dmark`), and of its end.
const REFERENCES: u64 = 8;
const END: u64 = u64::MAX;
/// More bytes than a slot has.
const MAX_BYTES: u64 = 1024;
/// More references than a structure has.
const MAX_REFERENCES: usize = 64;
/// Longer than these names.
const MAX_NAME: usize = 32;
/// More types than a program has.
const MAX_TYPES: usize = 4096;

/// The words of a slot that may refer to other objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Used {
    All,
    /// Those before this one.
    UpTo(usize),
    /// Those of `struct RTypedData`, and these members of the structure, by their offsets.
    Members(Vec<u64>),
    /// Those of a backtrace with so many frames as a word has.
    Frames,
}

impl Used {
    /// Returns true if the word with this number is one of them.
    pub(crate) fn has(&self, number: usize) -> bool {
        match self {
            Self::All | Self::Frames => true,
            Self::UpTo(end) => number < *end,
            Self::Members(offsets) => match number.checked_sub(STRUCTURE / 8) {
                Some(member) => offsets.contains(&(8 * member as u64)),
                None => true,
            },
        }
    }
}

/// The words that slots with such structures have.
pub(crate) struct Embedded<'a> {
    image: &'a Image<'a>,
    layout: TableLayout,
    /// By the address of the type.
    used: HashMap<u64, Used>,
    /// That of the last backtrace.
    frames: Used,
}

impl<'a> Embedded<'a> {
    pub(crate) fn new(image: &'a Image<'a>, layout: TableLayout) -> Self {
        Self { image, layout, used: HashMap::new(), frames: Used::All }
    }

    /// The same for other objects.
    pub(crate) fn for_others(&self) -> Self {
        Self::new(self.image, self.layout)
    }

    /// The words of this T_DATA object that may refer to others; all if its structure is unknown.
    pub(crate) fn used(&mut self, object: &Object<'_>) -> &Used {
        let Some(at) = type_of_embedded(object) else { return &Used::All };
        if self.used.len() >= MAX_TYPES && !self.used.contains_key(&at) {
            return &Used::All;
        }
        let (image, layout) = (self.image, self.layout);
        let is_code = |at: u64| {
            image.state.mappings.find(Address(at)).is_some_and(|mapping| mapping.executable)
        };
        let used = self
            .used
            .entry(at)
            .or_insert_with(|| used_of_type(image, Address(at), layout, is_code));
        if *used == Used::Frames {
            let frames = object.word(STRUCTURE / 8) as u32 as usize;
            self.frames = Used::UpTo(STRUCTURE / 8 + BACKTRACE_WORDS + FRAME_WORDS * frames);
            return &self.frames;
        }
        // Another structure of this name would be in a slot of another size.
        match used {
            Used::UpTo(end) if *end > object.len() || 2 * *end <= object.len() => &Used::All,
            used => used,
        }
    }
}

/// The address of the type of an object that has its structure in its slot; `None` for other objects.
fn type_of_embedded(object: &Object<'_>) -> Option<u64> {
    let word = object.word(TYPE_WORD);
    let at = if word <= FLAGS { object.word(TYPE_WORD - 1) } else { word & !FLAGS };
    Some(at).filter(|&at| at != 0 && is_embedded(word))
}

/// Returns true if an object with this word has its structure behind it.
pub(crate) fn is_embedded(type_word: u64) -> bool {
    type_word & if type_word <= FLAGS { EMBEDDED_FLAG } else { IS_EMBEDDED } != 0
}

/// The structure in the slot with these bytes; `None` if it is elsewhere.
pub(crate) fn structure_of(slot: &[u8]) -> Option<&[u8]> {
    slot.get(STRUCTURE..).filter(|_| is_embedded(word(slot, 8 * TYPE_WORD)))
}

/// The words in use of slots whose type is at this address.
fn used_of_type(
    memory: &impl Memory,
    at: Address,
    layout: TableLayout,
    is_code: impl Fn(u64) -> bool,
) -> Used {
    let list = memory.read_u64(at.offset(REFERENCES)).ok().filter(|&it| it != 0 && !is_code(it));
    if let Some(members) = list.and_then(|list| members(memory, Address(list))) {
        return Used::Members(members);
    }
    let name = memory.read_address(at).and_then(|at| memory.read_c_string(at, MAX_NAME));
    let words = match name.as_deref().map(str::from_utf8) {
        Ok(Ok("set")) => set_table::words(layout),
        Ok(Ok(BACKTRACE)) => return Used::Frames,
        Ok(Ok(name)) if ID_TABLES.contains(&name) => ID_TABLE_WORDS,
        Ok(Ok(name)) => match STRUCTURES.iter().find(|it| it.0 == name) {
            Some((_, words)) => *words,
            None => return Used::All,
        },
        _ => return Used::All,
    };
    Used::UpTo(STRUCTURE / 8 + words)
}

/// The offsets in the list of a structure's members that refer to objects; `None` if it is no such list.
fn members(memory: &impl Memory, list: Address) -> Option<Vec<u64>> {
    let words = (0..).map(|number| memory.read_u64(list.offset(8 * number)).ok());
    let offsets: Option<Vec<u64>> =
        words.take(MAX_REFERENCES).take_while(|word| *word != Some(END)).collect();
    offsets.filter(|all| {
        (1..MAX_REFERENCES).contains(&all.len())
            && all.iter().all(|it| it.is_multiple_of(8) && *it < MAX_BYTES)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types whose name is behind them, and a list of members.
    struct Types;

    const LIST: u64 = 0x500;

    impl Memory for Types {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let mut bytes = vec![0; 0x600];
            for (number, name) in (1..).zip(["set", "VM/cc_table", "own", "enumerator"]) {
                bytes[number * 0x100..][..8]
                    .copy_from_slice(&(number as u64 * 0x100 + 0x80).to_le_bytes());
                bytes[number * 0x100 + 0x80..][..name.len()].copy_from_slice(name.as_bytes());
            }
            bytes[0x408..][..8].copy_from_slice(&LIST.to_le_bytes());
            for (number, offset) in [0, 24, END].into_iter().enumerate() {
                bytes[LIST as usize + 8 * number..][..8].copy_from_slice(&offset.to_le_bytes());
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
        let used = |at, layout| used_of_type(&Types, Address(at), layout, |_| false);
        let (old, new) = (TableLayout::OwnBins, TableLayout::BinsBehindEntries);
        assert_eq!([used(0x100, old), used(0x100, new)], [Used::UpTo(10), Used::UpTo(9)]);
        assert_eq!([used(0x200, old), used(0x200, new)], [Used::UpTo(7), Used::UpTo(7)]);
        assert_eq!([used(0x300, new), used(0x700, new)], [Used::All, Used::All]);
    }

    /// An Enumerator in the slot of an earlier Array retained what the Array had.
    #[test]
    fn a_type_lists_the_members_that_refer_to_objects() {
        let used = |is_code| {
            used_of_type(&Types, Address(0x400), TableLayout::OwnBins, |at| is_code && at == LIST)
        };
        let members = used(false);
        assert_eq!(members, Used::Members(vec![0, 24]));
        let has: Vec<usize> = (2..10).filter(|number| members.has(*number)).collect();
        assert_eq!(has, [2, 3, 4, 7], "the words of the type, and two members");
        assert_eq!(used(true), Used::All, "a function marks the structure");
    }
}
