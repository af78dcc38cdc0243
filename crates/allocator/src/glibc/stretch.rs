//! Walking the chunks of one stretch of memory: from header to header, each of which says how
//! long its chunk is and whether the one before it is in use.

use capture::{Address, PAGE_SIZE, Unreadable, Window};

use crate::glibc::layout::{HEADER, IS_MMAPPED, LEAST_CHUNK, NON_MAIN_ARENA, PREVIOUS_IN_USE};
use crate::glibc::{Chunk, ChunkState};

/// Something in an arena that contradicts itself or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Where.
    pub(crate) at: Address,
    /// What, as a clause without a full stop.
    pub(crate) what: String,
    /// Whether it is only that something cannot be read.
    pub(crate) is_unreadable: bool,
}

impl Broken {
    pub(crate) fn new(at: Address, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), is_unreadable: false }
    }
}

impl From<Unreadable> for Broken {
    fn from(error: Unreadable) -> Self {
        Self { is_unreadable: true, ..Self::new(error.at, error.to_string()) }
    }
}

/// The links of a free chunk, read while its header was at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Links {
    /// The chunk.
    pub(crate) chunk: Address,
    /// Its fd.
    pub(crate) forward: Address,
    /// Its bk.
    pub(crate) backward: Address,
}

/// The chunks of one stretch, ascending and without gaps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretch {
    /// All chunks; those in fastbins and tcaches still count as in use.
    pub(crate) chunks: Vec<Chunk>,
    /// The links of the free ones, ascending.
    pub(crate) free: Vec<Links>,
}

impl Stretch {
    /// The address behind its last chunk.
    pub(crate) fn end(&self) -> Option<Address> {
        self.chunks.last().map(|chunk| chunk.end())
    }

    /// Whether the top of its arena ends it.
    pub(crate) fn ends_in_top(&self) -> bool {
        self.chunks.last().is_some_and(|chunk| chunk.state() == ChunkState::Top)
    }
}

/// What a stretch is part of, which decides how it may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The main arena. Its last stretch ends in the top, somewhere within the limit; the others in
    /// two or three fenceposts that end with a page.
    Main,
    /// A heap, which ends exactly at the limit: the arena's last one in the top, the others in a
    /// fencepost and a header of size 0.
    Heap,
}

/// Where a walk begins and how far it may go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The first chunk.
    pub(crate) first: Address,
    /// The end of the memory.
    pub(crate) limit: Address,
    /// The top of the arena, wherever it is.
    pub(crate) top: Address,
    /// What the stretch is part of.
    pub(crate) kind: Kind,
}

/// A chunk's header and the two words behind it, which are its links if it is free.
#[derive(Clone, Copy)]
struct Header {
    previous_bytes: u64,
    bytes: u64,
    flags: u64,
    forward: Address,
    backward: Address,
}

