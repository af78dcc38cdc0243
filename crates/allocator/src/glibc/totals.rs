//! Sums as malloc_info(3) counts them. It knows no thread caches: it counts their chunks as in use, and so it
//! does with fenceposts and glibc's own structures.

use capture::length;

use crate::{Block, BlockState, HeapMap, Totals};

/// Sets the totals of `heap` and of each arena.
pub(crate) fn count(heap: &mut HeapMap) {
    let mut arenas: Vec<_> = heap
        .arenas
        .iter()
        .map(|arena| Totals {
            system_bytes: arena.system_bytes,
            // malloc_info(3) counts the top of an arena even before there is one.
            free_chunks: u64::from(arena.walked),
            ..Totals::default()
        })
        .collect();
    let mut all = Totals::default();
    for extent in &heap.extents {
        match extent.arena.and_then(|arena| arenas.get_mut(arena as usize)) {
            Some(totals) => {
                heap.blocks_of(extent).for_each(|(_, chunk)| add_chunk(totals, chunk));
            }
            None => {
                all.mmapped_chunks += 1;
                all.mmapped_bytes += length(&extent.range);
            }
        }
    }
    for (arena, totals) in heap.arenas.iter_mut().zip(arenas) {
        add(&mut all, &totals);
        arena.totals = totals;
    }
    heap.totals = all;
}

fn add_chunk(totals: &mut Totals, chunk: Block) {
    let (count, bytes) = match chunk.state() {
        BlockState::InUse => (&mut totals.in_use_chunks, &mut totals.in_use_bytes),
        BlockState::Fastbin => (&mut totals.fastbin_chunks, &mut totals.fastbin_bytes),
        BlockState::Tcache => (&mut totals.tcache_chunks, &mut totals.tcache_bytes),
        BlockState::Free => (&mut totals.free_chunks, &mut totals.free_bytes),
        BlockState::Top => return totals.free_bytes += chunk.bytes(),
        BlockState::Overhead | BlockState::Mmapped => return,
    };
    *count += 1;
    *bytes += chunk.bytes();
}

fn add(sum: &mut Totals, arena: &Totals) {
    sum.system_bytes += arena.system_bytes;
    sum.in_use_chunks += arena.in_use_chunks;
    sum.in_use_bytes += arena.in_use_bytes;
    sum.free_chunks += arena.free_chunks;
    sum.free_bytes += arena.free_bytes;
    sum.fastbin_chunks += arena.fastbin_chunks;
    sum.fastbin_bytes += arena.fastbin_bytes;
    sum.tcache_chunks += arena.tcache_chunks;
    sum.tcache_bytes += arena.tcache_bytes;
}
