//! The transient heap: small arrays, hashes and structs live there for a short while (2.6 to 3.2).
//!
//! `struct transient_heap` in transient_heap.c is a variable of the interpreter: three lists of
//! blocks, the numbers of objects and blocks, the promoted objects, and the arena from which blocks
//! are cut one after the other.

use std::ops::Range;

use capture::{Address, Image, Memory, PAGE_SIZE, intersection, length};

use crate::address_classifier::is_private;
use crate::interpreter::Interpreter;
use crate::model::content::Content;
use crate::read::Depth;
use crate::word::word;

/// `TRANSIENT_HEAP_TOTAL_SIZE`, in bytes.
const ARENA_BYTES: u64 = 32 << 20;
/// `TRANSIENT_HEAP_BLOCK_SIZE`, in bytes, which is also the arena's alignment.
const BLOCK_BYTES: u64 = 32 << 10;
/// The bytes of a word.
const WORD: usize = 8;
/// The words that begin lists of blocks, the arena, and the number of its blocks that were ever in
/// use.
const LISTS: Range<usize> = 0..3;
const ARENA: usize = 7;
const BLOCKS_USED: usize = 8;

/// `struct transient_alloc_header` before each allocation: a constant, the size with the header, and the object.
const HEADER_BYTES: usize = 16;
const MAGIC: u64 = 0xfeab;
/// `TRANSIENT_HEAP_ALLOC_MAX`, in bytes, with the header.
const MAX_ALLOCATION: usize = 2 << 10;

/// The transient heap, and the bytes of its blocks that were ever in use.
#[derive(Debug)]
pub(crate) struct TransientHeap {
    pub(crate) range: Range<Address>,
    bytes: Vec<u8>,
    /// Bytes that could not be read, since they are in swap or not in the core.
    pub(crate) unread_bytes: u64,
}

impl TransientHeap {
    /// Finds it, and reads it unless references between objects are not wanted; `None` if it does not exist, or is not
    /// recognized.
    pub(crate) fn read(image: &Image<'_>, interpreter: &Interpreter, depth: Depth) -> Option<Self> {
        if interpreter.is_at_least(3, 3) {
            return None;
        }
        let (range, used) = interpreter.variables(image).find_map(|(_, words)| {
            words.windows(BLOCKS_USED + 1).find_map(|words| arena_of(image, words))
        })?;
        if depth == Depth::Memory {
            return Some(Self { range, bytes: Vec::new(), unread_bytes: 0 });
        }
        let (mut bytes, mut unread_bytes) = (vec![0; length(&used) as usize], 0);
        for part in present(image, &used) {
            let offset = (part.start - used.start) as usize;
            let bytes = &mut bytes[offset..offset + length(&part) as usize];
            unread_bytes += read_pages(image, part.start, bytes);
        }
        Some(Self { range, bytes, unread_bytes })
    }

    /// Returns the words of the allocation at `at` that the object at `object` uses; all of them if their number is unknown.
    /// No words if it is another object's. `None` if `at` is not on the transient heap.
    pub(crate) fn words(
        &self,
        object: Address,
        at: Address,
        content: Content,
    ) -> Option<impl Iterator<Item = u64> + '_> {
        if !self.range.contains(&at) {
            return None;
        }
        let bytes = self.allocation(object, at).unwrap_or_default();
        let words = bytes.chunks_exact(WORD).map(|bytes| word(bytes, 0));
        Some(content.references(words))
    }

    /// The bytes that belong to this object at `at`. Each allocation has one object, so all objects together have no more
    /// bytes than the heap.
    fn allocation(&self, object: Address, at: Address) -> Option<&[u8]> {
        let start = (at - self.range.start) as usize;
        let header = self.bytes.get(start.checked_sub(HEADER_BYTES)?..start)?;
        let (sizes, owner) = (word(header, 0), word(header, WORD));
        let size = (sizes >> 16 & 0xffff) as usize;
        let is_own = sizes & 0xffff == MAGIC && owner == object.0 && size <= MAX_ALLOCATION;
        let bytes = self.bytes.get(start..start + size.checked_sub(HEADER_BYTES)?)?;
        is_own.then_some(bytes)
    }
}

/// Returns the parts of `range` that have pages. The others are zeros: Ruby has not used them, or returned them.
fn present(image: &Image<'_>, range: &Range<Address>) -> Vec<Range<Address>> {
    let Some(pages) = &image.state.pages else { return vec![range.clone()] };
    pages.runs_in(range).map(|run| intersection(&run.range, range)).collect()
}

/// Reads whole pages at `at`. Those that cannot be read are zeros; returns their bytes.
fn read_pages(image: &Image<'_>, at: Address, into: &mut [u8]) -> u64 {
    if image.read_exact(at, into).is_ok() {
        return 0;
    }
    let mut unread_bytes = 0;
    let mut at = at;
    for page in into.chunks_mut(PAGE_SIZE as usize) {
        if image.read_exact(at, page).is_err() {
            page.fill(0);
            unread_bytes += PAGE_SIZE;
        }
        at = at.offset(PAGE_SIZE);
    }
    unread_bytes
}

/// Returns the range of the arena with these words before and behind its address, and the part of it that was ever in use.
fn arena_of(image: &Image<'_>, words: &[u64]) -> Option<(Range<Address>, Range<Address>)> {
    let start = Address(words[ARENA]);
    let blocks_used = words[BLOCKS_USED] & 0xffff_ffff;
    if start.0 == 0
        || !start.is_aligned(BLOCK_BYTES)
        || !(1..=ARENA_BYTES / BLOCK_BYTES).contains(&blocks_used)
    {
        return None;
    }
    let used = start..start.offset(blocks_used * BLOCK_BYTES);
    let is_block = |at: Address| at.is_aligned(BLOCK_BYTES) && used.contains(&at);
    let lists = &words[LISTS];
    let lists_fit = lists.iter().all(|&at| at == 0 || is_block(Address(at)));
    let arena = start..start.offset(ARENA_BYTES);
    let mapped = image.state.mappings.contiguous(start, is_private);
    let fits = lists_fit
        && lists.iter().any(|&at| at != 0)
        && mapped.start <= arena.start
        && arena.end <= mapped.end;
    fits.then_some((arena, used))
}
