//! A writer of synthetic glibc heaps: a small allocator of its own chooses the addresses, and the result is written as
//! glibc of a given release would write it.
//!
//! Offsets and rules were taken from glibc's sources and from gdb's `ptype /o` on Debian's debug symbols, not from the
//! reader, so an error in either one makes them disagree.

mod libc;
mod writing;

use std::collections::BTreeMap;
use std::ops::Range;

use linux::{Machine, Thread};

use libc::SyntheticLibc;

const HEAP_SPAN: u64 = 64 << 20;
const BREAK_START: u64 = 0x5555_5600_0000;
const HEAPS_START: u64 = 0x7d00_0000_0000;
const MAPPINGS_START: u64 = 0x7e80_0000_0000;
/// Larger requests, and those of this size, get a mapping of their own.
const MAPPING_THRESHOLD: u64 = 128 << 10;
/// The largest chunk that goes to a fastbin.
const LARGEST_FAST: u64 = 0x80;
/// The largest chunk that goes to a thread's cache.
const LARGEST_CACHED: u64 = 0x410;

/// The releases whose heaps differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GlibcRelease {
    /// 2.31: plain links, short `heap_info`.
    V2_31,
    /// 2.36: protected links, long `heap_info`.
    V2_36,
    /// 2.42: caches with more lists, which count the remaining room.
    V2_42,
    /// 2.43: no fastbins, larger caches, another header for mmapped chunks.
    V2_43,
    /// 2.44: the parameters have one word less (`tcache_unsorted_limit`). Nothing is behind them here.
    V2_44,
}

impl GlibcRelease {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::V2_31, Self::V2_36, Self::V2_42, Self::V2_43, Self::V2_44];

    /// The version that gnu_get_libc_version(3) returns.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::V2_31 => "2.31",
            Self::V2_36 => "2.36",
            Self::V2_42 => "2.42",
            Self::V2_43 => "2.43",
            Self::V2_44 => "2.44",
        }
    }

    fn has_fastbins(self) -> bool {
        self < Self::V2_43
    }

    fn arena_bytes(self) -> u64 {
        if self.has_fastbins() { 0x898 } else { 0x840 }
    }

    fn heap_info_bytes(self) -> u64 {
        if self == Self::V2_31 { 0x20 } else { 0x30 }
    }

    fn cache_counts_room(self) -> bool {
        self >= Self::V2_42
    }

    fn cache_bytes(self) -> u64 {
        if self.cache_counts_room() { 0x300 } else { 0x290 }
    }

    fn cache_count(self) -> usize {
        if self >= Self::V2_43 { 16 } else { 7 }
    }

    /// Returns a link that is stored at `at` and leads to `to`.
    fn link(self, at: u64, to: u64) -> u64 {
        if self == Self::V2_31 { to } else { (at >> 12) ^ to }
    }
}

/// The use of a chunk in a synthetic heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChunkUse {
    /// Allocated by the program.
    InUse,
    /// In a bin.
    Free,
    /// In a fastbin.
    Fastbin,
    /// In a thread's cache.
    Cached,
    /// The top of its arena.
    Top,
    /// A marker at the end of a segment.
    Fencepost,
    /// Allocated by the program, in a mapping of its own.
    Mmapped,
}

/// A chunk of a synthetic heap, header included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyntheticChunk {
    /// The address of its header.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its use.
    pub usage: ChunkUse,
}

/// The facts that a reader of a synthetic heap must find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MallocTruth {
    /// All chunks, ascending.
    pub chunks: Vec<SyntheticChunk>,
    /// The segments of the arenas and the mappings of mmapped chunks, ascending.
    pub regions: Vec<Range<u64>>,
    /// Bytes obtained from the kernel, for each arena.
    pub system_bytes: Vec<u64>,
    /// The pages that malloc_trim(0) would return to the kernel, ascending.
    pub trimmable: Vec<Range<u64>>,
    /// The threads, as they must be in the process's state.
    pub threads: Vec<Thread>,
}

/// A heap to be written. Arena 0 is the main one. Thread 0 uses it, and thread n uses arena n.
#[derive(Debug, Clone)]
pub struct MallocHeap {
    release: GlibcRelease,
    /// The machine of the process.
    machine: Machine,
    arenas: Vec<Arena>,
    threads: Vec<Cache>,
    mmapped: Vec<Mmapped>,
    /// Memory that only looks like an mmapped chunk.
    look_alikes: Vec<Mmapped>,
    /// The number of times that an mmapped chunk was resized.
    resizes: u64,
    /// The threads, by index, whose variable for the cache has another value, with this value.
    misled: BTreeMap<usize, u64>,
    break_end: u64,
    next_mapping: u64,
    next_heap: u64,
    break_is_blocked: bool,
}

