//! The offsets of the fields in jemalloc's structures.
//!
//! They are from the debug information of builds of 5.2.1, 5.3.0 and 5.3.1 for 64-bit processors.
//! They depend neither on `--enable-prof` nor on the number of address bits, but on the size of jemalloc's own pages.

/// The size of jemalloc's own pages, which is a constant of the build (`--with-lg-page`) and at least that of the kernel's:
/// Debian builds for pages of 64 KiB on all processors but x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnPages {
    /// `LG_PAGE`.
    lg: u32,
}

impl OwnPages {
    pub(crate) const ALL: [Self; 3] = [Self { lg: 12 }, Self { lg: 14 }, Self { lg: 16 }];

    /// The bytes of a page.
    pub(crate) const fn bytes(self) -> u64 {
        1 << self.lg
    }

    /// The doublings from the smallest page to this one.
    const fn doublings(self) -> u32 {
        self.lg - Self::ALL[0].lg
    }

    /// The number of size classes of slabs (`SC_NBINS`): those below four pages.
    pub(crate) const fn bins(self) -> u64 {
        36 + 4 * self.doublings() as u64
    }

    /// The maximum number of regions in a slab (`SC_SLAB_MAXREGS`): a page of the smallest ones.
    pub(crate) const fn max_regions(self) -> u64 {
        self.bytes() / 8
    }

    /// The words of a `bin_info_t`. The bitmap of many regions has levels.
    pub(crate) const fn bin_words(self) -> usize {
        if self.lg == 12 { 5 } else { 11 }
    }
}

/// The words of the longest bitmap of a slab.
pub(crate) const MAX_BITMAP_WORDS: usize = OwnPages::ALL[2].max_regions() as usize / 64;
/// The number of size classes (`SC_NSIZES`). As an index it means "no class": the extent is changing hands.
pub(crate) const NO_CLASS: u64 = 232;
/// The number of arenas that jemalloc can have (`MALLOCX_ARENA_LIMIT`).
pub(crate) const MAX_ARENAS: usize = 4095;

/// The bytes of the size class with this index: four classes for each doubling (`sc.c`, `size_class`).
pub(crate) const fn class_bytes(index: u64) -> u64 {
    match index {
        0 => 8,
        1..=4 => 16 * index,
        _ if index < NO_CLASS => {
            let (group, step) = ((index - 5) / 4, (index - 5) % 4 + 1);
            let base = 1 << (6 + group);
            base + step * (base >> 2)
        }
        _ => 0,
    }
}

/// The structures that describe an extent: its descriptor and the element that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// `extent_t`, up to 5.2.
    Extent,
    /// `edata_t`, from 5.3 on.
    Edata,
}

/// A part of a word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bits {
    first: u32,
    count: u32,
}

impl Bits {
    const fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    pub(crate) const fn of(self, word: u64) -> u64 {
        word >> self.first & ((1 << self.count) - 1)
    }
}

/// A descriptor of an extent (`extent_s` in extent_structs.h, `edata_s` in edata.h).
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescriptorLayout {
    pub(crate) pages: OwnPages,
    pub(crate) arena: Bits,
    pub(crate) is_slab: Bits,
    pub(crate) state: Bits,
    pub(crate) class: Bits,
    pub(crate) free_regions: Bits,
    /// Its alignment in bytes.
    pub(crate) alignment: u64,
}

impl DescriptorLayout {
    /// The bytes before the bitmap, which all descriptors have.
    pub(crate) const BYTES: usize = 64;
    /// The address that malloc returned; for slabs, the address of the extent (`e_addr`).
    pub(crate) const ADDRESS: usize = 8;
    /// The size, with a serial number in the bits below a page (`e_size_esn`).
    pub(crate) const SIZE: usize = 16;
    /// The bitmap of free regions (`e_slab_data`).
    pub(crate) const BITMAP: usize = 64;
}

impl Generation {
    pub(crate) const ALL: [Self; 2] = [Self::Edata, Self::Extent];

