//! What lies at an address, in constant time: tracing looks up every word of the target's memory.

use std::ops::Range;

use glibc::Malloc;
use ruby::ObjectSpace;
use target::{Address, AddressMap};

/// Granules of 1 KiB: a chunk is found after looking at a few of its neighbours, and the map takes
/// 0.4 % of the memory that it describes.
const GRANULE_LOG2: u32 = 10;
/// 256 MiB of them: more than a process needs that is not made to exhaust us.
const MOST_TABLES: usize = 4096;
/// Chunks that an address lies in begin at most this many chunks behind the first of its granule.
const MOST_NEIGHBOURS: u32 = 1 << (GRANULE_LOG2 - 4);

/// The lowest bits of a value of the map: what lies there; above them its index.
const NOTHING: u32 = 0;
const CHUNK: u32 = 1;
const HEAP_PAGE: u32 = 2;
const AREA: u32 = 3;

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
    map: AddressMap,
}

impl<'a> Places<'a> {
    /// Maps `areas`, and what malloc and Ruby have; these win where they overlap.
    pub(crate) fn new(
        malloc: &'a Malloc,
        space: &'a ObjectSpace,
        areas: &[Range<Address>],
    ) -> Self {
        let mut map = AddressMap::new(GRANULE_LOG2, MOST_TABLES, NOTHING);
        for (index, area) in areas.iter().enumerate() {
            map.set(area, value(AREA, index));
        }
        let mut mapped = Address(0);
        for region in &malloc.regions {
            let chunks = malloc.chunks.get(region.chunks.clone()).unwrap_or_default();
            mapped = mapped.max(region.range.start.align_down(1 << GRANULE_LOG2));
            for (chunk, index) in chunks.iter().zip(region.chunks.clone()) {
                // Each granule has the chunk that its first byte lies in, or else its first chunk.
                let end = chunk.end().align_up(1 << GRANULE_LOG2);
                if mapped < end {
                    map.set(&(mapped..end), value(CHUNK, index));
                    mapped = end;
                }
            }
        }
        for page in &space.pages {
            map.set(&page.range, HEAP_PAGE);
        }
        Self { malloc, space, map }
    }

    /// What lies at `at`.
    pub(crate) fn at(&self, at: Address) -> Place {
        let value = self.map.get(at);
        let index = value >> 2;
        match value & 3 {
            CHUNK => self.chunk_at(at, index),
            HEAP_PAGE => match self.space.slot_at(at) {
                Some(slot) => Place::Slot(slot),
                None => self.beside_heap_page(at),
            },
            AREA => Place::Area(index),
            _ => Place::Nothing,
        }
    }

    pub(crate) fn chunk_count(&self) -> u32 {
        self.malloc.chunks.len() as u32
    }

    /// Up to 3.0 a heap page ends some bytes before its granule does, where the next chunk begins.
    fn beside_heap_page(&self, at: Address) -> Place {
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

fn value(kind: u32, index: usize) -> u32 {
    (index as u32) << 2 | kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use glibc::{Chunk, ChunkState, Region};
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
}
