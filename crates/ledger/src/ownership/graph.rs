//! Reads, during the capture, which memory points to which: blocks, and all other memory that may hold a pointer to
//! a block or slot. None of the bytes are kept.

use std::collections::HashMap;
use std::ops::Range;

use allocator::{Block, HeapMap, thread_locals};
use image::elf::Module;
use image::{Image, SparseRows};
use linux::{Address, MIN_PAGE_SIZE, Pages, Thread, both, length};
use ruby::{Content, Form, ObjectSpace, References, memory_of_bytecode, memory_of_classes};

use crate::Finding;
use crate::ownership::address_index::AddressIndex;
use crate::ownership::areas::areas;
use crate::ownership::bits::Bits;
use crate::ownership::edges::{Adjacency, Edge, LIMITS, Limits};
use crate::ownership::hash_tables::{HashTables, KeyedValue, keyed_value, recognized};
use crate::ownership::reader::Reader;
use crate::ownership::root_memory::{Root, root_sources};
use crate::ownership::slot_edges::edges_and_contents;
use crate::ownership::structures::{Lists, OfThreads, concurrent_sets};
use crate::ownership::threads::StackOwners;
use crate::ownership::waste::Waste;
use crate::pages::{Residents, pages_of};
use crate::read_depth::ReadDepth;

/// There are more nodes or slots than an edge can distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany {
    nodes: usize,
    max: usize,
}

impl TooMany {
    pub(crate) fn finding(self) -> Finding {
        Finding::OwnersUnknown { nodes: self.nodes as u64, max: self.max as u64 }
    }
}

/// The graph of pointers. Its nodes are the blocks, by number, then the areas, then the roots.
#[derive(Debug, Default)]
pub(crate) struct PointerGraph {
    blocks: u32,
    /// Writable memory that belongs to neither malloc, Ruby, a stack nor a library: also files and shared memory.
    pub(crate) areas: Vec<Range<Address>>,
    pub(crate) roots: Vec<Root>,
    /// The slots of the Thread and Fiber objects that stacks and thread-local variables belong to, by root.
    pub(crate) root_objects: Vec<Option<u32>>,
    /// The names that the program gave to threads, by slot.
    pub(crate) thread_names: HashMap<u32, String>,
    parts: Vec<Adjacency>,
    /// The edges from slots to nodes.
    pub(crate) of_slots: SparseRows<Edge>,
    /// The blocks with the execution contexts and VM stacks of threads.
    pub(crate) of_threads: OfThreads,
    /// Blocks whose used part is known from their object.
    known: Bits,
    /// The nodes of tables that were recognised after their memory had been read. `corrections` has their edges.
    corrected: Vec<u32>,
    is_corrected: Bits,
    /// The blocks with the bins and the entries of each of these tables that has both, in both orders, ascending.
    parts_of_tables: Vec<(u32, u32)>,
    corrections: Vec<Adjacency>,
    /// The nodes with the entries of these tables.
    pub(crate) hash_tables: Vec<u32>,
    /// Those of them in which each key is its own value, ascending: sets.
    pub(crate) hash_sets: Vec<u32>,
    /// The blocks with the entries of sets of symbols and deduplicated strings.
    pub(crate) concurrent_sets: Bits,
    /// The values of entries whose keys are objects, by key.
    pub(crate) keyed_values: Vec<KeyedValue>,
    /// Lists of the interpreter.
    pub(crate) lists: Lists,
    /// The stacks that fibers have, ascending by the slot of the Fiber.
    fiber_stacks: Vec<FiberStack>,
    /// Memory that objects do not use.
    pub(crate) waste: Waste,
    /// The resident bytes of blocks that are not resident as a whole.
    pub(crate) partial: HashMap<u32, u64>,
    /// Pointers in slots that were not kept.
    dropped_references: u64,
}

