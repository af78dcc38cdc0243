//! The stack of objects that the garbage collector still has to mark. Most of it is left over from the last collection,
//! so it retains nothing.
//!
//! `mark_stack_t` is a member of the object space: a list of chunks in use, a list of empty ones, the number of objects in
//! the first chunk, and the size of a chunk (gc.c, from 3.4 on gc/default/default.c; the same in all releases).

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::is_private;
use crate::layout::heap_layout::SpaceMembers;
use crate::layout::page_finder::words_around;

/// `STACK_CHUNK_SIZE`: the objects in a chunk. The pointer to the next chunk follows.
pub(crate) const CHUNK_OBJECTS: u64 = 500;
/// More chunks than any collection needs: each object is on the stack once.
const MAX_CHUNKS: u64 = 1 << 22;

/// The addresses of the chunks of the mark stacks of these object spaces.
pub(crate) fn find(image: &Image<'_>, spaces: &[SpaceMembers]) -> Vec<Address> {
    let stacks = spaces.iter().filter_map(|space| {
        let words = words_around(image, space.list_head);
        words.windows(5).find_map(|words| chunks_of(image, words))
    });
    stacks.flatten().collect()
}

/// The chunks of the mark stack in these words; `None` if they are not a mark stack.
fn chunks_of(image: &Image<'_>, words: &[u64]) -> Option<Vec<Address>> {
    let &[chunk, cache, places, cache_size, unused_cache_size] = words else { return None };
    let (index, limit) = (places & 0xffff_ffff, places >> 32);
    let is_stack = limit == CHUNK_OBJECTS
        && index <= CHUNK_OBJECTS
        && (1..=MAX_CHUNKS).contains(&cache_size)
        && unused_cache_size <= cache_size;
    if !is_stack {
        return None;
    }
    let empty = list(image, cache, cache_size)?;
    let in_use = list(image, chunk, MAX_CHUNKS)?;
    (empty.len() as u64 == cache_size).then(|| [in_use, empty].concat())
}

/// The chunks of a list, at most `max`; `None` if it leads to memory that is not private.
fn list(image: &Image<'_>, first: u64, max: u64) -> Option<Vec<Address>> {
    let mut chunks = Vec::new();
    let mut at = Address(first);
    while at.0 != 0 {
        if chunks.len() as u64 == max
            || !at.is_aligned(8)
            || !image.state.mappings.find(at).is_some_and(is_private)
        {
            return None;
        }
        chunks.push(at);
        at = image.read_address(at.offset(8 * CHUNK_OBJECTS)).ok()?;
    }
    Some(chunks)
}
