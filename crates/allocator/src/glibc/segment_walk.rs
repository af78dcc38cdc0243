//! Walks the chunks of a segment from header to header. Each header has the size of its chunk, and a flag that is set
//! if the chunk before it is in use.

use image::{Unreadable, Window};
use linux::{Address, MIN_PAGE_SIZE};

use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::{HEADER, IS_MMAPPED, MINSIZE, NON_MAIN_ARENA, PREV_INUSE};
use crate::glibc::segment::{Links, Segment};
use crate::{Block, BlockState};

/// The kind of arena that a segment belongs to, which decides how the segment may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The main arena. Its last segment ends in the top, somewhere within the limit; the others end in two or
    /// three fenceposts, at the end of a page.
    Main,
    /// Another arena, whose segments are heaps that end exactly at the limit: the last one in the top, the others
    /// in a fencepost and a header of size 0.
    Heap,
}

/// The bounds of a walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The first chunk.
    pub(crate) first: Address,
    /// The end of the memory.
    pub(crate) limit: Address,
    /// The top of the arena, wherever it is.
    pub(crate) top: Address,
    pub(crate) kind: Kind,
}

/// The header of a chunk and the two words behind it, which are its links if it is free.
#[derive(Clone, Copy)]
struct Header {
    previous_bytes: u64,
    bytes: u64,
    flags: u64,
    fd: Address,
    bk: Address,
}

impl Header {
    fn read(window: &mut Window<'_>, at: Address) -> Result<Self, Inconsistency> {
        let mut words = [0; 4];
        // The memory behind the last fencepost of a segment may be unreadable.
        if read_words(window, at, &mut words).is_err() {
            read_words(window, at, &mut words[..2])?;
        }
        let [previous_bytes, size, fd, bk] = words;
        Ok(Self {
            previous_bytes,
            bytes: size & !7,
            flags: size & 7,
            fd: Address(fd),
            bk: Address(bk),
        })
    }
}

fn read_words(window: &mut Window<'_>, at: Address, words: &mut [u64]) -> Result<(), Unreadable> {
    let bytes = window.bytes(at, words.len() * 8)?;
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(())
}

struct Walk<'w, 'm> {
    window: &'w mut Window<'m>,
    bounds: Bounds,
    segment: Segment,
    /// fd and bk of the last chunk. The next header shows if it is free.
    last_links: (Address, Address),
}

/// Walks a segment to its end. Each step moves on by at least a header, so there is an end.
pub(crate) fn walk_segment(
    window: &mut Window<'_>,
    bounds: Bounds,
) -> Result<Segment, Inconsistency> {
    let mut steps_left = u64::MAX;
    walk_trial(window, bounds, &mut steps_left)
}

/// Walks memory that may be no segment at all, in at most `steps_left` steps, and lowers them by the steps that
/// it took.
pub(crate) fn walk_trial(
    window: &mut Window<'_>,
    bounds: Bounds,
    steps_left: &mut u64,
) -> Result<Segment, Inconsistency> {
    let nowhere = (Address(0), Address(0));
    let segment = Segment::unwalked(bounds.first..bounds.first);
    let mut walk = Walk { window, bounds, segment, last_links: nowhere };
    let mut at = bounds.first;
    while *steps_left > 0 {
        *steps_left -= 1;
        match walk.step(at)? {
            Some(next) => at = next,
            None => {
                let mut segment = walk.segment;
                segment.range.end = segment.chunks.last().map_or(bounds.first, |last| last.end());
                return Ok(segment);
            }
        }
    }
    Err(Inconsistency::new(at, "there are too many chunks"))
}

