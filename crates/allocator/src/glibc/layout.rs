//! The layouts of glibc's structures: one small table per structure, with offsets in bytes on x86-64.
//!
//! No version number chooses a layout. Each structure is probed for on its own, the newest layout first, and a
//! layout is accepted only if it agrees with the memory around it (see [`crate::glibc::arena_list`]). The
//! offsets were read in the sources of the releases named here, and compared with gdb's `ptype /o` on Debian's
//! debug symbols of 2.31, 2.36, 2.41 and 2.43.

/// `struct malloc_state`, an arena (malloc/malloc.c).
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateLayout {
    /// `mutex`: 32 bits, 0 if it is free.
    pub(crate) mutex: u64,
    /// `flags`: 32 bits.
    pub(crate) flags: u64,
    /// `fastbinsY`: ten heads.
    pub(crate) fastbins: Option<u64>,
    /// `top`.
    pub(crate) top: u64,
    /// `bins`: 127 pairs of fd and bk.
    pub(crate) bins: u64,
    /// `next`: the next arena of the circular list.
    pub(crate) next: u64,
    /// `system_mem`.
    pub(crate) system_mem: u64,
    /// The size of the structure, without padding behind it.
    pub(crate) bytes: u64,
}

/// The known layouts of an arena.
pub(crate) const STATES: [StateLayout; 2] = [
    // 2.43, which has no fastbins any more.
    StateLayout {
        mutex: 0,
        flags: 4,
        fastbins: None,
        top: 8,
        bins: 24,
        next: 2072,
        system_mem: 2096,
        bytes: 2112,
    },
    // 2.27 to 2.42.
    StateLayout {
        mutex: 0,
        flags: 4,
        fastbins: Some(16),
        top: 96,
        bins: 112,
        next: 2160,
        system_mem: 2184,
        bytes: 2200,
    },
];

/// `heap_info`, which begins each heap of an arena that is not the main one (malloc/arena.c).
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapLayout {
    /// `ar_ptr`: the arena.
    pub(crate) arena: u64,
    /// `prev`: the heap that the arena had before this one.
    pub(crate) previous: u64,
    /// `size`: the bytes in use, `heap_info` included.
    pub(crate) size: u64,
    /// The size of the structure.
    pub(crate) bytes: u64,
}

/// The known layouts of a heap.
pub(crate) const HEAPS: [HeapLayout; 2] = [
    // 2.35 added `pagesize`, and with it padding.
    HeapLayout { arena: 0, previous: 8, size: 16, bytes: 48 },
    // Up to 2.34.
    HeapLayout { arena: 0, previous: 8, size: 16, bytes: 32 },
];

/// The alignments of heaps, which are also their maximum sizes: 64 MiB, and from 2.35 to 2.41, under the
/// tunable `glibc.malloc.hugetlb=2`, four huge pages of 2 MiB or of 1 GiB.
pub(crate) const HEAP_ALIGNMENTS: [u64; 3] = [64 << 20, 8 << 20, 4 << 30];

/// `struct malloc_par`, of which `mp_` is the only one (malloc/malloc.c).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParametersLayout {
    /// `top_pad`.
    pub(crate) top_pad: u64,
    /// `mmap_threshold`.
    pub(crate) mmap_threshold: u64,
    /// `arena_test`.
    pub(crate) arena_test: u64,
    /// `arena_max`.
    pub(crate) arena_max: u64,
    /// `thp_pagesize`.
    pub(crate) thp_pagesize: Option<u64>,
    /// `n_mmaps`: 32 bits, as are the three behind it.
    pub(crate) n_mmaps: u64,
    /// `n_mmaps_max`.
    pub(crate) n_mmaps_max: u64,
    /// `max_n_mmaps`.
    pub(crate) max_n_mmaps: u64,
    /// `no_dyn_threshold`.
    pub(crate) no_dyn_threshold: u64,
    /// `mmapped_mem`.
    pub(crate) mmapped_mem: u64,
    /// `max_mmapped_mem`.
    pub(crate) max_mmapped_mem: u64,
    /// `sbrk_base`.
    pub(crate) sbrk_base: u64,
    /// `tcache_bins`, since 2.42 `tcache_small_bins`.
    pub(crate) tcache_bins: u64,
    /// `tcache_max_bytes`.
    pub(crate) tcache_max_bytes: u64,
    /// `tcache_count`.
    pub(crate) tcache_count: u64,
    /// The bytes up to the end of the last member here. Up to 2.43 another one follows (`tcache_unsorted_limit`).
    pub(crate) bytes: u64,
    /// The bytes at the end of an mmapped chunk's mapping that its size does not count: since
    /// 2.43 the size of a header. There `mmapped_mem` also drifts when such a chunk is reallocated.
    pub(crate) mmapped_tail: u64,
}

