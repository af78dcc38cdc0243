//! Follows pointers from all owners at once, and finds the owner of each block in use.

use std::collections::VecDeque;

use allocator::{Block, BlockState, HeapMap};
use image::SparseRows;
use image::elf::Module;
use linux::{Address, both};
use ruby::{ObjectSpace, Slot, SlotType};

use crate::Cause;
use crate::ownership::bits::Bits;
use crate::ownership::edges::Edge;
use crate::ownership::graph::{PointerGraph, hosts_heap_page};
use crate::ownership::jit;
use crate::ownership::owner::Owner;
use crate::ownership::root_memory::Root;
use crate::ownership::table::OwnerTable;

/// The owner of each block in use.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    classes: u32,
    roots: Vec<Root>,
    /// The codes of owners by node, as [`Trace::owner`] understands them.
    codes: Codes,
    shared: Bits,
    /// The causes of the memory that owners hold, by code.
    causes: Vec<Cause>,
}

/// Numbers up to a maximum, in two bytes each if they fit.
#[derive(Debug)]
enum Codes {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Default for Codes {
    fn default() -> Self {
        Self::Narrow(Vec::new())
    }
}

impl Codes {
    /// `count` times the number `max`.
    fn new(count: usize, max: u32) -> Self {
        match u16::try_from(max) {
            Ok(max) => Self::Narrow(vec![max; count]),
            Err(_) => Self::Wide(vec![max; count]),
        }
    }

    #[inline]
    fn get(&self, index: usize) -> Option<u32> {
        match self {
            Self::Narrow(codes) => codes.get(index).map(|&code| code.into()),
            Self::Wide(codes) => codes.get(index).copied(),
        }
    }

    fn set(&mut self, index: usize, code: u32) {
        match self {
            Self::Narrow(codes) => codes[index] = code as u16,
            Self::Wide(codes) => codes[index] = code,
        }
    }
}

/// The number of pointers beyond which Ruby's own structures are doubtful: its tables and structures are closer to
/// objects and variables.
const MAX_TRUSTED_DEPTH: u32 = 3;
/// The size from which a recycled block is more likely a buffer, or a table with room to grow, than a structure whose
/// words are all in use.
const MIN_BUFFER_BYTES: u64 = 1 << 10;

impl Trace {
    /// Finds the owner of each block by following `graph`; without it, only of the blocks that `slot_edges` lead to. Objects in the
    /// `temporary` slots get what no other object reaches.
    pub(crate) fn find(
        heap: &HeapMap,
        space: &ObjectSpace,
        modules: &[Module],
        graph: Option<&PointerGraph>,
        slot_edges: &SparseRows<Edge>,
        temporary: &Bits,
    ) -> Self {
        let table = OwnerTable { space, modules, is_traced: graph.is_some() };
        match graph {
            Some(graph) => Self::new(heap, graph, &table, temporary),
            None => Self::of_slots(heap, slot_edges, &table),
        }
    }

