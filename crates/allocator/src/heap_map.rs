use std::ops::Range;

use crate::Finding;
use linux::Address;

use crate::{Blocks, TrimCall};

/// The heap of one process at one instant, in a form that fits every allocator: plain data, made by a walker.
///
/// An allocator obtains memory in *extents* and divides them into *blocks*. Blocks are numbered in the order
/// of their addresses. What an extent has before its first block and behind its last one (structures of the
/// allocator, padding) counts as overhead. Three rules make other designs than glibc's fit:
///
/// - Memory of the allocator's own is a block in the state [`BlockState::Overhead`].
/// - An extent that is free as a whole is one free block, and [`Extent::state`] is the state of its pages. The parts
///   that the allocator can return are also in [`HeapMap::trimmable`].
/// - Each region of a slab is a block, and [`Extent::region_bytes`] is their size.
#[derive(Debug, Clone, Default)]
pub struct HeapMap {
    /// The allocator and its version, such as `glibc 2.36`.
    pub walker: String,
    /// The arenas, the main one first.
    pub arenas: Vec<Arena>,
    /// The memory that the allocator obtained, ascending by address and disjoint.
    pub extents: Vec<Extent>,
    /// All blocks, ascending by address.
    pub blocks: Blocks,
    /// The header that each block begins with.
    pub header: Header,
    /// The sizes that requests are rounded up to, ascending; empty if they are rounded up to a header and a multiple of
    /// 16, as glibc does.
    pub size_classes: Vec<u64>,
    /// The memory that the next call of [`HeapMap::trim_call`] would return to the kernel: whole pages,
    /// ascending and disjoint, resident or not.
    pub trimmable: Vec<Range<Address>>,
    /// The call that returns [`HeapMap::trimmable`]; `None` if the allocator has no such call.
    pub trim_call: Option<TrimCall>,
    /// The sums over all arenas and mapped blocks, counted as the allocator's own statistics count.
    pub totals: Totals,
    /// The bytes of free blocks in the thread caches of threads that a forked process does not have, because only its parent runs them.
    /// No thread can use them, and nothing frees them.
    pub abandoned_bytes: u64,
    /// The tuning of the allocator; `None` if its parameters were not found.
    pub tuning: Option<Tuning>,
    /// The bytes between the addresses that are keys of the allocator's caches of lookups, which each thread has among its
    /// thread-local variables: multiples of this there look like pointers to the blocks at these addresses. `None` if it
    /// has no such caches.
    pub lookup_span: Option<u64>,
    /// Variables of the allocator with addresses of blocks that it has given out again since: they hold no block. Ascending and
    /// disjoint.
    pub bookkeeping: Vec<Range<Address>>,
    /// Problems, and facts that a reader should know.
    pub findings: Vec<Finding>,
}

/// The tuning of an allocator, by its defaults, the environment or mallopt(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// The maximum number of arenas; `None` if it depends on the number of processors.
    pub arena_max: Option<u64>,
    /// The maximum number of blocks of one size that a thread caches; 0 if thread caches are off, `None` if it
    /// differs by size.
    pub tcache_count: Option<u64>,
    /// When free memory is returned; `None` for glibc, which has no such rule.
    pub decay: Option<Decay>,
    /// The sizes that decide in glibc what is returned when a block is freed; `None` for other allocators.
    pub thresholds: Option<Thresholds>,
}

/// The sizes that decide in glibc what is returned when a block is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// A free end of the main heap that is smaller is kept.
    pub trim_bytes: u64,
    /// The part of that end which is kept otherwise.
    pub top_pad_bytes: u64,
    /// Larger blocks have mappings of their own, which are returned at once.
    pub mmap_bytes: u64,
}

/// When jemalloc returns free memory to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decay {
    /// The milliseconds after which dirty pages are released by MADV_FREE, or returned if `muzzy_ms` is 0; -1 for
    /// never.
    pub dirty_ms: i64,
    /// The milliseconds after which muzzy pages are returned; -1 for never.
    pub muzzy_ms: i64,
    /// True if threads of jemalloc's own do that. Otherwise it happens only while the program allocates and frees in the
    /// same arena.
    pub in_background: bool,
}

