//! An arena's fastbins: lists of small chunks of one size each, which their neighbours take to be
//! in use.

use capture::Memory;

use crate::glibc::ChunkState;
use crate::glibc::layout::{FORWARD, HEADER, LEAST_CHUNK};
use crate::glibc::lists;
use crate::glibc::piece::{Piece, find_chunk};
use crate::glibc::state::State;
use crate::glibc::stretch::Broken;

/// Marks the chunks of an arena that are in its fastbins.
pub(crate) fn mark(memory: &dyn Memory, state: &State, pieces: &mut [Piece]) -> Result<(), Broken> {
    for (index, &head) in state.fastbins.iter().enumerate() {
        let bytes = LEAST_CHUNK + HEADER * index as u64;
        let members = lists::walk(memory, head, FORWARD, |at| {
            find_chunk(pieces, at).is_some_and(|(piece, chunk)| {
                let chunk = pieces[piece].stretch.chunks[chunk];
                chunk.state() == ChunkState::InUse && chunk.bytes() == bytes
            })
        })?;
        for at in members {
            let Some((piece, chunk)) = find_chunk(pieces, at) else { continue };
            let chunk = &mut pieces[piece].stretch.chunks[chunk];
            *chunk = chunk.in_state(ChunkState::Fastbin);
        }
    }
    Ok(())
}
