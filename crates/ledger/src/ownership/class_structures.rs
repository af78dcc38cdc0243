//! Structures of classes that have three words. malloc may give them more, and does not clear that. Nearly every path leads
//! through the memory of classes, so one word of an earlier owner is enough for a false one.

use linux::{Address, length};
use ruby::{Content, Form, ID_TABLE_BYTES, ImemoType, SlotType, entries_of_id_table};

use crate::ownership::address_index::{AddressIndex, Referent};

/// A call site has one cache of a method. This is more than a method has.
const MAX_CACHES: u64 = 1 << 16;
/// `CONST_DEPRECATED` and `CONST_PRIVATE` (constant.h).
const CONSTANT_FLAGS: u64 = 0x101;

/// The memory behind a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) at: Address,
    /// The bytes that were requested.
    pub(crate) bytes: u64,
    pub(crate) content: Content,
}

/// A structure of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClassStructure {
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
    pub(crate) const BYTES: usize = ID_TABLE_BYTES;
    /// The words of an entry: of a key and a value, or of a call info and a `rb_callcache`.
    pub(crate) const ENTRY_WORDS: u64 = 2;

    /// The structure that a block with these first bytes may be.
    pub(crate) fn from_bytes(bytes: &[u8], addresses: &AddressIndex<'_>) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (first, second, third) = (word(0), word(8), word(16));
        let [low, high] = [first & u64::from(u32::MAX), first >> 32];
        let type_at = |word| addresses.type_at(Address(word));
        let is_block = |word| matches!(addresses.at(Address(word)), Referent::Block { .. });
        if let Some(entries) = entries_of_id_table(bytes) {
            let bytes = length(&entries);
            let content = Content::new(Form::Words, bytes / 8);
            return Some(Self::Table(Part { at: entries.start, bytes, content }));
        }
        if let Some(SlotType::CLASS | SlotType::ICLASS) = type_at(first) {
            return ((second == 0 || is_block(second)) && is_block(third))
                .then_some(Self::Subclass);
        }
        if low & !CONSTANT_FLAGS == 0 && type_at(third) == Some(SlotType::STRING) {
            return Some(Self::Constant);
        }
        let are_caches = low.is_power_of_two()
            && low <= MAX_CACHES
            && high <= low
            && addresses.imemo_at(Address(second)) == Some(ImemoType::Ment)
            && addresses.block_at(Address(third)).is_some();
        are_caches.then(|| {
            let content = Content::new(Form::Words, high * Self::ENTRY_WORDS);
            let bytes = low * Self::ENTRY_WORDS * 8;
            Self::Caches(Part { at: Address(third), bytes, content })
        })
    }

    /// The memory behind it.
    pub(crate) fn part(self) -> Option<Part> {
        match self {
            Self::Table(part) | Self::Caches(part) => Some(part),
            Self::Subclass | Self::Constant => None,
        }
    }

    /// Returns true if these words may be an entry of this structure. It may be an earlier owner's, and the memory behind it
    /// another one's by now.
    pub(crate) fn may_be_entry(
        self,
        [first, second]: [u64; 2],
        addresses: &AddressIndex<'_>,
    ) -> bool {
        match self {
            // A key, and a flag for collisions.
            Self::Table(_) => first >> 32 <= 1,
            Self::Caches(_) => addresses.imemo_at(Address(second)) == Some(ImemoType::Callcache),
            Self::Subclass | Self::Constant => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;
    use testkit::{GlibcRelease, MallocHeap, RubyHeap, RubyRelease, SyntheticMemory};

    #[test]
    fn structures_of_classes_are_recognized() {
        let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
        let block = heap.malloc(0, 40);
        let mut ruby = RubyHeap::new(RubyRelease::V3_1);
        let class = ruby.class("Base", ruby.object_class());
        let file = ruby.string("app.rb");
        let method = ruby.imemo("ment");
        let mut memory = SyntheticMemory::default();
        let threads = heap.write(&mut memory).threads;
        ruby.write(&mut memory);
        let mut state = memory.state();
        state.threads = threads;
        let image = image::Image::new(state, memory);
        let facts = Facts::read(&image, true);
        let addresses = AddressIndex::new(facts.heap(), facts.objects(), &[]);
        let structure = |words: [u64; 3]| {
            ClassStructure::from_bytes(&words.map(u64::to_le_bytes).concat(), &addresses)
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
            ([3 << 32 | 2, method, block], None),
            ([1 << 32 | 2, class, block], None),
            ([block, block, block], None),
        ] {
            assert_eq!(structure(words), expected, "{words:x?}");
        }
        let entries = [[5, class], [1 << 32 | 5, class], [class, class], [1, method]];
        let are_entries = |structure: ClassStructure| {
            entries.map(|entry| structure.may_be_entry(entry, &addresses))
        };
        assert_eq!(are_entries(table(block, 64).unwrap()), [true, true, false, true]);
        assert_eq!(are_entries(caches), [false; 4]);
    }
}
