//! The transient heap: small arrays, hashes and structs live there for a short while (2.6 to 3.2).
//!
//! `struct transient_heap` in transient_heap.c is a variable of the interpreter: three lists of
//! blocks, the numbers of objects and blocks, the promoted objects, and the arena from which blocks
//! are cut one after the other.

use std::ops::Range;
use std::sync::OnceLock;

use image::{Image, Memory};
use linux::{Address, MIN_PAGE_SIZE, length};

use crate::address_classifier::is_private;
use crate::interpreter::Interpreter;
use crate::model::content::Content;
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
/// The array of promoted objects.
const PROMOTED: usize = 5;
const ARENA: usize = 7;
const BLOCKS_USED: usize = 8;

/// `struct transient_alloc_header` before each allocation: a constant, the size with the header, and the object.
const HEADER_BYTES: usize = 16;
const MAGIC: u64 = 0xfeab;
/// `TRANSIENT_HEAP_ALLOC_MAX`, in bytes, with the header.
const MAX_ALLOCATION: usize = 2 << 10;

/// The transient heap. A block is read when an object refers to it: most were in use once, by objects that are gone, or whose memory
/// malloc serves since.
pub(crate) struct TransientHeap<'a> {
    image: &'a Image<'a>,
    pub(crate) range: Range<Address>,
    /// The array of the objects that became old. The garbage collector does not mark them, and most are left over.
    pub(crate) promoted: Address,
    /// The blocks that were ever in use.
    blocks: Vec<OnceLock<Block>>,
}

/// An allocation.
pub(crate) struct Allocation<'a> {
    at: Address,
    /// Its bytes without its header; none if it is another object's.
    bytes: &'a [u8],
}

impl<'a> Allocation<'a> {
    /// Returns the words that its object uses; all of them if their number is unknown.
    pub(crate) fn words(&self, content: Content) -> impl Iterator<Item = u64> + 'a {
        content.references(self.bytes.chunks_exact(WORD).map(|bytes| word(bytes, 0)))
    }

    /// Its memory with its header, which is resident: other memory is not read. `None` if it is another object's.
    pub(crate) fn range(&self) -> Option<Range<Address>> {
        let end = self.at.offset(self.bytes.len() as u64);
        (!self.bytes.is_empty()).then(|| Address(self.at.0 - HEADER_BYTES as u64)..end)
    }
}

/// The bytes of a block.
struct Block {
    bytes: Vec<u8>,
    /// Bytes that could not be read, since they are in swap or not in the core.
    unread_bytes: u64,
}

impl<'a> TransientHeap<'a> {
    /// Finds it; `None` if it does not exist, or is not recognized.
    pub(crate) fn find(image: &'a Image<'a>, interpreter: &Interpreter) -> Option<Self> {
        if !interpreter.has_transient_heap() {
            return None;
        }
        let (range, blocks_used, promoted) =
            interpreter.variables(image).find_map(|(_, words)| {
                words.windows(BLOCKS_USED + 1).find_map(|words| {
                    let (range, blocks_used) = arena_of(image, words)?;
                    Some((range, blocks_used, Address(words[PROMOTED])))
                })
            })?;
        let blocks = (0..blocks_used).map(|_| OnceLock::new()).collect();
        Some(Self { image, range, promoted, blocks })
    }

