//! Reads the words in use of blocks and other memory.

use std::ops::Range;

use allocator::{Block, HeapMap};
use image::{Image, Window};
use linux::{Address, MIN_PAGE_SIZE, intersection, length};
use ruby::{
    CATCH_TABLE_HEAD_BYTES, ClassStructure, Content, Form, MAX_CONSTANT_PATH_BYTES, Part,
    REGEXP_BYTES, StTable, catch_table_bytes, constant_path_bytes, iseqs_of_catch_table,
    pointers_of_regexp,
};

use crate::ownership::address_index::AddressIndex;
use crate::ownership::edges::{Adjacency, Collector, Limits};
use crate::pages::pages_of;

/// Bytes that are read at a time: they stay in the cache of the processor, and their buffer comes from memory that was used before.
const READ_BYTES: usize = 64 << 10;
/// Of longer ranges only the resident pages are read: a program may have obtained a terabyte and touched one page.
const MAX_WHOLE_BYTES: u64 = 64 << 10;

/// Reads nodes one after the other.
pub(crate) struct Reader<'a> {
    image: &'a Image<'a>,
    heap: &'a HeapMap,
    addresses: &'a AddressIndex<'a>,
    window: Window<'a>,
    /// Memory that is skipped, ascending.
    unused: &'a [Range<Address>],
    /// The number of these ranges before the range that was read last.
    unused_before: usize,
    pub(crate) into: Collector<'a>,
    heads: Heads,
}

