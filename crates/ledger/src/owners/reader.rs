//! Reads the words of memory that are in use.

use std::ops::Range;

use allocator::glibc::{Chunk, ChunkState};
use capture::{Address, Image, PAGE_SIZE, Window, intersection, length};
use ruby::{Content, Form, StTable};

use crate::owners::edges::{Collector, Limits, Part};
use crate::places::Places;

/// Bytes that are read at a time.
const BLOCK: usize = 256 << 10;
/// Longer stretches are read by their resident pages only: a program may have obtained a terabyte
/// and touched a page of it.
const LONG: u64 = 64 << 10;

/// Reads nodes one after the other.
pub(crate) struct Reader<'a> {
    image: &'a Image<'a>,
    window: Window<'a>,
    pub(crate) into: Collector<'a>,
    /// Chunks that look like hash tables.
    tables: Vec<StTable>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        image: &'a Image<'a>,
        places: &'a Places<'a>,
        first: u32,
        limits: Limits,
    ) -> Self {
        let into = Collector::new(places, first, limits);
        Self { image, window: Window::new(image, BLOCK), into, tables: Vec::new() }
    }

    /// What was read, and chunks that look like hash tables.
    pub(crate) fn finish(self) -> (Vec<Part>, Vec<StTable>) {
        (self.into.parts(), self.tables)
    }

    /// Takes the words of a chunk that are in use.
    pub(crate) fn read_chunk(&mut self, chunk: Chunk, content: Content) {
        let memory = user_memory(chunk);
        let Some((form, words)) = content.known() else {
            self.note_table(chunk);
            // Those of mappings are not recycled, and their last word is their own.
            let last = match chunk.state() {
                ChunkState::InUse => chunk.end(),
                _ => memory.end,
            };
            return self.read_with(&memory, |into, at, word| into.take(word, at == last));
        };
        let used = memory.start..memory.start.offset(words * 8);
        match form {
            Form::Words => self.read(&used),
            Form::Values => self.read_with(&used, |into, _, word| into.take_value(word)),
            Form::Entries => {
                let mut is_deleted = false;
                self.read_with(&used, |into, at, word| match (at - memory.start) / 8 % 3 {
                    0 => is_deleted = word == u64::MAX,
                    _ if is_deleted => {}
                    _ => into.take(word, false),
                });
            }
        }
    }

    /// Notes a chunk that may be a hash table: it has the size of one.
    fn note_table(&mut self, chunk: Chunk) {
        let memory = user_memory(chunk);
        if length(&memory) == StTable::BYTES
            && let Ok(bytes) = self.window.bytes(memory.start, StTable::BYTES as usize)
        {
            self.tables.extend(StTable::from_bytes(bytes));
        }
    }

    /// Takes all words of a part of the node that is being read.
    pub(crate) fn read(&mut self, range: &Range<Address>) {
        self.read_with(range, |into, _, word| into.take(word, false));
    }

    /// Calls `each` with the words of a part of the node that is being read, and their addresses.
    fn read_with(&mut self, range: &Range<Address>, mut each: impl Each) {
        if length(range) <= LONG {
            return self.read_pages(range, &mut each);
        }
        let state = &self.image.state;
        match &state.pages {
            Some(pages) => {
                for run in pages.runs_in(range).filter(|run| run.state.is_resident()) {
                    self.read_pages(&intersection(&run.range, range), &mut each);
                }
            }
            // Nothing says which pages are there. What is hardly there is not worth mapping in.
            None => {
                let resident = |mapping: &&capture::Mapping| {
                    mapping.kernel_rss_bytes.unwrap_or(0) >= length(&mapping.range) / 16
                };
                if state.mappings.find(range.start).filter(resident).is_some() {
                    self.read_pages(range, &mut each);
                }
            }
        }
    }

    fn read_pages(&mut self, range: &Range<Address>, each: &mut impl Each) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(BLOCK as u64 / 2));
            if !self.read_block(&(at..end), each) {
                self.read_page_by_page(&(at..end), each);
            }
            at = end;
        }
    }

    fn read_page_by_page(&mut self, range: &Range<Address>, each: &mut impl Each) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(PAGE_SIZE));
            // What is unreadable for another reason, as guard pages are, has no pointers.
            if !self.read_block(&(at..end), each) && self.is_out_of_reach(&(at..end)) {
                self.into.count_unread(end - at);
            }
            at = end;
        }
    }

    fn is_out_of_reach(&self, page: &Range<Address>) -> bool {
        let pages = self.image.state.pages.as_ref();
        pages.is_some_and(|pages| pages.runs_in(page).any(|run| run.state.is_unreadable()))
    }

    fn read_block(&mut self, range: &Range<Address>, each: &mut impl Each) -> bool {
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

/// Takes a word: its address, and what it is.
trait Each: FnMut(&mut Collector<'_>, Address, u64) {}

impl<F: FnMut(&mut Collector<'_>, Address, u64)> Each for F {}

/// The memory of a chunk in use that its owner may write to; empty if the chunk is free.
pub(crate) fn user_memory(chunk: Chunk) -> Range<Address> {
    match chunk.state() {
        ChunkState::InUse => chunk.pointer()..chunk.end().offset(8),
        ChunkState::Mmapped => chunk.pointer()..chunk.end(),
        _ => chunk.pointer()..chunk.pointer(),
    }
}
