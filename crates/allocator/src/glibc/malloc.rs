use std::ops::Range;

use capture::{Address, Finding, length};

/// glibc's malloc of one process at one instant, as plain data.
#[derive(Debug, Clone, Default)]
pub struct Malloc {
    /// Its arenas, the main one first, then in the order of glibc's ring.
    pub arenas: Vec<Arena>,
    /// What its chunks lie in, ascending by address and disjoint.
    pub regions: Vec<Region>,
    /// All chunks, ascending by address.
    pub chunks: Vec<Chunk>,
    /// What the next malloc_trim(0) would hand to the kernel, as glibc computes it: whole pages,
    /// ascending and disjoint, resident or not.
    pub trimmable: Vec<Range<Address>>,
    /// How it is tuned; `None` where its parameters were not found.
    pub settings: Option<Settings>,
    /// What was noticed on the way.
    pub findings: Vec<Finding>,
}

/// What glibc's malloc was told, or found out by itself, about how to allocate (`mp_`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The most arenas that it makes; `None` where it derives that from the number of processors.
    pub arena_max: Option<u64>,
    /// Free bytes at the top of the main arena from which free(3) gives them back.
    pub trim_threshold_bytes: u64,
    /// Requests from this size on get a mapping of their own.
    pub mmap_threshold_bytes: u64,
    /// Whether the program fixed one of the thresholds, so that they no longer adapt.
    pub thresholds_are_fixed: bool,
    /// The most chunks that a thread keeps of each size; 0 where thread caches are off.
    pub tcache_count: u64,
}

/// An arena, glibc's `malloc_state`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arena {
    /// Where its `malloc_state` is.
    pub address: Address,
    /// Whether it is the main arena, which grows by brk(2).
    pub is_main: bool,
    /// How many heaps (`heap_info`; for the main arena: stretches of brk or mmap) it has.
    pub heaps: u32,
    /// Bytes that it has obtained from the kernel, by its own count (`system_mem`).
    pub system_bytes: u64,
    /// Whether its mutex was held: a thread stood within malloc.
    pub locked: bool,
    /// Whether its chunks were walked to their end and agree with its lists and its own count.
    /// Otherwise a finding says why, and its regions have no chunks.
    pub walked: bool,
}

/// A stretch of memory that malloc obtained in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// From its first structure to the end of its last chunk. In a heap of another arena than the
    /// main one the `heap_info` comes first, and in its first heap the arena itself; a chunk that
    /// was mapped with an alignment lies behind a gap.
    pub range: Range<Address>,
    /// Its arena, an index into [`Malloc::arenas`]; `None` for an mmapped chunk.
    pub arena: Option<u32>,
    /// Its chunks, indices into [`Malloc::chunks`]; empty where they could not be walked.
    pub chunks: Range<usize>,
}

/// What a chunk is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChunkState {
    /// Handed out to the program.
    InUse,
    /// In a small, large or the unsorted bin (also a remainder that glibc keeps aside).
    Free,
    /// In a fastbin: free, but neither merged nor trimmed until glibc consolidates.
    Fastbin,
    /// In a thread's tcache: free for that thread alone; never trimmed.
    Tcache,
    /// The top of its arena: what no request has reached yet.
    Top,
    /// One of the markers that end a stretch which is no longer the last one of its arena.
    Fencepost,
    /// Handed out to the program in a mapping of its own.
    Mmapped,
}

impl ChunkState {
    const ALL: [Self; 7] = [
        Self::InUse,
        Self::Free,
        Self::Fastbin,
        Self::Tcache,
        Self::Top,
        Self::Fencepost,
        Self::Mmapped,
    ];

    /// Whether the program has it.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::InUse | Self::Mmapped)
    }
}

/// A chunk: its header and what follows it, up to the next chunk. 16 bytes, since there are
/// millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Where its header begins; the program's pointer is 16 bytes further on.
    pub address: Address,
    /// Its size, a multiple of 16, and in the lowest bits its state.
    size_and_state: u64,
}

