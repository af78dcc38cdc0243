//! The memory that malloc_trim(0) would return now, computed as glibc computes it (`mtrim` and `systrim` in
//! malloc/malloc.c, alike from 2.31 to 2.43).
//!
//! glibc first empties the fastbins and merges their chunks with free neighbours and the top. Then it returns
//! the whole pages of each free chunk behind the chunk's own structure, and lowers the break by the free
//! memory at the top of the main arena. Thread caches and the tops of other arenas stay as they are.

use std::ops::Range;

use image::elf::Module;
use image::{Image, Memory, Unreadable};
use linux::{Address, Backing};

use crate::glibc::layout::{MALLOC_CHUNK, MINSIZE};
use crate::{Block, BlockState, HeapMap};

/// The program break, as malloc_trim(0) would find it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Break {
    /// Its address. If it is not the end of the top, malloc_trim leaves the top alone.
    pub(crate) at: Option<Address>,
    /// The unit by which it is lowered.
    pub(crate) unit: u64,
}

/// The whole pages that malloc_trim(0) would return, ascending.
pub(crate) fn trimmable(heap: &HeapMap, break_: Break, page_size: u64) -> Vec<Range<Address>> {
    let mut trimmable = Vec::new();
    for extent in &heap.extents {
        let Some(arena) = extent.arena.and_then(|index| heap.arenas.get(index as usize)) else {
            continue;
        };
        let break_ = arena.is_main.then_some(break_);
        let chunks = heap.blocks_of(extent).map(|(_, chunk)| chunk);
        trim_extent(chunks, break_, page_size, &mut trimmable);
    }
    trimmable
}

/// Trims neighbouring chunks; `break_` is `None` in arenas other than the main one.
fn trim_extent(
    chunks: impl Iterator<Item = Block>,
    break_: Option<Break>,
    page_size: u64,
    trimmable: &mut Vec<Range<Address>>,
) {
    let interior = |chunk: &Range<Address>| interior(chunk, page_size);
    // The free range that the chunks before have merged into, and true if the last one was in a fastbin.
    let mut merged: Option<(Range<Address>, bool)> = None;
    for chunk in chunks {
        let is_fast = chunk.state() == BlockState::Fastbin;
        match (chunk.state(), &mut merged) {
            // Two free chunks side by side merge when one of them comes out of a fastbin.
            (BlockState::Free | BlockState::Fastbin, Some((range, last_is_fast)))
                if is_fast || *last_is_fast =>
            {
                range.end = chunk.end();
                *last_is_fast = is_fast;
            }
            (BlockState::Free | BlockState::Fastbin, _) => {
                trimmable.extend(merged.take().and_then(|(range, _)| interior(&range)));
                merged = Some((chunk.address..chunk.end(), is_fast));
            }
            (BlockState::Top, Some((range, true))) => {
                let top = range.start..chunk.end();
                merged = None;
                trimmable.extend(break_.and_then(|break_| lowered(&top, break_)));
            }
            (BlockState::Top, _) => {
                trimmable.extend(merged.take().and_then(|(range, _)| interior(&range)));
                let top = chunk.address..chunk.end();
                trimmable.extend(break_.and_then(|break_| lowered(&top, break_)));
            }
            _ => trimmable.extend(merged.take().and_then(|(range, _)| interior(&range))),
        }
    }
    trimmable.extend(merged.and_then(|(range, _)| interior(&range)));
}

/// The whole pages of a free chunk that hold nothing of its structure.
fn interior(chunk: &Range<Address>, page_size: u64) -> Option<Range<Address>> {
    let start = chunk.start.offset(MALLOC_CHUNK).align_up(page_size);
    let end = chunk.end.align_down(page_size);
    (start < end).then_some(start..end)
}

/// The range by which the break would be lowered; some of the top must remain.
fn lowered(top: &Range<Address>, break_: Break) -> Option<Range<Address>> {
    let spare = (top.end - top.start).checked_sub(MINSIZE + 1)?;
    let bytes = spare / break_.unit * break_.unit;
    (bytes > 0 && break_.at == Some(top.end)).then(|| top.end.before(bytes)..top.end)
}

/// The program break as the C library knows it: `__curbrk`, which it exports for sbrk. If that symbol is
/// missing, the end of the kernel's heap mapping.
pub(crate) fn find_break(image: &Image<'_>, glibc: &Module) -> Result<Option<Address>, Unreadable> {
    if let Some(symbol) = glibc.symbol(image, "__curbrk")? {
        return image.read_address(symbol.address).map(Some);
    }
    let heaps = image.state.mappings.iter();
    let heaps = heaps.filter(|mapping| mapping.backing == Backing::Heap);
    Ok(heaps.map(|mapping| mapping.range.end).max())
}
