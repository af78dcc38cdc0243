//! Writes a heap as glibc would.

use std::ops::Range;

use image::Image;
use linux::{Address, Backing, Mapping, Thread};

use super::libc::SyntheticLibc;
use super::{
    Arena, BREAK_START, Cache, ChunkUse, GlibcRelease, HEAP_SPAN, MallocHeap, MallocTruth, Mmapped,
    SyntheticChunk,
};
use crate::SyntheticMemory;

const THREADS_START: u64 = 0x7ea0_0000_0000;
/// The offsets of a thread's variables from its thread pointer: the pointer to its cache, the pointer to its arena, and
/// others.
const CACHE_VARIABLE: i64 = -0x48;
const ARENA_VARIABLE: i64 = -0x30;
const OTHER_VARIABLES: [i64; 3] = [-0x80, -0x20, -0x8];

/// The size of `mp_` in 2.44.
const PARAMETERS_OF_2_44: u64 = 0x88;

/// The offsets of an arena's members.
struct ArenaMembers {
    fastbins: u64,
    top: u64,
    bins: u64,
    next: u64,
    system_mem: u64,
}

impl GlibcRelease {
    fn arena_members(self) -> ArenaMembers {
        if self >= Self::V2_43 {
            ArenaMembers { fastbins: 0, top: 0x8, bins: 0x18, next: 0x818, system_mem: 0x830 }
        } else {
            ArenaMembers { fastbins: 0x10, top: 0x60, bins: 0x70, next: 0x870, system_mem: 0x888 }
        }
    }

    /// The offsets of `n_mmaps` and `mmapped_mem` in `mp_`. The members behind them follow each other.
    fn parameter_members(self) -> (u64, u64) {
        match self {
            Self::V2_31 => (0x28, 0x38),
            Self::V2_36 | Self::V2_42 => (0x3c, 0x50),
            Self::V2_43 | Self::V2_44 => (0x44, 0x58),
        }
    }

    /// The number of a cache's lists, and the offset of their heads.
    fn cache_lists(self) -> (u64, u64) {
        if self.cache_counts_room() { (76, 0x98) } else { (64, 0x80) }
    }
}

impl MallocHeap {
    /// Returns the image of a process with only this heap, and the facts that a reader must find in it.
    #[must_use]
    pub fn image(&self) -> (Image<'static>, MallocTruth) {
        let mut memory = SyntheticMemory::default();
        let truth = self.write(&mut memory);
        let mut state = memory.state();
        state.threads.clone_from(&truth.threads);
        (Image::new(state, memory), truth)
    }

    /// Writes the heap and its C library, with their mappings. The caller, when it makes an image of `memory`, must add
    /// the truth's threads to the process's state.
    pub fn write(&self, memory: &mut SyntheticMemory) -> MallocTruth {
        memory.machine = self.machine;
        self.write_mappings(memory);
        let mut offsets = OTHER_VARIABLES.to_vec();
        offsets.extend([CACHE_VARIABLE, ARENA_VARIABLE]);
        SyntheticLibc::write(memory, self.release.version(), &offsets, self.break_end);
        self.write_parameters(memory);
        for pair in self.arenas[0].stretches.windows(2) {
            if pair[1].start < self.break_end.next_multiple_of(self.machine.page_size) {
                write_strangers(memory, pair[0].end..pair[1].start);
            }
        }
        for (index, arena) in self.arenas.iter().enumerate() {
            self.write_heap_infos(memory, index);
            write_chunks(memory, arena, index == 0);
            self.write_arena(memory, index);
        }
        for cache in &self.threads {
            self.write_cache(memory, cache);
        }
        for mmapped in self.mmapped.iter().chain(&self.look_alikes) {
            self.write_mmapped(memory, mmapped);
        }
        let threads = self.write_threads(memory);
        self.truth(threads)
    }

