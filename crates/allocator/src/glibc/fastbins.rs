//! The fastbins of an arena: singly linked lists of small chunks. Each list holds chunks of one size.
//! Neighbouring chunks treat the members as in use.

use image::Memory;

use crate::BlockState;
use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::{FD, HEADER, MINSIZE};
use crate::glibc::lists;
use crate::glibc::segment::{Segment, find_chunk};
use crate::glibc::state::State;

/// Marks the chunks of an arena that are in its fastbins.
pub(crate) fn mark(
    memory: &dyn Memory,
    state: &State,
    segments: &mut [Segment],
) -> Result<(), Inconsistency> {
    for (index, &head) in state.fastbins.iter().enumerate() {
        let bytes = MINSIZE + HEADER * index as u64;
        let members = lists::walk(memory, head, FD, |at| {
            let chunk = find_chunk(segments, at);
            let chunk = chunk.and_then(|(segment, chunk)| segments[segment].chunks.get(chunk));
            chunk.is_some_and(|it| it.state() == BlockState::InUse && it.bytes() == bytes)
        })?;
        for at in members {
            let Some((segment, chunk)) = find_chunk(segments, at) else { continue };
            segments[segment].chunks.set_state(chunk, BlockState::Fastbin);
        }
    }
    Ok(())
}
