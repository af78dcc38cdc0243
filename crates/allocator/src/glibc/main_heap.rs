//! The memory of the main arena: what it got by brk(2), and where brk failed, by mmap(2).
//!
//! As long as brk gives it memory right behind what it has, it is one stretch, from `sbrk_base` to
//! the end of its top. Where somebody else called sbrk in between, the stretch ends in fenceposts
//! and a new one begins behind the stranger's bytes, at a multiple of 16 that nothing points to.
//! Where brk failed, a new stretch begins with a mapping, and from then on the arena is marked as
//! not contiguous. So such stretches are looked for: a beginning is what leads, from chunk to
//! chunk, to fenceposts or to the top.

use std::ops::Range;

use capture::{Address, Backing, Image, Memory, PAGE_SIZE, Window, length};

use crate::glibc::find::{MainStart, Parameters};
use crate::glibc::ground::{is_malloc_like, mmapped_memory, touched_pages};
use crate::glibc::layout::{HEADER, LEAST_CHUNK, PREVIOUS_IN_USE};
use crate::glibc::piece::{Piece, bytes_of};
use crate::glibc::state::State;
use crate::glibc::stretch::{Bounds, Broken, Kind, Stretch, walk_stretch, walk_trial};

/// All the steps that trials of what is no stretch may take together. Strangers' bytes rarely look
/// like a chunk for even one step; hostile ones cannot keep us busy.
const MOST_TRIAL_STEPS: u64 = 1 << 18;

/// Where its memory begins, by its own figures.
pub(crate) fn start(memory: &dyn Memory, state: &State) -> MainStart {
    if state.is_empty() {
        return MainStart::Nowhere;
    }
    match top_end(memory, state) {
        Some(end) if state.contiguous => MainStart::At(end.before(state.system_bytes)),
        _ => MainStart::Unknown,
    }
}

fn top_end(memory: &dyn Memory, state: &State) -> Option<Address> {
    let size = memory.read_u64(state.top.offset(8)).ok()?;
    Some(state.top.offset(size & !7))
}

/// Finds and walks the memory of the main arena. `pieces` receives what was found, also where the
/// rest turns out to be broken.
pub(crate) fn walk(
    image: &Image<'_>,
    window: &mut Window<'_>,
    state: &State,
    parameters: Option<&Parameters>,
    pieces: &mut Vec<Piece>,
) -> Result<(), Broken> {
    let own_start = start(image, state);
    let start = match (own_start, parameters) {
        (MainStart::Nowhere, _) if state.system_bytes == 0 => return Ok(()),
        (_, Some(parameters)) => parameters.sbrk_base,
        (MainStart::At(start), None) => start,
        _ => return Err(Broken::new(state.address, "where its memory begins is unknown")),
    };
    let mut search = Search { image, window, state, start, steps_left: MOST_TRIAL_STEPS, pieces };
    search.walk_break(own_start)?;
    let is_whole = search.found_top() && search.adds_up();
    if !state.contiguous && !is_whole {
        search.find_mmapped();
    }
    if !search.found_top() {
        return Err(Broken::new(state.top, "its chunks do not lead to its top"));
    }
    if !search.adds_up() {
        let bytes = bytes_of(pieces);
        let what = format!("its chunks have {bytes} bytes where it counts {}", state.system_bytes);
        return Err(Broken::new(state.address, what));
    }
    Ok(())
}

struct Search<'s, 'w, 'm> {
    image: &'s Image<'m>,
    window: &'s mut Window<'w>,
    state: &'s State,
    start: Address,
    steps_left: u64,
    pieces: &'s mut Vec<Piece>,
}

