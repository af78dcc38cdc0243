//! What lies at an address, in constant time: tracing looks up every word of the target's memory.

use std::ops::Range;

use allocator::glibc::Malloc;
use capture::{Address, AddressMap};
use ruby::ObjectSpace;

/// Granules of 1 KiB: a chunk is found after looking at a few of its neighbours, and the map takes
/// 0.4 % of the memory that it describes.
const GRANULE_LOG2: u32 = 10;
/// The tables that every map may have, 64 KiB each: 256 MiB for 64 GiB of memory.
const MIN_TABLES: usize = 4096;
/// Processes with many chunks get a table more for each so many, 4 bytes per chunk. Memory beyond
/// is searched: its chunks are larger than a granule, or lie strewn over the address space.
const CHUNKS_PER_TABLE: usize = 16384;
/// Chunks that an address lies in begin at most this many chunks behind the first of its granule.
const MOST_NEIGHBOURS: u32 = 1 << (GRANULE_LOG2 - 4);

/// The values of the map. Those from `FIRST_INDEX` on are the indices of chunks, then of areas.
const NOTHING: u32 = 0;
const HEAP_PAGE: u32 = 1;
/// The map has no room for what lies there.
const SEARCH: u32 = 2;
const FIRST_INDEX: u32 = 3;

/// What lies at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The bytes of the chunk in use with this index; whether at the very address that malloc
    /// returned for it.
    Chunk { index: u32, is_start: bool },
    /// The beginning of the slot with this index.
    Slot(u32),
    /// The area with this index.
    Area(u32),
    /// Nothing that can be held.
    Nothing,
}

/// A map of an image: its chunks in use, its slots, and its *areas*, other memory that may hold
/// pointers.
pub(crate) struct Places<'a> {
    malloc: &'a Malloc,
    space: &'a ObjectSpace,
    /// Ascending.
    areas: &'a [Range<Address>],
    map: AddressMap,
}

impl<'a> Places<'a> {
    /// Maps `areas`, and what malloc and Ruby have; these win where they overlap.
    pub(crate) fn new(
        malloc: &'a Malloc,
        space: &'a ObjectSpace,
        areas: &'a [Range<Address>],
    ) -> Self {
        let max_tables = MIN_TABLES + malloc.chunks.len() / CHUNKS_PER_TABLE;
        Self::with_tables(malloc, space, areas, max_tables)
    }

    fn with_tables(
        malloc: &'a Malloc,
        space: &'a ObjectSpace,
        areas: &'a [Range<Address>],
        max_tables: usize,
    ) -> Self {
        let mut map = AddressMap::new(GRANULE_LOG2, max_tables, SEARCH);
        for (index, area) in areas.iter().enumerate() {
            map.set(area, value(malloc.chunks.len() + index));
        }
        let mut mapped = Address(0);
        for region in &malloc.regions {
            let chunks = malloc.chunks.get(region.chunks.clone()).unwrap_or_default();
            mapped = mapped.max(region.range.start.align_down(1 << GRANULE_LOG2));
            for (chunk, index) in chunks.iter().zip(region.chunks.clone()) {
                // Each granule has the chunk that its first byte lies in, or else its first chunk.
                let end = chunk.end().align_up(1 << GRANULE_LOG2);
                if mapped < end {
                    map.set(&(mapped..end), value(index));
                    mapped = end;
                }
            }
        }
        for page in &space.pages {
            map.set(&page.range, HEAP_PAGE);
        }
        Self { malloc, space, areas, map }
    }

    /// What lies at `at`.
    #[inline]
    pub(crate) fn at(&self, at: Address) -> Place {
        match self.map.get(at) {
            NOTHING => Place::Nothing,
            HEAP_PAGE => match self.space.slot_at(at) {
                Some(slot) => Place::Slot(slot),
                // Up to 3.0 a heap page ends some bytes before its granule does, where the next
                // chunk begins.
                None => self.search_chunk(at),
            },
            SEARCH => self.search(at),
            value => {
                let index = value - FIRST_INDEX;
                match index.checked_sub(self.chunk_count()) {
                    None => self.chunk_at(at, index),
                    Some(area) => Place::Area(area),
                }
            }
        }
    }

    pub(crate) fn chunk_count(&self) -> u32 {
        self.malloc.chunks.len() as u32
    }

    /// The slow way, for memory that the map has no room for.
    fn search(&self, at: Address) -> Place {
        if let Some(slot) = self.space.slot_at(at) {
            return Place::Slot(slot);
        }
        match self.search_chunk(at) {
            Place::Nothing => {
                let area = self.areas.partition_point(|area| area.end <= at);
                let found = self.areas.get(area).is_some_and(|area| area.contains(&at));
                if found { Place::Area(area as u32) } else { Place::Nothing }
            }
            chunk => chunk,
        }
    }

