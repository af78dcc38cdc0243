//! Reads, while the target stands, which memory points to which: chunks, and all that is neither a
//! chunk nor a slot but may hold a pointer to one. None of the bytes are kept.

use std::ops::Range;
use std::thread::Builder;

use glibc::{Chunk, ChunkState, Malloc};
use ruby::ObjectSpace;
use target::elf::Module;
use target::{Address, Finding, Image, PAGE_SIZE, Severity, Window, intersection, length};

use crate::places::{Place, Places};

/// Bytes that are read at a time.
const BLOCK: usize = 256 << 10;
/// Longer stretches are read by their resident pages only: a program may have obtained a terabyte
/// and touched a page of it.
const LONG: u64 = 64 << 10;
/// Programs have no memory below: the kernel refuses it (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;
/// Thread-local variables lie at most this far below a thread's control block: the dynamic linker
/// sets a few kilobytes aside for all libraries together.
const LOCALS: u64 = 4 << 10;
/// More bytes than any release's control block of a thread has.
const CONTROL: u64 = 4 << 10;
/// What a function may use below its stack pointer (System V ABI, AMD64).
const RED_ZONE: u64 = 128;

/// The sizes up to which owners can be looked for. Both are far beyond the memory of most machines,
/// but none may make an index mean another thing.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// An edge has 31 bits for the node that it leads to.
    nodes: usize,
    /// Where a part has so many edges or slots, the next node begins a new one ...
    full_part: usize,
    /// ... and a single node has at most so many in a part that was not full.
    part: usize,
}

const LIMITS: Limits = Limits { nodes: 1 << 31, full_part: 1 << 31, part: u32::MAX as usize };

/// There are more nodes than an edge can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany {
    nodes: usize,
    max: usize,
}

impl TooMany {
    pub(crate) fn finding(self) -> Finding {
        let what = format!(
            "owners are incomplete: rbloat traces up to {} chunks, and this process has about {}; \
             malloc'ed memory that no object names directly is in malloc.in_use",
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

/// An edge to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge(u32);

impl Edge {
    const INTERIOR: u32 = 1 << 31;

    pub(crate) fn new(node: u32, is_interior: bool) -> Self {
        Self(node & !Self::INTERIOR | if is_interior { Self::INTERIOR } else { 0 })
    }

    pub(crate) fn node(self) -> u32 {
        self.0 & !Self::INTERIOR
    }

    /// Whether it points into the node, behind its beginning.
    pub(crate) fn is_interior(self) -> bool {
        self.0 & Self::INTERIOR != 0
    }
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
}

/// Neighbouring nodes and what they point to.
#[derive(Debug, Default)]
struct Part {
    first: u32,
    /// For each node where its edges and its slots end; they begin where those of the node before end.
    ends: Vec<(u32, u32)>,
    edges: Vec<Edge>,
    slots: Vec<u32>,
    /// Where the edges and the slots of the node begin that is being read.
    begun: (usize, usize),
    unread_bytes: u64,
    /// Words that point somewhere, but did not fit in.
    dropped_words: u64,
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
        if nodes > limits.nodes {
            return Err(TooMany { nodes, max: limits.nodes });
        }
        let places = Places::new(malloc, space, &areas);
        let chunks = malloc.chunks.len() as u32;
        let cuts = halves(malloc);
        let read_chunks = |range: Range<usize>| {
            let mut reader = Reader::new(image, &places, range.start as u32, limits);
            for chunk in malloc.chunks.get(range).unwrap_or_default() {
                match chunk.state() {
                    // Up to 2.7 Ruby has its heap pages from malloc: slots are read elsewhere.
                    _ if hosts_heap_page(space, *chunk) => {}
                    ChunkState::InUse => reader.read(&(chunk.pointer()..chunk.end().offset(8))),
                    ChunkState::Mmapped => reader.read(&(chunk.pointer()..chunk.end())),
                    _ => {}
                }
                reader.end_node();
            }
            reader.parts()
        };
        let read_others = || {
            let mut reader = Reader::new(image, &places, chunks, limits);
            for area in &areas {
                reader.read(area);
                // An area may be many things beside each other: what it keeps alive is told, but
                // not which object keeps which.
                reader.drop_slots();
                reader.end_node();
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
                        let threads = &image.outline.threads;
                        threads.iter().flat_map(|thread| &thread.registers).for_each(|&word| {
                            reader.take(word);
                        });
                    }
                }
                reader.end_node();
            }
            reader.parts()
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
            [first, second, others].into_iter().flatten().collect()
        });
        Ok(Self { chunks, areas, roots, parts })
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
    pub(crate) fn of(&self, node: u32) -> (&[Edge], &[u32]) {
        let Some(part) = self.parts.iter().rfind(|part| part.first <= node) else {
            return (&[], &[]);
        };
        let index = (node - part.first) as usize;
        let Some(&(edges, slots)) = part.ends.get(index) else { return (&[], &[]) };
        let before = index.checked_sub(1).and_then(|before| part.ends.get(before));
        let &(first_edge, first_slot) = before.unwrap_or(&(0, 0));
        (
            part.edges.get(first_edge as usize..edges as usize).unwrap_or_default(),
            part.slots.get(first_slot as usize..slots as usize).unwrap_or_default(),
        )
    }

