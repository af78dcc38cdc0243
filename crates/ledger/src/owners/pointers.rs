//! Reads, while the target stands, which memory points to which: chunks, and all that is neither a
//! chunk nor a slot but may hold a pointer to one. None of the bytes are kept.

use std::ops::Range;
use std::thread::Builder;

use allocator::glibc::{Chunk, Malloc};
use capture::elf::Module;
use capture::{Address, Finding, Image, PAGE_SIZE, Severity, length};
use ruby::{Content, ObjectSpace, StTable};

use crate::owners::bits::Bits;
use crate::owners::edges::{Edge, LIMITS, Limits, Part};
use crate::owners::reader::{Reader, user_memory};
use crate::owners::regions::{areas, live_stacks, locals};
use crate::places::{Place, Places};

/// There are more nodes or slots than an edge can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany {
    nodes: usize,
    max: usize,
}

impl TooMany {
    pub(crate) fn finding(self) -> Finding {
        let what = format!(
            "owners are incomplete: rbloat traces up to {} chunks or objects, and this process has \
             about {}; malloc'ed memory that no object names directly is in malloc.in_use",
            self.max, self.nodes
        );
        Finding::general(Severity::Warning, what)
    }
}

/// Something that is there without anybody pointing to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// The variables of the module with this index.
    Variables(usize),
    /// Thread-local variables of all threads.
    Locals,
    /// Stacks and registers of all threads and fibers.
    Stacks,
}

/// Which node points to which. The nodes are the chunks, by their index in [`Malloc::chunks`], then
/// the areas, then the roots.
#[derive(Debug, Default)]
pub(crate) struct Pointers {
    chunks: u32,
    /// Private memory that is neither malloc's nor a slot nor a stack nor a library's.
    pub(crate) areas: Vec<Range<Address>>,
    pub(crate) roots: Vec<Root>,
    parts: Vec<Part>,
    /// Chunks of objects that say how much of them is in use.
    known: Bits,
    /// Tables that were recognized when their memory had been read already, by node, and what they
    /// truly point to.
    corrected: Vec<u32>,
    is_corrected: Bits,
    corrections: Vec<Part>,
}

impl Pointers {
    /// Reads all that points somewhere. `stacks` are those of threads.
    pub(crate) fn read(
        image: &Image<'_>,
        modules: &[Module],
        malloc: &Malloc,
        space: &ObjectSpace,
        stacks: &[Range<Address>],
    ) -> Result<Self, TooMany> {
        Self::read_within(LIMITS, image, modules, malloc, space, stacks)
    }

