//! One arena: its `malloc_state`, its memory, and whether the two agree.

use std::ops::Range;

use target::{Address, Finding, Image, Memory, Severity, Window, length};

use crate::find::{Parameters, Ring};
use crate::layout::{BINS, FASTBINS, HEADER, NONCONTIGUOUS, StateLayout};
use crate::stretch::{Broken, Stretch};
use crate::{Arena, Chunk, bins, fastbins, heaps, main_heap};

/// Bytes read at once while walking headers: few enough to stay in a processor's own cache.
const WINDOW: usize = 64 << 10;

/// What an arena's `malloc_state` says.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) address: Address,
    pub(crate) is_main: bool,
    pub(crate) locked: bool,
    /// Whether all its memory came from brk so far.
    pub(crate) contiguous: bool,
    pub(crate) top: Address,
    pub(crate) system_bytes: u64,
    /// The heads of its fastbins.
    pub(crate) fastbins: Vec<Address>,
    /// Where its first bin is.
    pub(crate) bins: Address,
    /// fd and bk of its bins.
    pub(crate) bin_links: Vec<(Address, Address)>,
    /// The address behind it, from where its first heap's chunks begin.
    pub(crate) end: Address,
}

impl State {
    pub(crate) fn read(
        memory: &dyn Memory,
        address: Address,
        is_main: bool,
        layout: &StateLayout,
    ) -> Result<Self, Broken> {
        let at = |offset: u64| address.offset(offset);
        let bins = at(layout.bins);
        let mut links = vec![0; BINS as usize * 16];
        memory.read_exact(bins, &mut links)?;
        let links = links.as_chunks::<8>().0.as_chunks::<2>().0.iter();
        let link = |bytes: [u8; 8]| Address(u64::from_le_bytes(bytes));
        let fastbins = match layout.fastbins {
            None => Vec::new(),
            Some(offset) => (0..FASTBINS)
                .map(|index| memory.read_address(at(offset + 8 * index)))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            address,
            is_main,
            locked: memory.read_u32(at(layout.mutex))? != 0,
            contiguous: memory.read_u32(at(layout.flags))? & NONCONTIGUOUS == 0,
            top: memory.read_address(at(layout.top))?,
            system_bytes: memory.read_u64(at(layout.system_mem))?,
            fastbins,
            bins,
            bin_links: links.map(|&[forward, backward]| (link(forward), link(backward))).collect(),
            end: at(layout.bytes),
        })
    }

    /// The address by which chunks name the bin with this index: that of a chunk whose links the
    /// bin would be.
    pub(crate) fn bin_address(&self, index: usize) -> Address {
        self.bins.offset(16 * index as u64).before(HEADER)
    }

    /// Whether it has never obtained memory: then its first bin stands in for its top.
    pub(crate) fn is_empty(&self) -> bool {
        self.top == self.bin_address(0)
    }
}

/// A stretch of an arena's memory with the chunks in it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// From its first structure to the end of its last chunk.
    pub(crate) range: Range<Address>,
    pub(crate) stretch: Stretch,
}

/// An arena as far as it could be walked.
#[derive(Debug, Clone)]
pub(crate) struct Walked {
    pub(crate) arena: Arena,
    /// Its memory, ascending; without chunks where the arena could not be walked.
    pub(crate) pieces: Vec<Piece>,
    /// Why it could not be walked.
    pub(crate) finding: Option<Finding>,
}

/// Walks the arena with this index in the ring.
pub(crate) fn walk_arena(
    image: &Image<'_>,
    ring: &Ring,
    index: usize,
    parameters: Option<&Parameters>,
) -> Walked {
    let address = ring.arenas[index];
    let mut arena = Arena { address, is_main: index == 0, ..Arena::default() };
    let mut pieces = Vec::new();
    let walked = State::read(image, address, arena.is_main, &ring.state).and_then(|state| {
        arena.locked = state.locked;
        arena.system_bytes = state.system_bytes;
        walk_pieces(image, ring, &state, parameters, &mut pieces)
    });
    arena.heaps = pieces.len() as u32;
    arena.walked = walked.is_ok();
    if walked.is_err() {
        pieces.iter_mut().for_each(|piece| piece.stretch.chunks = Vec::new());
    }
    let finding = walked.err().map(|broken| explain(&arena, &broken));
    Walked { arena, pieces, finding }
}

fn walk_pieces(
    image: &Image<'_>,
    ring: &Ring,
    state: &State,
    parameters: Option<&Parameters>,
    pieces: &mut Vec<Piece>,
) -> Result<(), Broken> {
    let mut window = Window::new(image, WINDOW);
    let walked = if state.is_main {
        main_heap::walk(image, &mut window, state, parameters, pieces)
    } else {
        heaps::walk(image, &mut window, ring, state, pieces)
    };
    pieces.sort_by_key(|piece| piece.range.start);
    let checked = walked.and_then(|()| bins::check(state, pieces));
    pieces.iter_mut().for_each(|piece| piece.stretch.free = Vec::new());
    checked.and_then(|()| fastbins::mark(image, state, pieces))
}

fn explain(arena: &Arena, broken: &Broken) -> Finding {
    let name = if arena.is_main { "the main arena" } else { "an arena" };
    let cause = if broken.is_unreadable {
        "a part of it is swapped out or gone"
    } else if arena.locked {
        "a thread was stopped while it changed it"
    } else {
        "its heap is damaged, or a thread was stopped while it changed it"
    };
    let what =
        format!("{name} ({}) could not be walked, for {cause}: {}", arena.address, broken.what);
    Finding::at(Severity::Warning, broken.at, what)
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