    fn write_mappings(&self, memory: &mut SyntheticMemory) {
        let range = |start: u64, end: u64| Address(start)..Address(end);
        let break_end = self.break_end.next_multiple_of(self.machine.page_size);
        let heap = Mapping::anonymous(range(BREAK_START, break_end));
        memory.mappings.push(Mapping { backing: Backing::Heap, ..heap });
        if self.break_is_blocked {
            memory.map(break_end, self.machine.page_size);
        }
        for arena in &self.arenas[1..] {
            for stretch in &arena.stretches {
                memory.map(stretch.start, stretch.end - stretch.start);
                let rest = Mapping::anonymous(range(stretch.end, stretch.start + HEAP_SPAN));
                memory.mappings.push(Mapping { readable: false, writable: false, ..rest });
            }
        }
        let by_mmap = self.arenas[0].stretches.iter().filter(|it| it.start >= break_end);
        let mmapped = self.mmapped.iter().chain(&self.look_alikes);
        let mmapped = mmapped.map(|it| it.base..it.base + it.bytes);
        for stretch in by_mmap.cloned().chain(mmapped) {
            memory.map(stretch.start, stretch.end - stretch.start);
        }
    }

    fn write_parameters(&self, memory: &mut SyntheticMemory) {
        let at = match self.release {
            GlibcRelease::V2_44 => SyntheticLibc::END - PARAMETERS_OF_2_44,
            _ => SyntheticLibc::PARAMETERS,
        };
        let half = |memory: &mut SyntheticMemory, offset: u64, value: u32| {
            memory.write(at + offset, &value.to_le_bytes());
        };
        for (offset, value) in [(0, 0x20000), (8, 0x20000), (16, 0x20000), (24, 8), (32, 0)] {
            memory.write_u64(at + offset, value);
        }
        let (n_mmaps, mmapped_mem) = self.release.parameter_members();
        let count = self.mmapped.len() as u32;
        half(memory, n_mmaps, count);
        half(memory, n_mmaps + 4, 65536);
        half(memory, n_mmaps + 8, count + 3);
        let bytes: u64 = self.mmapped.iter().map(|mmapped| mmapped.bytes).sum();
        let drift = if self.release >= GlibcRelease::V2_43 { 16 * self.resizes } else { 0 };
        let bytes = bytes + drift;
        let base = self.arenas[0].stretches.first().map_or(0, |stretch| stretch.start);
        let lists = 64;
        let cached_bytes = if self.release >= GlibcRelease::V2_43 { 1033 } else { 1032 };
        let words = [bytes, bytes + 0x9000, base, lists, cached_bytes];
        for (index, word) in (0..).zip(words) {
            memory.write_u64(at + mmapped_mem + 8 * index, word);
        }
        memory.write_u64(at + mmapped_mem + 40, self.release.cache_count() as u64);
    }

    fn write_heap_infos(&self, memory: &mut SyntheticMemory, index: usize) {
        if index == 0 {
            return;
        }
        let mut previous = 0;
        for stretch in &self.arenas[index].stretches {
            let bytes = stretch.end - stretch.start;
            let words = [self.arenas[index].address, previous, bytes, bytes];
            for (index, word) in (0..).zip(words) {
                memory.write_u64(stretch.start + 8 * index, word);
            }
            if self.release != GlibcRelease::V2_31 {
                memory.write_u64(stretch.start + 32, self.machine.page_size);
            }
            previous = stretch.start;
        }
    }

    fn write_arena(&self, memory: &mut SyntheticMemory, index: usize) {
        let arena = &self.arenas[index];
        let at = arena.address;
        let members = self.release.arena_members();
        memory.write(at + 4, &[if arena.contiguous { 0 } else { 2 }]);
        for (bytes, list) in &arena.fast {
            let mut link = at + members.fastbins + (bytes / 16 - 2) * 8;
            for (step, &chunk) in list.iter().rev().enumerate() {
                let stored = if step == 0 { chunk } else { self.release.link(link, chunk) };
                memory.write_u64(link, stored);
                link = chunk + 16;
            }
            if !list.is_empty() {
                memory.write_u64(link, self.release.link(link, 0));
            }
        }
        let bins = at + members.bins;
        memory.write_u64(at + members.top, arena.top.unwrap_or(bins - 16));
        write_bins(memory, arena, bins);
        let next = self.arenas.get(index + 1).unwrap_or(&self.arenas[0]);
        memory.write_u64(at + members.next, next.address);
        memory.write_u64(at + members.next + 16, 1);
        memory.write_u64(at + members.system_mem, arena.system_bytes);
        memory.write_u64(at + members.system_mem + 8, arena.system_bytes + 0x5000);
    }