/// An arena: a part of the heap with a lock of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arena {
    /// The address of its structure (`malloc_state`, `arena_s`).
    pub address: Address,
    /// True for the arena that the process starts with.
    pub is_main: bool,
    /// The number of its extents that hold blocks.
    pub heaps: u32,
    /// The bytes that it obtained from the kernel, by its own count.
    pub system_bytes: u64,
    /// The number of threads that allocate from it; `None` if it does not count them.
    pub threads: Option<u32>,
    /// True if its lock was held: a thread was inside malloc.
    pub locked: bool,
    /// True if its blocks were walked to the end and agree with its lists and counts. Otherwise a finding
    /// gives the reason, and its extents have no blocks.
    pub walked: bool,
    /// The sums over its blocks.
    pub totals: Totals,
}

/// Memory that an allocator obtained in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// All of it, structures of the allocator and padding included.
    pub range: Range<Address>,
    /// Its arena, an index into [`HeapMap::arenas`]; `None` for a block with a mapping of its own.
    pub arena: Option<u32>,
    /// The numbers of its blocks; empty if they could not be walked.
    pub blocks: Range<usize>,
    /// The use that the allocator makes of it.
    pub state: ExtentState,
    /// The size of its regions in bytes, if it is a slab: an extent divided into regions of one size.
    pub region_bytes: Option<u64>,
}

impl Extent {
    /// An active extent that is no slab.
    #[must_use]
    pub fn new(range: Range<Address>, arena: Option<u32>, blocks: Range<usize>) -> Self {
        Self { range, arena, blocks, state: ExtentState::Active, region_bytes: None }
    }
}

/// The use that an allocator makes of an extent, in jemalloc's terms. glibc's extents are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentState {
    /// It holds blocks in use, or did when it was made.
    Active,
    /// It is free as a whole, and its pages were kept: the next requests use them first.
    Dirty,
    /// It is free as a whole, and its pages were released by MADV_FREE: resident until the kernel needs them.
    Muzzy,
    /// It is free as a whole, and its pages were returned: only the address space was kept.
    Retained,
    /// It holds structures of the allocator.
    Metadata,
}

/// The purpose that a block serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockState {
    /// Allocated by the program.
    InUse,
    /// Allocated by the program, in a mapping of its own that was all zeros at first.
    Mmapped,
    /// Free.
    Free,
    /// Free in one of glibc's fastbins: not merged with its neighbours yet.
    Fastbin,
    /// Free in a cache of a thread, or of tcmalloc's for all threads: never trimmed.
    Tcache,
    /// Free and no block yet, kept for growth: the top of one of glibc's arenas, or free slices of mimalloc.
    Top,
    /// A structure of the allocator, such as glibc's fenceposts.
    Overhead,
}

impl BlockState {
    pub(crate) const ALL: [Self; 7] = [
        Self::InUse,
        Self::Mmapped,
        Self::Free,
        Self::Fastbin,
        Self::Tcache,
        Self::Top,
        Self::Overhead,
    ];

    /// Its name in a dump.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InUse => "in_use",
            Self::Mmapped => "mmapped",
            Self::Free => "free",
            Self::Fastbin => "fastbin",
            Self::Tcache => "tcache",
            Self::Top => "top",
            Self::Overhead => "overhead",
        }
    }

    /// Returns true if the program has allocated the block.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::InUse | Self::Mmapped)
    }
}

/// A block: its header, and what follows up to the next block. [`Blocks`] keeps millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The address of its header.
    pub address: Address,
    /// The size, a multiple of 8, with the state in the low three bits.
    size_and_state: u64,
}

impl Block {
    /// The smallest block, and the unit of sizes, in bytes: jemalloc has regions of 8 bytes.
    pub const MIN_BYTES: u64 = 8;
    const STATE: u64 = Self::MIN_BYTES - 1;

    /// The block at `address` with `bytes` (a multiple of [`Block::MIN_BYTES`], header included).
    #[must_use]
    pub fn new(address: Address, bytes: u64, state: BlockState) -> Self {
        Self { address, size_and_state: bytes & !Self::STATE | state as u64 }
    }

    /// The size in bytes, header included.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.size_and_state & !Self::STATE
    }

    /// The purpose that it serves.
    #[must_use]
    pub fn state(self) -> BlockState {
        BlockState::ALL[(self.size_and_state & Self::STATE) as usize]
    }

    /// The same block in another state.
    #[must_use]
    pub fn in_state(self, state: BlockState) -> Self {
        Self::new(self.address, self.bytes(), state)
    }

    /// The address behind it.
    #[must_use]
    pub fn end(self) -> Address {
        self.address.offset(self.bytes())
    }
}