/// The machine stack that a Fiber has until it ends.
#[derive(Debug)]
pub(crate) struct FiberStack {
    /// The slot of the Fiber.
    pub(crate) fiber: u32,
    pub(crate) resident_bytes: u64,
    /// The part of them that no call uses; 0 if the stack pointer is not known.
    pub(crate) unused_bytes: u64,
}

impl PointerGraph {
    /// Reads all pointers. `stacks` are the stacks of threads.
    pub(crate) fn read(
        image: &Image<'_>,
        modules: &[Module],
        heap: &HeapMap,
        space: &ObjectSpace,
        references: &mut References,
        stacks: &[Range<Address>],
    ) -> Result<Self, TooMany> {
        Self::read_within(LIMITS, image, modules, heap, space, references, stacks)
    }

    /// Reads which memory objects do not use, from the image that the graph was read from.
    pub(crate) fn read_waste(
        &mut self,
        image: &Image<'_>,
        heap: &HeapMap,
        space: &ObjectSpace,
        read: ReadDepth,
    ) {
        self.waste = Waste::read(image, heap, space, &self.of_slots, read);
    }

    fn read_within(
        limits: Limits,
        image: &Image<'_>,
        modules: &[Module],
        heap: &HeapMap,
        space: &ObjectSpace,
        references: &mut References,
        stacks: &[Range<Address>],
    ) -> Result<Self, TooMany> {
        let locals = thread_locals(image, heap, stacks);
        let areas = areas(image, modules, heap, space, stacks, &locals);
        let sources = root_sources(image, modules, space, stacks, &locals);
        let roots: Vec<Root> = sources.iter().map(|source| source.root).collect();
        let nodes = heap.block_count() + areas.len() + roots.len();
        let nodes = nodes.max(space.slots.len());
        if nodes > limits.nodes {
            return Err(TooMany { nodes, max: limits.nodes });
        }
        let addresses = AddressIndex::new(heap, space, &areas);
        let stack_owners = StackOwners::find(image, heap, space, references, &addresses);
        let root_objects = sources.iter().map(|source| source.object(&stack_owners)).collect();
        let pages = pages_of(&image.state);
        let fiber_stack = |stack: &Range<Address>| {
            let fiber = stack_owners.of_stack(stack.start)?;
            let runs = |it: &&Thread| stack.contains(&it.stack_pointer);
            let running = image.state.threads.iter().find(runs).map(Thread::stack_floor);
            let running = running.map(|floor| stack.start..floor.max(stack.start));
            let unused = match &running {
                Some(unused) => std::slice::from_ref(unused),
                None => stack_owners.unused(stack.start),
            };
            let resident = |range: &Range<Address>| pages.resident_bytes(range);
            let unused_bytes = unused.iter().map(resident).fold(0, u64::saturating_add);
            Some(FiberStack { fiber, resident_bytes: resident(stack), unused_bytes })
        };
        let mut fiber_stacks: Vec<_> = space.fiber_stacks.iter().filter_map(fiber_stack).collect();
        fiber_stacks.sort_unstable_by_key(|stack| stack.fiber);
        let blocks = heap.block_count() as u32;
        let concurrent_sets = concurrent_sets(heap, space, references, &addresses);
        let descriptors = page_descriptors(image, heap, space, &addresses);
        let references = std::mem::take(references);
        let dropped_references = references.dropped();
        let mut of_code = memory_of_bytecode(image, space);
        of_code.extend(memory_of_classes(image, space));
        let (of_slots, contents) =
            edges_and_contents(heap, space, references, &addresses, &of_code);
        let mut unused: Vec<_> = space.vm_stacks.iter().map(|it| it.unused.clone()).collect();
        // What objects have there was read with them. It may be in a block of malloc's.
        unused.extend(space.transient_heap.clone());
        unused.extend(stack_owners.alternate_stacks);
        unused.extend(heap.bookkeeping.iter().cloned());
        unused.sort_by_key(|range| range.start);
        let pages = pages_of(&image.state);
        let others = areas.iter().chain(sources.iter().flat_map(|source| &source.ranges));
        let other_bytes = others.map(|range| pages.resident_bytes(range)).sum();
        let cut = halves(heap, &contents, other_bytes);
        let read_blocks = |range: Range<usize>| {
            let mut reader =
                Reader::new(image, heap, &addresses, &unused, range.start as u32, limits);
            for (index, block) in heap.blocks.range(range) {
                match contents[index] {
                    // Up to 2.7 Ruby has its heap pages from malloc; slots are read elsewhere.
                    _ if hosts_heap_page(space, block) => {}
                    _ if concurrent_sets.contains(index as u32) => reader.read_tagged(block),
                    // Text has no pointers, and most blocks have text.
                    Content::BYTES => {}
                    content => reader.read_block(block, content),
                }
                if descriptors.contains(index as u32) {
                    reader.into.drop_slots();
                }
                reader.into.end_node();
            }
            reader.finish()
        };
        let read_others = || {
            let mut reader = Reader::new(image, heap, &addresses, &unused, blocks, limits);
            for area in &areas {
                // Machine code has no pointers of its own.
                let mapping = image.state.mappings.find(area.start);
                if mapping.is_some_and(|mapping| mapping.writable) {
                    reader.read(area);
                }
                reader.into.end_node();
            }
            for source in &sources {
                source.ranges.iter().for_each(|range| match source.root {
                    Root::Locals => reader.read_locals(range),
                    _ => reader.read(range),
                });
                source.registers.iter().for_each(|&word| reader.into.take(word, false));
                reader.into.end_node();
            }
            reader.finish()
        };
        let ((first, others), second) =
            both(|| (read_blocks(0..cut), read_others()), || read_blocks(cut..heap.block_count()));
        let (parts, heads): (Vec<_>, Vec<_>) = [first, second, others].into_iter().unzip();
        let HashTables { contents: tables, parts: parts_of_tables } =
            recognized(&heads, heap, modules, &addresses, &contents);
        let mut known = Bits::new(heap.block_count());
        for (index, content) in (0..).zip(&contents) {
            if *content != Content::UNKNOWN {
                known.insert(index);
            }
        }
        let read_tables = |first: usize, tables: &[(u32, Content)]| {
            let mut reader = Reader::new(image, heap, &addresses, &unused, first as u32, limits);
            let (mut hash_tables, mut hash_sets, mut keyed_values) =
                (Vec::new(), Vec::new(), Vec::new());
            for &(index, content) in tables {
                if let Some(block) = heap.block(index as usize) {
                    reader.read_block(block, content);
                    if matches!(content.known(), Some((Form::Entries, _))) {
                        hash_tables.push(index);
                        let (mut is_empty, mut is_set) = (true, true);
                        reader.read_entries(block, content, |key, value| {
                            (is_empty, is_set) = (false, is_set && key == value);
                            keyed_values.extend(keyed_value(image, &addresses, index, key, value));
                        });
                        hash_sets.extend((is_set && !is_empty).then_some(index));
                    }
                }
                reader.into.end_node();
            }
            (reader.finish().0, hash_tables, hash_sets, keyed_values)
        };
        let middle = tables.len() / 2;
        let ((mut corrections, mut hash_tables, mut hash_sets, mut keyed_values), more) =
            both(|| read_tables(0, &tables[..middle]), || read_tables(middle, &tables[middle..]));
        corrections.extend(more.0);
        hash_tables.extend(more.1);
        hash_sets.extend(more.2);
        keyed_values.extend(more.3);
        let corrected: Vec<u32> = tables.into_iter().map(|(index, _)| index).collect();
        let mut is_corrected = Bits::new(heap.block_count());
        corrected.iter().for_each(|&index| _ = is_corrected.insert(index));
        keyed_values.sort_unstable();
        let of_threads = OfThreads::find(space, &addresses);
        let mut graph = Self {
            blocks,
            areas: areas.clone(),
            roots,
            root_objects,
            thread_names: stack_owners.names,
            fiber_stacks,
            parts: parts.into_iter().flatten().collect(),
            waste: Waste::default(),
            of_slots,
            of_threads,
            known,
            corrected,
            is_corrected,
            parts_of_tables,
            corrections,
            hash_tables,
            hash_sets,
            concurrent_sets,
            keyed_values,
            lists: Lists::default(),
            partial: partial_blocks(heap, image.state.pages.as_ref()),
            dropped_references,
        };
        graph.lists = Lists::find(image, modules, heap, space, &addresses, &graph);
        Ok(graph)
    }