    fn write_cache(&self, memory: &mut SyntheticMemory, cache: &Cache) {
        let at = cache.holder + 16;
        let (lists, heads) = self.release.cache_lists();
        for list in 0..lists {
            let bytes = 32 + 16 * list;
            let chunks = cache.lists.get(&bytes).map_or(&[][..], |chunks| chunks);
            let mut count = chunks.len() as u16;
            if self.release.cache_counts_room() {
                count = self.release.cache_count() as u16 - count;
            }
            memory.write(at + 2 * list, &count.to_le_bytes());
            let mut link = at + heads + 8 * list;
            memory.write_u64(link, 0);
            for (step, &chunk) in chunks.iter().rev().enumerate() {
                let pointer = chunk + 16;
                let stored = if step == 0 { pointer } else { self.release.link(link, pointer) };
                memory.write_u64(link, stored);
                link = pointer;
            }
            if !chunks.is_empty() {
                memory.write_u64(link, self.release.link(link, 0));
            }
        }
    }

    fn write_mmapped(&self, memory: &mut SyntheticMemory, mmapped: &Mmapped) {
        let tail = mmapped.bytes - mmapped.old_bytes;
        memory.write_u64(mmapped.base + 8, mmapped.old_bytes | 2);
        let distance = mmapped.header - mmapped.base;
        memory.write_u64(mmapped.header, distance);
        memory.write_u64(mmapped.header + 8, (mmapped.bytes - distance - tail) | 2);
        write_noise(memory, mmapped.header + 16, 24);
    }

    fn write_threads(&self, memory: &mut SyntheticMemory) -> Vec<Thread> {
        let count = self.threads.len() as u64 + 1;
        memory.map(THREADS_START, count * self.machine.page_size);
        let thread = |index: u64| {
            let thread_pointer = THREADS_START + index * self.machine.page_size + 0x800;
            let place = |offset: i64| thread_pointer.wrapping_add_signed(offset);
            for offset in OTHER_VARIABLES {
                memory.write_u64(place(offset), SyntheticLibc::DUMMY);
            }
            // The last one has never allocated.
            let known = (self.threads.get(index as usize)).zip(self.arenas.get(index as usize));
            let nothing =
                if self.release >= GlibcRelease::V2_43 { SyntheticLibc::DUMMY } else { 0 };
            let cache = known.map_or(nothing, |(cache, _)| cache.holder + 16);
            let cache = self.misled.get(&(index as usize)).copied().unwrap_or(cache);
            memory.write_u64(place(CACHE_VARIABLE), cache);
            memory.write_u64(place(ARENA_VARIABLE), known.map_or(0, |(_, arena)| arena.address));
            Thread {
                tid: 1000 + index as i32,
                cpu: self.machine.cpu,
                thread_pointer: Address(thread_pointer),
                stack_pointer: Address(0x7ffd_0000_0000),
                registers: Vec::new(),
            }
        };
        (0..count).map(thread).collect()
    }

    fn truth(&self, threads: Vec<Thread>) -> MallocTruth {
        let mut truth = MallocTruth { threads, ..MallocTruth::default() };
        for arena in &self.arenas {
            let chunks = arena.chunks.iter();
            truth.chunks.extend(chunks.map(|(&address, &(bytes, usage))| SyntheticChunk {
                address,
                bytes,
                usage,
            }));
            truth.regions.extend(arena.stretches.iter().cloned());
            truth.system_bytes.push(arena.system_bytes);
            truth.trimmable.extend(self.trimmable(arena));
        }
        for mmapped in &self.mmapped {
            let end = mmapped.base + mmapped.bytes;
            truth.chunks.push(SyntheticChunk {
                address: mmapped.header,
                bytes: end - mmapped.header,
                usage: ChunkUse::Mmapped,
            });
            truth.regions.push(mmapped.base..end);
        }
        truth.chunks.sort_unstable();
        truth.regions.sort_unstable_by_key(|region| region.start);
        truth.trimmable.sort_unstable_by_key(|range| range.start);
        truth
    }

