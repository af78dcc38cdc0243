//! The transient heap: small arrays, hashes and structs live there for a short while (2.6 to 3.2).
//!
//! `struct transient_heap` in transient_heap.c is a variable of the interpreter: three lists of
//! blocks, the numbers of objects and blocks, the promoted objects, and the arena from which blocks
//! are cut one after the other.

use std::ops::Range;

use capture::{Address, Image};

use crate::address_classifier::is_private;
use crate::interpreter::Interpreter;

/// `TRANSIENT_HEAP_TOTAL_SIZE`, in bytes.
const ARENA_BYTES: u64 = 32 << 20;
/// `TRANSIENT_HEAP_BLOCK_SIZE`, in bytes, which is also the arena's alignment.
const BLOCK_BYTES: u64 = 32 << 10;
/// The words that begin lists of blocks, the arena, and the number of its blocks that were ever in
/// use.
const LISTS: Range<usize> = 0..3;
const ARENA: usize = 7;
const BLOCKS_USED: usize = 8;

/// The range of the transient heap; `None` if it does not exist, or is not recognized.
pub(crate) fn find(image: &Image<'_>, interpreter: &Interpreter) -> Option<Range<Address>> {
    if interpreter.is_at_least(3, 3) {
        return None;
    }
    interpreter.variables(image).find_map(|(_, words)| {
        words.windows(BLOCKS_USED + 1).find_map(|words| arena_of(image, words))
    })
}

fn arena_of(image: &Image<'_>, words: &[u64]) -> Option<Range<Address>> {
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
    fits.then_some(arena)
}
