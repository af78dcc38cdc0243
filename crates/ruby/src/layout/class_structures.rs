//! Structures of classes that have three words. malloc may give them more, and does not clear that. Nearly every path leads
//! through the memory of classes, so one word of an earlier owner is enough for a false one.

use linux::{Address, length};

use crate::model::content::{Content, Form};
use crate::model::imemo::ImemoType;
use crate::model::slot::SlotType;
use crate::roots::{ID_TABLE_BYTES, entries_of_id_table};

/// The size of `rb_subclass_entry` from 3.1 on, in bytes. Before, it has one word less.
pub const SUBCLASS_ENTRY_BYTES: u64 = 24;

/// A call site has one cache of a method. This is more than a method has.
const MAX_CACHES: u64 = 1 << 16;
/// `CONST_DEPRECATED` and `CONST_PRIVATE` (constant.h).
const CONSTANT_FLAGS: u64 = 0x101;

/// The memory that words refer to, as far as it distinguishes one structure from another.
pub trait Referents {
    /// Returns the type of the object at `at`.
    fn type_at(&self, at: Address) -> Option<SlotType>;
    /// Returns the type of the internal object at `at`.
    fn imemo_at(&self, at: Address) -> Option<ImemoType>;
    /// Returns true if `at` lies in a block of malloc's that is in use.
    fn is_in_block(&self, at: Address) -> bool;
    /// Returns true if malloc returned `at` for a block in use.
    fn is_block(&self, at: Address) -> bool;
    /// Returns true if entries of lists of subclasses refer to the entry before them.
    fn has_previous_subclass(&self) -> bool;
}

/// The memory behind a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its address.
    pub at: Address,
    /// The bytes that were requested.
    pub bytes: u64,
    /// The words of it that are in use.
    pub content: Content,
}

/// A structure of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassStructure {
    /// `rb_id_table`: methods, constants.
    Table(Part),
    /// `rb_subclass_entry` (internal/class.h, 3.1 to 3.4): a class, the next entry, and the previous one.
    Subclass,
    /// `rb_class_cc_entries` (vm_callinfo.h, 3.0 to 3.4): the room for caches, their number, the method, and the caches.
    Caches(Part),
    /// `rb_const_entry_t` (constant.h): flags and the line, the value, and the file.
    Constant,
}

impl ClassStructure {
    /// The bytes of each structure.
    pub const BYTES: usize = ID_TABLE_BYTES;
    /// The words of an entry: of a key and a value, or of a call and its `rb_callcache`.
    pub const ENTRY_WORDS: u64 = 2;

