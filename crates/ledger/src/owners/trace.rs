//! Follows pointers from all owners at once, and finds for each chunk in use who holds it.

use std::collections::VecDeque;

use allocator::glibc::{Chunk, ChunkState, Malloc};
use ruby::{ObjectSpace, Slot, SlotType};

use crate::owners::bits::Bits;
use crate::owners::jit;
use crate::owners::pointers::{Pointers, Root, hosts_heap_page};
use crate::owners::roster::{Owner, Roster};
use crate::places::{Place, Places};

/// Who holds each chunk in use.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    classes: u32,
    roots: Vec<Root>,
    /// By chunk, then by area and root; an owner as [`Trace::owner_of`] decodes it.
    owners: Vec<u32>,
    shared: Bits,
}

/// So many pointers lead from Ruby's objects and variables to its tables and structures.
const NEAR: u32 = 3;
/// A recycled chunk of this size is rather a buffer, or a table with room to grow, than a structure
/// whose words are all in use.
const MIN_BUFFER_BYTES: u64 = 1 << 10;

const NOBODY: u32 = u32::MAX;
const HEAP_PAGES: u32 = u32::MAX - 1;

impl Trace {
    /// Finds who holds each chunk in use.
    ///
    /// Each chunk goes to the owner that is nearest to it, counted in pointers. It is *shared*
    /// where another owner reaches it too. Pointers to the beginning of a chunk count first; only
    /// what none of them reaches may be held by a pointer into its middle, since such may be a
    /// number that looks like one.
    ///
    /// Memory is recycled, so a word may be one that an earlier owner left. Objects whose layout is
    /// known say which words are in use: their memory is theirs alone, whatever else points to it.
    /// Of other memory some is *doubtful* ([`Tracer::is_doubtful`]): its words are followed after
    /// all others, and what somebody has is not shared on their account.
    pub(crate) fn new(
        malloc: &Malloc,
        places: &Places<'_>,
        pointers: &Pointers,
        roster: &Roster<'_>,
    ) -> Self {
        let mut tracer = Tracer::new(malloc, pointers, roster);
        tracer.claim_heap_pages();
        for table in jit::tables(malloc, roster.space, pointers, places) {
            tracer.reach(table, tracer.trace.jit(), false, 1);
        }
        tracer.start_from_slots(places);
        for (index, root) in pointers.roots.iter().enumerate() {
            if *root != Root::Stacks {
                tracer.start_from_root(index);
            }
        }
        tracer.follow_exact();
        tracer.follow_interior();
        tracer.follow_doubtful();
        // What lies on a stack may be long out of use: it holds only what nobody else does.
        tracer.shares = false;
        for (index, root) in pointers.roots.iter().enumerate() {
            if *root == Root::Stacks {
                tracer.start_from_root(index);
                tracer.follow_exact();
            }
        }
        tracer.follow_interior();
        tracer.trace
    }

    /// Finds the chunks that slots name, and no others, where pointers were not read.
    pub(crate) fn of_slots(malloc: &Malloc, places: &Places<'_>, roster: &Roster<'_>) -> Self {
        let pointers = Pointers::default();
        let mut tracer = Tracer::new(malloc, &pointers, roster);
        tracer.claim_heap_pages();
        tracer.start_from_slots(places);
        tracer.trace
    }

    /// Who holds the chunk with this index.
    pub(crate) fn owner_of(&self, chunk: usize) -> Owner {
        self.owners.get(chunk).map_or(Owner::Nobody, |&owner| self.decode(owner))
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

    /// The owner behind those that are classes and roots.
    fn jit(&self) -> u32 {
        2 * self.classes + self.roots.len() as u32
    }

    /// Whether `owner` are the objects like the one in this slot.
    pub(crate) fn is_of_slot(&self, owner: Owner, slot: Slot) -> bool {
        let class = slot.class as usize;
        owner == if slot.kind == SlotType::DATA { Owner::Data(class) } else { Owner::Class(class) }
    }

    /// Whether more than one owner reaches the chunk with this index.
    pub(crate) fn is_shared(&self, chunk: usize) -> bool {
        self.shared.contains(chunk as u32)
    }
}

struct Tracer<'a> {
    malloc: &'a Malloc,
    space: &'a ObjectSpace,
    pointers: &'a Pointers,
    trace: Trace,
    /// Nodes whose exact pointers have to be followed, and how many pointers led to each.
    exact: VecDeque<(u32, u32)>,
    /// Nodes whose interior pointers have to be followed, once no exact one is left.
    interior: VecDeque<(u32, u32)>,
    /// For each owner whether it is Ruby's.
    is_rubys: Vec<bool>,
    /// Whether doubtful nodes are followed; until then they wait in `doubtful` and, for their
    /// interior pointers, in `doubtful_interior`.
    follows_doubtful: bool,
    doubtful: VecDeque<(u32, u32)>,
    doubtful_interior: VecDeque<(u32, u32)>,
    /// Whether what two owners reach is shared between them.
    shares: bool,
    /// Interior pointers of slots: a chunk, and whose slot it is.
    interior_of_slots: Vec<(u32, u32)>,
}

