//! The words of objects that may be pointers to malloc'ed memory.

use target::Address;

use crate::object_space::SlotType;
use crate::slots::Object;
use crate::territory::{Place, Territory};

/// Strings with this flag keep their bytes elsewhere (`RSTRING_NOEMBED`, FL_USER1, in all versions).
const NOT_EMBEDDED: u64 = 1 << 13;
/// The word of such a string that points to its bytes, in all versions.
const STRING_POINTER: usize = 3;
/// The word behind it: the capacity, or the string whose bytes they are.
const STRING_OWNER: usize = 4;
/// malloc aligns to this.
const ALIGNMENT: u64 = 16;
/// Programs have no memory below: the kernel refuses it (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;

/// Calls `found` with each word of an object that may be a pointer to malloc'ed memory: aligned as
/// malloc aligns, into private memory that is no heap page.
///
/// Which words of an object are pointers is not asked, but for strings: theirs is known in all
/// versions, and embedded text can look like anything.
pub(crate) fn for_each(
    object: &Object<'_>,
    territory: &Territory<'_>,
    mut found: impl FnMut(Address),
) {
    let mut consider = |word: u64| {
        let is_pointer = word >= LOWEST && word.is_multiple_of(ALIGNMENT);
        if is_pointer && territory.at(word) == Place::Private {
            found(Address(word));
        }
    };
    match object.kind {
        SlotType::FLOAT => {}
        SlotType::STRING if object.flags & NOT_EMBEDDED == 0 => {}
        SlotType::STRING => {
            // A string that shares another's bytes names that one where its capacity would be, so
            // the flag that says so, another one from 3.4 on, need not be known.
            let owner = object.word(STRING_OWNER);
            if !matches!(territory.at(owner), Place::HeapPage(_)) {
                consider(object.word(STRING_POINTER));
            }
        }
        // Internal objects have no class, and another word of theirs in its place.
        SlotType::IMEMO => object.words_from(1).for_each(consider),
        _ => object.words_from(2).for_each(consider),
    }
}
