//! Finding the main arena and the parameters in a C library that was stripped of its symbols.
//!
//! The main arena gives itself away by its bins: 127 pairs of pointers, each of which points at
//! itself where the bin is empty and otherwise at chunks that point back. Where that pattern
//! begins, each known layout of an arena says where the arena would begin and where it keeps the
//! ring of arenas; the ring closes, through arenas whose heaps name them, for one layout only.

use capture::elf::Module;
use capture::{Address, Backing, Image, Memory, Unreadable};

use crate::glibc::ground::{is_malloc_like, mmapped_memory};
use crate::glibc::layout::{
    BINS, HEAP_ALIGNMENTS, HeapLayout, Layouts, ParametersLayout, StateLayout,
};
use crate::glibc::{Error, Settings};

/// More data than any C library has.
const MOST_DATA: u64 = 16 << 20;
/// More arenas than any process has: by default glibc makes eight for each processor.
const MOST_ARENAS: usize = 1 << 16;
/// How many bins may be in disorder: a thread may have been stopped while it linked a chunk.
const MOST_BROKEN_BINS: u64 = 2;
/// Heaps are aligned to much more; what is less is no heap.
pub(crate) const LEAST_HEAP_ALIGNMENT: u64 = 1 << 20;

/// The arenas of a process and the layouts that they turned out to have.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    /// The addresses of the arenas, the main one first.
    pub(crate) arenas: Vec<Address>,
    /// How an arena is laid out.
    pub(crate) state: StateLayout,
    /// How the heaps of the others are; unknown where there is only the main arena.
    pub(crate) heap: Option<HeapLayout>,
}

/// glibc's parameters, as found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) settings: Settings,
    /// Mmapped chunks by glibc's own count.
    pub(crate) mmapped_chunks: u64,
    /// Their bytes by glibc's own count.
    pub(crate) mmapped_bytes: u64,
    /// See [`ParametersLayout::mmapped_tail`].
    pub(crate) mmapped_tail: u64,
    /// Where the main arena's memory begins.
    pub(crate) sbrk_base: Address,
    /// The unit in which the top of the main arena is given back, where it is not a page.
    pub(crate) thp_pagesize: u64,
}

/// The words of the C library's data.
pub(crate) struct Data {
    stretches: Vec<(Address, Vec<u64>)>,
}

impl Data {
    /// Reads all that the library `glibc` may write.
    pub(crate) fn read(memory: &dyn Memory, glibc: &Module) -> Result<Self, Error> {
        let mut stretches = Vec::new();
        for range in &glibc.writable {
            let start = range.start.align_up(8);
            let words = (range.end - start).min(MOST_DATA) / 8;
            let mut bytes = vec![0; words as usize * 8];
            memory
                .read_exact(start, &mut bytes)
                .map_err(|source| Error::Data { module: glibc.name.clone(), source })?;
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            stretches.push((start, words.collect()));
        }
        Ok(Self { stretches })
    }

    /// Each address of the data with the words from it on, as long as there are `least`.
    fn positions(&self, least: u64) -> impl Iterator<Item = (Address, &[u64])> {
        self.stretches.iter().flat_map(move |(start, words)| {
            let last = (words.len() + 1).saturating_sub(least as usize);
            (0..last).map(move |index| (start.offset(index as u64 * 8), &words[index..]))
        })
    }

    fn contains(&self, at: Address) -> bool {
        self.stretches
            .iter()
            .any(|(start, words)| at >= *start && at - *start < words.len() as u64 * 8)
    }
}

/// Finds all arenas.
pub(crate) fn find_arenas(
    memory: &dyn Memory,
    data: &Data,
    layouts: &Layouts,
    glibc: &Module,
) -> Result<Ring, Error> {
    let bins = data.positions(2 * BINS).filter(|(at, words)| are_bins(memory, *at, words));
    bins.flat_map(|(bins, _)| layouts.states.iter().map(move |state| (bins, state)))
        .find_map(|(bins, state)| {
            let main = bins.before(state.bins);
            data.contains(main).then(|| read_ring(memory, main, state, layouts)).flatten()
        })
        .ok_or_else(|| Error::NoMainArena {
            module: glibc.name.clone(),
            start: glibc.writable.first().map_or(glibc.range.start, |range| range.start),
            end: glibc.writable.last().map_or(glibc.range.end, |range| range.end),
        })
}