    /// Finds the owner of each block in use.
    ///
    /// Each block goes to the owner that is the fewest pointers away. It is *shared* if another owner reaches it
    /// too. Pointers to the beginning of a block come first; a pointer into the middle counts only for blocks that
    /// no other pointer reaches, since it may be a number.
    ///
    /// Memory is recycled, so a word may be an earlier owner's. Objects with a known layout show which words are in
    /// use, and other pointers to their memory do not make it shared. Some other memory is *doubtful*
    /// ([`Tracer::doubt`]): its words are followed after those of other memory, and they do not make memory shared.
    fn new(heap: &HeapMap, graph: &PointerGraph, table: &OwnerTable<'_>, temporary: &Bits) -> Self {
        let mut tracer = Tracer::new(heap, graph, table);
        tracer.claim_heap_pages();
        let vm_stacks = tracer.claim_vm_stacks();
        let is_interpreters =
            |root: &Root| matches!(root, Root::Variables(module) if table.is_interpreter(*module));
        if let Some(root) = graph.roots.iter().position(is_interpreters) {
            let owner = 2 * tracer.trace.classes + root as u32;
            graph.lists.at_exit.iter().for_each(|&(entry, _)| tracer.reach(entry, owner, false, 1));
            // The memory with a registered word belongs to others.
            let registered = graph.lists.registered.entries.iter();
            registered.for_each(|&entry| tracer.trace.codes.set(entry as usize, owner));
            // The registers that fibers were given when they were made may have its address.
            let collector = table.space.collector_address.and_then(|at| tracer.block_with(at));
            collector.into_iter().for_each(|(it, _)| tracer.reach(it as u32, owner, false, 1));
        }
        for table in jit::tables(heap.block_count(), table.space, graph) {
            tracer.reach(table, tracer.trace.jit(), false, 1);
        }
        tracer.start_from_slots(graph.of_slots.iter(), temporary);
        tracer.start_from_messages(&graph.lists.messages);
        for (index, root) in graph.roots.iter().enumerate() {
            if !root.is_stack() {
                tracer.start_from_root(index);
            }
        }
        tracer.follow_exact();
        tracer.follow_doubtful(Doubt::Buffer);
        let borrowed = std::mem::take(&mut tracer.starts.borrowed);
        tracer.start_from_borrowers(borrowed);
        let of_temporary = tracer.start_from_temporary();
        tracer.follow_interior();
        tracer.interior = of_temporary;
        tracer.starts.interior = std::mem::take(&mut tracer.starts.interior_of_temporary);
        tracer.follow_interior();
        tracer.follow_doubtful(Doubt::Structure);
        tracer.follow_doubtful_interior();
        // A word on a stack may be long out of use, so stacks hold only memory without another owner.
        tracer.shares = false;
        tracer.exact.extend(vm_stacks.into_iter().map(|stack| (stack, 0)));
        tracer.follow_exact();
        for (index, root) in graph.roots.iter().enumerate() {
            if root.is_stack() {
                tracer.start_from_root(index);
                tracer.follow_exact();
            }
        }
        tracer.follow_interior();
        tracer.trace
    }

    /// Finds only the blocks that slots refer to.
    fn of_slots(heap: &HeapMap, slot_edges: &SparseRows<Edge>, table: &OwnerTable<'_>) -> Self {
        let graph = PointerGraph::default();
        let trace = |slots| {
            let mut tracer = Tracer::new(heap, &graph, table);
            tracer.claim_heap_pages();
            tracer.start_from_slots(slots, &Bits::new(0));
            let borrowed = std::mem::take(&mut tracer.starts.borrowed);
            tracer.start_from_borrowers(borrowed);
            tracer.trace
        };
        let [first, second] = slot_edges.halves();
        let (mut first, second) = both(|| trace(first), || trace(second));
        first.add(&second, heap.block_count());
        first
    }

    /// Adds the owners of blocks that later slots refer to.
    fn add(&mut self, later: &Self, blocks: usize) {
        let nobody = self.nobody();
        for block in 0..blocks {
            let (own, code) = (self.code_of(block), later.code_of(block));
            if code == nobody {
                continue;
            }
            if own == nobody {
                self.codes.set(block, code);
            }
            if later.is_shared(block) || own != code && own != nobody {
                self.shared.insert(block as u32);
            }
        }
    }

    /// The owner of the block with this number.
    pub(crate) fn owner_of(&self, block: usize) -> Owner {
        self.owner(self.code_of(block))
    }

    /// The code of the owner of the block with this number: below [`Trace::code_count`].
    #[inline]
    pub(crate) fn code_of(&self, block: usize) -> u32 {
        self.codes.get(block).unwrap_or(self.nobody())
    }

    /// The number of codes. The last one is that of [`Owner::Nobody`].
    pub(crate) fn code_count(&self) -> usize {
        self.nobody() as usize + 1
    }