/// Blocks that look like the heads of tables in other blocks.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    /// Hash tables.
    pub(crate) tables: Vec<StTable>,
    /// The memory behind structures of classes.
    pub(crate) parts: Vec<Part>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        image: &'a Image<'a>,
        heap: &'a HeapMap,
        addresses: &'a AddressIndex<'a>,
        unused: &'a [Range<Address>],
        first: u32,
        limits: Limits,
    ) -> Self {
        let into = Collector::new(addresses, first, limits);
        Self {
            image,
            heap,
            addresses,
            window: Window::new(image, READ_BYTES),
            unused,
            unused_before: 0,
            into,
            heads: Heads::default(),
        }
    }

    /// The edges, and the blocks that look like the heads of tables.
    pub(crate) fn finish(self) -> (Vec<Adjacency>, Heads) {
        (self.into.parts(), self.heads)
    }

    /// Takes the words in use of a block.
    pub(crate) fn read_block(&mut self, block: Block, content: Content) {
        let memory = self.heap.header.usable(block);
        if content == Content::MARK_STACK {
            let link = memory.start.offset(Content::MARK_STACK_LINK);
            return self.read(&(link..link.offset(8)));
        }
        if content == Content::REGEXP
            && let Some(pointers) = self.pointers_of_regexp(&memory)
        {
            return pointers.iter().for_each(|range| self.read(range));
        }
        if let Some(words) = content.words_of_pairs() {
            let used = memory.start..memory.start.offset(words * 8);
            let mut is_deleted = false;
            return self.read_with(&used, |into, at, word| {
                is_deleted = match (at - memory.start) / 8 % 2 {
                    0 => Content::is_deleted_key(word),
                    _ => is_deleted,
                };
                if !is_deleted {
                    into.take_value(word);
                }
            });
        }
        let Some((form, words)) = content.known() else {
            self.take_catch_table(&memory);
            let requested = memory.start.offset(self.requested_bytes(block, &memory));
            return self.read_with(&memory, |into, at, word| into.take(word, at >= requested));
        };
        let used = memory.start..memory.start.offset(words * 8);
        match form {
            Form::Words => self.read(&used),
            Form::Values => self.read_with(&used, |into, _, word| into.take_value(word)),
            Form::Environment => {
                let outer = words.checked_sub(Form::OUTER);
                self.read_with(&used, |into, at, word| {
                    into.take(word, false);
                    if Some((at - memory.start) / 8) == outer {
                        into.take_outer(word);
                    }
                });
            }
            Form::Entries | Form::Members => {
                let entry_words = if form == Form::Entries { 3 } else { 2 };
                let mut is_deleted = false;
                self.read_with(&used, |into, at, word| {
                    match (at - memory.start) / 8 % entry_words {
                        0 => is_deleted = word == u64::MAX,
                        _ if is_deleted => {}
                        _ => into.take(word, false),
                    }
                });
            }
        }
    }

    /// The parts of a compiled regular expression that may hold pointers.
    fn pointers_of_regexp(&mut self, memory: &Range<Address>) -> Option<[Range<Address>; 2]> {
        let bytes = self.window.bytes(memory.start, REGEXP_BYTES).ok()?;
        let pointers = pointers_of_regexp(bytes)?;
        let at = |part: Range<u64>| memory.start.offset(part.start)..memory.start.offset(part.end);
        Some(pointers.map(at))
    }

    /// Takes the words of a block, and those whose bit 0 is set without it.
    pub(crate) fn read_tagged(&mut self, block: Block) {
        let memory = self.heap.header.usable(block);
        self.read_with(&memory, |into, _, word| into.take(word & !1, false));
    }

    /// Calls `each` with the key and value of each entry of a hash table that is in use.
    pub(crate) fn read_entries(
        &mut self,
        block: Block,
        content: Content,
        mut each: impl FnMut(u64, u64),
    ) {
        let Some((Form::Entries, words)) = content.known() else { return };
        let start = self.heap.header.usable(block).start;
        // Pages that are not resident are skipped, with any part of an entry.
        let (mut live, mut key) = (None, None);
        self.read_with(&(start..start.offset(words * 8)), |_, at, word| {
            let index = (at - start) / 8;
            match index % 3 {
                0 => live = (word != u64::MAX).then_some(index),
                1 => key = live.filter(|it| it + 1 == index).map(|_| (index, word)),
                _ => {
                    if let Some((_, key)) = key.filter(|(it, _)| it + 1 == index) {
                        each(key, word);
                    }
                }
            }
        });
    }

    /// The bytes that are in use: the words behind them may be an earlier owner's. Notes a block that looks like the head of a
    /// table.
    fn requested_bytes(&mut self, block: Block, memory: &Range<Address>) -> u64 {
        let usable = length(memory);
        let layout = self.addresses.table_layout();
        if self.heap.fits(layout.bytes(), usable)
            && let Ok(bytes) = self.window.bytes(memory.start, layout.bytes() as usize)
            && let Some(table) = layout.table(bytes)
        {
            self.heads.tables.push(table);
            return layout.bytes();
        }
        if self.heap.fits(ClassStructure::BYTES as u64, usable)
            && let Ok(bytes) = self.window.bytes(memory.start, ClassStructure::BYTES)
            && let Some(structure) = ClassStructure::from_bytes(bytes, self.addresses)
        {
            let part = self.part_of(structure);
            self.heads.parts.extend(part);
            return ClassStructure::BYTES as u64;
        }
        self.constant_path_bytes(memory).unwrap_or_else(|| self.heap.requested_bytes(block))
    }

    /// The size of the names of a constant, if these are in the block.
    fn constant_path_bytes(&mut self, memory: &Range<Address>) -> Option<u64> {
        let usable = length(memory);
        let bytes =
            self.window.bytes(memory.start, (usable as usize).min(MAX_CONSTANT_PATH_BYTES)).ok()?;
        let path = constant_path_bytes(bytes)? as u64;
        self.heap.fits(path, usable).then_some(path)
    }

    /// The memory behind a structure of a class, if it has entries of this structure.
    fn part_of(&mut self, structure: ClassStructure) -> Option<Part> {
        const BYTES: usize = 8 * ClassStructure::ENTRY_WORDS as usize;
        let part = structure.part()?;
        let bytes = part.content.used_words()?.saturating_mul(8).min(READ_BYTES as u64);
        let memory = self.window.bytes(part.at, bytes as usize).ok()?;
        let is_entry = |words: &[u8]| {
            structure.may_be_entry([u64_at(words, 0), u64_at(words, 8)], self.addresses)
        };
        (bytes > 0 && memory.chunks_exact(BYTES).all(is_entry)).then_some(part)
    }

    /// Takes the bytecode of `rescue` and `ensure` that a catch table refers to, also from words that are not aligned: the
    /// structure is packed.
    fn take_catch_table(&mut self, memory: &Range<Address>) {
        let Ok(head) = self.window.bytes(memory.start, CATCH_TABLE_HEAD_BYTES) else { return };
        let bytes = catch_table_bytes(head).filter(|bytes| *bytes as u64 <= length(memory));
        let Some(bytes) = bytes else { return };
        let Ok(table) = self.window.bytes(memory.start, bytes) else { return };
        if let Some(iseqs) = iseqs_of_catch_table(table) {
            iseqs.for_each(|iseq| self.into.take_value(iseq));
        }
    }

    /// Takes all words of a part of the node that is being read.
    pub(crate) fn read(&mut self, range: &Range<Address>) {
        self.read_with(range, |into, _, word| into.take(word, false));
    }

    /// Takes the words of thread-local variables, but no keys of the allocator's caches of lookups.
    pub(crate) fn read_locals(&mut self, range: &Range<Address>) {
        let span = self.heap.lookup_span;
        let is_key = |word: u64| span.is_some_and(|span| word.is_multiple_of(span));
        self.read_with(range, |into, _, word| {
            if !is_key(word) {
                into.take(word, false);
            }
        });
    }

    /// Calls `each` with the words of a part of the node that is being read, and their addresses.
    fn read_with(&mut self, range: &Range<Address>, mut each: impl Each) {
        if length(range) <= MAX_WHOLE_BYTES {
            return self.read_used(range, &mut each);
        }
        for run in pages_of(&self.image.state).runs_in(range).filter(|it| it.state.is_readable()) {
            self.read_used(&intersection(&run.range, range), &mut each);
        }
    }

    fn read_used(&mut self, range: &Range<Address>, each: &mut impl Each) {
        let mut at = range.start;
        // Most ranges are read in ascending order.
        let ends_before = |unused: Option<&Range<Address>>| unused.is_some_and(|it| it.end <= at);
        let known = self.unused_before;
        if known > 0 && !ends_before(self.unused.get(known - 1))
            || ends_before(self.unused.get(known))
        {
            self.unused_before = self.unused.partition_point(|unused| unused.end <= at);
        }
        for unused in
            self.unused[self.unused_before..].iter().take_while(|unused| unused.start < range.end)
        {
            self.read_pages(&(at..unused.start.max(at)), each);
            at = unused.end.max(at);
        }
        self.read_pages(&(at.min(range.end)..range.end), each);
    }

    fn read_pages(&mut self, range: &Range<Address>, each: &mut impl Each) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(READ_BYTES as u64 / 2));
            if !self.read_range(&(at..end), each) {
                self.read_page_by_page(&(at..end), each);
            }
            at = end;
        }
    }

    fn read_page_by_page(&mut self, range: &Range<Address>, each: &mut impl Each) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(MIN_PAGE_SIZE));
            // Pages that are unreadable for another reason, such as guard pages, have no pointers.
            if !self.read_range(&(at..end), each) && self.is_out_of_reach(&(at..end)) {
                self.into.count_unread(end - at);
            }
            at = end;
        }
    }

    fn is_out_of_reach(&self, page: &Range<Address>) -> bool {
        pages_of(&self.image.state).runs_in(page).any(|run| run.state.hides_contents())
    }

    fn read_range(&mut self, range: &Range<Address>, each: &mut impl Each) -> bool {
        let Ok(bytes) = self.window.bytes(range.start, length(range) as usize) else {
            return false;
        };
        for (number, word) in (0..).zip(bytes.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            each(&mut self.into, range.start.offset(8 * number), word);
        }
        true
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Takes a word and its address.
trait Each: FnMut(&mut Collector<'_>, Address, u64) {}

impl<F: FnMut(&mut Collector<'_>, Address, u64)> Each for F {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::edges::LIMITS;
    use ruby::ObjectSpace;
    use testkit::{GlibcRelease, MallocHeap, SyntheticMemory};

    /// The certainty of the pointers in a block of the size that malloc gives for `bytes`, with these words; `OTHER` stands for the
    /// address of another block.
    fn certain(bytes: u64, words: &[u64]) -> Vec<bool> {
        certain_of("4.0.0", bytes, words)
    }

    fn certain_of(version: &str, bytes: u64, words: &[u64]) -> Vec<bool> {
        certain_with(version, Content::UNKNOWN, bytes, words)
    }

    fn certain_with(version: &str, content: Content, bytes: u64, words: &[u64]) -> Vec<bool> {
        let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
        let [other, block] = [104, bytes].map(|bytes| heap.malloc(0, bytes));
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        for (word, value) in (0..).zip(words) {
            let value = if *value == OTHER { other } else { *value };
            memory.write_u64(block + word * 8, value);
        }
        let image = memory.image();
        let modules = image::elf::modules(&image);
        let found = allocator::find_allocator(&image, &modules, None);
        let heap = allocator::walk(&image, &found, &[]).unwrap();
        let mut space = ObjectSpace::default();
        space.interpreter.version = version.to_owned();
        let addresses = AddressIndex::new(&heap, &space, &[]);
        let mut reader = Reader::new(&image, &heap, &addresses, &[], 0, LIMITS);
        reader.read_block(heap.block_around(Address(block)).unwrap(), content);
        reader.into.end_node();
        let (parts, _) = reader.finish();
        Adjacency::edges(&parts, 0).iter().map(|edge| !edge.is_uncertain()).collect()
    }

    /// Stands for the address of another block.
    const OTHER: u64 = u64::MAX - 7;

    /// Behind a table of a class's method caches, a word of an earlier owner retained an array. Behind an empty table of methods,
    /// one retained a thread.
    #[test]
    fn words_behind_an_id_table_are_uncertain() {
        let table = [2 << 32 | 4, 2, OTHER, OTHER, 0x30];
        assert_eq!(certain(40, &table), [true, false]);
        assert_eq!(certain(40, &[0, 0, 0, OTHER, 0x30]), [false]);
        let none = [5 << 32 | 4, 2, OTHER, OTHER, 0x30];
        assert_eq!(certain(40, &none), [true]);
    }

    /// A hash may look like an address, and deleted entries keep their keys.
    #[test]
    fn entries_of_tables_and_of_sets_refer_to_what_was_not_deleted() {
        let edges = |form, words: &[u64]| {
            let content = Content::new(form, words.len() as u64);
            certain_with("4.0.0", content, 8 * words.len() as u64, words).len()
        };
        let deleted = u64::MAX;
        assert_eq!(edges(Form::Members, &[OTHER, 1, 7, 1]), 0);
        assert_eq!(edges(Form::Members, &[7, OTHER, 8, 1]), 1);
        assert_eq!(edges(Form::Members, &[7, 1, deleted, OTHER, 8, 1]), 0);
        assert_eq!(edges(Form::Entries, &[OTHER, 1, 1, 7, 1, 1]), 0);
        assert_eq!(edges(Form::Entries, &[7, 1, 1, 8, 1, OTHER]), 1);
        assert_eq!(edges(Form::Entries, &[7, 1, 1, deleted, OTHER, OTHER]), 0);
    }

    /// Behind the name of a constant in bytecode, an earlier owner's word retained a thread.
    #[test]
    fn words_behind_the_names_of_a_constant_are_uncertain() {
        assert_eq!(certain(16, &[0x101b, 0, OTHER]), [false]);
        assert_eq!(certain(40, &[0x101b, 0, OTHER]), [false]);
        assert_eq!(certain(40, &[0x1b, 0, OTHER]), [true]);
        assert_eq!(certain(56, &[0x101b, 0, OTHER]), [true]);
    }

    /// The pointer to the entries is the last word, so all methods of a class seemed to be retained by a word that may be no
    /// pointer.
    #[test]
    fn a_table_that_fills_its_block_has_no_word_of_an_earlier_owner() {
        assert_eq!(certain(24, &[2 << 32 | 4, 2, OTHER]), [true]);
        assert_eq!(certain(24, &[5 << 32 | 4, 2, OTHER]), [false]);
        let hash = [3, 0x10_0000, 1, 0, 0, 1, OTHER];
        assert_eq!(certain(56, &hash), [true]);
        assert_eq!(certain(56, &[3, 0x10_0000, 2, 0, 0, 1, OTHER]), [false]);
        assert_eq!(certain(72, &[3, 0x10_0000, 1, 0, 0, 1, OTHER, OTHER]), [true, false]);
        // The first entry in use is in the upper half of the first word.
        let later = |words: &[u64]| certain_of("4.1.0", 40, words);
        assert_eq!(later(&[1 << 32 | 3, 0x10_0000, 1, 2, OTHER]), [true]);
        assert_eq!(later(&[2 << 32 | 3, 0x10_0000, 1, 2, OTHER]), [false]);
    }

    /// A block at an address of which jemalloc keeps the lookups used to belong to "(thread-local variables)", with all that
    /// it refers to.
    #[test]
    fn keys_of_cached_lookups_are_no_pointers() {
        let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
        let [first, second, variables] = [0; 3].map(|_| heap.malloc(0, 104));
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        for (word, value) in (0..).zip([first, second, first, 7]) {
            memory.write_u64(variables + word * 8, value);
        }
        let image = memory.image();
        let modules = image::elf::modules(&image);
        let found = allocator::find_allocator(&image, &modules, None);
        let mut heap = allocator::walk(&image, &found, &[]).unwrap();
        let space = ObjectSpace::default();
        for (lookup_span, expected) in [(None, 3), (Some(first), 1), (Some(1 << 40), 3)] {
            heap.lookup_span = lookup_span;
            let addresses = AddressIndex::new(&heap, &space, &[]);
            let mut reader = Reader::new(&image, &heap, &addresses, &[], 0, LIMITS);
            reader.read_locals(&(Address(variables)..Address(variables + 32)));
            reader.into.end_node();
            let (parts, _) = reader.finish();
            assert_eq!(Adjacency::edges(&parts, 0).len(), expected, "{lookup_span:?}");
        }
    }
}