impl<'a> Tracer<'a> {
    fn new(malloc: &'a Malloc, pointers: &'a Pointers, roster: &Roster<'a>) -> Self {
        let space = roster.space;
        let nodes = pointers.len().max(malloc.chunks.len());
        let trace = Trace {
            classes: space.classes.len() as u32,
            roots: pointers.roots.clone(),
            owners: vec![NOBODY; nodes],
            shared: Bits::new(nodes),
        };
        let owners = trace.jit() + 1;
        Self {
            malloc,
            space,
            pointers,
            exact: VecDeque::new(),
            interior: VecDeque::new(),
            is_rubys: (0..owners).map(|owner| roster.is_rubys(trace.decode(owner))).collect(),
            follows_doubtful: false,
            doubtful: VecDeque::new(),
            doubtful_interior: VecDeque::new(),
            shares: true,
            interior_of_slots: Vec::new(),
            trace,
        }
    }

    fn claim_heap_pages(&mut self) {
        for (index, chunk) in self.malloc.chunks.iter().enumerate() {
            if chunk.state().is_in_use() && hosts_heap_page(self.space, *chunk) {
                self.trace.owners[index] = HEAP_PAGES;
            }
        }
    }

    fn start_from_slots(&mut self, places: &Places<'_>) {
        for (slot, address) in self.space.references.iter() {
            let Some(slot) = self.space.slots.get(slot as usize) else { continue };
            if slot.class as usize >= self.space.classes.len() {
                continue;
            }
            let owner =
                slot.class + if slot.kind == SlotType::DATA { self.trace.classes } else { 0 };
            let node = match places.at(address) {
                Place::Chunk { index, is_start: true } => index,
                Place::Area(area) => self.malloc.chunks.len() as u32 + area,
                Place::Chunk { index, is_start: false } => {
                    self.interior_of_slots.push((index, owner));
                    continue;
                }
                _ => continue,
            };
            self.reach(node, owner, false, 1);
        }
    }

    fn start_from_root(&mut self, index: usize) {
        let node = self.pointers.root(index);
        self.reach(node, 2 * self.trace.classes + index as u32, false, 0);
    }

    /// Gives `node`, to which `depth` pointers lead, to `owner` where nobody has it, and notes where
    /// two share it.
    fn reach(&mut self, node: u32, owner: u32, is_shared: bool, depth: u32) {
        let Some(&named_root) = self.trace.owners.get(node as usize) else { return };
        // Bytecode and the interpreter's variables name the JIT compiler's tables for it alone.
        let is_part = named_root == self.trace.jit() && self.is_of_ruby(owner);
        if named_root == NOBODY {
            self.trace.owners[node as usize] = owner;
            if is_shared {
                self.trace.shared.insert(node);
            }
            self.exact.push_back((node, depth));
            self.interior.push_back((node, depth));
        } else if self.shares
            && (is_shared || named_root != owner)
            && !is_part
            && self.trace.shared.insert(node)
        {
            // What it points to is shared, too.
            self.exact.push_back((node, depth));
        }
    }

    /// Whether the words of a node, to which `depth` pointers lead, may be an earlier owner's: in
    /// large chunks that were recycled (fresh ones are zeros), and in Ruby's own structures far from
    /// objects and variables, which lie near. What an object wraps is its structure.
    fn is_doubtful(&self, node: u32, depth: u32) -> bool {
        if depth >= NEAR && self.is_of_ruby(self.trace.owners[node as usize]) {
            return true;
        }
        let chunk = self.malloc.chunks.get(node as usize);
        let is_buffer =
            |chunk: &Chunk| chunk.state() == ChunkState::InUse && chunk.bytes() >= MIN_BUFFER_BYTES;
        depth > 1 && chunk.is_some_and(is_buffer)
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
            for edge in self.pointers.of(node).0.iter().filter(|edge| !edge.is_weak()) {
                let is_taken = self.trace.owners.get(edge.to() as usize) != Some(&NOBODY);
                if !is_taken || !is_doubtful && !self.pointers.is_known(edge.to()) {
                    self.reach(edge.to(), owner, is_shared, depth + 1);
                }
            }
        }
    }

    fn follow_interior(&mut self) {
        for (chunk, owner) in std::mem::take(&mut self.interior_of_slots) {
            self.reach_unheld(chunk, owner, false, 1);
        }
        self.follow_exact();
        while let Some((node, depth)) = self.interior.pop_front() {
            let owner = self.trace.owners[node as usize];
            if !self.follows_doubtful && (self.is_of_ruby(owner) || self.is_doubtful(node, depth)) {
                self.doubtful_interior.push_back((node, depth));
                continue;
            }
            let is_shared = self.trace.shared.contains(node);
            for edge in self.pointers.of(node).0.iter().filter(|edge| edge.is_weak()) {
                self.reach_unheld(edge.to(), owner, is_shared, depth + 1);
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

    /// Gives `node` to `owner` unless somebody has it by a pointer to its beginning.
    fn reach_unheld(&mut self, node: u32, owner: u32, is_shared: bool, depth: u32) {
        if self.trace.owners.get(node as usize) == Some(&NOBODY) {
            self.reach(node, owner, is_shared, depth);
        }
    }
}