    /// The cause of the memory of the block in use with this number.
    #[inline]
    pub(crate) fn cause_of(&self, block: usize) -> Cause {
        self.causes[self.code_of(block) as usize]
    }

    /// The owner with this code.
    pub(crate) fn owner(&self, code: u32) -> Owner {
        match code {
            class if class < self.classes => Owner::Class(class as usize),
            class if class < 2 * self.classes => Owner::Data((class - self.classes) as usize),
            root => match self.roots.get((root - 2 * self.classes) as usize) {
                Some(Root::Variables(module)) => Owner::Variables(*module),
                Some(Root::Locals) => Owner::Locals,
                Some(Root::Stacks | Root::Values) => Owner::Stacks,
                None if root == self.jit() => Owner::Jit,
                None if root == self.heap_pages() => Owner::HeapPages,
                None if root == self.vm_stacks() => Owner::VmStacks,
                None => Owner::Nobody,
            },
        }
    }

    /// The code of [`Owner::Jit`], behind the codes of classes and roots.
    fn jit(&self) -> u32 {
        2 * self.classes + self.roots.len() as u32
    }

    fn heap_pages(&self) -> u32 {
        self.jit() + 1
    }

    fn vm_stacks(&self) -> u32 {
        self.jit() + 2
    }

    fn nobody(&self) -> u32 {
        self.jit() + 3
    }

    /// The code of the objects like the one in this slot; `None` if it has no class.
    pub(crate) fn code_of_slot(&self, slot: Slot) -> Option<u32> {
        let is_data = slot.kind() == SlotType::DATA;
        (slot.class() < self.classes).then(|| slot.class() + if is_data { self.classes } else { 0 })
    }

    /// Returns true if objects like the one in this slot own the block with this number.
    pub(crate) fn is_of_slot(&self, block: u32, slot: Slot) -> bool {
        self.code_of_slot(slot) == Some(self.code_of(block as usize))
    }

    /// Returns true if more than one owner reaches the block with this number.
    pub(crate) fn is_shared(&self, block: usize) -> bool {
        self.shared.contains(block as u32)
    }
}

/// Reasons why words of a node may be an earlier owner's, in the order in which such nodes are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    None,
    /// A large block outside of Ruby, which was probably recycled. Its pointers to the beginnings of blocks still say more than pointers
    /// into the middle of blocks, which may be numbers.
    Buffer,
    /// A structure of Ruby's that is large, or far from objects and variables.
    Structure,
}

/// Pointers of slots that are followed later, in this order: blocks with the owners of the slots.
#[derive(Default)]
struct Starts {
    /// Those of objects that borrow what another one frees.
    borrowed: Vec<(u32, u32)>,
    of_temporary: Vec<(u32, u32)>,
    borrowed_by_temporary: Vec<(u32, u32)>,
    interior: Vec<(u32, u32)>,
    interior_of_temporary: Vec<(u32, u32)>,
}

struct Tracer<'a> {
    heap: &'a HeapMap,
    space: &'a ObjectSpace,
    graph: &'a PointerGraph,
    trace: Trace,
    /// Nodes whose exact pointers have to be followed, with the number of pointers that led to each.
    exact: VecDeque<(u32, u32)>,
    /// Nodes whose interior pointers have to be followed, after all exact ones.
    interior: VecDeque<(u32, u32)>,
    /// Nodes of more doubt wait in `doubtful`.
    followed: Doubt,
    /// True once interior pointers of doubtful nodes are followed. Until then such nodes wait in `doubtful_interior`.
    follows_doubtful_interior: bool,
    doubtful: VecDeque<(u32, u32)>,
    doubtful_interior: VecDeque<(u32, u32)>,
    /// True if memory that two owners reach becomes shared.
    shares: bool,
    starts: Starts,
    /// Old pointers to parts of hash tables, which give those that no table leads to an owner: the part, the node with the pointer,
    /// and the number of pointers that led to that.
    to_tables: Vec<(u32, u32, u32)>,
}

