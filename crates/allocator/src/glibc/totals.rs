//! Sums as malloc_info(3) counts them. It knows no thread caches: it counts their chunks as in use, and so it
//! does with fenceposts and glibc's own structures.

use linux::length;

use crate::{HeapMap, Totals};

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
                heap.blocks_of(extent).for_each(|(_, chunk)| totals.add(chunk));
            }
            None => {
                all.mmapped_chunks += 1;
                all.mmapped_bytes += length(&extent.range);
            }
        }
    }
    for (arena, totals) in heap.arenas.iter_mut().zip(arenas) {
        all.add_all(&totals);
        arena.totals = totals;
    }
    heap.totals = all;
}
