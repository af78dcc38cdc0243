//! Looks up addresses in constant time: tracing looks up every word of the target's memory.

use std::ops::Range;

use allocator::{Block, HeapMap};
use linux::{Address, AddressMap};
use ruby::{ClassKind, ImemoType, ObjectSpace, Referents, SlotType, TableLayout};

/// Granules of 1 KiB: a lookup examines a few neighbouring blocks, and the map takes 0.4 % of the memory that it
/// describes.
const GRANULE_LOG2: u32 = 10;
/// The tables that every map may have, 64 KiB each: 256 MiB for 64 GiB of memory.
const MIN_TABLES: usize = 4096;
/// Processes with many blocks get one more table for this many blocks, 4 bytes per block. Memory beyond that is
/// searched: its blocks are larger than a granule, or strewn over the address space.
const BLOCKS_PER_TABLE: usize = 16384;
/// The block that an address lies in is at most this many blocks behind the first one of its granule.
const MAX_NEIGHBOURS: usize = (1 << GRANULE_LOG2) / Block::MIN_BYTES as usize;

/// The values of the map. Values from `FIRST_INDEX` on are numbers of blocks, then of areas.
const NOTHING: u32 = 0;
const HEAP_PAGE: u32 = 1;
/// The map has no room for this memory.
const SEARCH: u32 = 2;
const FIRST_INDEX: u32 = 3;

/// The memory that a word refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Referent {
    /// The block in use with this number. `is_start` is true for the address that malloc returned.
    Block { number: u32, is_start: bool },
    /// The beginning of the slot with this index.
    Slot(u32),
    /// The area with this index.
    Area(u32),
    /// No memory that has an owner.
    Nothing,
}

/// A map of the blocks in use, slots, and *areas* (other memory that may hold pointers) of an image.
pub(crate) struct AddressIndex<'a> {
    heap: &'a HeapMap,
    space: &'a ObjectSpace,
    /// Ascending.
    areas: &'a [Range<Address>],
    map: AddressMap,
}

impl<'a> AddressIndex<'a> {
    /// Maps `areas`, blocks and slots. If they overlap, slots take precedence, then blocks.
    pub(crate) fn new(
        heap: &'a HeapMap,
        space: &'a ObjectSpace,
        areas: &'a [Range<Address>],
    ) -> Self {
        let max_tables = MIN_TABLES + heap.block_count() / BLOCKS_PER_TABLE;
        Self::with_tables(heap, space, areas, max_tables)
    }

    /// The layout of the hash tables of the interpreter and of extensions.
    pub(crate) fn table_layout(&self) -> TableLayout {
        self.space.interpreter.table_layout()
    }

    fn with_tables(
        heap: &'a HeapMap,
        space: &'a ObjectSpace,
        areas: &'a [Range<Address>],
        max_tables: usize,
    ) -> Self {
        let mut map = AddressMap::new(GRANULE_LOG2, max_tables, SEARCH);
        for (index, area) in areas.iter().enumerate() {
            map.set(area, value(heap.block_count() + index));
        }
        let mut mapped = Address(0);
        for extent in &heap.extents {
            mapped = mapped.max(extent.range.start.align_down(1 << GRANULE_LOG2));
            for (number, block) in heap.blocks_of(extent) {
                // Each granule has the block that its first byte lies in, or else its first block.
                let end = block.end().align_up(1 << GRANULE_LOG2);
                if mapped < end {
                    map.set(&(mapped..end), value(number));
                    mapped = end;
                }
            }
        }
        for page in &space.pages {
            map.set(&page.range, HEAP_PAGE);
        }
        Self { heap, space, areas, map }
    }

    /// The memory at `at`.
    #[inline]
    pub(crate) fn at(&self, at: Address) -> Referent {
        match self.map.get(at) {
            NOTHING => Referent::Nothing,
            HEAP_PAGE => match self.space.slot_at(at) {
                Some(slot) => Referent::Slot(slot),
                // Up to 3.0 a heap page ends some bytes before its granule does, and the next block begins
                // there.
                None => self.search_block(at),
            },
            SEARCH => self.search(at),
            value => {
                let index = value - FIRST_INDEX;
                match index.checked_sub(self.block_count()) {
                    None => self.block_near(at, index),
                    Some(area) => Referent::Area(area),
                }
            }
        }
    }

