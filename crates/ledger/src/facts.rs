use std::ops::Range;
use std::sync::LazyLock;

use allocator::{Allocator, HeapMap, Libc};
use image::elf::{self, Module};
use image::{Image, SparseRows};
use linux::{Address, both};
use ruby::{
    AllocationSites, Collector, Depth, Details, NamedRoot, ObjectSpace, References, Shapes,
};

use crate::Finding;
use crate::ownership::{
    AddressIndex, Bits, Edge, ObjectCode, Owners, PointerGraph, Referent, Trace, current_frames,
    slot_edges,
};
use crate::read_depth::ReadDepth;

/// The facts that are read from an image during the capture, and the owners that they lead to: plain data, without the image's
/// bytes.
#[derive(Debug)]
pub struct Facts {
    pub(crate) libc: Libc,
    pub(crate) allocator: Allocator,
    /// malloc's side, or the reason why it could not be read.
    pub(crate) malloc: Result<HeapMap, Finding>,
    /// Ruby's side, or the reason why it could not be read.
    pub(crate) ruby: Result<ObjectSpace, Finding>,
    /// The state of the garbage collector; `None` if it is unknown.
    pub(crate) collector: Option<Collector>,
    torn: bool,
    /// The stacks of threads.
    pub(crate) stacks: Vec<Range<Address>>,
    /// Ascending by address.
    pub(crate) modules: Vec<Module>,
    /// The pointers between blocks; `None` if owners are not wanted, or a side is missing.
    pub(crate) graph: Option<PointerGraph>,
    /// The words of slots that are not resolved yet.
    references: References,
    /// The edges from slots to blocks; empty if there is a graph, which has them.
    pub(crate) slot_edges: SparseRows<Edge>,
    /// The owner of each block.
    pub(crate) trace: Trace,
    /// Objects that constants or variables of Ruby refer to; empty if owners are not wanted.
    pub(crate) named_roots: Vec<NamedRoot>,
    /// The methods of threads, and the code of Procs and Methods; empty if owners are not wanted, or they could not be read.
    pub(crate) object_code: ObjectCode,
    /// The fields of objects, the lines that allocated them, and shapes; `None` unless they are wanted.
    pub(crate) details: Option<(Details, AllocationSites, Shapes)>,
    /// Findings on the allocator, pointers, named roots and the files of bytecode.
    pub(crate) findings: Vec<Finding>,
}

impl Facts {
    /// Returns false if a major collection was marking: it forgot at its start which objects are old.
    #[must_use]
    pub fn knows_ages(&self) -> bool {
        self.collector.is_none_or(|it| it.is_marking != Some(true))
    }

    /// Reads malloc's side and Ruby's side of `image` at the same time. If one cannot be read, the reason is kept and
    /// the other remains valid.
    #[must_use]
    pub fn read(image: &Image<'_>, read: ReadDepth) -> Self {
        Self::begin(image, read).resolved()
    }

    /// Like [`read`](Self::read), but not [resolved](Self::resolved).
    #[must_use]
    pub fn begin(image: &Image<'_>, read: ReadDepth) -> Self {
        let owners = read >= ReadDepth::Owners;
        let depth = if owners { Depth::Graph } else { Depth::Memory };
        let mut facts = Self::read_sides(image, elf::modules(image), depth);
        if let Ok(space) = &mut facts.ruby {
            facts.references = std::mem::take(&mut space.references);
        }
        if owners
            && !facts.torn
            && let (Ok(heap), Ok(space)) = (&facts.malloc, &facts.ruby)
        {
            let (modules, stacks, references) =
                (&facts.modules, &facts.stacks, &mut facts.references);
            image.widen_cache();
            // The graph takes two threads most of the time, and names fill the rest.
            let (graph, ((named_roots, findings), code)) = both(
                || PointerGraph::read(image, modules, heap, space, references, stacks),
                || roots_and_code(image, space),
            );
            match graph {
                Ok(mut graph) => {
                    match read {
                        ReadDepth::Objects | ReadDepth::Values => {
                            let values = read == ReadDepth::Values;
                            let sites = ruby::allocation_sites(image, space, modules);
                            let details = ruby::details(image, space, values);
                            facts.details = Some((details, sites, ruby::shapes(image, space)));
                        }
                        _ => graph.read_waste(image, heap, space, read),
                    }
                    facts.named_roots = named_roots;
                    facts.findings.extend(findings.into_iter().map(Finding::from));
                    facts.graph = Some(graph);
                    match code {
                        Ok(object_code) => facts.object_code = object_code,
                        Err(finding) => facts.findings.push(finding.into()),
                    }
                }
                Err(too_many) => facts.findings.push(too_many.finding()),
            }
        }
        facts
    }