impl<'a> Tracer<'a> {
    fn new(heap: &'a HeapMap, graph: &'a PointerGraph, table: &OwnerTable<'a>) -> Self {
        let space = table.space;
        let nodes = graph.len().max(heap.block_count());
        let mut trace = Trace {
            classes: space.classes.len() as u32,
            roots: graph.roots.clone(),
            codes: Codes::default(),
            shared: Bits::new(nodes),
            causes: Vec::new(),
        };
        trace.codes = Codes::new(nodes, trace.nobody());
        let codes = 0..trace.code_count() as u32;
        trace.causes = codes.map(|code| table.cause_of(trace.owner(code))).collect();
        Self {
            heap,
            space,
            graph,
            exact: VecDeque::new(),
            interior: VecDeque::new(),
            followed: Doubt::None,
            follows_doubtful_interior: false,
            doubtful: VecDeque::new(),
            doubtful_interior: VecDeque::new(),
            shares: true,
            starts: Starts::default(),
            to_tables: Vec::new(),
            trace,
        }
    }

    fn claim_heap_pages(&mut self) {
        let heap_pages = self.trace.heap_pages();
        for page in &self.space.pages {
            if let Some((number, block)) = self.block_with(page.range.start)
                && hosts_heap_page(self.space, block)
            {
                self.trace.codes.set(number, heap_pages);
            }
        }
    }

    /// Claims the VM stacks that are blocks of their own, and returns these.
    fn claim_vm_stacks(&mut self) -> Vec<u32> {
        let starts = self.space.vm_stacks.iter().map(|stack| stack.start);
        let blocks = starts.filter_map(|start| self.block_with(start)).map(|(number, _)| number);
        let blocks: Vec<usize> = blocks.collect();
        let owner = self.trace.vm_stacks();
        blocks.iter().for_each(|&block| self.trace.codes.set(block, owner));
        blocks.into_iter().map(|block| block as u32).collect()
    }

    /// The block in use with `address`, and its number.
    fn block_with(&self, address: Address) -> Option<(usize, Block)> {
        let number = self.heap.blocks.count_to(address).checked_sub(1)?;
        let is_it = |block: &Block| block.state().is_in_use() && address < block.end();
        Some((number, self.heap.block(number).filter(is_it)?))
    }

    fn start_from_slots<'e>(
        &mut self,
        slot_edges: impl Iterator<Item = (u32, &'e [Edge])>,
        temporary: &Bits,
    ) {
        for (number, edges) in slot_edges {
            let slot = self.space.slots.get(number as usize);
            let Some(owner) = slot.and_then(|slot| self.trace.code_of_slot(*slot)) else {
                continue;
            };
            let is_temporary = temporary.contains(number);
            let (borrows, is_trace_point) = self.borrows(number, owner);
            for edge in edges {
                let list = match (edge.is_uncertain(), is_temporary, borrows) {
                    (true, ..) if is_trace_point => continue,
                    (true, false, _) => &mut self.starts.interior,
                    (true, true, _) => &mut self.starts.interior_of_temporary,
                    (false, false, true) => &mut self.starts.borrowed,
                    (false, true, false) => {
                        // The structure that an object wraps is its own.
                        let structure = edge.to() as usize;
                        if self.trace.codes.get(structure) == Some(self.trace.nobody()) {
                            self.trace.codes.set(structure, owner);
                        }
                        &mut self.starts.of_temporary
                    }
                    (false, true, true) => &mut self.starts.borrowed_by_temporary,
                    (false, false, false) => {
                        self.reach(edge.to(), owner, false, 1);
                        continue;
                    }
                };
                list.push((edge.to(), owner));
            }
        }
    }

    /// The messages that a Ractor has not received yet are its own. From 4.1 on they are no objects, but memory behind the node of a list,
    /// which variables of the interpreter and ports lead to, too.
    fn start_from_messages(&mut self, messages: &[(u32, u32)]) {
        for &(ractor, message) in messages {
            let slot = self.space.slots.get(ractor as usize);
            let owner = slot.and_then(|slot| self.trace.code_of_slot(*slot));
            owner.into_iter().for_each(|owner| self.reach(message, owner, false, 1));
        }
    }