    /// The structure that a block with these first bytes may be.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], referents: &impl Referents) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (first, second, third) = (word(0), word(8), word(16));
        let [low, high] = [first & u64::from(u32::MAX), first >> 32];
        let type_at = |word| referents.type_at(Address(word));
        let is_in_block = |word| referents.is_in_block(Address(word));
        if let Some(entries) = entries_of_id_table(bytes) {
            let bytes = length(&entries);
            let content = Content::new(Form::Words, bytes / 8);
            return Some(Self::Table(Part { at: entries.start, bytes, content }));
        }
        if let Some(SlotType::CLASS | SlotType::ICLASS) = type_at(first) {
            let is_entry = (second == 0 || is_in_block(second)) && is_in_block(third);
            // Without a previous entry, the third word is an earlier owner's.
            return (is_entry && referents.has_previous_subclass()).then_some(Self::Subclass);
        }
        if low & !CONSTANT_FLAGS == 0 && type_at(third) == Some(SlotType::STRING) {
            return Some(Self::Constant);
        }
        // A method that no call has found yet has no caches.
        let have_room = match low {
            0 => third == 0,
            _ => low.is_power_of_two() && low <= MAX_CACHES && referents.is_block(Address(third)),
        };
        let are_caches = have_room
            && high <= low
            && referents.imemo_at(Address(second)) == Some(ImemoType::Ment);
        are_caches.then(|| {
            let content = Content::new(Form::Words, high * Self::ENTRY_WORDS);
            let bytes = low * Self::ENTRY_WORDS * 8;
            Self::Caches(Part { at: Address(third), bytes, content })
        })
    }

    /// The memory behind it.
    #[must_use]
    pub fn part(self) -> Option<Part> {
        match self {
            Self::Table(part) | Self::Caches(part) => Some(part),
            Self::Subclass | Self::Constant => None,
        }
    }

    /// Returns true if these words may be an entry of this structure. It may be an earlier owner's, and the memory behind it
    /// another one's by now.
    #[must_use]
    pub fn may_be_entry(self, [first, second]: [u64; 2], referents: &impl Referents) -> bool {
        match self {
            // A key, and a flag for collisions.
            Self::Table(_) => first >> 32 <= 1,
            // A call info and a cache; from 3.4 on a cache, and the arguments and flags of the call.
            Self::Caches(_) => [first, second]
                .iter()
                .any(|&word| referents.imemo_at(Address(word)) == Some(ImemoType::Callcache)),
            Self::Subclass | Self::Constant => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 0x7f00_0000_1000;
    const CLASS: u64 = 0x7f00_0000_2000;
    const FILE: u64 = 0x7f00_0000_2028;
    const METHOD: u64 = 0x7f00_0000_2050;
    const CACHE: u64 = 0x7f00_0000_2078;

    /// A block of 48 bytes, a class, a string, a method and a cache of it.
    struct Memory {
        has_previous_subclass: bool,
    }

    const MEMORY: Memory = Memory { has_previous_subclass: true };

    impl Referents for Memory {
        fn type_at(&self, at: Address) -> Option<SlotType> {
            match at.0 {
                CLASS => Some(SlotType::CLASS),
                FILE => Some(SlotType::STRING),
                METHOD | CACHE => Some(SlotType::IMEMO),
                _ => None,
            }
        }

        fn imemo_at(&self, at: Address) -> Option<ImemoType> {
            match at.0 {
                METHOD => Some(ImemoType::Ment),
                CACHE => Some(ImemoType::Callcache),
                _ => None,
            }
        }

        fn is_in_block(&self, at: Address) -> bool {
            (BLOCK..BLOCK + 48).contains(&at.0)
        }

        fn is_block(&self, at: Address) -> bool {
            at.0 == BLOCK
        }

        fn has_previous_subclass(&self) -> bool {
            self.has_previous_subclass
        }
    }

    #[test]
    fn structures_of_classes_are_recognized() {
        let [block, class, file, method] = [BLOCK, CLASS, FILE, METHOD];
        let structure = |words: [u64; 3]| {
            ClassStructure::from_bytes(&words.map(u64::to_le_bytes).concat(), &MEMORY)
        };
        let part = |at, bytes, words| {
            let content = Content::new(Form::Words, words);
            Part { at: Address(at), bytes, content }
        };
        let caches = ClassStructure::Caches(part(block, 32, 2));
        let table = |at, bytes| Some(ClassStructure::Table(part(at, bytes, bytes / 8)));
        for (words, expected) in [
            ([0; 3], table(0, 0)),
            ([2 << 32 | 4, 2, block], table(block, 64)),
            ([0, 0, block], None),
            ([class, 0, block], Some(ClassStructure::Subclass)),
            ([class, block, block + 16], Some(ClassStructure::Subclass)),
            ([class, file, block], None),
            ([class, block, 0], None),
            ([12 << 32 | 1, class, file], Some(ClassStructure::Constant)),
            ([12 << 32 | 2, class, file], None),
            ([1 << 32 | 2, method, block], Some(caches)),
            ([0, method, 0], Some(ClassStructure::Caches(part(0, 0, 0)))),
            ([0, method, block], None),
            ([1 << 32, method, 0], None),
            ([3 << 32 | 2, method, block], None),
            ([1 << 32 | 2, class, block], None),
            ([block, block, block], None),
        ] {
            assert_eq!(structure(words), expected, "{words:x?}");
        }
        let entry = [class, block, block + 16].map(u64::to_le_bytes).concat();
        let older = Memory { has_previous_subclass: false };
        assert_eq!(ClassStructure::from_bytes(&entry, &older), None, "up to 3.0");
        let entries = [[5, class], [1 << 32 | 5, class], [class, class], [1, method]];
        let of_calls = [[0x1_0000_0001, CACHE], [CACHE, 0x14_0000_0001], [method, class]];
        assert_eq!(of_calls.map(|it| caches.may_be_entry(it, &MEMORY)), [true, true, false]);
        let are_entries =
            |structure: ClassStructure| entries.map(|entry| structure.may_be_entry(entry, &MEMORY));
        assert_eq!(are_entries(table(block, 64).unwrap()), [true, true, false, true]);
        assert_eq!(are_entries(caches), [false; 4]);
    }
}
