use linux::Address;

/// A limit of the knowledge about a heap, or a fact about it that explains its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Several modules export malloc, and their order is unknown.
    AllocatorUnknown {
        /// Their names.
        modules: Vec<String>,
    },
    /// The reference to malloc is not resolved, so the first module that exports malloc counts as the allocator.
    AllocatorAssumed {
        /// The module with the reference.
        caller: String,
        /// The module that counts as the allocator.
        module: String,
    },
    /// An arena has no blocks.
    ArenaUnread {
        /// The address of its structure.
        arena: Address,
        /// True for the main arena.
        is_main: bool,
        /// The place of the problem.
        at: Address,
        /// The reason.
        cause: ArenaProblem,
        /// The message of the error.
        error: String,
    },
    /// An arena is not in the list of arenas.
    ArenaUnlisted {
        /// The address of its structure.
        arena: Address,
    },
    /// Extents belong to an arena that is not in the list of arenas.
    ExtentsUnlisted {
        /// The number of the arena.
        arena: u64,
    },
    /// An arena has used jemalloc's huge pages, in which free memory is not known.
    HugePages {
        /// The address of the arena's structure.
        arena: Address,
    },
    /// An extent has no blocks, or was left out.
    ExtentUnread {
        /// The place of the problem.
        at: Address,
        /// The message of the error.
        error: &'static str,
    },
    /// Entries of the tree of extents were being changed.
    EntriesChanging {
        /// Their number.
        entries: u64,
    },
    /// Extents were changing hands, and have no blocks.
    ExtentsChanging {
        /// Their number.
        extents: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Regions were on their way into or out of thread caches.
    RegionsChanging {
        /// Their number.
        regions: u64,
    },
    /// Lists of thread caches were being changed.
    ListsChanging {
        /// Their number.
        lists: u64,
    },
    /// Thread caches are unknown: there are no registers of threads.
    CachesWithoutRegisters,
    /// Thread caches are unknown: no thread has any.
    CachesNotFound,
    /// Thread caches are unknown: several variables lead to some.
    CachesAmbiguous,
    /// Thread caches are unknown: the layout does not fit the caches of all threads.
    CachesMisfit {
        /// The number of threads whose caches fit.
        fitting: u64,
        /// The number of threads with caches.
        threads: u64,
    },
    /// Thread caches are unknown: regions in them are not in use, or the caches could not be read.
    CachedRegionsFree {
        /// The number of regions that are not in use.
        free: u64,
        /// The number of regions in the caches.
        regions: u64,
    },
    /// The cache of a thread is in an arena that has no blocks.
    CacheInUnreadArena {
        /// The thread.
        tid: i32,
        /// The address of the cache.
        at: Address,
    },
    /// A list of a thread's cache was being changed.
    CacheChanging {
        /// The thread.
        tid: i32,
        /// The address of the cache.
        at: Address,
    },
    /// A part of a thread's cache is invalid.
    CacheInvalid {
        /// The thread.
        tid: i32,
        /// The place of the problem.
        at: Address,
        /// The message of the error.
        error: String,
    },
    /// glibc's parameters were not found, so mmapped chunks are unknown.
    MmappedUnknown,
    /// glibc counts other mmapped chunks than were found.
    MmappedMiscounted {
        /// The number of chunks that glibc counts.
        counted_chunks: u64,
        /// The bytes that glibc counts.
        counted_bytes: u64,
        /// The number of chunks that were found.
        found_chunks: u64,
        /// Their bytes.
        found_bytes: u64,
    },
    /// glibc's count of mmapped bytes has grown too large.
    MmappedDrift {
        /// The bytes that glibc counts too much.
        bytes: u64,
        /// The number of mmapped chunks.
        chunks: u64,
        /// The bytes that glibc counts too much at each resize.
        step_bytes: u64,
    },
    /// Another user of brk(2) has memory between the segments of the main arena.
    ForeignMemory {
        /// The beginning of the memory.
        at: Address,
        /// Its size. Nothing proves where it ends: a damaged chunk behind it would pass for a part of it.
        bytes: u64,
    },
}

/// The reason why an arena has no blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaProblem {
    /// A part of it cannot be read.
    Unreadable,
    /// It was being changed.
    Changing,
    /// It is damaged, or was being changed.
    Inconsistent,
}