    /// The stacks that fibers have. Ruby keeps those of fibers that have ended.
    pub(crate) fn fiber_stacks(&self) -> &[FiberStack] {
        &self.fiber_stacks
    }

    /// The resident bytes of the stack of the Fiber in a slot; 0 for other objects.
    pub(crate) fn stack_bytes_of(&self, slot: u32) -> u64 {
        let first = self.fiber_stacks.partition_point(|stack| stack.fiber < slot);
        let its = self.fiber_stacks[first..].iter().take_while(|stack| stack.fiber == slot);
        its.map(|stack| stack.resident_bytes).sum()
    }

    /// Returns true if a node is a block whose used part is known from its object.
    pub(crate) fn is_known(&self, node: u32) -> bool {
        self.known.contains(node)
    }

    /// Returns true if a node is the bins or the entries of a hash table that was recognised, or memory behind a structure of a class.
    pub(crate) fn is_part_of_table(&self, node: u32) -> bool {
        self.is_corrected.contains(node)
    }

    /// Returns true if `from` has a pointer to one part of a hash table that was recognised, but none to the other part, as the table
    /// itself has: the pointer is an old one.
    pub(crate) fn is_old_pointer_to_table(&self, from: u32, to: u32) -> bool {
        if !self.is_part_of_table(to) {
            return false;
        }
        let first = self.parts_of_tables.partition_point(|parts| parts.0 < to);
        let mut others = self.parts_of_tables[first..].iter().take_while(|parts| parts.0 == to);
        // The pointer of a table to its entries is its last word, which is uncertain.
        let has_pointer = |other: u32| self.edges(from).iter().any(|edge| edge.to() == other);
        others.next().is_some_and(|parts| !has_pointer(parts.1))
            && others.all(|parts| !has_pointer(parts.1))
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.blocks as usize + self.areas.len() + self.roots.len()
    }