    fn read_within(
        limits: Limits,
        image: &Image<'_>,
        modules: &[Module],
        malloc: &Malloc,
        space: &ObjectSpace,
        stacks: &[Range<Address>],
    ) -> Result<Self, TooMany> {
        let areas = areas(image, modules, malloc, space, stacks);
        let mut roots: Vec<_> = (0..modules.len()).map(Root::Variables).collect();
        roots.extend([Root::Locals, Root::Stacks]);
        let nodes = malloc.chunks.len() + areas.len() + roots.len();
        let nodes = nodes.max(space.slots.len());
        if nodes > limits.nodes {
            return Err(TooMany { nodes, max: limits.nodes });
        }
        let places = Places::new(malloc, space, &areas);
        let chunks = malloc.chunks.len() as u32;
        let cuts = halves(malloc);
        let contents = contents(malloc, space, &places);
        let read_chunks = |range: Range<usize>| {
            let mut reader = Reader::new(image, &places, range.start as u32, limits);
            for index in range {
                let chunk = malloc.chunks[index];
                // Up to 2.7 Ruby has its heap pages from malloc: slots are read elsewhere.
                if !hosts_heap_page(space, chunk) {
                    reader.read_chunk(chunk, contents[index]);
                }
                reader.into.end_node();
            }
            reader.finish()
        };
        let read_others = || {
            let mut reader = Reader::new(image, &places, chunks, limits);
            for area in &areas {
                reader.read(area);
                // An area may be many things beside each other: what it keeps alive is told, but
                // not which object keeps which.
                reader.into.drop_slots();
                reader.into.end_node();
            }
            for root in &roots {
                match root {
                    Root::Variables(module) => {
                        modules[*module].variables.iter().for_each(|range| reader.read(range));
                    }
                    Root::Locals => {
                        locals(image, malloc, stacks).iter().for_each(|range| reader.read(range))
                    }
                    Root::Stacks => {
                        for range in live_stacks(image, space, stacks) {
                            reader.read(&range);
                        }
                        let threads = &image.state.threads;
                        threads.iter().flat_map(|thread| &thread.registers).for_each(|&word| {
                            reader.into.take(word, false);
                        });
                    }
                }
                reader.into.end_node();
            }
            reader.finish()
        };
        let parts = std::thread::scope(|scope| {
            // Where no thread can be had, it is done in turn.
            let second =
                Builder::new().spawn_scoped(scope, || read_chunks(cuts..malloc.chunks.len()));
            let first = read_chunks(0..cuts);
            let others = read_others();
            let second = second.map_or_else(
                |_| read_chunks(cuts..malloc.chunks.len()),
                |second| second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
            [first, second, others]
        });
        let (parts, tables): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let tables = recognized(&tables.concat(), malloc, modules, &places, &contents);
        let mut known = Bits::new(malloc.chunks.len());
        for (index, content) in (0..).zip(&contents) {
            if *content != Content::UNKNOWN {
                known.insert(index);
            }
        }
        let mut is_corrected = Bits::new(malloc.chunks.len());
        let mut reader = Reader::new(image, &places, 0, limits);
        for &(index, content) in &tables {
            reader.read_chunk(malloc.chunks[index as usize], content);
            reader.into.end_node();
            is_corrected.insert(index);
        }
        let (corrections, _) = reader.finish();
        let corrected = tables.into_iter().map(|(index, _)| index).collect();
        let parts = parts.into_iter().flatten().collect();
        Ok(Self { chunks, areas, roots, parts, known, corrected, is_corrected, corrections })
    }

    /// Whether a node is a chunk of an object that says how much of it is in use.
    pub(crate) fn is_known(&self, node: u32) -> bool {
        self.known.contains(node)
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.chunks as usize + self.areas.len() + self.roots.len()
    }

    /// The node of the root with this index.
    pub(crate) fn root(&self, index: usize) -> u32 {
        self.chunks + (self.areas.len() + index) as u32
    }

    /// What a node points to: nodes, and slots.
    pub(crate) fn of(&self, node: u32) -> (&[Edge], &[Edge]) {
        if self.is_corrected.contains(node) {
            let index = self.corrected.partition_point(|&it| it < node);
            return Part::of(&self.corrections, index as u32);
        }
        Part::of(&self.parts, node)
    }

    /// Bytes that could not be read, since they are in swap: what they point to is not known.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.unread_bytes).sum()
    }

    /// Words whose target was not kept: nodes with more pointers than can be counted.
    pub(crate) fn dropped_words(&self) -> u64 {
        self.parts.iter().chain(&self.corrections).map(|part| part.dropped_words).sum()
    }
}

/// Whether a heap page of Ruby's lies within the chunk.
pub(crate) fn hosts_heap_page(space: &ObjectSpace, chunk: Chunk) -> bool {
    // Not even the smallest page would fit.
    if chunk.bytes() < PAGE_SIZE {
        return false;
    }
    let after = space.pages.partition_point(|page| page.range.start < chunk.address);
    space.pages.get(after).is_some_and(|page| page.range.start < chunk.end())
}

/// What is in each chunk, as far as objects say. What does not fit into its chunk is not believed.
fn contents(malloc: &Malloc, space: &ObjectSpace, places: &Places<'_>) -> Vec<Content> {
    let mut contents = vec![Content::UNKNOWN; malloc.chunks.len()];
    for (address, content) in space.references.contents() {
        let Some((_, words)) = content.known() else { continue };
        let Place::Chunk { index, is_start: true } = places.at(address) else { continue };
        let index = index as usize;
        let fits = words * 8 <= length(&user_memory(malloc.chunks[index]));
        // Arrays that share elements may each use a part of them.
        let known_words = contents[index].known().map(|(_, words)| words);
        if fits && known_words.is_none_or(|known| known < words) {
            contents[index] = content;
        }
    }
    contents
}

/// What is in the memory of these tables, by chunk, where no object says so. Other memory looks like a
/// table only if it has pointers to a library's constants, and to chunks of the right sizes.
fn recognized(
    tables: &[StTable],
    malloc: &Malloc,
    modules: &[Module],
    places: &Places<'_>,
    contents: &[Content],
) -> Vec<(u32, Content)> {
    const ENTRY_BYTES: u64 = 24;
    let chunk_at = |at: Address| match places.at(at) {
        Place::Chunk { index, is_start: true } => Some(index),
        _ => None,
    };
    let mut found = Vec::new();
    for table in tables {
        let after = modules.partition_point(|it| it.range.start <= table.functions);
        let is_constant = after > 0 && modules[after - 1].range.contains(&table.functions);
        let is_all_there = is_constant && table.memory().all(|(at, _)| chunk_at(at).is_some());
        let Some(entries) = chunk_at(table.entries).filter(|_| is_all_there) else { continue };
        let room = length(&user_memory(malloc.chunks[entries as usize]));
        if room < table.capacity * ENTRY_BYTES {
            continue;
        }
        found.extend(table.memory().filter_map(|(at, content)| Some((chunk_at(at)?, content))));
    }
    found.retain(|&(index, _)| contents[index as usize] == Content::UNKNOWN);
    found.sort_unstable_by_key(|&(index, _)| index);
    found.dedup_by_key(|&mut (index, _)| index);
    found
}