/// The header of all blocks of an allocator. It decides where the usable bytes of a block are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// The bytes from the beginning of a block to the pointer that malloc returns; 0 if blocks have no header.
    pub bytes: u64,
    /// The bytes at the beginning of a header that belong to the block before it. glibc lets a block in use
    /// run into the next header, whose first word is needed only once the block is free.
    pub lent: u64,
}

impl Header {
    /// The pointer that malloc returned for a block.
    #[must_use]
    pub fn pointer(self, block: Block) -> Address {
        block.address.offset(self.bytes)
    }

    /// The bytes of a block that the program may write to; none if the block is not in use.
    #[must_use]
    pub fn usable(self, block: Block) -> Range<Address> {
        let pointer = self.pointer(block);
        if block.state().is_in_use() { pointer..self.end(block) } else { pointer..pointer }
    }

    /// The bytes that a block takes up: its header without the part that the block before it uses, its other bytes,
    /// and the part that it uses of the next header.
    #[must_use]
    pub fn footprint(self, block: Block) -> Range<Address> {
        block.address.offset(self.lent)..self.end(block)
    }

    fn end(self, block: Block) -> Address {
        match block.state() {
            // There is no next block.
            BlockState::Mmapped => block.end(),
            _ => block.end().offset(self.lent),
        }
    }
}

/// Blocks counted by state; bytes include headers.
///
/// Arenas that could not be walked add to `system_bytes` only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The bytes that arenas obtained from the kernel.
    pub system_bytes: u64,
    /// Blocks in use, without mapped ones.
    pub in_use_chunks: u64,
    /// Their bytes.
    pub in_use_bytes: u64,
    /// Free blocks, and the top of each arena.
    pub free_chunks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Blocks in fastbins.
    pub fastbin_chunks: u64,
    /// Their bytes.
    pub fastbin_bytes: u64,
    /// Blocks in thread caches.
    pub tcache_chunks: u64,
    /// Their bytes.
    pub tcache_bytes: u64,
    /// Blocks with a mapping of their own.
    pub mmapped_chunks: u64,
    /// The bytes of their mappings.
    pub mmapped_bytes: u64,
}

impl Totals {
    /// Counts a block. Structures of the allocator count as nothing.
    pub(crate) fn add(&mut self, block: Block) {
        let (count, bytes) = match block.state() {
            BlockState::InUse => (&mut self.in_use_chunks, &mut self.in_use_bytes),
            BlockState::Fastbin => (&mut self.fastbin_chunks, &mut self.fastbin_bytes),
            BlockState::Tcache => (&mut self.tcache_chunks, &mut self.tcache_bytes),
            BlockState::Free => (&mut self.free_chunks, &mut self.free_bytes),
            BlockState::Top => return self.free_bytes += block.bytes(),
            BlockState::Overhead | BlockState::Mmapped => return,
        };
        *count += 1;
        *bytes += block.bytes();
    }

    /// Adds the sums of an arena.
    pub(crate) fn add_all(&mut self, arena: &Self) {
        self.system_bytes += arena.system_bytes;
        self.in_use_chunks += arena.in_use_chunks;
        self.in_use_bytes += arena.in_use_bytes;
        self.free_chunks += arena.free_chunks;
        self.free_bytes += arena.free_bytes;
        self.fastbin_chunks += arena.fastbin_chunks;
        self.fastbin_bytes += arena.fastbin_bytes;
        self.tcache_chunks += arena.tcache_chunks;
        self.tcache_bytes += arena.tcache_bytes;
    }
}

/// The alignment of glibc's chunks.
const GLIBC_ALIGNMENT: u64 = 16;

impl HeapMap {
    /// The number of blocks.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// All blocks, ascending, with their numbers.
    pub fn all_blocks(&self) -> impl Iterator<Item = (usize, Block)> {
        self.extents.iter().flat_map(|extent| self.blocks_of(extent))
    }

    /// The block with this number.
    #[inline]
    #[must_use]
    pub fn block(&self, number: usize) -> Option<Block> {
        self.blocks.get(number)
    }

    /// The bytes of the block with this number that the program may write to; 0 if there is no such block.
    #[must_use]
    pub fn usable_bytes(&self, number: u32) -> u64 {
        self.block(number as usize).map_or(0, |block| linux::length(&self.header.usable(block)))
    }