    /// The node of the root with this index.
    pub(crate) fn root(&self, index: usize) -> u32 {
        self.blocks + (self.areas.len() + index) as u32
    }

    /// The nodes that a node points to.
    pub(crate) fn edges(&self, node: u32) -> &[Edge] {
        let (parts, number) = self.parts_of(node);
        Adjacency::edges(parts, number)
    }

    /// The slots that a node points to.
    pub(crate) fn slots(&self, node: u32) -> &[Edge] {
        let (parts, number) = self.parts_of(node);
        Adjacency::slots(parts, number)
    }

    /// The table that has the edges of a node, and the node's number there.
    fn parts_of(&self, node: u32) -> (&[Adjacency], u32) {
        if self.is_corrected.contains(node) {
            let index = self.corrected.partition_point(|&it| it < node);
            return (&self.corrections, index as u32);
        }
        (&self.parts, node)
    }

    /// The block that an edge leads to for certain; `None` for uncertain edges and for areas.
    pub(crate) fn block(&self, edge: Edge) -> Option<u32> {
        (!edge.is_uncertain() && edge.to() < self.blocks).then(|| edge.to())
    }

    /// The block that an edge leads to, for certain or not; `None` for areas.
    pub(crate) fn possible_block(&self, edge: Edge) -> Option<u32> {
        (edge.to() < self.blocks).then(|| edge.to())
    }

