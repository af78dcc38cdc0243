//! Follows pointers from all owners at once, and finds the owner of each block in use.

use std::collections::VecDeque;

use allocator::{Block, BlockState, HeapMap};
use ruby::{ObjectSpace, Slot, SlotType};

use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::bits::Bits;
use crate::ownership::graph::{PointerGraph, Root, hosts_heap_page};
use crate::ownership::jit;
use crate::ownership::owner::Owner;
use crate::ownership::table::OwnerTable;

/// The owner of each block in use.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    classes: u32,
    roots: Vec<Root>,
    /// Owners by node, as [`Trace::decode`] understands them.
    owners: Vec<u32>,
    shared: Bits,
}

/// The number of pointers beyond which Ruby's own structures are doubtful: its tables and structures are closer to
/// objects and variables.
const MAX_TRUSTED_DEPTH: u32 = 3;
/// The size from which a recycled block is more likely a buffer, or a table with room to grow, than a structure whose
/// words are all in use.
const MIN_BUFFER_BYTES: u64 = 1 << 10;

/// The alignment of malloc's blocks, except regions of 8 bytes.
const MALLOC_ALIGNMENT: u64 = 16;
const NOBODY: u32 = u32::MAX;
const HEAP_PAGES: u32 = u32::MAX - 1;

impl Trace {
    /// Finds the owner of each block in use.
    ///
    /// Each block goes to the owner that is the fewest pointers away. It is *shared* if another owner reaches it
    /// too. Pointers to the beginning of a block come first; a pointer into the middle counts only for blocks that
    /// no other pointer reaches, since it may be a number.
    ///
    /// Memory is recycled, so a word may be an earlier owner's. Objects with a known layout show which words are in
    /// use, and other pointers to their memory do not make it shared. Some other memory is *doubtful*
    /// ([`Tracer::is_doubtful`]): its words are followed last, and they do not make memory shared.
    pub(crate) fn new(
        heap: &HeapMap,
        addresses: &AddressIndex<'_>,
        graph: &PointerGraph,
        table: &OwnerTable<'_>,
    ) -> Self {
        let mut tracer = Tracer::new(heap, graph, table);
        tracer.claim_heap_pages();
        for table in jit::tables(heap.block_count(), table.space, graph, addresses) {
            tracer.reach(table, tracer.trace.jit(), false, 1);
        }
        tracer.start_from_slots(addresses);
        for (index, root) in graph.roots.iter().enumerate() {
            if *root != Root::Stacks {
                tracer.start_from_root(index);
            }
        }
        tracer.follow_exact();
        tracer.follow_interior();
        tracer.follow_doubtful();
        // A word on a stack may be long out of use, so stacks hold only memory without another owner.
        tracer.shares = false;
        for (index, root) in graph.roots.iter().enumerate() {
            if *root == Root::Stacks {
                tracer.start_from_root(index);
                tracer.follow_exact();
            }
        }
        tracer.follow_interior();
        tracer.trace
    }

    /// Finds only the blocks that slots refer to.
    pub(crate) fn of_slots(
        heap: &HeapMap,
        addresses: &AddressIndex<'_>,
        table: &OwnerTable<'_>,
    ) -> Self {
        let graph = PointerGraph::default();
        let mut tracer = Tracer::new(heap, &graph, table);
        tracer.claim_heap_pages();
        tracer.start_from_slots(addresses);
        tracer.trace
    }

    /// The owner of the block with this number.
    pub(crate) fn owner_of(&self, block: usize) -> Owner {
        self.owners.get(block).map_or(Owner::Nobody, |&owner| self.decode(owner))
    }

    fn decode(&self, owner: u32) -> Owner {
        match owner {
            NOBODY => Owner::Nobody,
            HEAP_PAGES => Owner::HeapPages,
            class if class < self.classes => Owner::Class(class as usize),
            class if class < 2 * self.classes => Owner::Data((class - self.classes) as usize),
            root => match self.roots.get((root - 2 * self.classes) as usize) {
                Some(Root::Variables(module)) => Owner::Variables(*module),
                Some(Root::Locals) => Owner::Locals,
                Some(Root::Stacks) => Owner::Stacks,
                None if root == self.jit() => Owner::Jit,
                None => Owner::Nobody,
            },
        }
    }

    /// The code of [`Owner::Jit`], behind the codes of classes and roots.
    fn jit(&self) -> u32 {
        2 * self.classes + self.roots.len() as u32
    }

    /// Returns true if `owner` are the objects like the one in this slot.
    pub(crate) fn is_of_slot(&self, owner: Owner, slot: Slot) -> bool {
        let class = slot.class as usize;
        owner == if slot.kind == SlotType::DATA { Owner::Data(class) } else { Owner::Class(class) }
    }

    /// Returns true if more than one owner reaches the block with this number.
    pub(crate) fn is_shared(&self, block: usize) -> bool {
        self.shared.contains(block as u32)
    }
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
    /// For each owner, true if it is Ruby's.
    is_rubys: Vec<bool>,
    /// True once doubtful nodes are followed. Until then they wait in `doubtful` and, for their interior pointers,
    /// in `doubtful_interior`.
    follows_doubtful: bool,
    doubtful: VecDeque<(u32, u32)>,
    doubtful_interior: VecDeque<(u32, u32)>,
    /// True if memory that two owners reach becomes shared.
    shares: bool,
    /// Interior pointers of slots: a block, and the owner of the slot.
    interior_of_slots: Vec<(u32, u32)>,
}

