//! The words of objects that may be pointers to malloc'ed memory, or are references to others.

use target::Address;

use crate::object::Object;
use crate::object_space::SlotType;
use crate::territory::{Place, Territory};

/// Strings with this flag keep their bytes elsewhere (`RSTRING_NOEMBED`, FL_USER1, in all versions).
const NOT_EMBEDDED: u64 = 1 << 13;
/// The word of such a string that points to its bytes, in all versions.
const STRING_POINTER: usize = 3;
/// The word behind it: the capacity, or the string whose bytes they are.
const STRING_OWNER: usize = 4;
/// malloc aligns to this ...
const ALIGNMENT: u64 = 16;
/// ... and slots to this.
const SLOT_ALIGNMENT: u64 = 8;
/// Programs have no memory below: the kernel refuses it (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;

/// What a word of an object may mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Malloc'ed memory: it is aligned as malloc aligns, into private memory that is no heap page.
    Memory(Address),
    /// The object in this slot: it is the address of its first byte.
    Slot(u32),
}

/// Calls `found` with each word of an object that means something.
///
/// Which words of an object are pointers is not asked, but for strings: theirs is known in all
/// versions, and embedded text can look like anything.
pub(crate) fn for_each(
    object: &Object<'_>,
    territory: &Territory<'_>,
    mut found: impl FnMut(Found),
) {
    let mut consider = |word: u64| {
        if word < LOWEST || !word.is_multiple_of(SLOT_ALIGNMENT) {
            return;
        }
        match territory.at(word) {
            Place::Private if word.is_multiple_of(ALIGNMENT) => found(Found::Memory(Address(word))),
            Place::HeapPage(page) => {
                if let Some(slot) = territory.slot_on(page, word) {
                    found(Found::Slot(slot));
                }
            }
            Place::Private | Place::Elsewhere => {}
        }
    };
    match object.kind {
        SlotType::FLOAT => {}
        SlotType::STRING if object.flags & NOT_EMBEDDED == 0 => {}
        SlotType::STRING => {
            // A string that shares another's bytes names that one where its capacity would be, so
            // the flag that says so, another one from 3.4 on, need not be known.
            let owner = object.word(STRING_OWNER);
            let is_shared = matches!(territory.at(owner), Place::HeapPage(_));
            consider(if is_shared { owner } else { object.word(STRING_POINTER) });
        }
        // These have no class, and another word of theirs in its place.
        SlotType::IMEMO | SlotType::ICLASS => object.words_from(1).for_each(consider),
        _ => object.words_from(2).for_each(consider),
    }
}
