use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use image::{Image, Memory, Unreadable};
use linux::{Address, MIN_PAGE_SIZE};

use crate::candidate_mappings::{is_candidate, lies_in_memory};

/// The bytes that one system call reads: structures lie close together.
const PIECE: u64 = 32 << 10;
/// The pieces that are kept, 64 MiB of them. Beyond that, pieces are read again.
const MAX_PIECES: usize = 2048;
/// The bytes that are read at once.
const PART: u64 = 64 << 10;

/// Reads many small structures of an allocator, which lie close together but are visited in no order.
pub(crate) struct Structures<'a> {
    pub(crate) image: &'a Image<'a>,
    /// Pieces up to the first byte that cannot be read, by address.
    pieces: HashMap<Address, Vec<u8>>,
}

impl<'a> Structures<'a> {
    pub(crate) fn new(image: &'a Image<'a>) -> Self {
        Self { image, pieces: HashMap::new() }
    }

    /// The `N` bytes at `at`.
    pub(crate) fn bytes<const N: usize>(&mut self, at: Address) -> Result<[u8; N], Unreadable> {
        let start = at.align_down(PIECE);
        let within = (at - start) as usize;
        if let Some(bytes) = self.piece(start).get(within..).and_then(|rest| rest.first_chunk()) {
            return Ok(*bytes);
        }
        // It crosses the end of a piece, or lies behind memory that cannot be read.
        let mut bytes = [0; N];
        self.image.read_exact(at, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn word(&mut self, at: Address) -> Result<u64, Unreadable> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    pub(crate) fn half(&mut self, at: Address) -> Result<u32, Unreadable> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    pub(crate) fn pointer(&mut self, at: Address) -> Result<Address, Unreadable> {
        self.word(at).map(Address)
    }

    fn piece(&mut self, start: Address) -> &[u8] {
        if self.pieces.len() >= MAX_PIECES && !self.pieces.contains_key(&start) {
            self.pieces.clear();
        }
        self.pieces.entry(start).or_insert_with(|| {
            let mut piece = vec![0; PIECE as usize];
            let read = self.image.read(start, &mut piece);
            piece.truncate(read);
            piece
        })
    }

    /// Returns true if `at` may be a structure of an allocator: aligned, in memory that an allocator may have obtained.
    pub(crate) fn is_structure(&self, at: Address, alignment: u64) -> bool {
        at.is_aligned(alignment) && self.image.state.mappings.find(at).is_some_and(is_candidate)
    }

    /// Returns true if `range` may be a structure of an allocator.
    pub(crate) fn lies_in_memory(&self, range: &Range<Address>) -> bool {
        lies_in_memory(self.image, range)
    }
}

/// Visits the parts of `range` that were ever written to, with their addresses, in ascending order. Parts begin and
/// end at the bounds of pages or of the range. The first part is at most one page, which is often enough to recognize that
/// memory is not a structure.
///
/// # Errors
/// If a part cannot be read.
pub(crate) fn written_parts(
    image: &Image<'_>,
    range: &Range<Address>,
    mut visit: impl FnMut(Address, &[u8]) -> ControlFlow<()>,
) -> Result<(), Unreadable> {
    let runs: Vec<_> = match &image.state.pages {
        Some(pages) => pages.parts_in(range).collect(),
        None => vec![range.clone()],
    };
    let mut buffer = Vec::new();
    let mut bytes = MIN_PAGE_SIZE;
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let end = at.align_down(MIN_PAGE_SIZE).offset(bytes).min(run.end);
            buffer.resize(bytes as usize, 0);
            bytes = PART;
            let part = &mut buffer[..(end - at) as usize];
            image.read_exact(at, part)?;
            if visit(at, part).is_break() {
                return Ok(());
            }
            at = end;
        }
    }
    Ok(())
}