    pub(crate) const fn descriptor(self, pages: OwnPages) -> DescriptorLayout {
        let count = 10 + pages.doublings();
        match self {
            Self::Extent => DescriptorLayout {
                pages,
                arena: Bits::new(0, 12),
                is_slab: Bits::new(12, 1),
                state: Bits::new(16, 2),
                class: Bits::new(18, 8),
                free_regions: Bits::new(26, count),
                alignment: 64,
            },
            Self::Edata => DescriptorLayout {
                pages,
                arena: Bits::new(0, 12),
                is_slab: Bits::new(12, 1),
                state: Bits::new(17, 3),
                class: Bits::new(20, 8),
                free_regions: Bits::new(28, count),
                alignment: 128,
            },
        }
    }
}

/// An arena and what belongs to it (`arena_s`, `base_s`, `cache_bin_s`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArenaLayout {
    /// The release that it was taken from.
    pub(crate) release: &'static str,
    pub(crate) generation: Generation,
    pub(crate) pages: OwnPages,
    /// The number of threads that allocate from it: the first of two (`nthreads`).
    pub(crate) threads: u64,
    /// Pages in use (`nactive`).
    pub(crate) active: u64,
    /// Free pages by state (`npages` of `extents_t` or `eset_t`).
    pub(crate) dirty: u64,
    pub(crate) muzzy: u64,
    pub(crate) retained: u64,
    /// The distance from such a count to the one of guarded extents.
    pub(crate) guarded: Option<u64>,
    /// The milliseconds after which free pages are purged; -1 for never (`time_ms` of `decay_t`).
    pub(crate) dirty_decay: u64,
    pub(crate) muzzy_decay: u64,
    /// True once the allocator of huge pages was used (`ever_used_hpa`).
    pub(crate) used_hpa: Option<u64>,
    /// Its number; `None` if only its base has it.
    pub(crate) number: Option<u64>,
    /// A pointer to its base, which holds jemalloc's own structures.
    pub(crate) base: u64,
    /// The first block of a base, which begins with its size and a pointer to the next one.
    pub(crate) blocks: u64,
    /// The bytes of all blocks (`mapped`).
    pub(crate) mapped: u64,
    /// The ring of the thread caches' descriptors (`cache_bin_array_descriptor_ql`).
    pub(crate) caches: u64,
    pub(crate) cache_bins: CacheBins,
}

/// The arrays of a thread cache (`cache_bin_t`: 24 bytes for each size class).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheBins {
    /// Two arrays, of small and of large classes, with a count and a pointer behind the regions.
    Counted,
    /// One array with this number of classes, with a pointer to the first region and the low halves of addresses.
    Pointers(u64),
}