    /// The number of the block for which malloc returned `at`.
    pub(crate) fn block_at(&self, at: Address) -> Option<u32> {
        match self.at(at) {
            Referent::Block { number, is_start: true } => Some(number),
            _ => None,
        }
    }

    pub(crate) fn block_count(&self) -> u32 {
        self.heap.block_count() as u32
    }

    /// The slow way, for memory that the map has no room for.
    fn search(&self, at: Address) -> Referent {
        if let Some(slot) = self.space.slot_at(at) {
            return Referent::Slot(slot);
        }
        match self.search_block(at) {
            Referent::Nothing => {
                let area = self.areas.partition_point(|area| area.end <= at);
                let found = self.areas.get(area).is_some_and(|area| area.contains(&at));
                if found { Referent::Area(area as u32) } else { Referent::Nothing }
            }
            block => block,
        }
    }

    fn search_block(&self, at: Address) -> Referent {
        let after = self.heap.blocks.count_to(self.start_of(at));
        after.checked_sub(1).map_or(Referent::Nothing, |number| self.block_near(at, number as u32))
    }

    /// The beginning of a block whose pointer is `at`.
    fn start_of(&self, at: Address) -> Address {
        Address(at.0.saturating_sub(self.heap.header.bytes))
    }

    fn block_near(&self, at: Address, first: u32) -> Referent {
        let start = self.start_of(at);
        let found = self.heap.blocks.last_to(start, first as usize, MAX_NEIGHBOURS + 2);
        let block = found.and_then(|number| Some((number as u32, self.heap.block(number)?)));
        let Some((number, block)) = block else { return Referent::Nothing };
        // The last usable word of a block may lie in the next header. Only malloc itself points there, and
        // means the next block.
        if !block.state().is_in_use() || at >= block.end() {
            return Referent::Nothing;
        }
        Referent::Block { number, is_start: block.address == start }
    }
}

impl Referents for AddressIndex<'_> {
    fn type_at(&self, at: Address) -> Option<SlotType> {
        let Referent::Slot(slot) = self.at(at) else { return None };
        self.space.slots.get(slot as usize).map(|slot| slot.kind())
    }

    fn imemo_at(&self, at: Address) -> Option<ImemoType> {
        let Referent::Slot(slot) = self.at(at) else { return None };
        let class = self.space.slots.get(slot as usize)?.class();
        match self.space.classes.get(class as usize)?.kind {
            ClassKind::Imemo(kind) => Some(kind),
            _ => None,
        }
    }

    fn is_in_block(&self, at: Address) -> bool {
        matches!(self.at(at), Referent::Block { .. })
    }

    fn is_block(&self, at: Address) -> bool {
        self.block_at(at).is_some()
    }

    fn has_previous_subclass(&self) -> bool {
        self.space.interpreter.has_previous_subclass()
    }
}

