use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use capture::elf::{self, Module};
use capture::{Address, Finding, Image, PAGE_SIZE, Severity};

use crate::glibc::arena::{Walked, walk_arena};
use crate::glibc::find::{
    Data, Parameters, Ring, find_arenas, find_break, find_parameters, find_unlinked,
};
use crate::glibc::layout::Layouts;
use crate::glibc::mmapped::Mmapped;
use crate::glibc::state::State;
use crate::glibc::trim::Break;
use crate::glibc::{Chunk, Error, Malloc, Region, main_heap, mmapped, tcache, trim};
use crate::library::glibc_module;

/// More threads of ours do not make a walk faster: it is as fast as the memory.
const MOST_WORKERS: usize = 4;

/// Walks the heap of a process that uses glibc's malloc.
///
/// Whether it does, [`crate::find_allocator`] says. What could be known of only a part is a finding of
/// the value that is returned.
///
/// # Errors
/// Where nothing can be known: no glibc is loaded, its data cannot be read, or no arena was found
/// in it that any known layout fits.
pub fn walk(image: &Image<'_>) -> Result<Malloc, Error> {
    walk_library(image, glibc_module(&elf::modules(image)).ok_or(Error::NoGlibc)?)
}

/// Walks the heap of the GNU C library `glibc`, for callers that know which module that is: a process may
/// have loaded it twice (dlmopen(3)).
///
/// # Errors
/// As [`walk`].
pub fn walk_library(image: &Image<'_>, glibc: &Module) -> Result<Malloc, Error> {
    walk_with(image, glibc, &Layouts::default())
}

/// Walks with the layouts given.
pub(crate) fn walk_with(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
) -> Result<Malloc, Error> {
    let data = Data::read(image, glibc)?;
    let ring = find_arenas(image, &data, layouts, glibc)?;
    let main = State::read(image, ring.arenas[0], true, &ring.state).ok();
    let parameters = main
        .and_then(|main| find_parameters(image, &data, layouts, main_heap::start(image, &main)));
    let parameters = parameters.as_ref();

    let mut malloc =
        Malloc { settings: parameters.map(|found| found.settings), ..Malloc::default() };
    malloc.findings.extend(find_unlinked(image, &ring, layouts).into_iter().map(|arena| {
        let what = "an arena is not in the ring of arenas, which was being changed or is damaged";
        Finding::at(Severity::Warning, arena, what)
    }));
    let mut parts = Vec::new();
    for (index, walked) in (0..).zip(walk_arenas(image, &ring, parameters)) {
        malloc.arenas.push(walked.arena);
        malloc.findings.extend(walked.finding);
        parts.extend(walked.pieces.into_iter().map(|piece| Part {
            range: piece.range,
            arena: Some(index),
            chunks: piece.stretch.chunks,
        }));
    }
    parts.sort_by_key(|part| part.range.start);
    refuse_overlaps(&mut malloc, &mut parts);
    match parameters {
        Some(parameters) => {
            let taken: Vec<_> = parts.iter().map(|part| part.range.clone()).collect();
            let found = mmapped::find(image, parameters, &taken, &mut malloc.findings);
            parts.extend(found.into_iter().map(Part::from));
            parts.sort_by_key(|part| part.range.start);
        }
        None => {
            let what = "glibc's parameters were not found, so mmapped chunks are not known";
            malloc.findings.push(Finding::general(Severity::Error, what));
        }
    }
    join(&mut malloc, parts);
    tcache::mark(image, glibc, layouts, parameters, &mut malloc);
    let break_ = Break {
        at: find_break(image, glibc).ok().flatten(),
        unit: parameters.map_or(0, |found| found.thp_pagesize).max(PAGE_SIZE),
    };
    malloc.trimmable = trim::trimmable(&malloc, break_);
    Ok(malloc)
}

/// A region to be, with its own chunks.
struct Part {
    range: Range<Address>,
    arena: Option<u32>,
    chunks: Vec<Chunk>,
}

impl From<Mmapped> for Part {
    fn from(mmapped: Mmapped) -> Self {
        Self { range: mmapped.range, arena: None, chunks: vec![mmapped.chunk] }
    }
}

/// Drops what claims memory that is claimed already, and no longer believes arenas that do.
fn refuse_overlaps(malloc: &mut Malloc, parts: &mut Vec<Part>) {
    let mut end = Address(0);
    let mut refused = Vec::new();
    parts.retain(|part| {
        let is_apart = part.range.start >= end;
        if is_apart {
            end = part.range.end;
        } else {
            refused.extend(part.arena.map(|arena| (arena, part.range.start)));
        }
        is_apart
    });
    for (index, at) in refused {
        malloc.arenas[index as usize].walked = false;
        let own = parts.iter_mut().filter(|part| part.arena == Some(index));
        own.for_each(|part| part.chunks = Vec::new());
        let what = "an arena claims memory that another one has";
        malloc.findings.push(Finding::at(Severity::Warning, at, what));
    }
}

/// Makes one table of all chunks. The first part's own becomes that table, and the others' are given
/// up one by one: there is never a second copy of all.
fn join(malloc: &mut Malloc, parts: Vec<Part>) {
    let mut left: usize = parts.iter().map(|part| part.chunks.len()).sum();
    for mut part in parts {
        let first = malloc.chunks.len();
        left -= part.chunks.len();
        if malloc.chunks.is_empty() {
            malloc.chunks = part.chunks;
            malloc.chunks.reserve_exact(left);
        } else {
            malloc.chunks.append(&mut part.chunks);
        }
        let chunks = first..malloc.chunks.len();
        malloc.regions.push(Region { range: part.range, arena: part.arena, chunks });
    }
}

/// Walks all arenas, several at a time, and returns them in the order of the ring.
fn walk_arenas(image: &Image<'_>, ring: &Ring, parameters: Option<&Parameters>) -> Vec<Walked> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= ring.arenas.len() {
                return done;
            }
            done.push((index, walk_arena(image, ring, index, parameters)));
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let helpers = ring.arenas.len().min(processors).min(MOST_WORKERS).saturating_sub(1);
    let mut walked = thread::scope(|scope| {
        // As many as can be had: this thread does what they leave.
        let helper = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (0..helpers).filter_map(helper).collect();
        let mut walked = work();
        for helper in helpers {
            walked.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        walked
    });
    walked.sort_by_key(|(index, _)| *index);
    walked.into_iter().map(|(_, walked)| walked).collect()
}