    /// Returns true for an object that does not free what it refers to, because another one does: the nodes of a document are freed
    /// together with it, and a TracePoint (for which the second value is true) refers to the data that its hook is called with.
    fn borrows(&self, slot: u32, owner: u32) -> (bool, bool) {
        let Some(data_type) = self.space.data_type_of(slot) else { return (false, false) };
        let is_extensions = self.trace.causes.get(owner as usize) == Some(&Cause::NativeHeld);
        let is_trace_point = data_type.is_trace_point();
        (is_trace_point || is_extensions && !data_type.frees, is_trace_point)
    }

    /// Gives objects that borrow the memory that no other owner reaches by exact pointers.
    fn start_from_borrowers(&mut self, borrowed: Vec<(u32, u32)>) {
        let shares = std::mem::replace(&mut self.shares, false);
        for (block, owner) in borrowed {
            self.reach(block, owner, false, 1);
        }
        self.follow_exact();
        self.shares = shares;
    }

    /// Gives temporary objects the memory behind their structures that exact pointers lead to, unless lasting ones have it. Returns the nodes whose
    /// interior pointers have to be followed after those of lasting objects.
    fn start_from_temporary(&mut self) -> VecDeque<(u32, u32)> {
        let of_lasting = std::mem::take(&mut self.interior);
        self.followed = Doubt::None;
        for (block, owner) in std::mem::take(&mut self.starts.of_temporary) {
            if self.trace.code_of(block as usize) == owner && self.graph.has_edges(block) {
                self.exact.push_back((block, 1));
                self.interior.push_back((block, 1));
            } else {
                self.reach(block, owner, false, 1);
            }
        }
        self.follow_exact();
        self.follow_doubtful(Doubt::Buffer);
        let borrowed = std::mem::take(&mut self.starts.borrowed_by_temporary);
        self.start_from_borrowers(borrowed);
        std::mem::replace(&mut self.interior, of_lasting)
    }

    fn start_from_root(&mut self, index: usize) {
        let node = self.graph.root(index);
        // The stacks of all threads are one owner, and so are their variables.
        let roots = &self.graph.roots;
        let first = roots.iter().position(|root| *root == roots[index]).unwrap_or(index);
        self.reach(node, 2 * self.trace.classes + first as u32, false, 0);
    }

    /// Gives `node`, to which `depth` pointers lead, to `owner` if it has no owner yet; otherwise marks it as shared.
    fn reach(&mut self, node: u32, owner: u32, is_shared: bool, depth: u32) {
        let Some(known) = self.trace.codes.get(node as usize) else { return };
        // Bytecode and the interpreter's variables refer to the JIT compiler's tables, but only for its use, as threads and fibers to their
        // VM stacks.
        let is_part =
            known == self.trace.jit() && self.is_of_ruby(owner) || known == self.trace.vm_stacks();
        if known == self.trace.nobody() {
            self.trace.codes.set(node as usize, owner);
            if is_shared {
                self.trace.shared.insert(node);
            }
            if self.graph.has_edges(node) {
                self.exact.push_back((node, depth));
                self.interior.push_back((node, depth));
            }
        } else if self.shares
            && (is_shared || known != owner)
            && !is_part
            && self.trace.shared.insert(node)
            && self.graph.has_edges(node)
        {
            // The memory that it points to is shared, too.
            self.exact.push_back((node, depth));
        }
    }

