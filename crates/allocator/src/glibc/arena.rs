//! One arena: whether its `malloc_state` and its memory agree.

use capture::{Finding, Image, Severity, Window};

use crate::glibc::find::{Parameters, Ring};
use crate::glibc::piece::Piece;
use crate::glibc::state::State;
use crate::glibc::stretch::Broken;
use crate::glibc::{Arena, bins, fastbins, heaps, main_heap};

/// Bytes read at once while walking headers: few enough to stay in a processor's own cache.
const WINDOW: usize = 64 << 10;

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