impl Chunk {
    /// The chunk at `address` with `bytes` (a multiple of 16, header included).
    #[must_use]
    pub fn new(address: Address, bytes: u64, state: ChunkState) -> Self {
        Self { address, size_and_state: bytes & !0xf | state as u64 }
    }

    /// Its size in bytes, header included.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.size_and_state & !0xf
    }

    /// What it is used for.
    #[must_use]
    pub fn state(self) -> ChunkState {
        ChunkState::ALL[(self.size_and_state & 0xf) as usize]
    }

    /// The same chunk in another state.
    #[must_use]
    pub fn in_state(self, state: ChunkState) -> Self {
        Self::new(self.address, self.bytes(), state)
    }

    /// The address just behind it.
    #[must_use]
    pub fn end(self) -> Address {
        self.address.offset(self.bytes())
    }

    /// The pointer that malloc returned for it.
    #[must_use]
    pub fn pointer(self) -> Address {
        self.address.offset(16)
    }
}

/// Chunks counted by what they are used for; bytes with their headers.
///
/// Arenas that could not be walked add to `system_bytes` alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that the arenas obtained from the kernel; without mmapped chunks.
    pub system_bytes: u64,
    /// Chunks in the program's hands, without mmapped ones.
    pub in_use_chunks: u64,
    /// Their bytes.
    pub in_use_bytes: u64,
    /// Chunks in bins, and the top of each arena, which malloc_info(3) counts even before it exists.
    pub free_chunks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Chunks in fastbins.
    pub fastbin_chunks: u64,
    /// Their bytes.
    pub fastbin_bytes: u64,
    /// Chunks in tcaches, which malloc_info(3) counts as in use.
    pub tcache_chunks: u64,
    /// Their bytes.
    pub tcache_bytes: u64,
    /// Chunks with a mapping of their own.
    pub mmapped_chunks: u64,
    /// Their bytes, as malloc_info(3) counts them: whole pages.
    pub mmapped_bytes: u64,
}

impl Totals {
    fn add(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            let (count, bytes) = match chunk.state() {
                ChunkState::InUse => (&mut self.in_use_chunks, &mut self.in_use_bytes),
                ChunkState::Fastbin => (&mut self.fastbin_chunks, &mut self.fastbin_bytes),
                ChunkState::Tcache => (&mut self.tcache_chunks, &mut self.tcache_bytes),
                ChunkState::Free | ChunkState::Top => (&mut self.free_chunks, &mut self.free_bytes),
                ChunkState::Fencepost | ChunkState::Mmapped => continue,
            };
            *count += 1;
            *bytes += chunk.bytes();
        }
    }
}

impl Malloc {
    /// The sums over all arenas and mmapped chunks, as malloc_info(3) counts; it knows no tcache,
    /// and counts those chunks, fenceposts and its own structures as in use.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for index in 0..self.arenas.len() {
            self.add_arena(&mut totals, index);
        }
        for region in self.regions.iter().filter(|region| region.arena.is_none()) {
            totals.mmapped_chunks += 1;
            totals.mmapped_bytes += length(&region.range);
        }
        totals
    }

    /// The sums over the arena with this index; zeros where there is none.
    #[must_use]
    pub fn arena_totals(&self, index: usize) -> Totals {
        let mut totals = Totals::default();
        self.add_arena(&mut totals, index);
        totals
    }

    fn add_arena(&self, totals: &mut Totals, index: usize) {
        let Some(arena) = self.arenas.get(index) else { return };
        totals.system_bytes += arena.system_bytes;
        let mut has_top = false;
        for region in self.regions.iter().filter(|region| region.arena == Some(index as u32)) {
            let chunks = &self.chunks[region.chunks.clone()];
            totals.add(chunks);
            has_top |= chunks.last().is_some_and(|chunk| chunk.state() == ChunkState::Top);
        }
        if arena.walked && !has_top {
            totals.free_chunks += 1;
        }
    }

    /// The chunk for which malloc returned `pointer`, an index into [`Malloc::chunks`].
    #[must_use]
    pub fn chunk_of(&self, pointer: Address) -> Option<usize> {
        self.chunks.binary_search_by_key(&pointer.before(16), |chunk| chunk.address).ok()
    }
}
