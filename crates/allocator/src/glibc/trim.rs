//! What malloc_trim(0) would give back now, computed as glibc computes it (`mtrim` and `systrim`
//! in malloc/malloc.c, alike from 2.31 to 2.43).
//!
//! It first empties the fastbins, merging their chunks with free neighbours and with the top. Then
//! of each free chunk it gives back the whole pages behind the chunk's own structure, and lowers
//! the break by what is free at the top of the main arena. It leaves threads' caches alone, and
//! the tops of the other arenas.

use std::ops::Range;

use capture::{Address, PAGE_SIZE};

use crate::glibc::layout::{CHUNK_STRUCTURE, LEAST_CHUNK};
use crate::glibc::{Chunk, ChunkState, Malloc};

/// The break, as malloc_trim(0) would find it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Break {
    /// The program break; where it is not the end of the top, the top is left alone.
    pub(crate) at: Option<Address>,
    /// The unit by which it is lowered.
    pub(crate) unit: u64,
}

/// The whole pages that malloc_trim(0) would give back, ascending.
pub(crate) fn trimmable(malloc: &Malloc, break_: Break) -> Vec<Range<Address>> {
    let mut trimmable = Vec::new();
    for region in &malloc.regions {
        let Some(arena) = region.arena.and_then(|index| malloc.arenas.get(index as usize)) else {
            continue;
        };
        let break_ = arena.is_main.then_some(break_);
        trim_region(&malloc.chunks[region.chunks.clone()], break_, &mut trimmable);
    }
    trimmable
}

/// Trims neighbouring chunks; `break_` is `None` but in the main arena.
fn trim_region(chunks: &[Chunk], break_: Option<Break>, trimmable: &mut Vec<Range<Address>>) {
    // What the chunks before have merged into, and whether the last of them was in a fastbin.
    let mut merged: Option<(Range<Address>, bool)> = None;
    for chunk in chunks {
        let is_fast = chunk.state() == ChunkState::Fastbin;
        match (chunk.state(), &mut merged) {
            // Two free chunks side by side merge when one of them comes out of a fastbin.
            (ChunkState::Free | ChunkState::Fastbin, Some((range, last_is_fast)))
                if is_fast || *last_is_fast =>
            {
                range.end = chunk.end();
                *last_is_fast = is_fast;
            }
            (ChunkState::Free | ChunkState::Fastbin, _) => {
                trimmable.extend(merged.take().and_then(|(range, _)| interior(&range)));
                merged = Some((chunk.address..chunk.end(), is_fast));
            }
            (ChunkState::Top, Some((range, true))) => {
                let top = range.start..chunk.end();
                merged = None;
                trimmable.extend(break_.and_then(|break_| lowered(&top, break_)));
            }
            (ChunkState::Top, _) => {
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
fn interior(chunk: &Range<Address>) -> Option<Range<Address>> {
    let start = chunk.start.offset(CHUNK_STRUCTURE).align_up(PAGE_SIZE);
    let end = chunk.end.align_down(PAGE_SIZE);
    (start < end).then_some(start..end)
}

/// By what the break would be lowered; some of the top must remain.
fn lowered(top: &Range<Address>, break_: Break) -> Option<Range<Address>> {
    let spare = (top.end - top.start).checked_sub(LEAST_CHUNK + 1)?;
    let bytes = spare / break_.unit * break_.unit;
    (bytes > 0 && break_.at == Some(top.end)).then(|| top.end.before(bytes)..top.end)
}