    /// Finds the owner of each block, and before that the edges from slots to blocks unless the graph has them. It does not
    /// need the image.
    #[must_use]
    pub fn resolved(mut self) -> Self {
        let references = std::mem::take(&mut self.references);
        if self.graph.is_none()
            && let (Ok(heap), Ok(space)) = (&self.malloc, &self.ruby)
        {
            self.slot_edges = slot_edges(heap, space, references);
        }
        self.trace = self.follow();
        self
    }

    /// Follows the pointers, and once more if objects of C extensions that hold much are garbage, or only threads have them. What
    /// lasting objects reach, too, mostly stays without them.
    fn follow(&self) -> Trace {
        let (heap, space, graph) = (self.heap(), self.objects(), self.graph.as_ref());
        let find = |temporary: &Bits| {
            Trace::find(heap, space, &self.modules, graph, &self.slot_edges, temporary)
        };
        let trace = find(&Bits::new(0));
        let roots = &self.named_roots;
        let owners =
            Owners::new(heap, space, &self.modules, graph, &trace, roots, &self.object_code);
        match owners.temporary_objects() {
            Some(temporary) => find(&temporary),
            None => trace,
        }
    }

    /// No facts but the libraries, for a process whose memory was not read. `running` is an image of the process
    /// made without stopping it, with these modules.
    #[must_use]
    pub fn unread(running: &Image<'_>, mut modules: Vec<Module>) -> Self {
        let interpreter = ruby::find_in(running, &modules);
        let caller = interpreter.and_then(|it| it.module_among(&modules));
        let allocator = allocator::find_allocator(running, &modules, caller).allocator;
        let libc = allocator::libc(running, &modules);
        modules.sort_by_key(|module| module.range.start);
        Self {
            torn: false,
            collector: None,
            libc,
            allocator,
            malloc: Err(Finding::MemoryUnread),
            ruby: Err(Finding::MemoryUnread),
            stacks: Vec::new(),
            modules,
            graph: None,
            references: References::default(),
            slot_edges: SparseRows::default(),
            trace: Trace::default(),
            named_roots: Vec::new(),
            object_code: ObjectCode::default(),
            details: None,
            findings: Vec::new(),
        }
    }

    /// `modules` are in the order in which the dynamic linker searches them.
    fn read_sides(image: &Image<'_>, mut modules: Vec<Module>, depth: Depth) -> Self {
        let interpreter = ruby::find_in(image, &modules);
        let read_ruby = || match &interpreter {
            Some(interpreter) => ruby::read_with(image, interpreter, depth),
            None => Err(ruby::Error::NotRuby),
        };
        let read_malloc = || {
            let caller = interpreter.as_ref().and_then(|it| it.module_among(&modules));
            let found = allocator::find_allocator(image, &modules, caller);
            let stacks = allocator::thread_stacks(image, &modules);
            let malloc = allocator::walk(image, &found, &stacks).map_err(Finding::from);
            ((found.allocator, found.finding), malloc, stacks)
        };
        let (((allocator, finding), malloc, mut stacks), ruby) = both(read_malloc, read_ruby);
        let of_ruby = ruby.iter().flat_map(|space| &space.mn_stacks);
        stacks.extend(of_ruby.flat_map(|stack| [stack.vm.clone(), stack.machine.clone()]));
        stacks.sort_by_key(|stack| stack.start);
        let collector = match (&malloc, &ruby) {
            (Ok(heap), Ok(space)) => collector(image, heap, space),
            _ => None,
        };
        let is_torn = |heap: &HeapMap| heap.arenas.iter().any(|arena| !arena.walked);
        let torn =
            malloc.as_ref().is_ok_and(is_torn) || matches!(ruby, Err(ruby::Error::Layout { .. }));
        let libc = allocator::libc(image, &modules);
        modules.sort_by_key(|module| module.range.start);
        Self {
            torn,
            collector,
            libc,
            allocator,
            malloc,
            ruby: ruby.map_err(Finding::from),
            stacks,
            modules,
            graph: None,
            references: References::default(),
            slot_edges: SparseRows::default(),
            trace: Trace::default(),
            named_roots: Vec::new(),
            object_code: ObjectCode::default(),
            details: None,
            findings: finding.map(Finding::from).into_iter().collect(),
        }
    }