/// The lists of a thread's cache by size of chunk, newest last, and the chunk that holds them.
#[derive(Debug, Clone, Default)]
struct Cache {
    holder: u64,
    lists: BTreeMap<u64, Vec<u64>>,
}

#[derive(Debug, Clone, Default)]
struct Arena {
    address: u64,
    /// The first structure and the end of each segment.
    stretches: Vec<Range<u64>>,
    /// The address, size and use of all its chunks.
    chunks: BTreeMap<u64, (u64, ChunkUse)>,
    top: Option<u64>,
    /// The free chunks, in the order in which they were freed.
    free: Vec<u64>,
    /// The fastbins by size of chunk, newest last.
    fast: BTreeMap<u64, Vec<u64>>,
    system_bytes: u64,
    contiguous: bool,
    /// True if the arena cannot grow at its top: the memory behind it is not malloc's, or the heap is full.
    must_jump: bool,
}

#[derive(Debug, Clone)]
struct Mmapped {
    base: u64,
    bytes: u64,
    header: u64,
    /// The size in the header at the base, which remains there if alignment moves the chunk.
    old_bytes: u64,
}

impl MallocHeap {
    /// A heap with an arena for each of `threads` threads, and a further thread that has never allocated.
    #[must_use]
    pub fn new(release: GlibcRelease, threads: usize) -> Self {
        Self::on(Machine::default(), release, threads)
    }

    /// Like [`MallocHeap::new`], on a machine of any page size.
    #[must_use]
    pub fn on(machine: Machine, release: GlibcRelease, threads: usize) -> Self {
        let mut heap = Self {
            release,
            machine,
            arenas: Vec::new(),
            threads: Vec::new(),
            mmapped: Vec::new(),
            look_alikes: Vec::new(),
            resizes: 0,
            misled: BTreeMap::new(),
            break_end: BREAK_START,
            next_mapping: MAPPINGS_START,
            next_heap: HEAPS_START,
            break_is_blocked: false,
        };
        for index in 0..threads.max(1) {
            heap.add_arena(index == 0);
            let holder = heap.carve(index, release.cache_bytes());
            heap.threads.push(Cache { holder, lists: BTreeMap::new() });
        }
        heap
    }

    fn add_arena(&mut self, is_main: bool) {
        let mut arena =
            Arena { address: SyntheticLibc::MAIN_ARENA, contiguous: true, ..Arena::default() };
        if !is_main {
            let heap = self.next_heap;
            self.next_heap += 2 * HEAP_SPAN;
            arena.address = heap + self.release.heap_info_bytes();
            let first = (arena.address + self.release.arena_bytes()).next_multiple_of(16);
            arena.begin(heap, first, heap + 2 * self.machine.page_size);
        }
        self.arenas.push(arena);
    }

    /// Allocates as `thread` and returns the pointer.
    pub fn malloc(&mut self, thread: usize, bytes: u64) -> u64 {
        let size = (bytes + 8).next_multiple_of(16).max(32);
        if size >= MAPPING_THRESHOLD {
            return self.map(size, 16);
        }
        let cached = self.threads[thread].lists.get_mut(&size).and_then(Vec::pop);
        if let Some(chunk) = cached {
            let arena = self.arena_of(chunk).expect("what is cached is in an arena");
            self.arenas[arena].use_as(chunk, ChunkUse::InUse);
            return chunk + 16;
        }
        self.carve(thread, size) + 16
    }

    /// Allocates a chunk with a mapping of its own whose pointer is a multiple of `alignment`.
    pub fn memalign(&mut self, alignment: u64, bytes: u64) -> u64 {
        self.map((bytes + 8).next_multiple_of(16).max(MAPPING_THRESHOLD), alignment.max(16))
    }

    /// Allocates a chunk with a mapping of its own, however small, as in a program that has lowered the threshold for
    /// such chunks.
    pub fn map_chunk(&mut self, bytes: u64) -> u64 {
        self.map((bytes + 8).next_multiple_of(16), 16)
    }

    /// Writes memory that looks like a chunk from [`MallocHeap::map_chunk`], but is not a chunk.
    pub fn map_look_alike(&mut self, bytes: u64) {
        self.map_chunk(bytes);
        self.look_alikes.extend(self.mmapped.pop());
    }

    /// Counts `times` more resizes of mmapped chunks.
    pub fn resize_mapped_chunks(&mut self, times: u64) {
        self.resizes += times;
    }

    /// Sets the variable of `thread` that should refer to its cache to `address`.
    pub fn mislead_thread(&mut self, thread: usize, address: u64) {
        self.misled.insert(thread, address);
    }