/// The value for the block with this number, or for an area: the indices of areas follow the numbers of blocks.
fn value(index: usize) -> u32 {
    let value = u32::try_from(index).ok().and_then(|index| index.checked_add(FIRST_INDEX));
    value.filter(|&value| value < AddressMap::END_OF_VALUES).unwrap_or(SEARCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator::{BlockState, Extent, Header};
    use ruby::HeapPage;

    const HEADER: Header = Header { bytes: 16, lent: 8 };

    /// Of 9 GiB of strings on Ruby 2.7, 94 were called unreachable: they began behind a heap page.
    #[test]
    fn a_chunk_that_begins_just_behind_a_heap_page_is_found() {
        let block = |address, bytes| Block::new(Address(address), bytes, BlockState::InUse);
        let blocks = [block(0x1_3ff0, 0x3ff0), block(0x1_7fe0, 0x1020)].into_iter().collect();
        let range = Address(0x1_3ff0)..Address(0x1_9000);
        let extent = Extent::new(range, Some(0), 0..2);
        let heap = HeapMap { extents: vec![extent], blocks, header: HEADER, ..HeapMap::default() };
        let page = HeapPage {
            range: Address(0x1_4000)..Address(0x1_7fd8),
            first_slot: Address(0x1_4000),
            slot_bytes: 40,
            slots: 0..0,
            space: 0,
        };
        let mut space = ObjectSpace::default();
        space.pages.push(page);
        let addresses = AddressIndex::new(&heap, &space, &[]);
        assert_eq!(addresses.at(Address(0x1_7ff0)), Referent::Block { number: 1, is_start: true });
        assert_eq!(addresses.at(Address(0x1_8ff8)), Referent::Block { number: 1, is_start: false });
        assert_eq!(addresses.at(Address(0x1_9000)), Referent::Nothing);
    }

    #[test]
    fn a_block_without_a_header_is_found_from_its_first_byte_to_its_last_word() {
        let block = |address| Block::new(Address(address), 0x20, BlockState::InUse);
        let blocks = [block(0x1_0000), block(0x1_0020)].into_iter().collect();
        let range = Address(0x1_0000)..Address(0x1_0040);
        let extents = vec![Extent::new(range, Some(0), 0..2)];
        let heap = HeapMap { extents, blocks, ..HeapMap::default() };
        let space = ObjectSpace::default();
        let addresses = AddressIndex::new(&heap, &space, &[]);
        let found = |number, is_start| Referent::Block { number, is_start };
        assert_eq!(addresses.at(Address(0x1_0000)), found(0, true));
        assert_eq!(addresses.at(Address(0x1_0018)), found(0, false));
        assert_eq!(addresses.at(Address(0x1_0020)), found(1, true));
        assert_eq!(addresses.at(Address(0x1_0040)), Referent::Nothing);
    }

    /// Chunks had 29 bits of a value: the chunk behind 2^29 others was called the first one.
    #[test]
    fn values_of_half_a_billion_chunks_do_not_alias() {
        let mut map = AddressMap::new(GRANULE_LOG2, 1, SEARCH);
        for index in [0, 1, (1 << 29) - 1, 1 << 29, (1 << 30) + 5, (1 << 31) - 4] {
            map.set(&(Address(0)..Address(1)), value(index));
            assert_eq!((map.get(Address(0)) - FIRST_INDEX) as usize, index);
        }
        for index in [(1 << 31) - 3, 1 << 31, u32::MAX as usize, (1 << 32) + 7] {
            map.set(&(Address(0)..Address(1)), value(index));
            assert_eq!(map.get(Address(0)), SEARCH, "{index}");
        }
    }

    /// An image with all kinds of places, over and over, so far apart that each needs tables of
    /// its own.
    fn strewn() -> (HeapMap, ObjectSpace, Vec<Range<Address>>) {
        let (mut heap, mut space, mut areas) =
            (HeapMap { header: HEADER, ..HeapMap::default() }, ObjectSpace::default(), Vec::new());
        for base in (1_u64..40).map(|number| number << 24) {
            let first = heap.blocks.len();
            for (offset, bytes, state) in [
                (0, 0x20, BlockState::InUse),
                (0x20, 0x3fc0, BlockState::InUse),
                (0x3fe0, 0x120, BlockState::Free),
                (0x4100, 0x20f0, BlockState::InUse),
            ] {
                heap.blocks.push(Block::new(Address(base + offset), bytes, state));
            }
            let range = Address(base)..Address(base + 0x61f0);
            heap.extents.push(Extent::new(range, Some(0), first..heap.blocks.len()));
            space.pages.push(HeapPage {
                range: Address(base + 0x1_0000)..Address(base + 0x2_0000),
                first_slot: Address(base + 0x1_0028),
                slot_bytes: 40,
                slots: 0..0,
                space: 0,
            });
            areas.push(Address(base + 0x3_0000)..Address(base + 0x3_1800));
        }
        (heap, space, areas)
    }

    #[test]
    fn what_the_map_has_no_room_for_is_found_all_the_same() {
        let (heap, space, areas) = strewn();
        let all = AddressIndex::new(&heap, &space, &areas);
        for max_tables in [0, 1, 20] {
            let few = AddressIndex::with_tables(&heap, &space, &areas, max_tables);
            for base in (0_u64..41).map(|number| number << 24) {
                for at in (0..0x4_0000).step_by(8).map(|offset| Address(base + offset)) {
                    assert_eq!(few.at(at), all.at(at), "{at} with {max_tables} tables");
                }
            }
        }
    }
}