/// The releases that are known, with pages of each size.
pub(crate) const ARENAS: [ArenaLayout; 11] = [
    ArenaLayout {
        release: "5.3.0",
        generation: Generation::Edata,
        pages: OwnPages::ALL[0],
        threads: 0,
        active: 10_656,
        dirty: 20_480,
        muzzy: 39_920,
        retained: 59_360,
        guarded: Some(9_656),
        dirty_decay: 69_440,
        muzzy_decay: 71_224,
        used_hpa: Some(10_665),
        number: Some(78_928),
        base: 78_936,
        blocks: 160,
        mapped: 3_896,
        caches: 10_400,
        cache_bins: CacheBins::Pointers(73),
    },
    ArenaLayout {
        release: "5.3.0",
        generation: Generation::Edata,
        pages: OwnPages::ALL[1],
        threads: 0,
        active: 10_272,
        dirty: 19_704,
        muzzy: 38_360,
        retained: 57_016,
        guarded: Some(9_264),
        dirty_decay: 66_704,
        muzzy_decay: 68_488,
        used_hpa: Some(10_281),
        number: Some(76_192),
        base: 76_200,
        blocks: 160,
        mapped: 3_896,
        caches: 10_016,
        cache_bins: CacheBins::Pointers(73),
    },
    ArenaLayout {
        release: "5.3.0",
        generation: Generation::Edata,
        pages: OwnPages::ALL[2],
        threads: 0,
        active: 9_888,
        dirty: 18_936,
        muzzy: 36_824,
        retained: 54_712,
        guarded: Some(8_880),
        dirty_decay: 64_016,
        muzzy_decay: 65_800,
        used_hpa: Some(9_897),
        number: Some(73_504),
        base: 73_512,
        blocks: 160,
        mapped: 3_896,
        caches: 9_632,
        cache_bins: CacheBins::Pointers(73),
    },
    ArenaLayout {
        release: "5.3.1",
        generation: Generation::Edata,
        pages: OwnPages::ALL[0],
        threads: 0,
        active: 12_296,
        dirty: 22_104,
        muzzy: 41_544,
        retained: 60_984,
        guarded: Some(9_656),
        dirty_decay: 71_064,
        muzzy_decay: 72_848,
        used_hpa: Some(12_305),
        number: Some(80_640),
        base: 80_648,
        blocks: 160,
        mapped: 3_928,
        caches: 11_984,
        cache_bins: CacheBins::Pointers(41),
    },
    ArenaLayout {
        release: "5.3.1",
        generation: Generation::Edata,
        pages: OwnPages::ALL[1],
        threads: 0,
        active: 11_848,
        dirty: 21_264,
        muzzy: 39_920,
        retained: 58_576,
        guarded: Some(9_264),
        dirty_decay: 68_264,
        muzzy_decay: 70_048,
        used_hpa: Some(11_857),
        number: Some(77_824),
        base: 77_832,
        blocks: 160,
        mapped: 3_928,
        caches: 11_536,
        cache_bins: CacheBins::Pointers(49),
    },
    ArenaLayout {
        release: "5.3.1",
        generation: Generation::Edata,
        pages: OwnPages::ALL[2],
        threads: 0,
        active: 11_400,
        dirty: 20_432,
        muzzy: 38_320,
        retained: 56_208,
        guarded: Some(8_880),
        dirty_decay: 65_512,
        muzzy_decay: 67_296,
        used_hpa: Some(11_409),
        number: Some(75_072),
        base: 75_080,
        blocks: 160,
        mapped: 3_928,
        caches: 11_088,
        cache_bins: CacheBins::Pointers(57),
    },
    ArenaLayout {
        release: "5.2.1",
        generation: Generation::Extent,
        pages: OwnPages::ALL[0],
        threads: 0,
        active: 10_344,
        dirty: 15_424,
        muzzy: 20_392,
        retained: 25_360,
        guarded: None,
        dirty_decay: 25_496,
        muzzy_decay: 27_280,
        used_hpa: None,
        number: None,
        base: 29_480,
        blocks: 144,
        mapped: 2_024,
        caches: 10_192,
        cache_bins: CacheBins::Counted,
    },
    ArenaLayout {
        release: "5.2.1",
        generation: Generation::Extent,
        pages: OwnPages::ALL[1],
        threads: 0,
        active: 9_960,
        dirty: 14_848,
        muzzy: 19_624,
        retained: 24_400,
        guarded: None,
        dirty_decay: 24_536,
        muzzy_decay: 26_320,
        used_hpa: None,
        number: None,
        base: 28_584,
        blocks: 144,
        mapped: 2_024,
        caches: 9_808,
        cache_bins: CacheBins::Counted,
    },
    ArenaLayout {
        release: "5.2.1",
        generation: Generation::Extent,
        pages: OwnPages::ALL[2],
        threads: 0,
        active: 9_576,
        dirty: 14_280,
        muzzy: 18_872,
        retained: 23_464,
        guarded: None,
        dirty_decay: 23_600,
        muzzy_decay: 25_384,
        used_hpa: None,
        number: None,
        base: 27_712,
        blocks: 144,
        mapped: 2_024,
        caches: 9_424,
        cache_bins: CacheBins::Counted,
    },
    // On aarch64, for which Debian builds with pages of 64 KiB: a mutex of glibc's is 8 bytes larger.
    ArenaLayout {
        release: "5.3.0",
        generation: Generation::Edata,
        pages: OwnPages::ALL[2],
        threads: 0,
        active: 9_904,
        dirty: 18_960,
        muzzy: 36_856,
        retained: 54_752,
        guarded: Some(8_880),
        dirty_decay: 64_080,
        muzzy_decay: 65_872,
        used_hpa: Some(9_913),
        number: Some(73_600),
        base: 73_608,
        blocks: 168,
        mapped: 3_904,
        caches: 9_632,
        cache_bins: CacheBins::Pointers(73),
    },
    ArenaLayout {
        release: "5.3.1",
        generation: Generation::Edata,
        pages: OwnPages::ALL[2],
        threads: 0,
        active: 11_400,
        dirty: 20_440,
        muzzy: 38_336,
        retained: 56_232,
        guarded: Some(8_880),
        dirty_decay: 65_560,
        muzzy_decay: 67_352,
        used_hpa: Some(11_409),
        number: Some(75_136),
        base: 75_144,
        blocks: 168,
        mapped: 3_936,
        caches: 11_088,
        cache_bins: CacheBins::Pointers(57),
    },
];

