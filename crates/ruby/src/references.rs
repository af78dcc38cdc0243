//! The words of objects that may be pointers to malloc'ed memory.

use target::Address;

use crate::object_space::SlotType;
use crate::territory::{Place, Territory};

/// Strings with this flag keep their bytes elsewhere (`RSTRING_NOEMBED`, FL_USER1, in all versions).
const NOT_EMBEDDED: u64 = 1 << 13;
/// The word of such a string that points to its bytes, in all versions.
const STRING_POINTER: usize = 3;
/// The word behind it: the capacity, or the string whose bytes they are.
const STRING_OWNER: usize = 4;

/// The type of an internal object: flags FL_USER0 to FL_USER3 (internal/imemo.h).
pub(crate) fn imemo_type(flags: u64) -> u8 {
    (flags >> 12 & 15) as u8
}

/// Calls `found` with each word of an object that may be a pointer to malloc'ed memory: aligned as
/// malloc aligns, into private memory that is no heap page.
///
/// Which words of an object are pointers is not asked, but for strings: theirs is known in all
/// versions, and embedded text can look like anything.
pub(crate) fn for_each(
    kind: SlotType,
    flags: u64,
    words: &[u8],
    territory: &Territory<'_>,
    mut found: impl FnMut(Address),
) {
    let mut consider = |word: u64| {
        if word & 15 == 0 && word > 0xffff && territory.at(word) == Place::Private {
            found(Address(word));
        }
    };
    let word = |number: usize| {
        let word = words.get(number * 8..number * 8 + 8)?;
        Some(u64::from_le_bytes(word.try_into().expect("8 bytes")))
    };
    match kind {
        SlotType::STRING if flags & NOT_EMBEDDED == 0 => {}
        SlotType::STRING => {
            // A string that shares another's bytes names that one where the capacity would be, so
            // no flag is needed to tell (it is another one from 3.4 on).
            let owner = word(STRING_OWNER).unwrap_or(0);
            if !matches!(territory.at(owner), Place::HeapPage(_)) {
                consider(word(STRING_POINTER).unwrap_or(0));
            }
        }
        SlotType::FLOAT => {}
        _ => {
            // Internal objects have no class: its place is another word of theirs.
            let first = if kind == SlotType::IMEMO { 1 } else { 2 };
            for bytes in words.chunks_exact(8).skip(first) {
                consider(u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
            }
        }
    }
}