    /// Bytes that could not be read, since they are in swap: what they point to is not known.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.unread_bytes).sum()
    }

    /// Words whose target was not kept: nodes with more pointers than can be counted.
    pub(crate) fn dropped_words(&self) -> u64 {
        self.parts.iter().map(|part| part.dropped_words).sum()
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

/// Private anonymous memory that nobody else claims.
fn areas(
    image: &Image<'_>,
    modules: &[Module],
    malloc: &Malloc,
    space: &ObjectSpace,
    stacks: &[Range<Address>],
) -> Vec<Range<Address>> {
    let mut claimed: Vec<Range<Address>> = Vec::new();
    claimed.extend(malloc.regions.iter().map(|region| region.range.clone()));
    claimed.extend(space.pages.iter().map(|page| page.range.clone()));
    claimed.extend(modules.iter().map(|module| module.range.clone()));
    claimed.extend(space.fiber_stacks.iter().cloned());
    claimed.extend(space.transient_heap.iter().cloned());
    claimed.extend(stacks.iter().cloned());
    claimed.sort_by_key(|range| range.start);
    let mut areas = Vec::new();
    let mut claims = claimed.iter().peekable();
    let may_point = |mapping: &&target::Mapping| {
        mapping.readable
            && mapping.writable
            && mapping.is_private_anonymous()
            && mapping.backing != target::Backing::Stack
    };
    for mapping in image.outline.mappings.iter().filter(may_point) {
        let mut at = mapping.range.start;
        while claims.next_if(|claim| claim.end <= at).is_some() {}
        // A claim may reach into the next mapping: it is looked at again there.
        for claim in claims.clone().take_while(|claim| claim.start < mapping.range.end) {
            if at < claim.start {
                areas.push(at..claim.start);
            }
            at = at.max(claim.end);
        }
        if at < mapping.range.end {
            areas.push(at..mapping.range.end);
        }
    }
    areas
}

/// Where thread-local variables are: below each thread's control block; and that block itself.
fn locals(image: &Image<'_>, malloc: &Malloc, stacks: &[Range<Address>]) -> Vec<Range<Address>> {
    let outline = &image.outline;
    // The main thread's may lie where the main arena begins, since the dynamic linker takes them
    // from brk, too.
    let between_regions = |at: Address, all: &Range<Address>| {
        let after = malloc.regions.partition_point(|region| region.range.start <= at);
        let before =
            after.checked_sub(1).map_or(all.start, |index| malloc.regions[index].range.end);
        let behind = malloc.regions.get(after).map_or(all.end, |region| region.range.start);
        // Chunks have the last word of the region before, and the first of theirs.
        all.start.max(before)..all.end.min(behind)
    };
    let around = |thread: &target::Thread| {
        // Behind a thread's block may be the next one's, in the same mapping.
        let block = stacks.iter().find(|stack| stack.contains(&thread.fs_base));
        let mapping = &outline.mappings.find(thread.fs_base)?.range;
        let end = block.map_or(mapping.end, |block| block.end);
        let all = thread.fs_base.before(LOCALS)..thread.fs_base.offset(CONTROL);
        let locals = between_regions(thread.fs_base, &intersection(&all, &(mapping.start..end)));
        Some(locals.start.align_up(8)..locals.end)
    };
    let mut locals: Vec<_> = outline.threads.iter().filter_map(around).collect();
    locals.sort_by_key(|range| range.start);
    locals
}

/// The parts of stacks that are in use.
fn live_stacks(
    image: &Image<'_>,
    space: &ObjectSpace,
    stacks: &[Range<Address>],
) -> Vec<Range<Address>> {
    let outline = &image.outline;
    let of_thread = |thread: &target::Thread| {
        let at = thread.stack_pointer;
        let own = stacks.iter().chain(&space.fiber_stacks).find(|stack| stack.contains(&at));
        let all = own.or_else(|| outline.mappings.find(at).map(|mapping| &mapping.range))?;
        Some(at.before(RED_ZONE).align_down(8).max(all.start)..all.end)
    };
    let mut live: Vec<_> = outline.threads.iter().filter_map(of_thread).collect();
    // Where a fiber stands that does not run is not known: its whole stack may be in use.
    live.extend(space.fiber_stacks.iter().cloned());
    live
}

/// Reads nodes one after the other.
struct Reader<'a> {
    image: &'a Image<'a>,
    places: &'a Places<'a>,
    window: Window<'a>,
    limits: Limits,
    full: Vec<Part>,
    part: Part,
}

impl<'a> Reader<'a> {
    fn new(image: &'a Image<'a>, places: &'a Places<'a>, first: u32, limits: Limits) -> Self {
        let part = Part { first, ..Part::default() };
        Self { image, places, window: Window::new(image, BLOCK), limits, full: Vec::new(), part }
    }