    /// Returns why words of a node, to which `depth` pointers lead, may be an earlier owner's. That is so for large
    /// recycled blocks (fresh ones are zeros), and for Ruby's own structures far from objects and variables. The
    /// block that an object wraps is its structure, and not doubtful.
    fn doubt(&self, node: u32, depth: u32) -> Doubt {
        let is_of_ruby = self.is_of_ruby(self.trace.code_of(node as usize));
        if depth >= MAX_TRUSTED_DEPTH && is_of_ruby {
            return Doubt::Structure;
        }
        let is_buffer =
            |it: Block| it.state() == BlockState::InUse && it.bytes() >= MIN_BUFFER_BYTES;
        let is_doubtful = depth > 1 && self.heap.block(node as usize).is_some_and(is_buffer);
        match (is_doubtful, is_of_ruby) {
            (false, _) => Doubt::None,
            (true, false) => Doubt::Buffer,
            (true, true) => Doubt::Structure,
        }
    }

    fn is_of_ruby(&self, owner: u32) -> bool {
        self.trace.causes.get(owner as usize).is_some_and(|cause| cause.is_rubys())
    }

    fn is_taken(&self, node: u32) -> bool {
        self.trace.code_of(node as usize) != self.trace.nobody()
    }

    fn follow_exact(&mut self) {
        while let Some((node, depth)) = self.exact.pop_front() {
            let doubt = self.doubt(node, depth);
            if doubt > self.followed {
                self.doubtful.push_back((node, depth));
                continue;
            }
            let is_doubtful = doubt > Doubt::None;
            let owner = self.trace.code_of(node as usize);
            let is_shared = self.trace.shared.contains(node);
            for edge in self.graph.edges(node).iter().filter(|edge| !edge.is_uncertain()) {
                if self.graph.is_old_pointer_to_table(node, edge.to()) {
                    self.to_tables.push((edge.to(), node, depth));
                    continue;
                }
                let is_taken = self.is_taken(edge.to());
                if !is_taken || !is_doubtful && !self.graph.is_known(edge.to()) {
                    self.reach(edge.to(), owner, is_shared, depth + 1);
                }
            }
        }
    }

    fn follow_interior(&mut self) {
        for (block, owner) in std::mem::take(&mut self.starts.interior) {
            self.reach_unheld(block, owner, false, 1);
        }
        self.follow_exact();
        while let Some((node, depth)) = self.interior.pop_front() {
            let owner = self.trace.code_of(node as usize);
            let is_doubtful = self.is_of_ruby(owner) || self.doubt(node, depth) > Doubt::None;
            if is_doubtful && !self.follows_doubtful_interior {
                self.doubtful_interior.push_back((node, depth));
                continue;
            }
            let is_shared = self.trace.shared.contains(node);
            let mut waits = false;
            for edge in self.graph.edges(node).iter().filter(|edge| edge.is_uncertain()) {
                // The table that these bins or entries belong to may be doubtful itself, and is followed later.
                if !self.follows_doubtful_interior && self.graph.is_part_of_table(edge.to()) {
                    waits = true;
                } else {
                    self.reach_unheld(edge.to(), owner, is_shared, depth + 1);
                }
            }
            if waits {
                self.doubtful_interior.push_back((node, depth));
            }
            self.follow_exact();
        }
    }

    /// Follows the exact pointers of nodes up to this doubt.
    fn follow_doubtful(&mut self, doubt: Doubt) {
        self.followed = doubt;
        self.exact.append(&mut self.doubtful);
        self.follow_exact();
    }

    fn follow_doubtful_interior(&mut self) {
        self.follows_doubtful_interior = true;
        self.interior.append(&mut self.doubtful_interior);
        self.follow_interior();
        for (part, node, depth) in std::mem::take(&mut self.to_tables) {
            let owner = self.trace.code_of(node as usize);
            self.reach_unheld(part, owner, self.trace.shared.contains(node), depth + 1);
        }
        self.follow_interior();
    }

    /// Gives `node` to `owner` unless it has an owner.
    fn reach_unheld(&mut self, node: u32, owner: u32, is_shared: bool, depth: u32) {
        if !self.is_taken(node) {
            self.reach(node, owner, is_shared, depth);
        }
    }
}
