use image::{Image, Window};
use linux::length;

use crate::glibc::arena_list::ArenaList;
use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::main_heap::Foreign;
use crate::glibc::parameters::Parameters;
use crate::glibc::segment::Segment;
use crate::glibc::state::State;
use crate::glibc::{bins, fastbins, heaps, main_heap};
use crate::{Arena, ArenaProblem, Finding};

/// Bytes read at once while walking headers: few enough to stay in a processor's own cache.
const WINDOW: usize = 64 << 10;

/// An arena as far as it could be walked.
#[derive(Debug, Clone)]
pub(crate) struct Walked {
    pub(crate) arena: Arena,
    /// Its memory, ascending; without chunks if the arena could not be walked.
    pub(crate) segments: Vec<Segment>,
    /// The reason why it could not be walked, or foreign memory between its segments.
    pub(crate) finding: Option<Finding>,
}

/// Walks the arena with this index in the list.
pub(crate) fn walk_arena(
    image: &Image<'_>,
    list: &ArenaList,
    index: usize,
    parameters: Option<&Parameters>,
) -> Walked {
    let address = list.arenas[index];
    let mut arena = Arena { address, is_main: index == 0, ..Arena::default() };
    let mut segments = Vec::new();
    let walked = State::read(image, address, arena.is_main, &list.state).and_then(|state| {
        arena.locked = state.locked;
        arena.system_bytes = state.system_bytes;
        walk_segments(image, list, &state, parameters, &mut segments)
    });
    arena.heaps = segments.len() as u32;
    arena.walked = walked.is_ok();
    if walked.is_err() {
        // Its own count may be damaged, and sums of such counts could overflow.
        let mapped = image.state.mappings.iter().map(|mapping| length(&mapping.range)).sum();
        arena.system_bytes = arena.system_bytes.min(mapped);
        segments.iter_mut().for_each(|it| *it = Segment::unwalked(it.range.clone()));
    }
    let finding = match walked {
        Ok(foreign) => foreign.map(|it| Finding::ForeignMemory { at: it.first, bytes: it.bytes }),
        Err(problem) => Some(explain(&arena, problem)),
    };
    Walked { arena, segments, finding }
}

/// Walks the memory of an arena and compares it with the arena's own lists and counts.
fn walk_segments(
    image: &Image<'_>,
    list: &ArenaList,
    state: &State,
    parameters: Option<&Parameters>,
    segments: &mut Vec<Segment>,
) -> Result<Option<Foreign>, Inconsistency> {
    let mut window = Window::new(image, WINDOW);
    let walked = if state.is_main {
        main_heap::walk(image, &mut window, state, parameters, segments)
    } else {
        heaps::walk(image, &mut window, list, state, segments).map(|()| None)
    };
    segments.sort_by_key(|segment| segment.range.start);
    let foreign = walked?;
    bins::check(state, segments)?;
    segments.iter_mut().for_each(|segment| segment.free = Vec::new());
    fastbins::mark(image, state, segments)?;
    Ok(foreign)
}

fn explain(arena: &Arena, problem: Inconsistency) -> Finding {
    let cause = if problem.is_unreadable {
        ArenaProblem::Unreadable
    } else if arena.locked {
        ArenaProblem::Changing
    } else {
        ArenaProblem::Inconsistent
    };
    Finding::ArenaUnread {
        arena: arena.address,
        is_main: arena.is_main,
        at: problem.at,
        cause,
        error: problem.message,
    }
}