/// The known layouts of the parameters.
pub(crate) const PARAMETERS: [ParametersLayout; 3] = [
    // Since 2.43.
    ParametersLayout {
        top_pad: 8,
        mmap_threshold: 16,
        arena_test: 24,
        arena_max: 32,
        thp_pagesize: Some(48),
        n_mmaps: 68,
        n_mmaps_max: 72,
        max_n_mmaps: 76,
        no_dyn_threshold: 80,
        mmapped_mem: 88,
        max_mmapped_mem: 96,
        sbrk_base: 104,
        tcache_bins: 112,
        tcache_max_bytes: 120,
        tcache_count: 128,
        bytes: 136,
        mmapped_tail: 16,
    },
    // 2.35 to 2.42.
    ParametersLayout {
        top_pad: 8,
        mmap_threshold: 16,
        arena_test: 24,
        arena_max: 32,
        thp_pagesize: Some(40),
        n_mmaps: 60,
        n_mmaps_max: 64,
        max_n_mmaps: 68,
        no_dyn_threshold: 72,
        mmapped_mem: 80,
        max_mmapped_mem: 88,
        sbrk_base: 96,
        tcache_bins: 104,
        tcache_max_bytes: 112,
        tcache_count: 120,
        bytes: 128,
        mmapped_tail: 0,
    },
    // 2.27 to 2.34.
    ParametersLayout {
        top_pad: 8,
        mmap_threshold: 16,
        arena_test: 24,
        arena_max: 32,
        thp_pagesize: None,
        n_mmaps: 40,
        n_mmaps_max: 44,
        max_n_mmaps: 48,
        no_dyn_threshold: 52,
        mmapped_mem: 56,
        max_mmapped_mem: 64,
        sbrk_base: 72,
        tcache_bins: 80,
        tcache_max_bytes: 88,
        tcache_count: 96,
        bytes: 104,
        mmapped_tail: 0,
    },
];

/// `tcache_perthread_struct`, a thread's cache (malloc/malloc.c). Its counts, 16 bits each, come
/// first, then as many heads of lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheLayout {
    /// The number of lists.
    pub(crate) bins: u64,
    /// The number of lists that hold chunks of one size each: 32 bytes, 48 and so on.
    pub(crate) small_bins: u64,
    /// The offset of the heads.
    pub(crate) heads: u64,
    /// True if a count is the number of chunks that may still be added (`num_slots`).
    pub(crate) counts_room: bool,
    /// The minimum size of the chunk that it lies in. The chunk may be up to 32 bytes larger: 2.43 adds room for
    /// a header twice, and the rest of a free chunk may be too small to be split off.
    pub(crate) chunk_bytes: u64,
}

/// The known layouts of a thread's cache.
pub(crate) const CACHES: [CacheLayout; 2] = [
    // Since 2.42.
    CacheLayout { bins: 76, small_bins: 64, heads: 152, counts_room: true, chunk_bytes: 0x300 },
    // 2.30 to 2.41.
    CacheLayout { bins: 64, small_bins: 64, heads: 128, counts_room: false, chunk_bytes: 0x290 },
];

/// All layouts to probe for. Tests pass mutated ones.
#[derive(Debug, Clone)]
pub(crate) struct Layouts {
    pub(crate) states: Vec<StateLayout>,
    pub(crate) heaps: Vec<HeapLayout>,
    pub(crate) parameters: Vec<ParametersLayout>,
    pub(crate) caches: Vec<CacheLayout>,
}

impl Default for Layouts {
    fn default() -> Self {
        Self {
            states: STATES.to_vec(),
            heaps: HEAPS.to_vec(),
            parameters: PARAMETERS.to_vec(),
            caches: CACHES.to_vec(),
        }
    }
}

/// Pairs of fd and bk in `bins`, which glibc numbers from 1 (NBINS - 1).
pub(crate) const BINS: u64 = 127;
/// Heads in `fastbinsY`.
pub(crate) const NFASTBINS: u64 = 10;
/// The size of a chunk's header (CHUNK_HDR_SZ), and the alignment of chunks (MALLOC_ALIGNMENT).
pub(crate) const HEADER: u64 = 16;
/// The size of `mchunk_prev_size`, the part of a header that the chunk before uses while it is in use (SIZE_SZ).
pub(crate) const LENT: u64 = 8;
/// The size of the smallest chunk.
pub(crate) const MINSIZE: u64 = 32;
/// The size of `struct malloc_chunk`: a header and the four links of a large free chunk.
pub(crate) const MALLOC_CHUNK: u64 = 48;
/// The offset of fd in a free chunk, which is also the link of a chunk in a fastbin.
pub(crate) const FD: u64 = 16;
/// Set in a size if the chunk before is in use.
pub(crate) const PREV_INUSE: u64 = 1;
/// Set in a size if the chunk has a mapping of its own.
pub(crate) const IS_MMAPPED: u64 = 2;
/// Set in a size if the chunk is in use in an arena other than the main one.
pub(crate) const NON_MAIN_ARENA: u64 = 4;
/// Set in an arena's flags if its memory is not one segment of brk.
pub(crate) const NONCONTIGUOUS_BIT: u32 = 2;