/// Whether the bins of an arena begin at `at`, where `words` are.
fn are_bins(memory: &dyn Memory, at: Address, words: &[u64]) -> bool {
    let mut broken = 0;
    for (index, pair) in (0..BINS).zip(words.as_chunks::<2>().0) {
        // glibc addresses a bin as if it were a chunk, whose links come behind its header.
        let bin = at.offset(16 * index).before(16);
        let [forward, backward] = pair.map(Address);
        broken += u64::from(!is_bin(memory, bin, forward, backward));
        if broken > MOST_BROKEN_BINS {
            return false;
        }
    }
    true
}

fn is_bin(memory: &dyn Memory, bin: Address, forward: Address, backward: Address) -> bool {
    if (forward, backward) == (bin, bin) {
        return true;
    }
    let could_be_chunk = |at: Address| at != bin && at.0 != 0 && at.is_aligned(16);
    could_be_chunk(forward)
        && could_be_chunk(backward)
        && memory.read_address(forward.offset(24)) == Ok(bin)
        && memory.read_address(backward.offset(16)) == Ok(bin)
}

/// Follows the ring of arenas from `main` on; `None` where it is none in this layout.
fn read_ring(
    memory: &dyn Memory,
    main: Address,
    state: &StateLayout,
    layouts: &Layouts,
) -> Option<Ring> {
    let mut ring = Ring { arenas: vec![main], state: *state, heap: None };
    let next = |arena: Address| memory.read_address(arena.offset(state.next)).ok();
    let mut arena = next(main)?;
    while arena != main {
        if ring.arenas.len() == MOST_ARENAS {
            return None;
        }
        let heap = match &ring.heap {
            Some(heap) => is_first_heap(memory, arena, heap).then_some(*heap),
            None => {
                let mut known = layouts.heaps.iter();
                known.find(|heap| is_first_heap(memory, arena, heap)).copied()
            }
        };
        ring.heap = Some(heap?);
        ring.arenas.push(arena);
        arena = next(arena)?;
    }
    Some(ring)
}

/// Whether `arena` lies right behind a heap's head that names it.
fn is_first_heap(memory: &dyn Memory, arena: Address, heap: &HeapLayout) -> bool {
    let start = arena.before(heap.bytes);
    start.is_aligned(LEAST_HEAP_ALIGNMENT)
        && memory.read_address(start.offset(heap.arena)) == Ok(arena)
}

/// Finds arenas that are not in the ring: it is damaged, or a thread was stopped while it added one.
///
/// A heap begins at a multiple of what heaps are aligned to, and the first one of an arena says
/// that the arena lies right behind its head.
pub(crate) fn find_unlinked(image: &Image<'_>, ring: &Ring, layouts: &Layouts) -> Vec<Address> {
    let [alignment, ..] = HEAP_ALIGNMENTS;
    let starts = mmapped_memory(image).into_iter().flat_map(|memory| {
        let first = memory.start.align_up(alignment);
        (0..(memory.end - first).div_ceil(alignment))
            .map(move |index| first.offset(index * alignment))
    });
    let arenas = starts.filter_map(|start| {
        let layout = layouts.heaps.iter().find(|layout| {
            let arena = start.offset(layout.bytes);
            image.read_address(start.offset(layout.arena)) == Ok(arena)
        })?;
        Some(start.offset(layout.bytes))
    });
    arenas.filter(|arena| !ring.arenas.contains(arena)).collect()
}

/// Finds the parameters, by what they may be: there is no pattern in them like that of the bins.
///
/// `main_start` is where the main arena's memory begins as its own figures say: one parameter holds
/// the same, unless a thread was stopped while it changed the figures. Of several places that fit
/// none is believed.
pub(crate) fn find_parameters(
    image: &Image<'_>,
    data: &Data,
    layouts: &Layouts,
    main_start: MainStart,
) -> Option<Parameters> {
    find_agreeing(image, data, layouts, main_start)
        .or_else(|| find_agreeing(image, data, layouts, MainStart::Unknown))
}

fn find_agreeing(
    image: &Image<'_>,
    data: &Data,
    layouts: &Layouts,
    main_start: MainStart,
) -> Option<Parameters> {
    let mut found = layouts.parameters.iter().flat_map(|layout| {
        data.positions(layout.bytes.div_ceil(8)).filter_map(move |(_, words)| {
            let parameters = read_parameters(words, layout)?;
            main_start.agrees(image, parameters.sbrk_base).then_some(parameters)
        })
    });
    let parameters = found.next()?;
    found.all(|other| other == parameters).then_some(parameters)
}