    /// Returns the pages that a trim returns from an arena: it trims a copy.
    fn trimmable(&self, arena: &Arena) -> Vec<Range<u64>> {
        let mut arena = arena.clone();
        for chunk in std::mem::take(&mut arena.fast).into_values().flatten() {
            arena.release(chunk);
        }
        let mut trimmed = Vec::new();
        for (&chunk, &(bytes, usage)) in &arena.chunks {
            let end = chunk + bytes;
            let page_size = self.machine.page_size;
            let pages = (chunk / page_size..=end / page_size)
                .map(|page| page * page_size..(page + 1) * page_size);
            let kept = match usage {
                ChunkUse::Free => chunk + 48..end,
                ChunkUse::Top if end == self.break_end => {
                    let released = bytes.saturating_sub(33) / page_size * page_size;
                    end - released..end
                }
                _ => continue,
            };
            let given = pages.filter(|page| kept.start <= page.start && page.end <= kept.end);
            let (first, last) =
                given.fold((None, 0), |(first, _), page| (first.or(Some(page.start)), page.end));
            trimmed.extend(first.map(|first| first..last));
        }
        trimmed
    }
}

/// Writes the headers of an arena's chunks, and noise into the program's memory.
fn write_chunks(memory: &mut SyntheticMemory, arena: &Arena, is_main: bool) {
    let mut before: Option<(u64, u64, ChunkUse)> = None;
    for (&chunk, &(bytes, usage)) in &arena.chunks {
        let free_before = before
            .filter(|&(at, bytes, usage)| at + bytes == chunk && usage == ChunkUse::Free)
            .map(|(_, bytes, _)| bytes);
        if matches!(usage, ChunkUse::InUse | ChunkUse::Cached | ChunkUse::Fastbin) {
            // The last 8 bytes are in the next chunk's header, which does not use them while the chunk is not free.
            write_noise(memory, chunk + 16, (bytes - 8).min(64));
            memory.write_u64(chunk + bytes, 0x5a5a_5a5a_5a5a_5a5a);
        }
        if let Some(bytes) = free_before {
            memory.write_u64(chunk, bytes);
        }
        let end = chunk + bytes;
        let is_last_of_heap = !is_main
            && usage == ChunkUse::Fencepost
            && arena.stretches.iter().any(|stretch| stretch.end == end);
        let size = if is_last_of_heap { 0 } else { bytes };
        let is_elsewhere = !is_main
            && match usage {
                ChunkUse::Top | ChunkUse::Fencepost => false,
                // Free chunks that were allocated before have the bit.
                ChunkUse::Free => chunk % 32 == 0,
                _ => true,
            };
        let flags = u64::from(free_before.is_none()) | if is_elsewhere { 4 } else { 0 };
        memory.write_u64(chunk + 8, size | flags);
        before = Some((chunk, bytes, usage));
    }
}

/// Writes the 127 rings of the bins. The chunks freed last are still unsorted, the others are sorted by size.
fn write_bins(memory: &mut SyntheticMemory, arena: &Arena, bins: u64) {
    let mut rings: Vec<Vec<u64>> = vec![Vec::new(); 127];
    let unsorted_from = arena.free.len().saturating_sub(2);
    for (index, &chunk) in arena.free.iter().enumerate() {
        let bytes = arena.chunks[&chunk].0;
        let bin = match bytes {
            _ if index >= unsorted_from => 0,
            ..1024 => bytes / 16 - 1,
            _ => 63 + (bytes / 512).min(63),
        };
        rings[bin as usize].push(chunk);
    }
    for (index, mut ring) in (0..).zip(rings) {
        let bin = bins + 16 * index - 16;
        ring.push(bin);
        for (index, &chunk) in ring.iter().enumerate() {
            let next = ring[(index + 1) % ring.len()];
            memory.write_u64(chunk + 16, next);
            memory.write_u64(next + 24, chunk);
        }
    }
}

/// Writes memory of another user of sbrk. No part of it looks like a chunk that leads to others: no reader could
/// distinguish that from real chunks.
fn write_strangers(memory: &mut SyntheticMemory, range: Range<u64>) {
    for at in range.step_by(8) {
        memory.write(at, &[0x5a, (at / 8 % 7) as u8]);
    }
}

/// Writes typical contents of a program's memory: pointers into the heap, sizes, zeros.
fn write_noise(memory: &mut SyntheticMemory, at: u64, bytes: u64) {
    for index in 0..bytes / 8 {
        let word = match (at / 16 + index) % 5 {
            0 => 0,
            1 => at,
            2 => 0x1002,
            3 => 0x21,
            _ => at.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        memory.write_u64(at + 8 * index, word);
    }
}
