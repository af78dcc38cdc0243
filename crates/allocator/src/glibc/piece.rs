use std::ops::Range;

use capture::{Address, length};

use crate::glibc::Chunk;
use crate::glibc::stretch::Stretch;

/// A stretch of an arena's memory with the chunks in it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// From its first structure to the end of its last chunk.
    pub(crate) range: Range<Address>,
    pub(crate) stretch: Stretch,
}

/// The chunk that begins at `at`: which of `pieces`, and which of its chunks.
pub(crate) fn find_chunk(pieces: &[Piece], at: Address) -> Option<(usize, usize)> {
    let piece = pieces.partition_point(|piece| piece.range.start <= at).checked_sub(1)?;
    let chunks: &[Chunk] = &pieces[piece].stretch.chunks;
    let index = chunks.binary_search_by_key(&at, |chunk| chunk.address).ok()?;
    Some((piece, index))
}

/// The bytes of all `pieces`.
pub(crate) fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| length(&piece.range)).sum()
}
