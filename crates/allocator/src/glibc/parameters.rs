//! Finds glibc's parameters (`mp_`) in the data of a C library that was stripped of its symbols.

use image::Image;
use linux::{Address, arch};

use crate::candidate_mappings::is_candidate;
use crate::glibc::layout::{Layouts, ParametersLayout};
use crate::module_data::ModuleData;
use crate::{Thresholds, Tuning};

/// The parameters that matter for a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) tuning: Tuning,
    /// The number of mmapped chunks, by glibc's own count.
    pub(crate) mmapped_chunks: u64,
    /// Their bytes by glibc's own count.
    pub(crate) mmapped_bytes: u64,
    /// See [`ParametersLayout::mmapped_tail`].
    pub(crate) mmapped_tail: u64,
    /// The beginning of the main arena's memory.
    pub(crate) sbrk_base: Address,
    /// The unit in which the top of the main arena is returned; 0 if it is a page.
    pub(crate) thp_pagesize: u64,
}

/// Finds the parameters by plausible values, since they form no pattern as bins do.
///
/// `main_start` is the beginning of the main arena's memory by the arena's own figures. One parameter holds the
/// same address, unless a thread was stopped while it changed the figures. If several places fit, none is
/// accepted.
pub(crate) fn find_parameters(
    image: &Image<'_>,
    data: &ModuleData,
    layouts: &Layouts,
    main_start: MainStart,
) -> Option<Parameters> {
    find_agreeing(image, data, layouts, main_start)
        .or_else(|| find_agreeing(image, data, layouts, MainStart::Unknown))
}

fn find_agreeing(
    image: &Image<'_>,
    data: &ModuleData,
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

/// The beginning of the main arena's memory, by the arena's own figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MainStart {
    /// It has no memory yet.
    Nowhere,
    /// Its memory is one segment, which begins here and ends in its top.
    At(Address),
    /// It has several segments, or its figures cannot be read.
    Unknown,
}

impl MainStart {
    fn agrees(self, image: &Image<'_>, sbrk_base: Address) -> bool {
        match self {
            Self::Nowhere => sbrk_base == Address(0),
            Self::At(start) => sbrk_base == start,
            Self::Unknown => image.state.mappings.find(sbrk_base).is_some_and(is_candidate),
        }
    }
}

/// The parameters that `words` hold in this layout, if all values are plausible.
fn read_parameters(words: &[u64], layout: &ParametersLayout) -> Option<Parameters> {
    /// No size in a process exceeds this.
    const MAX_BYTES: u64 = arch::USER_SPACE_END;
    const MAX_ARENAS: u64 = 1 << 24;
    /// `arena_test` is 8 by default, and `mmap_threshold` at least 128 KiB. A bound between them is needed,
    /// since the layout of 2.43 also fits the parameters of 2.35 to 2.42 eight bytes before their beginning:
    /// `arena_test` would be read as `mmap_threshold`.
    const MAX_ARENA_TEST: u64 = 1024;
    const MAX_MAPPINGS: u64 = 1 << 31;
    /// From 2.42 on; less before.
    const MAX_CACHE_BINS: u64 = 76;
    const MAX_CACHED_BYTES: u64 = (4 << 20) + 1;

    let word =
        |offset: u64| words.get(offset as usize / 8).copied().filter(|_| offset.is_multiple_of(8));
    let half = |offset: u64| {
        let word = words.get(offset as usize / 8)?;
        (offset.is_multiple_of(4)).then_some(word >> (offset % 8 * 8) & 0xffff_ffff)
    };
    let is_unit = |bytes: u64| bytes == 0 || bytes.is_power_of_two() && bytes >= 4096;

    let thp_pagesize = layout.thp_pagesize.map_or(Some(0), word)?;
    let arena_max = word(layout.arena_max)?;
    let top_pad = word(layout.top_pad)?;
    let mmap_threshold = word(layout.mmap_threshold)?;
    let n_mmaps = half(layout.n_mmaps)?;
    let no_dyn_threshold = half(layout.no_dyn_threshold)?;
    let mmapped_mem = word(layout.mmapped_mem)?;
    let tcache_count = word(layout.tcache_count)?;

    let plausible = (MAX_ARENA_TEST + 1..=MAX_BYTES).contains(&mmap_threshold)
        && top_pad <= MAX_BYTES
        && (1..=MAX_ARENA_TEST).contains(&word(layout.arena_test)?)
        && arena_max <= MAX_ARENAS
        && is_unit(thp_pagesize)
        && half(layout.n_mmaps_max)? < MAX_MAPPINGS
        && n_mmaps <= half(layout.max_n_mmaps)?
        && half(layout.max_n_mmaps)? < MAX_MAPPINGS
        && no_dyn_threshold <= 1
        && mmapped_mem <= word(layout.max_mmapped_mem)?
        && word(layout.max_mmapped_mem)? <= MAX_BYTES
        && (1..=MAX_CACHE_BINS).contains(&word(layout.tcache_bins)?)
        && word(layout.tcache_max_bytes)? <= MAX_CACHED_BYTES
        && tcache_count <= u16::MAX.into();
    plausible.then_some(Parameters {
        tuning: Tuning {
            arena_max: (arena_max != 0).then_some(arena_max),
            tcache_count: Some(tcache_count),
            decay: None,
            thresholds: Some(Thresholds {
                trim_bytes: word(0)?,
                top_pad_bytes: top_pad,
                mmap_bytes: mmap_threshold,
            }),
        },
        mmapped_chunks: n_mmaps,
        mmapped_bytes: mmapped_mem,
        mmapped_tail: layout.mmapped_tail,
        sbrk_base: Address(word(layout.sbrk_base)?),
        thp_pagesize,
    })
}