    /// The bytes that could not be read, of blocks that objects refer to.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.blocks.iter().filter_map(OnceLock::get).map(|block| block.unread_bytes).sum()
    }

    /// Returns the allocation at `at` if it belongs to the object at `object`, else nothing. `None` if `at` is not on the transient heap.
    /// Each allocation has one object, so all objects together have no more bytes than the heap.
    pub(crate) fn of(&self, object: Address, at: Address) -> Option<Allocation<'_>> {
        let is_here = self.range.contains(&at);
        is_here.then(|| Allocation { at, bytes: self.allocation(object, at).unwrap_or_default() })
    }

    /// The memory that no object has, ascending; `used` are the allocations of all objects. A block that could not be read whole counts
    /// as in use: the headers of its allocations may be missing.
    pub(crate) fn free(&self, mut used: Vec<Range<Address>>) -> Vec<Range<Address>> {
        let blocks = self.blocks.iter().zip(0..);
        used.extend(blocks.filter_map(|(block, number)| {
            let start = self.range.start.offset(number * BLOCK_BYTES);
            (block.get()?.unread_bytes > 0).then(|| start..start.offset(BLOCK_BYTES))
        }));
        used.sort_unstable_by_key(|range| range.start);
        let mut free = Vec::new();
        let mut at = self.range.start;
        for range in used {
            if at < range.start {
                free.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < self.range.end {
            free.push(at..self.range.end);
        }
        free
    }

    fn allocation(&self, object: Address, at: Address) -> Option<&[u8]> {
        let offset = at - self.range.start;
        let (number, start) = (offset / BLOCK_BYTES, (offset % BLOCK_BYTES) as usize);
        let block = self.blocks.get(number as usize)?;
        let bytes = &block.get_or_init(|| self.read(number)).bytes;
        let header = bytes.get(start.checked_sub(HEADER_BYTES)?..start)?;
        let (sizes, owner) = (word(header, 0), word(header, WORD));
        let size = (sizes >> 16 & 0xffff) as usize;
        let is_own = sizes & 0xffff == MAGIC && owner == object.0 && size <= MAX_ALLOCATION;
        let bytes = bytes.get(start..start + size.checked_sub(HEADER_BYTES)?)?;
        is_own.then_some(bytes)
    }

    fn read(&self, number: u64) -> Block {
        let start = self.range.start.offset(number * BLOCK_BYTES);
        let (mut bytes, mut unread_bytes) = (vec![0; BLOCK_BYTES as usize], 0);
        for part in present(self.image, &(start..start.offset(BLOCK_BYTES))) {
            let offset = (part.start - start) as usize;
            let bytes = &mut bytes[offset..offset + length(&part) as usize];
            unread_bytes += read_pages(self.image, part.start, bytes);
        }
        Block { bytes, unread_bytes }
    }
}

/// Returns the parts of `range` that have pages. The others are zeros: Ruby has not used them, or returned them.
fn present(image: &Image<'_>, range: &Range<Address>) -> Vec<Range<Address>> {
    let Some(pages) = &image.state.pages else { return vec![range.clone()] };
    pages.parts_in(range).collect()
}

/// Reads whole pages at `at`. Those that cannot be read are zeros; returns their bytes.
fn read_pages(image: &Image<'_>, at: Address, into: &mut [u8]) -> u64 {
    if image.read_exact(at, into).is_ok() {
        return 0;
    }
    let mut unread_bytes = 0;
    let mut at = at;
    for page in into.chunks_mut(MIN_PAGE_SIZE as usize) {
        if image.read_exact(at, page).is_err() {
            page.fill(0);
            unread_bytes += MIN_PAGE_SIZE;
        }
        at = at.offset(MIN_PAGE_SIZE);
    }
    unread_bytes
}

/// Returns the range of the arena with these words before and behind its address, and the number of its blocks that were ever in
/// use.
fn arena_of(image: &Image<'_>, words: &[u64]) -> Option<(Range<Address>, u64)> {
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
    fits.then_some((arena, blocks_used))
}

#[cfg(test)]
mod tests {
    use testkit::SyntheticMemory;

    use super::*;

    #[test]
    fn memory_without_an_object_is_free_except_in_blocks_that_were_not_read() {
        let image = SyntheticMemory::default().image();
        let start = Address(0x7f00_0000_0000);
        let at = |offset: u64| start.offset(offset);
        let block = |unread_bytes| OnceLock::from(Block { bytes: Vec::new(), unread_bytes });
        let heap = TransientHeap {
            image: &image,
            range: at(0)..at(4 * BLOCK_BYTES),
            promoted: Address(0),
            blocks: vec![block(0), block(MIN_PAGE_SIZE), OnceLock::new()],
        };
        let used = vec![at(96)..at(160), at(16)..at(96), at(BLOCK_BYTES)..at(BLOCK_BYTES + 32)];
        let free = [0..16, 160..BLOCK_BYTES, 2 * BLOCK_BYTES..4 * BLOCK_BYTES];
        assert_eq!(heap.free(used), free.map(|it| at(it.start)..at(it.end)));
    }
}