/// Where to cut the chunks in two so that both parts have the same number of bytes in use.
fn halves(malloc: &Malloc) -> usize {
    let in_use = |chunk: &Chunk| if chunk.state().is_in_use() { chunk.bytes() } else { 0 };
    let half = malloc.chunks.iter().map(in_use).sum::<u64>() / 2;
    let mut sum = 0;
    let cut = malloc.chunks.iter().position(|chunk| {
        sum += in_use(chunk);
        sum >= half
    });
    cut.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{GlibcRelease, MallocHeap, SyntheticMemory};

    /// The pointers of an image in which each of a hundred chunks points to the next and to all
    /// that are a multiple of ten, and each of three hash tables to two chunks; a third is behind its
    /// entries.
    fn read_within(limits: Limits) -> Result<Pointers, TooMany> {
        let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
        let chunks: Vec<u64> = (0..100).map(|_| heap.malloc(0, 104)).collect();
        let tables: Vec<_> = (0..3).map(|_| (heap.malloc(0, 56), heap.malloc(0, 8 * 24))).collect();
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        for (chunk, next) in chunks.iter().zip(&chunks[1..]) {
            for (word, to) in (0..).zip(std::iter::once(next).chain(chunks.iter().step_by(10))) {
                memory.write_u64(chunk + word * 8, *to);
            }
        }
        let modules = capture::elf::modules(&memory.image());
        let functions = modules[0].range.start.0;
        for (table, entries) in tables {
            for (word, value) in (0..).zip([3, functions, 1, 0, 0, 1, entries]) {
                memory.write_u64(table + word * 8, value);
            }
            for (word, to) in (1..).zip(&chunks[..3]) {
                memory.write_u64(entries + word * 8, *to);
            }
        }
        let image = memory.image();
        let malloc = allocator::glibc::walk(&image).unwrap();
        Pointers::read_within(limits, &image, &modules, &malloc, &ObjectSpace::default(), &[])
    }

    fn all(pointers: &Pointers) -> Vec<(Vec<Edge>, Vec<Edge>)> {
        let nodes = 0..pointers.len() as u32;
        nodes
            .map(|node| pointers.of(node))
            .map(|(edges, slots)| (edges.into(), slots.into()))
            .collect()
    }

    /// Past 2^32 pointers the counts of a part began anew.
    #[test]
    fn a_graph_of_many_parts_is_the_same_graph() {
        let whole = read_within(LIMITS).unwrap();
        let edges: usize = all(&whole).iter().map(|(edges, _)| edges.len()).sum();
        assert!(edges > 1000, "{edges}");
        for full_part in [1, 7, 500] {
            let cut = read_within(Limits { full_part, ..LIMITS }).unwrap();
            assert!(cut.parts.len() > edges / (full_part + 20));
            assert!(cut.corrections.len() > 6 / (full_part + 2), "{full_part}");
            assert_eq!(all(&cut), all(&whole), "{full_part}");
        }
        assert_eq!(whole.dropped_words(), 0);
        let of_tables = whole.corrected.iter().map(|&node| whole.of(node).0.len());
        assert_eq!(of_tables.collect::<Vec<_>>(), [2; 3]);
    }

    #[test]
    fn what_one_node_has_too_many_of_is_counted() {
        let cut = read_within(Limits { full_part: 1, part: 4, ..LIMITS }).unwrap();
        assert!(cut.dropped_words() > 500);
    }

    #[test]
    fn more_nodes_than_an_edge_can_name_are_refused() {
        let nodes = read_within(LIMITS).unwrap().len();
        assert!(read_within(Limits { nodes, ..LIMITS }).is_ok());
        let refused = read_within(Limits { nodes: nodes - 1, ..LIMITS });
        assert_eq!(refused.err(), Some(TooMany { nodes, max: nodes - 1 }));
        let last = Edge::new((LIMITS.nodes - 1) as u32, true);
        assert_eq!((last.to(), last.is_weak()), ((LIMITS.nodes - 1) as u32, true));
    }
}