impl<'a> Tracer<'a> {
    fn new(heap: &'a HeapMap, graph: &'a PointerGraph, table: &OwnerTable<'a>) -> Self {
        let space = table.space;
        let nodes = graph.len().max(heap.block_count());
        let trace = Trace {
            classes: space.classes.len() as u32,
            roots: graph.roots.clone(),
            owners: vec![NOBODY; nodes],
            shared: Bits::new(nodes),
        };
        let owners = trace.jit() + 1;
        Self {
            heap,
            space,
            graph,
            exact: VecDeque::new(),
            interior: VecDeque::new(),
            is_rubys: (0..owners).map(|owner| table.is_rubys(trace.decode(owner))).collect(),
            follows_doubtful: false,
            doubtful: VecDeque::new(),
            doubtful_interior: VecDeque::new(),
            shares: true,
            interior_of_slots: Vec::new(),
            trace,
        }
    }

    fn claim_heap_pages(&mut self) {
        for (number, block) in self.heap.all_blocks() {
            if block.state().is_in_use() && hosts_heap_page(self.space, block) {
                self.trace.owners[number] = HEAP_PAGES;
            }
        }
    }

    fn start_from_slots(&mut self, addresses: &AddressIndex<'_>) {
        for (slot, address) in self.space.references.iter() {
            let Some(slot) = self.space.slots.get(slot as usize) else { continue };
            if slot.class as usize >= self.space.classes.len() {
                continue;
            }
            let owner =
                slot.class + if slot.kind == SlotType::DATA { self.trace.classes } else { 0 };
            let node = match addresses.at(address) {
                Referent::Block { number, is_start: true } => number,
                // Only a region of 8 bytes begins there: other such words are hardly ever pointers.
                _ if !address.is_aligned(MALLOC_ALIGNMENT) => continue,
                Referent::Area(area) => self.heap.block_count() as u32 + area,
                Referent::Block { number, is_start: false } => {
                    self.interior_of_slots.push((number, owner));
                    continue;
                }
                _ => continue,
            };
            self.reach(node, owner, false, 1);
        }
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
        let Some(&known) = self.trace.owners.get(node as usize) else { return };
        // Bytecode and the interpreter's variables refer to the JIT compiler's tables, but only for its use.
        let is_part = known == self.trace.jit() && self.is_of_ruby(owner);
        if known == NOBODY {
            self.trace.owners[node as usize] = owner;
            if is_shared {
                self.trace.shared.insert(node);
            }
            self.exact.push_back((node, depth));
            self.interior.push_back((node, depth));
        } else if self.shares
            && (is_shared || known != owner)
            && !is_part
            && self.trace.shared.insert(node)
        {
            // The memory that it points to is shared, too.
            self.exact.push_back((node, depth));
        }
    }

    /// Returns true if words of a node, to which `depth` pointers lead, may be an earlier owner's. That is so for
    /// large recycled blocks (fresh ones are zeros), and for Ruby's own structures far from objects and variables.
    /// The block that an object wraps is its structure, and not doubtful.
    fn is_doubtful(&self, node: u32, depth: u32) -> bool {
        if depth >= MAX_TRUSTED_DEPTH && self.is_of_ruby(self.trace.owners[node as usize]) {
            return true;
        }
        let is_buffer =
            |it: Block| it.state() == BlockState::InUse && it.bytes() >= MIN_BUFFER_BYTES;
        depth > 1 && self.heap.block(node as usize).is_some_and(is_buffer)
    }

    fn is_of_ruby(&self, owner: u32) -> bool {
        self.is_rubys.get(owner as usize).is_some_and(|is_rubys| *is_rubys)
    }

    fn follow_exact(&mut self) {
        while let Some((node, depth)) = self.exact.pop_front() {
            let is_doubtful = self.is_doubtful(node, depth);
            if is_doubtful && !self.follows_doubtful {
                self.doubtful.push_back((node, depth));
                continue;
            }
            let owner = self.trace.owners[node as usize];
            let is_shared = self.trace.shared.contains(node);
            for edge in self.graph.of(node).0.iter().filter(|edge| !edge.is_uncertain()) {
                let is_taken = self.trace.owners.get(edge.to() as usize) != Some(&NOBODY);
                if !is_taken || !is_doubtful && !self.graph.is_known(edge.to()) {
                    self.reach(edge.to(), owner, is_shared, depth + 1);
                }
            }
        }
    }

    fn follow_interior(&mut self) {
        for (block, owner) in std::mem::take(&mut self.interior_of_slots) {
            self.reach_unheld(block, owner, false, 1);
        }
        self.follow_exact();
        while let Some((node, depth)) = self.interior.pop_front() {
            let owner = self.trace.owners[node as usize];
            if !self.follows_doubtful && (self.is_of_ruby(owner) || self.is_doubtful(node, depth)) {
                self.doubtful_interior.push_back((node, depth));
                continue;
            }
            let is_shared = self.trace.shared.contains(node);
            let mut waits = false;
            for edge in self.graph.of(node).0.iter().filter(|edge| edge.is_uncertain()) {
                // The table that these bins or entries belong to may be doubtful itself, and is followed later.
                if !self.follows_doubtful && self.graph.is_part_of_hash_table(edge.to()) {
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

    fn follow_doubtful(&mut self) {
        self.follows_doubtful = true;
        self.exact.append(&mut self.doubtful);
        self.follow_exact();
        self.interior.append(&mut self.doubtful_interior);
        self.follow_interior();
    }

    /// Gives `node` to `owner` unless it has an owner.
    fn reach_unheld(&mut self, node: u32, owner: u32, is_shared: bool, depth: u32) {
        if self.trace.owners.get(node as usize) == Some(&NOBODY) {
            self.reach(node, owner, is_shared, depth);
        }
    }
}