    /// Returns true if a node points to other nodes.
    pub(crate) fn has_edges(&self, node: u32) -> bool {
        let (parts, number) = self.parts_of(node);
        Adjacency::has(parts, number).0
    }

    /// Returns true if a node points to other nodes or to slots.
    pub(crate) fn is_inner(&self, node: u32) -> bool {
        let (parts, number) = self.parts_of(node);
        Adjacency::has(parts, number) != (false, false)
    }

    /// Bytes that could not be read, since they are in swap or not in the core.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.unread_bytes).sum()
    }

    /// Pointers that were not kept, since a node or the whole heap has too many.
    pub(crate) fn dropped_words(&self) -> u64 {
        let parts = self.parts.iter().chain(&self.corrections);
        self.dropped_references + parts.map(|part| part.dropped_words).sum::<u64>()
    }
}

/// The resident bytes of each block in use that is not resident as a whole. A thread that ended keeps its VM stack of 1 MiB, of
/// which it used two pages.
fn partial_blocks(heap: &HeapMap, pages: Option<&Pages>) -> HashMap<u32, u64> {
    let Some(pages) = pages else { return HashMap::new() };
    let mut residents = Residents::new(pages);
    let in_use = heap.all_blocks().filter(|(_, block)| block.state().is_in_use());
    let sizes = in_use.map(|(number, block)| {
        let range = block.address..block.end();
        (number as u32, residents.within(&range), length(&range))
    });
    sizes
        .filter(|&(_, resident, all)| resident < all)
        .map(|(number, resident, _)| (number, resident))
        .collect()
}

/// The blocks with the collector's descriptors of heap pages. They point to the first slot of a page and to the first free one,
/// which retains no object.
fn page_descriptors(
    image: &Image<'_>,
    heap: &HeapMap,
    space: &ObjectSpace,
    addresses: &AddressIndex<'_>,
) -> Bits {
    let mut blocks = Bits::new(heap.block_count());
    for page in &space.pages {
        let descriptor = page.descriptor(image);
        descriptor.and_then(|at| addresses.block_at(at)).map(|block| blocks.insert(block));
    }
    blocks
}

/// Returns true if one of Ruby's heap pages lies within the block.
pub(crate) fn hosts_heap_page(space: &ObjectSpace, block: Block) -> bool {
    // A page does not fit.
    if block.bytes() < MIN_PAGE_SIZE {
        return false;
    }
    let after = space.pages.partition_point(|page| page.range.start < block.address);
    space.pages.get(after).is_some_and(|page| page.range.start < block.end())
}