    /// The blocks of an extent, ascending, with their numbers.
    pub fn blocks_of(&self, extent: &Extent) -> impl Iterator<Item = (usize, Block)> {
        self.blocks.range(extent.blocks.clone())
    }

    /// The usable bytes of the block that the allocator gives for a small request.
    #[must_use]
    pub fn usable_bytes_for(&self, request: u64) -> u64 {
        let class = self.size_classes.iter().copied().find(|size| *size >= request);
        let own = self.header.bytes - self.header.lent;
        class.unwrap_or_else(|| (request + own).next_multiple_of(GLIBC_ALIGNMENT) - own)
    }

    /// The largest block for a small request: glibc does not split a rest off that is too small for another block.
    #[must_use]
    pub fn max_usable_bytes_for(&self, request: u64) -> u64 {
        let rest = if self.size_classes.is_empty() { GLIBC_ALIGNMENT } else { 0 };
        self.usable_bytes_for(request) + rest
    }

    /// Returns true if a block with so many usable bytes may have been requested with `bytes`.
    #[must_use]
    pub fn fits(&self, bytes: u64, usable: u64) -> bool {
        (self.usable_bytes_for(bytes)..=self.max_usable_bytes_for(bytes)).contains(&usable)
    }

    /// The usable bytes of a block that the program must have asked for, since a smaller request would have been given a
    /// smaller block, rounded up to a word. The words behind them may be an earlier owner's.
    #[must_use]
    pub fn requested_bytes(&self, block: Block) -> u64 {
        const WORD: u64 = 8;
        let usable = linux::length(&self.header.usable(block));
        if block.state() == BlockState::Mmapped {
            // It is not recycled memory.
            return usable;
        }
        let after = self.size_classes.partition_point(|size| *size < usable);
        let smaller = match after.checked_sub(1).and_then(|before| self.size_classes.get(before)) {
            Some(smaller) => *smaller,
            None if self.size_classes.is_empty() => usable.saturating_sub(GLIBC_ALIGNMENT),
            None => 0,
        };
        (smaller + WORD).min(usable)
    }

    /// The number of the block for which malloc returned `pointer`.
    #[must_use]
    pub fn block_of(&self, pointer: Address) -> Option<usize> {
        self.blocks.at(pointer.before(self.header.bytes))
    }

    /// The block in use or free whose usable memory `at` lies in.
    #[must_use]
    pub fn block_around(&self, at: Address) -> Option<Block> {
        let number = self.blocks.count_to(at).checked_sub(1)?;
        self.blocks.get(number).filter(|&block| self.header.usable(block).contains(&at))
    }

    /// The extent that `at` lies in.
    #[must_use]
    pub fn extent_at(&self, at: Address) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.range.start <= at);
        let extent = after.checked_sub(1).and_then(|index| self.extents.get(index))?;
        (at < extent.range.end).then_some(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(heap: &HeapMap, request: u64) -> (u64, u64) {
        let usable = heap.usable_bytes_for(request);
        let bytes = usable + heap.header.bytes - heap.header.lent;
        let block = Block::new(Address(0x1000), bytes, BlockState::InUse);
        assert_eq!(linux::length(&heap.header.usable(block)), usable);
        (usable, heap.requested_bytes(block))
    }

    #[test]
    fn a_request_is_rounded_as_the_allocator_does() {
        let glibc = HeapMap { header: Header { bytes: 16, lent: 8 }, ..HeapMap::default() };
        assert_eq!(requested(&glibc, 56), (56, 48));
        assert_eq!(requested(&glibc, 57), (72, 64));
        let size_classes = vec![8, 16, 32, 48, 64, 80, 96, 112, 128, 160];
        let jemalloc = HeapMap { size_classes, ..HeapMap::default() };
        assert_eq!(requested(&jemalloc, 8), (8, 8));
        assert_eq!(requested(&jemalloc, 16), (16, 16));
        assert_eq!(requested(&jemalloc, 56), (64, 56));
        assert_eq!(requested(&jemalloc, 130), (160, 136));
        let mapped = Block::new(Address(0x1000), 0x2_0000, BlockState::Mmapped);
        assert_eq!(glibc.requested_bytes(mapped), 0x2_0000 - 16);
    }
}