impl Search<'_, '_, '_> {
    /// Walks the memory that begins where the arena does, and what brk gave it further on.
    fn walk_break(&mut self, own_start: MainStart) -> Result<(), Broken> {
        let is_break = self.is_break(self.start);
        let memory = self.image.state.mappings.contiguous(self.start, |mapping| {
            is_malloc_like(mapping) && is_break == (mapping.backing == Backing::Heap)
        });
        let first = self.start.align_up(HEADER);
        let walked = match own_start {
            MainStart::At(start) if start != self.start => {
                Err(Broken::new(self.state.top, "its top does not end where it counts"))
            }
            _ => walk_stretch(self.window, self.bounds(first, memory.end)),
        };
        match walked {
            Ok(stretch) => self.push(first, stretch),
            Err(broken) => {
                if first < memory.end {
                    let range = first..memory.end;
                    self.pieces.push(Piece { range, stretch: Stretch::default() });
                }
                return Err(broken);
            }
        }
        if is_break {
            self.find_behind_strangers(memory.end);
        }
        Ok(())
    }

    /// Finds the stretches behind bytes that somebody else got by sbrk.
    fn find_behind_strangers(&mut self, limit: Address) {
        while !self.found_top() {
            let Some(last) = self.pieces.last() else { return };
            let from = last.range.end;
            let rest = from.align_down(PAGE_SIZE)..limit;
            let pages = touched_pages(self.image, &rest);
            let places = pages.flat_map(|page| {
                (0..PAGE_SIZE / HEADER).map(move |index| page.offset(index * HEADER))
            });
            let found = places
                .filter(|&place| place >= from)
                .find_map(|place| Some((place, self.try_at(place, limit)?)));
            let Some((place, stretch)) = found else { return };
            self.push(place, stretch);
        }
    }

    /// Finds the stretches that the arena got by mmap, until all that it counts is found.
    fn find_mmapped(&mut self) {
        for memory in mmapped_memory(self.image) {
            let mut from = memory.start;
            for page in touched_pages(self.image, &memory) {
                if let Some(known) = self.pieces.iter().find(|piece| piece.range.contains(&page)) {
                    from = known.range.end;
                }
                // Nothing is before its first chunk, so nothing ever wrote the size of that. Few
                // pages begin with a zero, so no more than that is read of most.
                if page < from || self.image.read_u64(page) != Ok(0) {
                    continue;
                }
                let Some(stretch) = self.try_at(page, memory.end) else { continue };
                self.push(page, stretch);
                if self.found_top() && self.adds_up() {
                    return;
                }
            }
        }
    }

    /// The stretch that begins at `first`, if one does.
    fn try_at(&mut self, first: Address, limit: Address) -> Option<Stretch> {
        let size = self.window.word(first.offset(8)).ok()?;
        let bytes = size & !7;
        let could_begin = size & 7 == PREVIOUS_IN_USE
            && bytes.is_multiple_of(16)
            && (LEAST_CHUNK..=limit - first).contains(&bytes);
        if !could_begin {
            return None;
        }
        let mut steps_left = self.steps_left;
        let bounds = self.bounds(first, limit);
        let walked = walk_trial(self.window, bounds, &mut steps_left);
        if walked.is_err() {
            self.steps_left = steps_left;
        }
        walked.ok()
    }

    fn bounds(&self, first: Address, limit: Address) -> Bounds {
        Bounds { first, limit, top: self.state.top, kind: Kind::Main }
    }

    fn push(&mut self, first: Address, stretch: Stretch) {
        let range = first..stretch.end().unwrap_or(first);
        self.pieces.push(Piece { range, stretch });
    }

    fn found_top(&self) -> bool {
        self.pieces.iter().any(|piece| piece.stretch.ends_in_top())
    }

    /// Whether the stretches found have as many bytes as the arena counts. It counts strangers'
    /// bytes between those of brk, but only those that came while it was contiguous.
    fn adds_up(&self) -> bool {
        let mut ranges: Vec<&Range<Address>> =
            self.pieces.iter().map(|piece| &piece.range).collect();
        ranges.sort_by_key(|range| range.start);
        let skipped = self.start.align_up(HEADER) - self.start;
        let own = bytes_of(self.pieces) + skipped;
        let gaps = ranges.windows(2).filter_map(|pair| {
            let gap = pair[0].end..pair[1].start;
            (self.is_break(gap.start) && self.is_break(gap.end)).then(|| length(&gap))
        });
        let sums = gaps.scan(own, |sum, gap| {
            *sum = sum.saturating_add(gap);
            Some(*sum)
        });
        std::iter::once(own).chain(sums).any(|sum| sum == self.state.system_bytes)
    }

    /// Whether brk gave the memory at `at`, by the name that the kernel has for it.
    fn is_break(&self, at: Address) -> bool {
        let mapping = self.image.state.mappings.find(at);
        mapping.is_some_and(|mapping| mapping.backing == Backing::Heap)
    }
}