/// The number of the block that cuts the blocks into two parts: the words that are read of the second part are as many as
/// those of the first part and of `other_bytes`.
fn halves(heap: &HeapMap, contents: &[Content], other_bytes: u64) -> usize {
    const STEP: usize = 1024;
    let bytes_of = |(block, content): (Block, &Content)| match content.used_words() {
        _ if !block.state().is_in_use() => 0,
        Some(words) => words * 8,
        None => block.bytes(),
    };
    let mut blocks = heap.blocks.range(0..contents.len()).map(|it| it.1).zip(contents);
    let steps = 0..contents.len().div_ceil(STEP);
    let sums: Vec<u64> = steps.map(|_| blocks.by_ref().take(STEP).map(bytes_of).sum()).collect();
    let half = (sums.iter().sum::<u64>() + other_bytes) / 2;
    let mut sum = other_bytes;
    let before = sums.iter().take_while(|bytes| {
        sum += **bytes;
        sum < half
    });
    before.count() * STEP
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{GlibcRelease, MallocHeap, SyntheticMemory};

    /// The pointers of an image in which each of a hundred chunks points to the next and to all
    /// that are a multiple of ten, and each of three hash tables to two chunks; a third is behind its
    /// entries.
    fn read_within(limits: Limits) -> Result<PointerGraph, TooMany> {
        read(limits, false)
    }

    /// The same; with `bins`, the first table has bins, and the last chunk has the address of its entries.
    fn read(limits: Limits, bins: bool) -> Result<PointerGraph, TooMany> {
        let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
        let chunks: Vec<u64> = (0..100).map(|_| heap.malloc(0, 104)).collect();
        // malloc may give more than the 56 bytes of a table.
        let mut table = |bytes| (heap.malloc(0, bytes), heap.malloc(0, 8 * 24));
        let tables = [56, 56, 72].map(&mut table);
        let bins = bins.then(|| heap.malloc(0, 256));
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        for (chunk, next) in chunks.iter().zip(&chunks[1..]) {
            for (word, to) in (0..).zip(std::iter::once(next).chain(chunks.iter().step_by(10))) {
                memory.write_u64(chunk + word * 8, *to);
            }
        }
        let modules = image::elf::modules(&memory.image());
        let functions = modules[0].range.start.0;
        if let Some(bins) = bins {
            let (table, entries) = tables[0];
            memory.write_u64(chunks[99], entries);
            memory.write_u64(table + 24, bins);
        }
        for (index, (table, entries)) in tables.into_iter().enumerate() {
            let bins = bins.filter(|_| index == 0).unwrap_or_default();
            for (word, value) in (0..).zip([3, functions, 1, bins, 0, 1, entries]) {
                memory.write_u64(table + word * 8, value);
            }
            for (word, to) in (1..).zip(&chunks[..3]) {
                memory.write_u64(entries + word * 8, *to);
            }
        }
        let image = memory.image();
        let found = allocator::find_allocator(&image, &modules, None);
        let heap = allocator::walk(&image, &found, &[]).unwrap();
        let mut space = ObjectSpace::default();
        space.interpreter.version = "4.0.0".to_owned();
        PointerGraph::read_within(
            limits,
            &image,
            &modules,
            &heap,
            &space,
            &mut References::default(),
            &[],
        )
    }

    fn all(graph: &PointerGraph) -> Vec<(Vec<Edge>, Vec<Edge>)> {
        let nodes = 0..graph.len() as u32;
        nodes.map(|node| (graph.edges(node).into(), graph.slots(node).into())).collect()
    }

    /// The counts of a part used to overflow at 2^32 pointers.
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
        let of_tables = whole.corrected.iter().map(|&node| whole.edges(node).len());
        assert_eq!(of_tables.collect::<Vec<_>>(), [2; 3]);
    }

    /// A pattern's memory had the address of a large table of the interpreter, and owned it.
    #[test]
    fn a_pointer_to_one_part_of_a_table_is_old() {
        let graph = read(LIMITS, true).unwrap();
        assert_eq!(graph.parts_of_tables.len(), 2, "{:?}", graph.corrected);
        let is_part = |edge: &&Edge| graph.is_part_of_table(edge.to());
        let old = (0..graph.len() as u32).flat_map(|node| {
            let parts = graph.edges(node).iter().filter(is_part);
            parts.map(move |edge| (node, edge.to()))
        });
        let old: Vec<_> =
            old.filter(|&(node, part)| graph.is_old_pointer_to_table(node, part)).collect();
        assert_eq!(old.len(), 1, "{old:?}");
    }

    /// The numbers of areas follow those of the blocks. Sets of blocks used to take the first areas for blocks.
    #[test]
    fn an_edge_to_an_area_leads_to_no_block() {
        let graph = PointerGraph { blocks: 3, ..PointerGraph::default() };
        let blocks = [2, 3].map(|node| graph.block(Edge::new(node, false)));
        assert_eq!(blocks, [Some(2), None]);
        assert_eq!(graph.block(Edge::new(2, true)), None);
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
        assert_eq!((last.to(), last.is_uncertain()), ((LIMITS.nodes - 1) as u32, true));
    }
}