/// The radix tree that maps pages to extents (`rtree_s`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeLayout {
    pub(crate) generation: Generation,
    pub(crate) pages: OwnPages,
    /// The bits of an address that select a child, level by level. Builds with 48 bits of address space (`LG_VADDR`) have
    /// two levels, those with 57 have three.
    pub(crate) levels: &'static [u32],
    /// The bytes of a leaf's element: 8 if everything fits into a word beside the pointer.
    pub(crate) element: u64,
}

impl TreeLayout {
    /// The levels for pages of each size (`rtree_levels` in rtree.h): two, and three.
    const LEVELS: [[&'static [u32]; 2]; 3] =
        [[&[18, 18], &[15, 15, 15]], [&[17, 17], &[14, 14, 15]], [&[16, 16], &[13, 14, 14]]];
    /// The bits of a pointer in an element of 8 bytes; its class is above.
    pub(crate) const POINTER_BITS: u32 = 48;

    /// All layouts. jemalloc's configure takes the number of address bits from the processor of the build machine, so any
    /// release may have either.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        OwnPages::ALL.into_iter().zip(Self::LEVELS).flat_map(|(pages, levels)| {
            Generation::ALL.into_iter().flat_map(move |generation| {
                levels.into_iter().zip([8, 16]).map(move |(levels, element)| Self {
                    generation,
                    pages,
                    levels,
                    element,
                })
            })
        })
    }

    /// The layout of the descriptors that the tree leads to.
    pub(crate) const fn descriptor(self) -> DescriptorLayout {
        self.generation.descriptor(self.pages)
    }

    fn leaf_bits(self) -> u32 {
        self.levels.last().copied().unwrap_or_default()
    }

    /// The bytes of a leaf.
    pub(crate) fn leaf_bytes(self) -> u64 {
        self.element << self.leaf_bits()
    }

    /// The bytes of memory that a leaf describes.
    pub(crate) fn leaf_span(self) -> u64 {
        self.pages.bytes() << self.leaf_bits()
    }

    /// The bytes of a node at `level`, which holds pointers.
    pub(crate) fn node_bytes(self, level: usize) -> u64 {
        8 << self.levels.get(level).copied().unwrap_or_default()
    }

    /// The bytes of memory that a child of a node at `level` describes.
    pub(crate) fn child_span(self, level: usize) -> u64 {
        let below: u32 = self.levels.iter().skip(level + 1).sum();
        self.pages.bytes() << below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_those_of_the_manual() {
        let small: Vec<_> = (0..14).map(class_bytes).collect();
        assert_eq!(small, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        for pages in OwnPages::ALL {
            assert_eq!(class_bytes(pages.bins()), 4 * pages.bytes());
            assert_eq!(class_bytes(pages.bins() - 1), 7 * pages.bytes() / 2);
        }
        assert_eq!(class_bytes(NO_CLASS - 1), 7 << 60);
        assert_eq!((class_bytes(NO_CLASS), class_bytes(u64::MAX)), (0, 0));
    }

    #[test]
    fn the_levels_of_a_tree_cover_its_address_space() {
        for layout in TreeLayout::all() {
            let bits: u32 = layout.levels.iter().sum();
            assert_eq!(bits + layout.pages.lg, if layout.element == 8 { 48 } else { 57 });
        }
        let mut all = TreeLayout::all();
        let (two, three) = (all.next().unwrap(), all.next().unwrap());
        assert_eq!(
            (two.child_span(0), two.leaf_span(), two.leaf_bytes()),
            (1 << 30, 1 << 30, 2 << 20)
        );
        assert_eq!((three.child_span(0), three.child_span(1)), (1 << 42, 1 << 27));
        assert_eq!(
            (three.leaf_span(), three.leaf_bytes(), three.node_bytes(0)),
            (1 << 27, 512 << 10, 256 << 10)
        );
    }
}