impl Walk<'_, '_> {
    /// Adds the chunk at `at`, and returns the address of the next one if there is one.
    fn step(&mut self, at: Address) -> Result<Option<Address>, Inconsistency> {
        let Bounds { limit, top, kind, .. } = self.bounds;
        let left = limit - at;
        if left < HEADER {
            return Err(Inconsistency::new(at, "the chunks pass the end of their memory"));
        }
        let header = Header::read(self.window, at)?;
        self.settle_previous(at, &header)?;
        if at == top {
            return self.end_in_top(at, &header).map(|()| None);
        }
        if header.bytes == 0 && kind == Kind::Heap {
            return self.end_in_fencepost(at).map(|()| None);
        }
        if header.bytes > left || header.flags & IS_MMAPPED != 0 || !header.bytes.is_multiple_of(16)
        {
            return Err(Inconsistency::new(
                at,
                format!("a chunk claims {:#x} bytes", header.bytes),
            ));
        }
        if header.bytes == HEADER {
            self.push(at, &header, BlockState::Overhead);
            return Ok((!self.fenceposts_end_here(at)).then(|| at.offset(HEADER)));
        }
        if header.bytes < MINSIZE {
            return Err(Inconsistency::new(at, "a chunk is too small"));
        }
        if kind == Kind::Main && header.flags & NON_MAIN_ARENA != 0 {
            return Err(Inconsistency::new(
                at,
                "a chunk of the main arena says that it belongs to another",
            ));
        }
        self.push(at, &header, BlockState::InUse);
        Ok(Some(at.offset(header.bytes)))
    }

    /// Marks the chunk before `at` as free if the header at `at` does.
    fn settle_previous(&mut self, at: Address, header: &Header) -> Result<(), Inconsistency> {
        if header.flags & PREV_INUSE != 0 {
            return Ok(());
        }
        let is_free = |chunk: &Block| {
            chunk.state() == BlockState::InUse && chunk.bytes() == header.previous_bytes
        };
        let Some(chunk) = self.segment.chunks.last().filter(is_free) else {
            return Err(Inconsistency::new(at, "the sizes on both sides of a chunk's end differ"));
        };
        self.segment.chunks.set_last_state(BlockState::Free);
        let (fd, bk) = self.last_links;
        self.segment.free.push(Links { chunk: chunk.address, fd, bk });
        Ok(())
    }

    fn push(&mut self, at: Address, header: &Header, state: BlockState) {
        self.segment.chunks.push(Block::new(at, header.bytes, state));
        self.last_links = (header.fd, header.bk);
    }

    fn end_in_top(&mut self, at: Address, header: &Header) -> Result<(), Inconsistency> {
        let end = at.offset(header.bytes);
        let fits = header.bytes >= HEADER
            && header.bytes.is_multiple_of(16)
            && header.bytes <= self.bounds.limit - at
            && match self.bounds.kind {
                Kind::Main => end.is_aligned(MIN_PAGE_SIZE),
                Kind::Heap => end == self.bounds.limit,
            };
        if !fits {
            let what = format!("the top of {:#x} bytes does not fit its memory", header.bytes);
            return Err(Inconsistency::new(at, what));
        }
        self.push(at, header, BlockState::Top);
        Ok(())
    }

    /// Ends a heap that is no longer its arena's last one. If its top was too small to be a free chunk, it became
    /// one fencepost of 32 bytes.
    fn end_in_fencepost(&mut self, at: Address) -> Result<(), Inconsistency> {
        let last = self.segment.chunks.last();
        let Some(last) = last.filter(|_| at.offset(HEADER) == self.bounds.limit) else {
            return Err(Inconsistency::new(at, "a heap ends before its end"));
        };
        match (last.state(), last.bytes()) {
            (BlockState::Overhead, _) => {}
            (BlockState::InUse, MINSIZE) => {
                self.segment.chunks.set_last_state(BlockState::Overhead);
            }
            _ => return Err(Inconsistency::new(at, "a heap ends without a fencepost")),
        }
        self.segment.chunks.push(Block::new(at, HEADER, BlockState::Overhead));
        Ok(())
    }

    /// Returns true if the fencepost at `at`, just pushed, is the last one of a segment of the main arena.
    fn fenceposts_end_here(&self, at: Address) -> bool {
        let mut last = self.segment.chunks.iter().rev();
        let two = last.by_ref().take(2).filter(|chunk| chunk.state() == BlockState::Overhead);
        self.bounds.kind == Kind::Main
            && two.count() == 2
            && at.offset(HEADER).is_aligned(MIN_PAGE_SIZE)
    }
}
