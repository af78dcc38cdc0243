//! Threads' caches: each thread has lists of chunks that are free for it alone, and that all the
//! rest of malloc takes to be in use.
//!
//! A thread finds its cache through a thread-local variable that has no symbol. Its offset from the
//! thread pointer is one of a dozen that the C library keeps in its global offset table; it is the
//! one that leads to a chunk of the size of a cache in every thread that has one.

use capture::elf::Module;
use capture::{Address, Finding, Image, Memory, Severity, Thread};

use crate::glibc::find::Parameters;
use crate::glibc::layout::{CacheLayout, HEADER, LEAST_CHUNK, Layouts};
use crate::glibc::stretch::Broken;
use crate::glibc::{ChunkState, Malloc, lists};

/// Marks the chunks of `malloc` that are in a thread's cache.
pub(crate) fn mark(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    parameters: Option<&Parameters>,
    malloc: &mut Malloc,
) {
    let threads = &image.state.threads;
    let variables = match find_variables(image, glibc, layouts, malloc) {
        Ok(variables) => variables,
        Err(_) if malloc.chunks.is_empty() => return,
        Err(Unfit::Nothing) if parameters.is_some_and(|it| it.settings.tcache_count == 0) => return,
        Err(unfit) => {
            let why = match unfit {
                _ if threads.is_empty() => "the threads' registers are not known".into(),
                Unfit::Nothing => "no thread's cache was found".into(),
                Unfit::Some { fitting, other } => format!(
                    "the known layout of caches fits {fitting} of {} threads and was rejected",
                    fitting + other
                ),
                Unfit::Several => "threads' caches were found in two ways".into(),
            };
            let what = format!("{why}, so chunks in threads' caches count as in use");
            malloc.findings.push(Finding::general(Severity::Warning, what));
            return;
        }
    };
    for (thread, pointer) in threads.iter().zip(variables.pointers) {
        let Some(pointer) = pointer else { continue };
        if let Err(finding) = mark_cache(image, &variables.layout, parameters, pointer, malloc) {
            let what = format!("the cache of thread {}: {}", thread.tid, finding.what);
            malloc.findings.push(Finding { what, ..finding });
        }
    }
}

/// The threads' variables that lead to their caches.
struct Variables {
    layout: CacheLayout,
    /// What they hold; `None` for a thread that has no cache.
    pointers: Vec<Option<Address>>,
}

/// Why threads' caches are not known.
enum Unfit {
    /// No thread has anything like a cache.
    Nothing,
    /// Some threads have what looks like a cache, but others have something else in the same place.
    Some { fitting: usize, other: usize },
    /// Several variables lead to what looks like caches.
    Several,
}

fn find_variables(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    malloc: &Malloc,
) -> Result<Variables, Unfit> {
    let mut unfit = Unfit::Nothing;
    let mut best: Option<(usize, Variables)> = None;
    for offset in glibc.tls_offsets(image).unwrap_or_default() {
        // A thread that has not allocated yet, or that is ending, has a null pointer there, or since
        // 2.43 one to a dummy within the C library.
        let outside = |at: &Address| *at != Address(0) && !glibc.range.contains(at);
        let read = |thread: &Thread| {
            let at = Address(thread.fs_base.0.wrapping_add_signed(offset));
            image.read_address(at).ok().filter(outside)
        };
        let pointers: Vec<Option<Address>> = image.state.threads.iter().map(read).collect();
        for layout in &layouts.caches {
            let fit = |&at: &Address| fit_of(image, malloc, layout, at);
            let fits: Vec<_> = pointers.iter().flatten().filter_map(fit).collect();
            let count = |wanted: Fit| fits.iter().filter(|fit| **fit == wanted).count();
            let (fitting, started) = (count(Fit::Cache), count(Fit::Started));
            if fitting == 0 {
                continue;
            }
            // Threads start one at a time: most have started.
            if count(Fit::Other) > 0 || started > fitting {
                if !matches!(unfit, Unfit::Some { fitting: most, .. } if most >= fitting) {
                    unfit = Unfit::Some { fitting, other: fits.len() - fitting };
                }
                continue;
            }
            match &best {
                Some((most, _)) if *most > fitting => {}
                Some((most, other)) if *most == fitting && other.pointers != pointers => {
                    return Err(Unfit::Several);
                }
                _ => {
                    let pointers = pointers.clone();
                    best = Some((fitting, Variables { layout: *layout, pointers }));
                }
            }
        }
    }
    best.map(|(_, variables)| variables).ok_or(unfit)
}

/// What a thread's variable leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// A cache.
    Cache,
    /// A chunk of a cache's size that is not in order: the thread has just started, and has obtained the
    /// chunk, but not cleared it yet.
    Started,
    /// Something else.
    Other,
}

/// Compares what is at `at` with a cache of this layout: its chunk is as large, and its lists begin
/// with chunks wherever they are not empty. `None` where nothing is known of the chunks there.
fn fit_of(image: &Image<'_>, malloc: &Malloc, layout: &CacheLayout, at: Address) -> Option<Fit> {
    if is_unwalked(malloc, at) {
        return None;
    }
    if !is_chunk_of_cache(malloc, layout, at) {
        return Some(Fit::Other);
    }
    let is_chunk = |head: Address| {
        head == Address(0) || malloc.chunk_of(head).is_some() || is_unwalked(malloc, head)
    };
    let bins = read_cache(image, layout, at);
    let is_in_order = bins.is_ok_and(|bins| bins.iter().all(|bin| is_chunk(bin.head)));
    Some(if is_in_order { Fit::Cache } else { Fit::Started })
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