impl Header {
    fn read(window: &mut Window<'_>, at: Address) -> Result<Self, Broken> {
        let mut words = [0; 4];
        // Behind the last fencepost of a stretch there may be memory that cannot be read.
        if read_words(window, at, &mut words).is_err() {
            read_words(window, at, &mut words[..2])?;
        }
        let [previous_bytes, size, forward, backward] = words;
        Ok(Self {
            previous_bytes,
            bytes: size & !7,
            flags: size & 7,
            forward: Address(forward),
            backward: Address(backward),
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

/// A walk over the chunks of a stretch.
pub(crate) struct Walk<'w, 'm> {
    window: &'w mut Window<'m>,
    bounds: Bounds,
    stretch: Stretch,
    /// The links of the chunk pushed last, which turns out to be free at the next header.
    last_links: (Address, Address),
}

/// Walks a stretch to its end. It ends, for each step moves on by at least a header.
pub(crate) fn walk_stretch(window: &mut Window<'_>, bounds: Bounds) -> Result<Stretch, Broken> {
    let mut steps_left = u64::MAX;
    walk_trial(window, bounds, &mut steps_left)
}

/// Walks what may be no stretch at all, in at most `steps_left` steps, and lowers them by those
/// that it took.
pub(crate) fn walk_trial(
    window: &mut Window<'_>,
    bounds: Bounds,
    steps_left: &mut u64,
) -> Result<Stretch, Broken> {
    let nowhere = (Address(0), Address(0));
    let mut walk = Walk { window, bounds, stretch: Stretch::default(), last_links: nowhere };
    let mut at = bounds.first;
    while *steps_left > 0 {
        *steps_left -= 1;
        match walk.step(at)? {
            Some(next) => at = next,
            None => return Ok(walk.stretch),
        }
    }
    Err(Broken::new(at, "there are too many chunks"))
}

impl Walk<'_, '_> {
    /// Takes the chunk at `at` in and returns where the next one is, if there is one.
    fn step(&mut self, at: Address) -> Result<Option<Address>, Broken> {
        let Bounds { limit, top, kind, .. } = self.bounds;
        let left = limit - at;
        if left < HEADER {
            return Err(Broken::new(at, "the chunks pass the end of their memory"));
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
            return Err(Broken::new(at, format!("a chunk claims {:#x} bytes", header.bytes)));
        }
        if header.bytes == HEADER {
            self.push(at, &header, ChunkState::Fencepost);
            return Ok((!self.fenceposts_end_here(at)).then(|| at.offset(HEADER)));
        }
        if header.bytes < LEAST_CHUNK {
            return Err(Broken::new(at, "a chunk is too small"));
        }
        if kind == Kind::Main && header.flags & NON_MAIN_ARENA != 0 {
            return Err(Broken::new(at, "a chunk of the main arena says that it is of another"));
        }
        self.push(at, &header, ChunkState::InUse);
        Ok(Some(at.offset(header.bytes)))
    }

    /// Learns from the header at `at` whether the chunk before it is free.
    fn settle_previous(&mut self, at: Address, header: &Header) -> Result<(), Broken> {
        if header.flags & PREVIOUS_IN_USE != 0 {
            return Ok(());
        }
        let is_free = |chunk: &&mut Chunk| {
            chunk.state() == ChunkState::InUse && chunk.bytes() == header.previous_bytes
        };
        let Some(chunk) = self.stretch.chunks.last_mut().filter(is_free) else {
            return Err(Broken::new(at, "the sizes on both sides of a chunk's end differ"));
        };
        *chunk = chunk.in_state(ChunkState::Free);
        let (forward, backward) = self.last_links;
        self.stretch.free.push(Links { chunk: chunk.address, forward, backward });
        Ok(())
    }

    fn push(&mut self, at: Address, header: &Header, state: ChunkState) {
        self.stretch.chunks.push(Chunk::new(at, header.bytes, state));
        self.last_links = (header.forward, header.backward);
    }

    fn end_in_top(&mut self, at: Address, header: &Header) -> Result<(), Broken> {
        let end = at.offset(header.bytes);
        let fits = header.bytes >= HEADER
            && header.bytes.is_multiple_of(16)
            && header.bytes <= self.bounds.limit - at
            && match self.bounds.kind {
                Kind::Main => end.is_aligned(PAGE_SIZE),
                Kind::Heap => end == self.bounds.limit,
            };
        if !fits {
            let what = format!("the top of {:#x} bytes does not fit its memory", header.bytes);
            return Err(Broken::new(at, what));
        }
        self.push(at, header, ChunkState::Top);
        Ok(())
    }

    /// Ends a heap that is no longer its arena's last one. Where hardly anything was left of its
    /// top, that became one fencepost of 32 bytes.
    fn end_in_fencepost(&mut self, at: Address) -> Result<(), Broken> {
        let last = self.stretch.chunks.last_mut();
        let Some(last) = last.filter(|_| at.offset(HEADER) == self.bounds.limit) else {
            return Err(Broken::new(at, "a heap ends before its end"));
        };
        match (last.state(), last.bytes()) {
            (ChunkState::Fencepost, _) => {}
            (ChunkState::InUse, LEAST_CHUNK) => *last = last.in_state(ChunkState::Fencepost),
            _ => return Err(Broken::new(at, "a heap ends without a fencepost")),
        }
        self.stretch.chunks.push(Chunk::new(at, HEADER, ChunkState::Fencepost));
        Ok(())
    }

    /// Whether the fencepost at `at`, just pushed, is the last one of a stretch of the main arena.
    fn fenceposts_end_here(&self, at: Address) -> bool {
        let mut last = self.stretch.chunks.iter().rev();
        let two = last.by_ref().take(2).filter(|chunk| chunk.state() == ChunkState::Fencepost);
        self.bounds.kind == Kind::Main
            && two.count() == 2
            && at.offset(HEADER).is_aligned(PAGE_SIZE)
    }
}