    fn parts(self) -> Vec<Part> {
        let Self { mut full, part, .. } = self;
        full.push(part);
        full
    }

    /// Takes all words of a part of the node that is being read.
    fn read(&mut self, range: &Range<Address>) {
        if length(range) <= LONG {
            return self.read_pages(range);
        }
        let outline = &self.image.outline;
        match &outline.pages {
            Some(pages) => {
                for run in pages.runs_in(range).filter(|run| run.state.is_resident()) {
                    self.read_pages(&intersection(&run.range, range));
                }
            }
            // Nothing says which pages are there. What is hardly there is not worth mapping in.
            None => {
                let resident = |mapping: &&target::Mapping| {
                    mapping.kernel_rss_bytes.unwrap_or(0) >= length(&mapping.range) / 16
                };
                if outline.mappings.find(range.start).filter(resident).is_some() {
                    self.read_pages(range);
                }
            }
        }
    }

    fn read_pages(&mut self, range: &Range<Address>) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(BLOCK as u64 / 2));
            if !self.read_block(&(at..end)) {
                self.read_page_by_page(&(at..end));
            }
            at = end;
        }
    }

    fn read_page_by_page(&mut self, range: &Range<Address>) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(PAGE_SIZE));
            // What is unreadable for another reason, as guard pages are, has no pointers.
            if !self.read_block(&(at..end)) && self.is_out_of_reach(&(at..end)) {
                self.part.unread_bytes += end - at;
            }
            at = end;
        }
    }

    fn is_out_of_reach(&self, page: &Range<Address>) -> bool {
        let pages = self.image.outline.pages.as_ref();
        pages.is_some_and(|pages| pages.runs_in(page).any(|run| run.state.is_unreadable()))
    }

    fn read_block(&mut self, range: &Range<Address>) -> bool {
        let Ok(bytes) = self.window.bytes(range.start, length(range) as usize) else {
            return false;
        };
        for word in bytes.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            take(self.places, self.limits.part, &mut self.part, word);
        }
        true
    }

    fn take(&mut self, word: u64) {
        take(self.places, self.limits.part, &mut self.part, word);
    }

    fn drop_slots(&mut self) {
        self.part.slots.truncate(self.part.begun.1);
    }

    fn end_node(&mut self) {
        let (edges, slots) = (self.part.edges.len(), self.part.slots.len());
        self.part.ends.push((edges as u32, slots as u32));
        self.part.begun = (edges, slots);
        if edges.max(slots) >= self.limits.full_part {
            let first = self.part.first + self.part.ends.len() as u32;
            self.full.push(std::mem::replace(&mut self.part, Part { first, ..Part::default() }));
        }
    }
}

/// Notes what a word points to, if anything.
fn take(places: &Places<'_>, limit: usize, part: &mut Part, word: u64) {
    // Pointers to the middle of a chunk are to parts of structures: aligned, though SQLite adds 4 to
    // one that it keeps. Odd words are numbers.
    if word < LOWEST || word >> 47 != 0 || !word.is_multiple_of(4) {
        return;
    }
    let edge = match places.at(Address(word)) {
        Place::Chunk { index, is_start } => Edge::new(index, !is_start),
        Place::Slot(slot) => {
            if part.slots[part.begun.1..].last() != Some(&slot) {
                match part.slots.len() < limit {
                    true => part.slots.push(slot),
                    false => part.dropped_words += 1,
                }
            }
            return;
        }
        Place::Area(area) => Edge::new(places.chunk_count() + area, false),
        Place::Nothing => return,
    };
    if part.edges[part.begun.0..].last() != Some(&edge) {
        match part.edges.len() < limit {
            true => part.edges.push(edge),
            false => part.dropped_words += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testbed::{GlibcRelease, MallocHeap, SyntheticMemory};

    /// The pointers of an image in which each of a hundred chunks points to the next and to all
    /// that are a multiple of ten.
    fn read_within(limits: Limits) -> Result<Pointers, TooMany> {
        let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
        let chunks: Vec<u64> = (0..100).map(|_| heap.malloc(0, 104)).collect();
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        for (chunk, next) in chunks.iter().zip(&chunks[1..]) {
            for (word, to) in (0..).zip(std::iter::once(next).chain(chunks.iter().step_by(10))) {
                memory.write_u64(chunk + word * 8, *to);
            }
        }
        let image = memory.image();
        let modules = target::elf::modules(&image);
        let malloc = glibc::walk(&image).unwrap();
        Pointers::read_within(limits, &image, &modules, &malloc, &ObjectSpace::default(), &[])
    }

    fn all(pointers: &Pointers) -> Vec<(Vec<Edge>, Vec<u32>)> {
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
            assert_eq!(all(&cut), all(&whole), "{full_part}");
        }
        assert_eq!(whole.dropped_words(), 0);
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
        assert_eq!((last.node(), last.is_interior()), ((LIMITS.nodes - 1) as u32, true));
    }
}
