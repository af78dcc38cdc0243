//! Threads' caches: each thread has lists of chunks that are free for it alone, and that all the
//! rest of malloc takes to be in use.
//!
//! A thread finds its cache through a thread-local variable that has no symbol. Its offset from the
//! thread pointer is one of a dozen that the C library keeps in its global offset table; it is the
//! one that in most threads leads to a chunk of the size of a cache.

use target::elf::Module;
use target::{Address, Finding, Image, Memory, Severity, Thread};

use crate::find::Parameters;
use crate::layout::{CacheLayout, HEADER, LEAST_CHUNK, Layouts};
use crate::stretch::Broken;
use crate::{ChunkState, Malloc, lists};

/// Marks the chunks of `malloc` that are in a thread's cache.
pub(crate) fn mark(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    parameters: Option<&Parameters>,
    malloc: &mut Malloc,
) {
    let threads = &image.outline.threads;
    let Some(variables) = find_variables(image, glibc, layouts, malloc) else {
        let are_off = parameters.is_some_and(|parameters| parameters.settings.tcache_count == 0);
        if are_off || malloc.chunks.is_empty() {
            return;
        }
        let why = if threads.is_empty() {
            "the threads' registers are not known"
        } else {
            "no thread's cache was found"
        };
        let what = format!("{why}, so chunks in threads' caches count as in use");
        malloc.findings.push(Finding::general(Severity::Warning, what));
        return;
    };
    for (thread, pointer) in threads.iter().zip(variables.pointers) {
        // A thread that has not allocated yet has a null pointer here, or since 2.43 one to a
        // dummy within the C library.
        let outside = |at: &Address| *at != Address(0) && !glibc.range.contains(at);
        let Some(pointer) = pointer.filter(outside) else { continue };
        if let Err(finding) = mark_cache(image, &variables.layout, parameters, pointer, malloc) {
            let what = format!("the cache of thread {}: {}", thread.tid, finding.what);
            malloc.findings.push(Finding { what, ..finding });
        }
    }
}

/// The threads' variables that lead to their caches.
struct Variables {
    layout: CacheLayout,
    /// What they hold; `None` where that cannot be read.
    pointers: Vec<Option<Address>>,
}

fn find_variables(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    malloc: &Malloc,
) -> Option<Variables> {
    let mut best: Option<(usize, Variables)> = None;
    for offset in glibc.tls_offsets(image).unwrap_or_default() {
        let read = |thread: &Thread| {
            let at = Address(thread.fs_base.0.wrapping_add_signed(offset));
            image.read_address(at).ok()
        };
        let pointers: Vec<Option<Address>> = image.outline.threads.iter().map(read).collect();
        for layout in &layouts.caches {
            let known = pointers.iter().flatten();
            let hits = known.filter(|&&at| is_cache(image, malloc, layout, at)).count();
            if hits > best.as_ref().map_or(0, |(most, _)| *most) {
                best = Some((hits, Variables { layout: *layout, pointers: pointers.clone() }));
            }
        }
    }
    best.map(|(_, variables)| variables)
}

/// Whether a cache of this layout is at `at`: its chunk is as large, and its lists begin with
/// chunks wherever they are not empty.
fn is_cache(image: &Image<'_>, malloc: &Malloc, layout: &CacheLayout, at: Address) -> bool {
    is_chunk_of_cache(malloc, layout, at)
        && read_cache(image, layout, at).is_ok_and(|bins| {
            bins.iter().all(|bin| {
                bin.head == Address(0)
                    || malloc.chunk_of(bin.head).is_some()
                    || is_unwalked(malloc, bin.head)
            })
        })
}

fn is_chunk_of_cache(malloc: &Malloc, layout: &CacheLayout, at: Address) -> bool {
    malloc.chunk_of(at).is_some_and(|index| {
        let chunk = malloc.chunks[index];
        let sizes = layout.chunk_bytes..=layout.chunk_bytes + 2 * HEADER;
        chunk.state() == ChunkState::InUse && sizes.contains(&chunk.bytes())
    })
}

/// Whether `at` lies in an arena whose chunks are not known.
fn is_unwalked(malloc: &Malloc, at: Address) -> bool {
    let mut regions = malloc.regions.iter();
    regions.any(|region| region.chunks.is_empty() && region.range.contains(&at))
}

/// One list of a cache.
struct Bin {
    count: u64,
    head: Address,
}

fn read_cache(memory: &dyn Memory, layout: &CacheLayout, at: Address) -> Result<Vec<Bin>, Broken> {
    let bins = (0..layout.bins).map(|index| {
        Ok(Bin {
            count: memory.read_u16(at.offset(2 * index))?.into(),
            head: memory.read_address(at.offset(layout.heads + 8 * index))?,
        })
    });
    bins.collect()
}

/// Marks the chunks of the cache at `at`. Lists that are in order are marked also where another
/// one is not.
fn mark_cache(
    image: &Image<'_>,
    layout: &CacheLayout,
    parameters: Option<&Parameters>,
    at: Address,
    malloc: &mut Malloc,
) -> Result<(), Finding> {
    let warning = |broken: Broken| Finding::at(Severity::Warning, broken.at, broken.what);
    if is_unwalked(malloc, at) {
        let what = "it lies in an arena that could not be walked";
        return Err(Finding::at(Severity::Note, at, what));
    }
    if !is_chunk_of_cache(malloc, layout, at) {
        return Err(Finding::at(Severity::Warning, at, "what its variable leads to is no cache"));
    }
    let mut result = Ok(());
    let bins = read_cache(image, layout, at).map_err(warning)?;
    for (index, bin) in (0..).zip(&bins) {
        let members = match members(image, layout, index, bin, malloc) {
            Ok(members) => members,
            Err(broken) => {
                result = Err(warning(broken));
                continue;
            }
        };
        for &pointer in &members {
            let Some(index) = malloc.chunk_of(pointer) else { continue };
            let chunk = &mut malloc.chunks[index];
            *chunk = chunk.in_state(ChunkState::Tcache);
        }
        let count = match parameters {
            _ if !layout.counts_room => Some(bin.count),
            Some(parameters) => parameters.settings.tcache_count.checked_sub(bin.count),
            None => Some(members.len() as u64),
        };
        // The list is what it is: a thread changes it first and counts then.
        if count != Some(members.len() as u64) && result.is_ok() {
            let what = "a list is not as long as it counts, since the thread is within malloc";
            result = Err(Finding::at(Severity::Note, at, what));
        }
    }
    result
}

/// The pointers in a list of a cache.
fn members(
    image: &Image<'_>,
    layout: &CacheLayout,
    index: u64,
    bin: &Bin,
    malloc: &Malloc,
) -> Result<Vec<Address>, Broken> {
    let largest_small = LEAST_CHUNK + HEADER * (layout.small_bins - 1);
    lists::walk(image, bin.head, 0, |pointer| match malloc.chunk_of(pointer) {
        Some(chunk) => {
            let (bytes, state) = (malloc.chunks[chunk].bytes(), malloc.chunks[chunk].state());
            let fits = if index < layout.small_bins {
                bytes == LEAST_CHUNK + HEADER * index
            } else {
                bytes > largest_small
            };
            fits && state == ChunkState::InUse
        }
        None => is_unwalked(malloc, pointer),
    })
}