/// What the main arena's own figures say about where its memory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MainStart {
    /// It has none yet.
    Nowhere,
    /// There, for all its memory is one stretch that ends in its top.
    At(Address),
    /// In some mapping: its memory is in pieces.
    Unknown,
}

impl MainStart {
    fn agrees(self, image: &Image<'_>, sbrk_base: Address) -> bool {
        match self {
            Self::Nowhere => sbrk_base == Address(0),
            Self::At(start) => sbrk_base == start,
            Self::Unknown => image.state.mappings.find(sbrk_base).is_some_and(is_malloc_like),
        }
    }
}

/// The parameters that `words` hold in this layout, if they can be parameters at all.
fn read_parameters(words: &[u64], layout: &ParametersLayout) -> Option<Parameters> {
    /// What no size of anything in a process exceeds.
    const MOST_BYTES: u64 = 1 << 47;
    const MOST_ARENAS: u64 = 1 << 24;
    /// `arena_test` is 8 unless somebody changed it, `mmap_threshold` at least 128 KB. Between them
    /// a line must be drawn, for the layout of 2.43 also fits parameters of 2.35 to 2.42, if it is
    /// laid eight bytes before them: then the one is taken for the other.
    const MOST_ARENA_TEST: u64 = 1024;
    const MOST_MAPPINGS: u64 = 1 << 31;
    /// From 2.42 on; less before.
    const MOST_CACHE_BINS: u64 = 76;
    const MOST_CACHED_BYTES: u64 = (4 << 20) + 1;

    let word =
        |offset: u64| words.get(offset as usize / 8).copied().filter(|_| offset.is_multiple_of(8));
    let half = |offset: u64| {
        let word = words.get(offset as usize / 8)?;
        (offset.is_multiple_of(4)).then_some(word >> (offset % 8 * 8) & 0xffff_ffff)
    };
    let is_unit = |bytes: u64| bytes == 0 || bytes.is_power_of_two() && bytes >= 4096;

    let thp_pagesize = layout.thp_pagesize.map_or(Some(0), word)?;
    let arena_max = word(layout.arena_max)?;
    let mmap_threshold = word(layout.mmap_threshold)?;
    let n_mmaps = half(layout.n_mmaps)?;
    let no_dyn_threshold = half(layout.no_dyn_threshold)?;
    let mmapped_mem = word(layout.mmapped_mem)?;
    let tcache_count = word(layout.tcache_count)?;

    let plausible = (MOST_ARENA_TEST + 1..=MOST_BYTES).contains(&mmap_threshold)
        && word(layout.top_pad)? <= MOST_BYTES
        && (1..=MOST_ARENA_TEST).contains(&word(layout.arena_test)?)
        && arena_max <= MOST_ARENAS
        && is_unit(thp_pagesize)
        && half(layout.n_mmaps_max)? < MOST_MAPPINGS
        && n_mmaps <= half(layout.max_n_mmaps)?
        && half(layout.max_n_mmaps)? < MOST_MAPPINGS
        && no_dyn_threshold <= 1
        && mmapped_mem <= word(layout.max_mmapped_mem)?
        && word(layout.max_mmapped_mem)? <= MOST_BYTES
        && (1..=MOST_CACHE_BINS).contains(&word(layout.tcache_bins)?)
        && word(layout.tcache_max_bytes)? <= MOST_CACHED_BYTES
        && tcache_count <= u16::MAX.into();
    plausible.then_some(Parameters {
        settings: Settings {
            arena_max: (arena_max != 0).then_some(arena_max),
            trim_threshold_bytes: word(layout.trim_threshold)?,
            mmap_threshold_bytes: mmap_threshold,
            thresholds_are_fixed: no_dyn_threshold == 1,
            tcache_count,
        },
        mmapped_chunks: n_mmaps,
        mmapped_bytes: mmapped_mem,
        mmapped_tail: layout.mmapped_tail,
        sbrk_base: Address(word(layout.sbrk_base)?),
        thp_pagesize,
    })
}

/// Where the program break is, as the C library knows it: `__curbrk`, which it exports for sbrk.
/// Where it does not say, the end of the kernel's heap mapping is taken.
pub(crate) fn find_break(image: &Image<'_>, glibc: &Module) -> Result<Option<Address>, Unreadable> {
    if let Some(symbol) = glibc.symbol(image, "__curbrk")? {
        return image.read_address(symbol.address).map(Some);
    }
    let heaps = image.state.mappings.iter();
    let heaps = heaps.filter(|mapping| mapping.backing == Backing::Heap);
    Ok(heaps.map(|mapping| mapping.range.end).max())
}
