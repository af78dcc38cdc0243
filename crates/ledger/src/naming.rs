//! Which chunks Ruby's objects name.

use glibc::{ChunkState, Malloc, Region};
use ruby::ObjectSpace;
use target::{Address, PAGE_SIZE, length};

/// The chunks, by their index in [`Malloc::chunks`], that a slot names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Named {
    bits: Vec<u64>,
}

impl Named {
    pub(crate) fn contains(&self, chunk: usize) -> bool {
        self.bits.get(chunk / 64).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    fn insert(&mut self, chunk: usize) {
        if let Some(word) = self.bits.get_mut(chunk / 64) {
            *word |= 1 << (chunk % 64);
        }
    }
}

/// Finds the chunks in use that Ruby's objects name: those to whose very start a word of a live
/// slot points, since objects hold what malloc returned.
///
/// `visit` is told the index of each chunk's first slot, and the chunk's bytes.
pub(crate) fn name_chunks(
    malloc: &Malloc,
    space: &ObjectSpace,
    mut visit: impl FnMut(u32, u64),
) -> Named {
    let index = ChunkIndex::new(malloc);
    let mut named = Named { bits: vec![0; malloc.chunks.len().div_ceil(64)] };
    for (slot, address) in space.references.iter() {
        let Some(found) = index.find(address) else { continue };
        let chunk = malloc.chunks[found];
        let is_in_use = matches!(chunk.state(), ChunkState::InUse | ChunkState::Mmapped);
        // Objects that name a chunk which another one named already share it.
        if is_in_use && chunk.pointer() == address && !named.contains(found) {
            visit(slot, chunk.bytes());
            named.insert(found);
        }
    }
    named
}

/// Finds the chunk that an address lies in without searching through millions: for each page of
/// each region, the chunk that its first byte lies in.
struct ChunkIndex<'a> {
    malloc: &'a Malloc,
    /// Where in `firsts` the pages of each region begin.
    starts: Vec<usize>,
    firsts: Vec<u32>,
}

impl<'a> ChunkIndex<'a> {
    fn new(malloc: &'a Malloc) -> Self {
        let mut starts = Vec::with_capacity(malloc.regions.len());
        let mut firsts = Vec::new();
        for region in &malloc.regions {
            starts.push(firsts.len());
            let mut chunk = region.chunks.start;
            if region.chunks.is_empty() {
                continue;
            }
            for page in 0..length(&region.range).div_ceil(PAGE_SIZE) {
                let at = region.range.start.offset(page * PAGE_SIZE);
                while chunk + 1 < region.chunks.end && malloc.chunks[chunk + 1].address <= at {
                    chunk += 1;
                }
                firsts.push(chunk as u32);
            }
        }
        Self { malloc, starts, firsts }
    }

    /// The index of the chunk that `at` lies in.
    fn find(&self, at: Address) -> Option<usize> {
        let after = self.malloc.regions.partition_point(|region| region.range.start <= at);
        let index = after.checked_sub(1)?;
        let region: &Region = &self.malloc.regions[index];
        if at >= region.range.end || region.chunks.is_empty() {
            return None;
        }
        let page = ((at - region.range.start) / PAGE_SIZE) as usize;
        let mut chunk = *self.firsts.get(self.starts[index] + page)? as usize;
        while chunk + 1 < region.chunks.end && self.malloc.chunks[chunk + 1].address <= at {
            chunk += 1;
        }
        (self.malloc.chunks[chunk].address <= at).then_some(chunk)
    }
}
