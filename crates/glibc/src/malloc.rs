use std::ops::Range;

use target::{Address, Finding};

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
    /// What was noticed on the way.
    pub findings: Vec<Finding>,
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
    /// Whether its chunks were walked to their end and add up.
    pub walked: bool,
}

/// A stretch of memory that malloc obtained in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// From its first structure to the end of its last chunk.
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
    /// The top of its arena or the top that an earlier heap of it had.
    Top,
    /// The marker that ends a heap.
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that the arenas obtained from the kernel; without mmapped chunks.
    pub system_bytes: u64,
    /// Chunks in the program's hands, without mmapped ones.
    pub in_use_chunks: u64,
    /// Their bytes.
    pub in_use_bytes: u64,
    /// Chunks in bins, and the top of each arena.
    pub free_chunks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Chunks in fastbins.
    pub fastbin_chunks: u64,
    /// Their bytes.
    pub fastbin_bytes: u64,
    /// Chunks in tcaches.
    pub tcache_chunks: u64,
    /// Their bytes.
    pub tcache_bytes: u64,
    /// Chunks with a mapping of their own.
    pub mmapped_chunks: u64,
    /// Their bytes, as malloc_info(3) counts them: whole pages.
    pub mmapped_bytes: u64,
}
