//! Thread caches: each thread has lists of chunks that are free for this thread only. The rest of malloc treats
//! these chunks as in use.
//!
//! A thread finds its cache through a thread-local variable without a symbol. It is one of some dozen words of the C
//! library: the word that leads to a chunk of a cache's size in every thread that has a cache.

use std::collections::BTreeSet;
use std::ops::Range;

use image::elf::Module;
use image::{Image, Memory};
use linux::{Address, Thread};

use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::{CacheLayout, HEADER, Layouts, MINSIZE};
use crate::glibc::lists;
use crate::glibc::parameters::Parameters;
use crate::{BlockState, Finding, HeapMap};

/// Marks the chunks of `heap` that are in a thread cache. `stacks` are those of threads, also of threads that this process does not have.
pub(crate) fn mark(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    parameters: Option<&Parameters>,
    stacks: &[Range<Address>],
    heap: &mut HeapMap,
) {
    let threads = &image.state.threads;
    let variables = match find_variables(image, glibc, layouts, heap) {
        Ok(variables) => variables,
        Err(_) if heap.blocks.is_empty() => return,
        Err(Unfit::Nothing) if parameters.is_some_and(|it| it.tuning.tcache_count == Some(0)) => {
            return;
        }
        Err(unfit) => {
            heap.findings.push(match unfit {
                _ if threads.is_empty() => Finding::CachesWithoutRegisters,
                Unfit::Nothing => Finding::CachesNotFound,
                Unfit::Some { fitting, other } => Finding::CachesMisfit {
                    fitting: fitting as u64,
                    threads: (fitting + other) as u64,
                },
                Unfit::Several => Finding::CachesAmbiguous,
            });
            return;
        }
    };
    for (thread, pointer) in threads.iter().zip(&variables.pointers) {
        let Some(pointer) = *pointer else { continue };
        let marked = mark_cache(image, &variables.layout, parameters, thread.tid, pointer, heap);
        heap.findings.extend(marked.err());
    }
    let left = left_by_fork(image, &variables, stacks, heap);
    if left.is_empty() {
        return;
    }
    let cached = cached_bytes(heap);
    for pointer in left {
        // It is not in order if a thread changed it during the fork. Then the rest is memory in use, as for the process itself.
        let _ = mark_cache(image, &variables.layout, parameters, 0, pointer, heap);
    }
    heap.abandoned_bytes = cached_bytes(heap) - cached;
}

fn cached_bytes(heap: &HeapMap) -> u64 {
    let cached = heap.blocks.iter().filter(|block| block.state() == BlockState::Tcache);
    cached.map(|block| block.bytes()).sum()
}

/// The caches of threads that only the parent of this process had when it forked: fork(2) leaves them as they were. A thread that
/// has ended has no cache.
fn left_by_fork(
    image: &Image<'_>,
    variables: &Variables,
    stacks: &[Range<Address>],
    heap: &HeapMap,
) -> BTreeSet<Address> {
    let cpu = image.state.machine.cpu;
    let runs = |stack: &Range<Address>| {
        image.state.threads.iter().any(|it| stack.contains(&it.descriptor_base()))
    };
    // The descriptor of a thread is at the end of its stack, in a place that depends on the release.
    let pointers = |stack: &Range<Address>| {
        let first = stack.end.0.saturating_sub(cpu.pthread_bytes());
        let thread_pointers = (first..=stack.end.0).step_by(HEADER as usize);
        thread_pointers
            .filter_map(|it| {
                image.read_address(Address(it.wrapping_add_signed(variables.offset))).ok()
            })
            .collect::<Vec<_>>()
    };
    let is_living = |at: &Address| variables.pointers.contains(&Some(*at));
    let is_cache = |at: &Address| fit_of(image, heap, &variables.layout, *at) == Some(Fit::Cache);
    let left = stacks.iter().filter(|stack| !runs(stack)).flat_map(pointers);
    left.filter(|at| at.0 != 0 && !is_living(at) && is_cache(at)).collect()
}

/// The thread-local variables that lead to the caches.
struct Variables {
    layout: CacheLayout,
    /// Where they are, from the thread pointer.
    offset: i64,
    /// Their values; `None` for a thread that has no cache.
    pointers: Vec<Option<Address>>,
}

/// The reason why thread caches are not known.
enum Unfit {
    /// No thread has anything that looks like a cache.
    Nothing,
    /// Some threads have a cache, but others have something else in the same place.
    Some { fitting: usize, other: usize },
    /// Several variables lead to memory that looks like a cache.
    Several,
}

fn find_variables(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    heap: &HeapMap,
) -> Result<Variables, Unfit> {
    let mut unfit = Unfit::Nothing;
    let mut best: Option<(usize, Variables)> = None;
    for offset in glibc.tls_offsets(image).unwrap_or_default() {
        // A thread that has not allocated yet, or that is ending, has a null pointer there, or since 2.43 a
        // pointer to a dummy in the C library.
        let outside = |at: &Address| *at != Address(0) && !glibc.range.contains(at);
        let read = |thread: &Thread| {
            let at = Address(thread.thread_pointer.0.wrapping_add_signed(offset));
            image.read_address(at).ok().filter(outside)
        };
        let pointers: Vec<Option<Address>> = image.state.threads.iter().map(read).collect();
        for layout in &layouts.caches {
            let fit = |&at: &Address| fit_of(image, heap, layout, at);
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
                    best = Some((fitting, Variables { layout: *layout, offset, pointers }));
                }
            }
        }
    }
    best.map(|(_, variables)| variables).ok_or(unfit)
}

