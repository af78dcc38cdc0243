//! The transient heap: small arrays, hashes and structs live there for a short while (2.6 to 3.2).
//!
//! `struct transient_heap` in transient_heap.c is a variable of the interpreter: three lists of
//! blocks, counts of objects and blocks, the promoted objects, and the arena that blocks are cut
//! from, in turn.

use std::ops::Range;

use capture::{Address, Image, Memory};

use crate::interpreter::Interpreter;
use crate::territory::is_private;

/// `TRANSIENT_HEAP_TOTAL_SIZE`, in bytes.
const ARENA_BYTES: u64 = 32 << 20;
/// `TRANSIENT_HEAP_BLOCK_SIZE`, in bytes: the arena's alignment too.
const BLOCK_BYTES: u64 = 32 << 10;
/// More bytes of variables than an interpreter has.
const MOST_VARIABLES: u64 = 16 << 20;
/// The words of the variable: the arena, and how many of its blocks were ever in use.
const ARENA: usize = 7;
const BLOCKS_USED: usize = 8;
/// The words that begin lists of blocks.
const LISTS: Range<usize> = 0..3;

/// Where the transient heap is; `None` where there is none, or it cannot be told for certain.
pub(crate) fn find(image: &Image<'_>, interpreter: &Interpreter) -> Option<Range<Address>> {
    if interpreter.is_at_least(3, 3) {
        return None;
    }
    interpreter.variables.iter().find_map(|variables| {
        let mut bytes = vec![0; capture::length(variables).min(MOST_VARIABLES) as usize];
        let read = image.read(variables.start, &mut bytes);
        let words = bytes[..read].chunks_exact(8);
        let words: Vec<u64> =
            words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
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