    /// The cache of `thread`.
    #[must_use]
    pub fn cache_of(&self, thread: usize) -> u64 {
        self.threads[thread].holder + 16
    }

    /// Frees a pointer from [`MallocHeap::malloc`] or [`MallocHeap::memalign`], as `thread`.
    ///
    /// # Panics
    /// If it is not in use.
    pub fn free(&mut self, thread: usize, pointer: u64) {
        let chunk = pointer - 16;
        if let Some(index) = self.mmapped.iter().position(|mmapped| mmapped.header == chunk) {
            self.mmapped.remove(index);
            return;
        }
        let arena = self.arena_of(chunk).expect("it was allocated");
        let (bytes, usage) = self.arenas[arena].chunks[&chunk];
        assert_eq!(usage, ChunkUse::InUse);
        let list = self.threads[thread].lists.entry(bytes).or_default();
        if bytes <= LARGEST_CACHED && list.len() < self.release.cache_count() {
            list.push(chunk);
            self.arenas[arena].use_as(chunk, ChunkUse::Cached);
        } else if bytes <= LARGEST_FAST && self.release.has_fastbins() {
            self.arenas[arena].fast.entry(bytes).or_default().push(chunk);
            self.arenas[arena].use_as(chunk, ChunkUse::Fastbin);
        } else {
            self.arenas[arena].release(chunk);
        }
    }

    /// Takes bytes by sbrk without malloc, so the main arena must begin its next segment behind them.
    pub fn sbrk_by_stranger(&mut self, bytes: u64) {
        if !self.break_is_blocked {
            self.break_end += bytes;
            self.arenas[0].must_jump = true;
        }
    }

    /// Maps a page right behind the break, so the main arena must use mmap.
    pub fn block_break(&mut self) {
        self.break_is_blocked = true;
        self.arenas[0].must_jump = true;
    }

    /// Makes the arena of `thread`, unless it is the main one, get its next memory as a new heap.
    pub fn fill_heap(&mut self, thread: usize) {
        if thread > 0 {
            self.arenas[thread].must_jump = true;
        }
    }

    fn arena_of(&self, chunk: u64) -> Option<usize> {
        self.arenas.iter().position(|arena| arena.chunks.contains_key(&chunk))
    }

    fn map(&mut self, size: u64, alignment: u64) -> u64 {
        let tail = if self.release >= GlibcRelease::V2_43 { 16 } else { 0 };
        let spare = if alignment > 16 { alignment + 32 } else { 0 };
        let bytes = (size + spare + 16).next_multiple_of(self.machine.page_size);
        let base = self.take_mapping(bytes);
        let mut header = (base + 16).next_multiple_of(alignment) - 16;
        if header != base && header - base < 32 && tail == 0 {
            header += alignment;
        }
        self.mmapped.push(Mmapped { base, bytes, header, old_bytes: bytes - tail });
        header + 16
    }

    /// Takes address space for a mapping; sometimes right behind the one before, sometimes not.
    fn take_mapping(&mut self, bytes: u64) -> u64 {
        let page_size = self.machine.page_size;
        let base = self.next_mapping + self.next_mapping / page_size % 3 * page_size;
        self.next_mapping = base + bytes;
        base
    }

    /// Takes a chunk out of a fastbin, a bin or the top of an arena.
    fn carve(&mut self, arena: usize, size: u64) -> u64 {
        let fast = self.arenas[arena].fast.get_mut(&size).and_then(Vec::pop);
        let chunk = fast.or_else(|| self.arenas[arena].carve_free(size));
        let chunk = chunk.unwrap_or_else(|| {
            if self.arenas[arena].top_bytes() < size + 32 {
                self.grow(arena, size);
            }
            self.arenas[arena].carve_top(size)
        });
        self.arenas[arena].use_as(chunk, ChunkUse::InUse);
        chunk
    }

    fn grow(&mut self, index: usize, size: u64) {
        let page_size = self.machine.page_size;
        let bytes = (size + 3 * page_size).next_multiple_of(page_size);
        let heap_info_bytes = self.release.heap_info_bytes();
        if index > 0 {
            let arena = &mut self.arenas[index];
            if !arena.must_jump {
                arena.extend(bytes);
                return;
            }
            let heap = self.next_heap;
            self.next_heap += HEAP_SPAN;
            arena.fence(false);
            arena.begin(heap, heap + heap_info_bytes, heap + bytes);
        } else if self.break_is_blocked {
            let base = self.take_mapping(bytes);
            let arena = &mut self.arenas[0];
            arena.contiguous = false;
            arena.fence(true);
            arena.begin(base, base, base + bytes);
        } else if self.arenas[0].must_jump || self.arenas[0].top.is_none() {
            let start = self.break_end.next_multiple_of(16);
            let end = (start + bytes).next_multiple_of(page_size);
            let arena = &mut self.arenas[0];
            let before = arena.stretches.last().map_or(start, |last| last.end);
            arena.fence(true);
            arena.begin(start, start, end);
            arena.system_bytes += start - before;
            self.break_end = end;
        } else {
            self.arenas[0].extend(bytes);
            self.break_end += bytes;
        }
        self.arenas[index].must_jump = false;
    }
}