/// The memory that a thread's variable leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// A cache.
    Cache,
    /// A chunk of a cache's size that is not in order: the thread has just started, and has allocated the chunk
    /// but not cleared it yet.
    Started,
    /// Something else.
    Other,
}

/// Compares the memory at `at` with a cache of this layout: its chunk has the right size, and each list is empty or
/// begins with a chunk. `None` if the chunks there are not known.
fn fit_of(image: &Image<'_>, heap: &HeapMap, layout: &CacheLayout, at: Address) -> Option<Fit> {
    if is_unwalked(heap, at) {
        return None;
    }
    if !is_chunk_of_cache(heap, layout, at) {
        return Some(Fit::Other);
    }
    let is_chunk = |head: Address| {
        head == Address(0) || heap.block_of(head).is_some() || is_unwalked(heap, head)
    };
    let bins = read_cache(image, layout, at);
    let is_in_order = bins.is_ok_and(|bins| bins.iter().all(|bin| is_chunk(bin.head)));
    Some(if is_in_order { Fit::Cache } else { Fit::Started })
}

fn is_chunk_of_cache(heap: &HeapMap, layout: &CacheLayout, at: Address) -> bool {
    heap.block_of(at).and_then(|index| heap.block(index)).is_some_and(|chunk| {
        let sizes = layout.chunk_bytes..=layout.chunk_bytes + 2 * HEADER;
        chunk.state() == BlockState::InUse && sizes.contains(&chunk.bytes())
    })
}

/// Returns true if `at` lies in an arena whose chunks are not known.
fn is_unwalked(heap: &HeapMap, at: Address) -> bool {
    let mut extents = heap.extents.iter();
    extents.any(|extent| extent.blocks.is_empty() && extent.range.contains(&at))
}

/// A list of a cache.
struct Bin {
    count: u64,
    head: Address,
}

fn read_cache(
    memory: &dyn Memory,
    layout: &CacheLayout,
    at: Address,
) -> Result<Vec<Bin>, Inconsistency> {
    let bins = layout.bins as usize;
    let (mut counts, mut heads) = (vec![0; 2 * bins], vec![0; 8 * bins]);
    memory.read_exact(at, &mut counts)?;
    memory.read_exact(at.offset(layout.heads), &mut heads)?;
    let bin = |(count, head): (&[u8; 2], &[u8; 8])| Bin {
        count: u16::from_le_bytes(*count).into(),
        head: Address(u64::from_le_bytes(*head)),
    };
    Ok(counts.as_chunks().0.iter().zip(heads.as_chunks().0).map(bin).collect())
}

/// Marks the chunks of the cache of thread `tid` at `at`. A list that is not in order does not keep the others from being marked.
fn mark_cache(
    image: &Image<'_>,
    layout: &CacheLayout,
    parameters: Option<&Parameters>,
    tid: i32,
    at: Address,
    heap: &mut HeapMap,
) -> Result<(), Finding> {
    let invalid = |it: Inconsistency| Finding::CacheInvalid { tid, at: it.at, error: it.message };
    if is_unwalked(heap, at) {
        return Err(Finding::CacheInUnreadArena { tid, at });
    }
    let mut result = Ok(());
    let bins = read_cache(image, layout, at).map_err(invalid)?;
    for (index, bin) in (0..).zip(&bins) {
        let members = match members(image, layout, index, bin, heap) {
            Ok(members) => members,
            Err(problem) => {
                result = Err(invalid(problem));
                continue;
            }
        };
        for &pointer in &members {
            let Some(index) = heap.block_of(pointer) else { continue };
            heap.blocks.set_state(index, BlockState::Tcache);
        }
        let count = match parameters {
            _ if !layout.counts_room => Some(bin.count),
            Some(parameters) => {
                parameters.tuning.tcache_count.and_then(|count| count.checked_sub(bin.count))
            }
            None => Some(members.len() as u64),
        };
        // A thread changes the list first and the count afterwards, so the list is right.
        if count != Some(members.len() as u64) && result.is_ok() {
            result = Err(Finding::CacheChanging { tid, at });
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
    heap: &HeapMap,
) -> Result<Vec<Address>, Inconsistency> {
    let largest_small = MINSIZE + HEADER * (layout.small_bins - 1);
    let chunk_of = |pointer| heap.block(heap.block_of(pointer)?);
    lists::walk(image, bin.head, 0, |pointer| match chunk_of(pointer) {
        Some(chunk) => {
            let (bytes, state) = (chunk.bytes(), chunk.state());
            let fits = if index < layout.small_bins {
                bytes == MINSIZE + HEADER * index
            } else {
                bytes > largest_small
            };
            fits && state == BlockState::InUse
        }
        None => is_unwalked(heap, pointer),
    })
}