    fn search_chunk(&self, at: Address) -> Place {
        let after = self.malloc.chunks.partition_point(|chunk| chunk.pointer() <= at);
        after.checked_sub(1).map_or(Place::Nothing, |index| self.chunk_at(at, index as u32))
    }

    fn chunk_at(&self, at: Address, first: u32) -> Place {
        let near = self.malloc.chunks[first as usize..].iter().take(MOST_NEIGHBOURS as usize + 2);
        let mut found = None;
        for (chunk, index) in near.zip(first..) {
            if chunk.pointer() > at {
                break;
            }
            found = Some((chunk, index));
        }
        let Some((chunk, index)) = found else { return Place::Nothing };
        // The chunk's last word stands in the next one's header. Nobody points there but malloc
        // itself, which means the next chunk.
        if !chunk.state().is_in_use() || at >= chunk.end() {
            return Place::Nothing;
        }
        Place::Chunk { index, is_start: chunk.pointer() == at }
    }
}

/// What the map has for the chunk with this index, or for an area, whose indices follow those of
/// the chunks.
fn value(index: usize) -> u32 {
    let value = u32::try_from(index).ok().and_then(|index| index.checked_add(FIRST_INDEX));
    value.filter(|&value| value < AddressMap::END_OF_VALUES).unwrap_or(SEARCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocator::glibc::{Chunk, ChunkState, Region};
    use ruby::HeapPage;

    /// Of 9 GB of strings on Ruby 2.7, 94 were called unreachable: they began behind a heap page.
    #[test]
    fn a_chunk_that_begins_just_behind_a_heap_page_is_found() {
        let chunk = |address, bytes| Chunk::new(Address(address), bytes, ChunkState::InUse);
        let chunks = vec![chunk(0x1_3ff0, 0x3ff0), chunk(0x1_7fe0, 0x1020)];
        let range = Address(0x1_3ff0)..Address(0x1_9000);
        let region = Region { range, arena: Some(0), chunks: 0..2 };
        let malloc = Malloc { regions: vec![region], chunks, ..Malloc::default() };
        let page = HeapPage {
            range: Address(0x1_4000)..Address(0x1_7fd8),
            first_slot: Address(0x1_4000),
            slot_bytes: 40,
            slots: 0..0,
        };
        let mut space = ObjectSpace::default();
        space.pages.push(page);
        let places = Places::new(&malloc, &space, &[]);
        assert_eq!(places.at(Address(0x1_7ff0)), Place::Chunk { index: 1, is_start: true });
        assert_eq!(places.at(Address(0x1_8ff8)), Place::Chunk { index: 1, is_start: false });
        assert_eq!(places.at(Address(0x1_9000)), Place::Nothing);
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
    fn strewn() -> (Malloc, ObjectSpace, Vec<Range<Address>>) {
        let (mut malloc, mut space, mut areas) =
            (Malloc::default(), ObjectSpace::default(), Vec::new());
        for base in (1_u64..40).map(|number| number << 24) {
            let first = malloc.chunks.len();
            for (offset, bytes, state) in [
                (0, 0x20, ChunkState::InUse),
                (0x20, 0x3fc0, ChunkState::InUse),
                (0x3fe0, 0x120, ChunkState::Free),
                (0x4100, 0x20f0, ChunkState::InUse),
            ] {
                malloc.chunks.push(Chunk::new(Address(base + offset), bytes, state));
            }
            malloc.regions.push(Region {
                range: Address(base)..Address(base + 0x61f0),
                arena: Some(0),
                chunks: first..malloc.chunks.len(),
            });
            space.pages.push(HeapPage {
                range: Address(base + 0x1_0000)..Address(base + 0x2_0000),
                first_slot: Address(base + 0x1_0028),
                slot_bytes: 40,
                slots: 0..0,
            });
            areas.push(Address(base + 0x3_0000)..Address(base + 0x3_1800));
        }
        (malloc, space, areas)
    }

    #[test]
    fn what_the_map_has_no_room_for_is_found_all_the_same() {
        let (malloc, space, areas) = strewn();
        let all = Places::new(&malloc, &space, &areas);
        for max_tables in [0, 1, 20] {
            let few = Places::with_tables(&malloc, &space, &areas, max_tables);
            for base in (0_u64..41).map(|number| number << 24) {
                for at in (0..0x4_0000).step_by(8).map(|offset| Address(base + offset)) {
                    assert_eq!(few.at(at), all.at(at), "{at} with {max_tables} tables");
                }
            }
        }
    }
}
