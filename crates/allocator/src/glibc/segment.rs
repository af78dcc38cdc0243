use std::ops::Range;

use linux::{Address, length};

use crate::{BlockState, Blocks};

/// Contiguous memory of an arena with its chunks.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// From its first structure to the end of its last chunk.
    pub(crate) range: Range<Address>,
    /// Its chunks, ascending and without gaps. Chunks in fastbins and tcaches still count as in use.
    pub(crate) chunks: Blocks,
    /// The links of the free chunks, ascending.
    pub(crate) free: Vec<Links>,
}

/// The links of a free chunk, read together with its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) chunk: Address,
    pub(crate) fd: Address,
    pub(crate) bk: Address,
}

impl Segment {
    /// Memory whose chunks were not walked.
    pub(crate) fn unwalked(range: Range<Address>) -> Self {
        Self { range, chunks: Blocks::default(), free: Vec::new() }
    }

    /// Returns true if it ends in the top of its arena.
    pub(crate) fn ends_in_top(&self) -> bool {
        self.chunks.last().is_some_and(|chunk| chunk.state() == BlockState::Top)
    }
}

/// The chunk that begins at `at`: the index of its segment, and its index there.
pub(crate) fn find_chunk(segments: &[Segment], at: Address) -> Option<(usize, usize)> {
    let segment = segments.partition_point(|it| it.range.start <= at).checked_sub(1)?;
    Some((segment, segments[segment].chunks.at(at)?))
}

/// The bytes of all `segments`.
pub(crate) fn bytes_of(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| length(&segment.range)).sum()
}