    /// malloc's side; empty if it could not be read.
    pub(crate) fn heap(&self) -> &HeapMap {
        static NOTHING: LazyLock<HeapMap> = LazyLock::new(HeapMap::default);
        self.malloc.as_ref().unwrap_or(&NOTHING)
    }

    /// Ruby's side; empty if it could not be read.
    pub(crate) fn objects(&self) -> &ObjectSpace {
        static NOTHING: LazyLock<ObjectSpace> = LazyLock::new(ObjectSpace::default);
        self.ruby.as_ref().unwrap_or(&NOTHING)
    }

    /// Returns the version of Ruby; `None` if Ruby could not be read.
    #[must_use]
    pub fn ruby_version(&self) -> Option<&str> {
        self.ruby.as_ref().ok().map(|space| &space.interpreter.version[..])
    }

    /// Returns true if malloc's heap was read.
    #[must_use]
    pub fn know_heap(&self) -> bool {
        self.malloc.is_ok()
    }

    /// The memory at an address.
    pub(crate) fn referent(&self, at: Address) -> Referent {
        let areas = self.graph.as_ref().map_or(&[][..], |graph| &graph.areas);
        AddressIndex::new(self.heap(), self.objects(), areas).at(at)
    }

    /// Drops the facts that only the search for owners needs.
    pub fn forget_owners(&mut self) {
        let of_slots = self.graph.take().map(|graph| graph.of_slots);
        if let Some(of_slots) = of_slots {
            self.slot_edges = of_slots;
            self.trace = Trace::default();
            self.trace = self.follow();
        }
        self.named_roots = Vec::new();
        self.object_code = ObjectCode::default();
    }

    /// Returns true if a part may have been in the middle of a change: a thread was inside malloc, or in a GC that
    /// moves objects. A capture some milliseconds later usually finds everything in order.
    #[must_use]
    pub fn are_torn(&self) -> bool {
        self.torn
    }
}

/// The state of the garbage collector, whose structure is a block of its own (`rb_objspace_alloc` of gc.c).
fn collector(image: &Image<'_>, heap: &HeapMap, space: &ObjectSpace) -> Option<Collector> {
    let block = heap.block_around(space.collector_address?)?;
    Collector::read(image, space, heap.header.usable(block).start)
}

/// The named roots with findings on them, and code, read at the same time.
fn roots_and_code(
    image: &Image<'_>,
    space: &ObjectSpace,
) -> ((Vec<NamedRoot>, Vec<ruby::Finding>), Result<ObjectCode, ruby::Finding>) {
    let read_code = || {
        let paths = ruby::code_paths(image, space)?;
        let current_frames = current_frames(image, space, &paths);
        let closures = ruby::closures(image, space, &paths);
        Ok(ObjectCode { current_frames, closures, paths: Some(paths), uses: Vec::new() })
    };
    let (roots, mut code) = both(|| ruby::named_roots(image, space), read_code);
    if let Ok(code) = &mut code
        && let Some(paths) = &code.paths
    {
        code.uses = ruby::uses_of_roots(image, space, paths, &roots.0);
    }
    (roots, code)
}