impl Arena {
    fn use_as(&mut self, chunk: u64, usage: ChunkUse) {
        self.chunks.get_mut(&chunk).expect("it is a chunk").1 = usage;
    }

    fn top_bytes(&self) -> u64 {
        self.top.map_or(0, |top| self.chunks[&top].0)
    }

    /// Begins a segment that consists of the top.
    fn begin(&mut self, start: u64, first: u64, end: u64) {
        self.stretches.push(start..end);
        self.chunks.insert(first, (end - first, ChunkUse::Top));
        self.top = Some(first);
        self.system_bytes += end - start;
    }

    fn extend(&mut self, bytes: u64) {
        let top = self.top.expect("it has begun");
        self.chunks.get_mut(&top).expect("the top is a chunk").0 += bytes;
        self.stretches.last_mut().expect("it has begun").end += bytes;
        self.system_bytes += bytes;
    }

    /// Ends the segment of the top. The remainder becomes a free chunk, if it is large enough, and fenceposts follow.
    fn fence(&mut self, is_main: bool) {
        let Some(top) = self.top.take() else { return };
        let (bytes, _) = self.chunks.remove(&top).expect("the top is a chunk");
        let end = top + bytes;
        let left = (bytes - 32) / 16 * 16;
        let mut fences = vec![end - 32, end - 16];
        if left >= 32 {
            self.chunks.insert(top, (left, ChunkUse::InUse));
        } else if left > 0 && is_main {
            fences.insert(0, top);
        } else if left > 0 {
            self.chunks.insert(top, (32, ChunkUse::Fencepost));
            fences.remove(0);
        }
        for fence in fences {
            self.chunks.insert(fence, (16, ChunkUse::Fencepost));
        }
        if left >= 32 {
            self.release(top);
        }
    }

    fn carve_free(&mut self, size: u64) -> Option<u64> {
        let index = self.free.iter().position(|chunk| self.chunks[chunk].0 >= size)?;
        let chunk = self.free.remove(index);
        self.split(chunk, size, ChunkUse::Free);
        Some(chunk)
    }

    fn carve_top(&mut self, size: u64) -> u64 {
        let chunk = self.top.expect("it has grown");
        self.split(chunk, size, ChunkUse::Top);
        chunk
    }

    /// Cuts a chunk to `size` unless what remains is too small to be a chunk.
    fn split(&mut self, chunk: u64, size: u64, rest: ChunkUse) {
        let (bytes, _) = self.chunks[&chunk];
        if bytes - size < 32 {
            return;
        }
        self.chunks.insert(chunk, (size, ChunkUse::InUse));
        self.chunks.insert(chunk + size, (bytes - size, rest));
        if rest == ChunkUse::Top {
            self.top = Some(chunk + size);
        } else {
            self.free.push(chunk + size);
        }
    }

    /// Makes a chunk free and merges it with its neighbours, or into the top.
    fn release(&mut self, chunk: u64) {
        let (mut start, mut bytes) = (chunk, self.chunks[&chunk].0);
        self.chunks.remove(&chunk);
        let before = self.chunks.range(..chunk).next_back().map(|(at, chunk)| (*at, *chunk));
        if let Some((at, (size, ChunkUse::Free))) = before
            && at + size == chunk
        {
            self.forget_free(at);
            start = at;
            bytes += size;
        }
        let behind = start + bytes;
        let usage = match self.chunks.get(&behind) {
            Some(&(size, ChunkUse::Free)) => {
                self.forget_free(behind);
                bytes += size;
                ChunkUse::Free
            }
            Some(&(size, ChunkUse::Top)) => {
                self.chunks.remove(&behind);
                bytes += size;
                self.top = Some(start);
                ChunkUse::Top
            }
            _ => ChunkUse::Free,
        };
        self.chunks.insert(start, (bytes, usage));
        if usage == ChunkUse::Free {
            self.free.push(start);
        }
    }

    fn forget_free(&mut self, chunk: u64) {
        self.chunks.remove(&chunk);
        self.free.retain(|free| *free != chunk);
    }
}
