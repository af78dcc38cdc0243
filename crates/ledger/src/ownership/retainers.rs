//! The retainers of objects: the shortest path to each object from a root that has a name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use allocator::HeapMap;
use capture::Address;
use ruby::{DataType, NamedRoot, ObjectSpace, Slot, SlotType};

use crate::Cause;
use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::bits::Bits;
use crate::ownership::graph::{Keyed, PointerGraph, Root};
use crate::ownership::owner::{Owner, Retainer};
use crate::ownership::table::{ANONYMOUS, OwnerTable};
use crate::ownership::trace::Trace;
use crate::ownership::weak::WeakReferences;

/// The parent of unreachable objects.
const NOWHERE: u32 = u32::MAX;
/// The parent of objects that a root refers to: `ROOT` and the index of the root.
const ROOT: u32 = 1 << 31;
/// The number of retainers that are listed for each owner.
const MAX_RETAINERS: usize = 3;
/// The number of steps of a path that are shown; those in the middle are left out.
const MAX_STEPS: usize = 8;

/// The number of objects whose paths are compared to find a typical one.
const MAX_PICKS: usize = 16;
/// The number of steps of all these paths together: a path in a linked list may have millions. Then one object is enough.
const MAX_COMPARED_STEPS: usize = 1 << 20;

/// The sums of the objects that a root retains.
#[derive(Debug, Clone)]
struct Retained {
    objects: u64,
    bytes: u64,
    /// One object for every `step` bytes, so that an object is picked in proportion to its bytes.
    picks: Vec<u32>,
    step: u64,
}

impl Retained {
    fn new() -> Self {
        Self { objects: 0, bytes: 0, picks: Vec::new(), step: 1 }
    }

    fn add(&mut self, slot: u32, objects: u64, bytes: u64) {
        self.objects += objects;
        // Objects may claim the same huge block.
        self.bytes = self.bytes.saturating_add(bytes);
        while (self.picks.len() as u64).saturating_mul(self.step) < self.bytes {
            if self.picks.len() == MAX_PICKS {
                let mut is_even = false;
                self.picks.retain(|_| {
                    is_even = !is_even;
                    is_even
                });
                self.step = self.step.saturating_mul(2);
            } else {
                self.picks.push(slot);
            }
        }
    }
}

/// The paths to all objects.
pub(crate) struct Retainers<'a> {
    heap: &'a HeapMap,
    space: &'a ObjectSpace,
    table: &'a OwnerTable<'a>,
    trace: &'a Trace,
    addresses: &'a AddressIndex<'a>,
    roots: Vec<String>,
    /// For each slot the one before it on its path, or its root.
    parents: Vec<u32>,
    /// For each slot the root that its path begins with.
    root_of: Vec<u32>,
}

impl<'a> Retainers<'a> {
    /// Finds the shortest path to each object: from `named_roots` first, then from variables of libraries, then from
    /// stacks.
    pub(crate) fn find(
        heap: &'a HeapMap,
        addresses: &'a AddressIndex<'a>,
        graph: &'a PointerGraph,
        table: &'a OwnerTable<'a>,
        trace: &'a Trace,
        named_roots: &[NamedRoot],
    ) -> Self {
        let space = table.space;
        let retainers = Self {
            heap,
            space,
            table,
            trace,
            addresses,
            roots: Vec::new(),
            parents: vec![NOWHERE; space.slots.len()],
            root_of: vec![NOWHERE; space.slots.len()],
        };
        let entered = Bits::new(heap.block_count());
        let looked_into = entered.clone();
        let queue = VecDeque::new();
        let uncertain = Vec::new();
        let weak = WeakReferences::find(graph, table, trace);
        let threads: Vec<u32> =
            (0..space.slots.len() as u32).filter(|&slot| is_thread(space, slot)).collect();
        let mut thread_structures = Bits::new(heap.block_count());
        for (address, _) in threads.iter().flat_map(|&slot| space.references.contents_of(slot)) {
            if let Referent::Block { number, is_start: true } = addresses.at(address) {
                thread_structures.insert(number);
            }
        }
        let mut search = PathSearch {
            table,
            graph,
            weak,
            thread_structures,
            retainers,
            entered,
            looked_into,
            queue,
            uncertain,
        };
        for named_root in named_roots {
            let root = search.root(named_root.name.clone());
            search.visit(named_root.value, ROOT | root, root);
        }
        search.run();
        // Threads have variables, and values on Ruby's stack.
        let root = search.root("(threads)".to_owned());
        for slot in threads {
            search.visit(slot, ROOT | root, root);
        }
        search.run();
        let finalizers = search.root("(finalizers)".to_owned());
        for slot in std::mem::take(&mut search.weak.finalizers) {
            search.visit(slot, ROOT | finalizers, finalizers);
        }
        search.run();
        for (index, root) in graph.roots.iter().enumerate() {
            let name = match root {
                Root::Variables(module) => {
                    format!("(variables of {})", table.modules[*module].name)
                }
                Root::Locals => "(thread-local variables)".to_owned(),
                Root::Stacks => "(stacks)".to_owned(),
            };
            let root = search.root(name);
            search.enter(graph.root(index), Depth::All, None, ROOT | root, root);
            search.run();
        }
        search.visit_uncertain();
        search.enter_deeply();
        search.visit_uncertain();
        search.retainers
    }

    /// For each of `groups` groups of objects, the [`MAX_RETAINERS`] roots that retain most of their bytes. `group_of`
    /// returns the group of an object.
    pub(crate) fn of_groups(
        &self,
        groups: usize,
        group_of: impl Fn(Slot) -> Option<usize>,
    ) -> Vec<Vec<Retainer>> {
        let mut kept: Vec<BTreeMap<u32, Retained>> = vec![BTreeMap::new(); groups];
        self.space.sized_slots().enumerate().for_each(|(index, (slot, bytes))| {
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group)) {
                let root = self.root_of[index];
                kept.entry(root).or_insert_with(Retained::new).add(index as u32, 1, bytes);
            }
        });
        for (index, address) in self.space.references.iter() {
            let slot = self.space.slots[index as usize];
            if let Some(kept) = group_of(slot).and_then(|group| kept.get_mut(group))
                && let Some(bytes) = self.bytes_of(slot, address)
            {
                let root = self.root_of[index as usize];
                kept.entry(root).or_insert_with(Retained::new).add(index, 0, bytes);
            }
        }
        let mut steps = 0;
        kept.into_iter().map(|kept| self.most_of(kept, &mut steps)).collect()
    }

    /// The bytes of the block at `address`, if the object in `slot` owns it.
    fn bytes_of(&self, slot: Slot, address: Address) -> Option<u64> {
        match self.addresses.at(address) {
            Referent::Block { number, is_start: true } => {
                let owner = self.trace.owner_of(number as usize);
                let is_its = self.trace.is_of_slot(owner, slot);
                let block = self.heap.block(number as usize).filter(|_| is_its);
                block.map(allocator::Block::bytes)
            }
            _ => None,
        }
    }

    fn most_of(&self, kept: BTreeMap<u32, Retained>, steps: &mut usize) -> Vec<Retainer> {
        let mut kept: Vec<_> = kept.into_iter().collect();
        kept.sort_by_key(|(root, kept)| (Reverse(kept.bytes), *root));
        let retainer = |(root, kept): (u32, Retained)| Retainer {
            path: (root != NOWHERE).then(|| self.typical_path(&kept.picks, steps)),
            objects: kept.objects,
            bytes: kept.bytes,
        };
        kept.into_iter().take(MAX_RETAINERS).map(retainer).collect()
    }

    /// The path that most of these objects have.
    fn typical_path(&self, picks: &[u32], steps: &mut usize) -> String {
        let mut paths: Vec<(Vec<(&str, usize)>, u32)> = Vec::new();
        for &slot in picks {
            let path = self.path(slot, steps);
            // The numbers of repeated steps may differ, as in a list.
            let has_names = |(known, _): &&mut (Vec<(&str, usize)>, u32)| {
                known.iter().map(|step| step.0).eq(path.iter().map(|step| step.0))
            };
            match paths.iter_mut().find(has_names) {
                Some((_, count)) => *count += 1,
                None => paths.push((path, 1)),
            }
            if *steps > MAX_COMPARED_STEPS {
                break;
            }
        }
        // The first one of several.
        let typical = paths.into_iter().rev().max_by_key(|(_, count)| *count);
        typical.map_or_else(String::new, |(path, _)| shown(path))
    }

    /// The path to an object, from its root on: names of classes, and how often each is repeated. Counts the steps.
    fn path(&self, slot: u32, steps: &mut usize) -> Vec<(&str, usize)> {
        let mut names: Vec<(&str, usize)> = Vec::new();
        let mut at = slot;
        // No path is longer than the number of slots.
        for _ in 0..self.parents.len() {
            *steps += 1;
            // Internal objects mean nothing to the authors of programs.
            if at == slot || self.is_visible(at) {
                let name = self.class_name(at);
                match names.last_mut() {
                    Some((last, count)) if *last == name => *count += 1,
                    _ => names.push((name, 1)),
                }
            }
            match self.parents[at as usize] {
                NOWHERE => break,
                root if root & ROOT != 0 => {
                    let name = self.roots.get((root & !ROOT) as usize);
                    names.extend(name.map(|name| (name.as_str(), 1)));
                    break;
                }
                parent => at = parent,
            }
        }
        names.reverse();
        names
    }

    fn is_visible(&self, slot: u32) -> bool {
        let slot = self.space.slots.get(slot as usize);
        slot.is_some_and(|slot| self.table.is_visible(slot.class as usize))
    }

    fn class_name(&self, slot: u32) -> &str {
        let class = self.space.slots.get(slot as usize).map(|slot| slot.class as usize);
        let class = class.and_then(|class| self.space.classes.get(class));
        class.map_or("(unknown)", |class| class.name.as_deref().unwrap_or(ANONYMOUS))
    }
}

/// Returns true for objects of Thread and its subclasses, which wrap the same structure.
fn is_thread(space: &ObjectSpace, slot: u32) -> bool {
    space.slots.get(slot as usize).is_some_and(|it| it.kind == SlotType::DATA)
        && space.data_type_of(slot).is_some_and(DataType::is_thread)
}

/// A path as text, without the steps in the middle if there are many.
fn shown(mut path: Vec<(&str, usize)>) -> String {
    if path.len() > MAX_STEPS {
        path.splice(MAX_STEPS / 2..path.len() - MAX_STEPS / 2 + 1, [("…", 1)]);
    }
    let step = |(name, count): &(&str, usize)| match count {
        1 => (*name).to_owned(),
        _ => format!("{name} × {count}"),
    };
    path.iter().map(step).collect::<Vec<_>>().join(" → ")
}

/// The extent to which the blocks behind an object are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    First,
    All,
}

/// A breadth-first search over objects and the blocks that they own.
struct PathSearch<'a> {
    table: &'a OwnerTable<'a>,
    graph: &'a PointerGraph,
    weak: WeakReferences,
    /// The blocks that Thread objects wrap. Pointers to them retain no thread: threads are in a list, and fibers, mutexes and
    /// queues point to their threads, so that a path would lead from any of them to all others.
    thread_structures: Bits,
    retainers: Retainers<'a>,
    /// Nodes whose slots were visited, and those of all nodes behind them.
    entered: Bits,
    /// Nodes whose own slots were visited, but nothing behind them.
    looked_into: Bits,
    queue: VecDeque<u32>,
    uncertain: Vec<Uncertain>,
}

/// The target of an uncertain word, with the parent and the root that it would have.
struct Uncertain {
    /// A slot, or a block of the owner's.
    to: u32,
    block_of: Option<Owner>,
    parent: u32,
    root: u32,
}

impl PathSearch<'_> {
    fn root(&mut self, name: String) -> u32 {
        self.retainers.roots.push(name);
        self.retainers.roots.len() as u32 - 1
    }

    fn visit(&mut self, slot: u32, parent: u32, root: u32) {
        let space = self.retainers.space;
        let Some(known) = self.retainers.parents.get_mut(slot as usize) else { return };
        if *known == NOWHERE && space.slots[slot as usize].is_live() {
            *known = parent;
            self.retainers.root_of[slot as usize] = root;
            self.queue.push_back(slot);
        }
    }

    fn run(&mut self) {
        let space = self.retainers.space;
        while let Some(slot) = self.queue.pop_front() {
            let root = self.retainers.root_of[slot as usize];
            self.visit_values_of(slot, root);
            if WeakReferences::is_weak_object(space, slot) {
                continue;
            }
            for &to in space.links.of(slot) {
                self.visit(to, slot, root);
            }
            // The blocks of an extension mostly hold numbers and text, or were never written to. Its first block is
            // a structure, which may refer to the objects that it marks.
            let depth = if self.is_native(slot) { Depth::First } else { Depth::All };
            self.enter_blocks_of(slot, depth, slot, root);
        }
    }

    /// Visits what the object in a slot retains as the key of weak hash tables, such as its generic variables.
    fn visit_values_of(&mut self, slot: u32, root: u32) {
        let values: Vec<_> = self.weak.values_of(slot).map(|value| value.value).collect();
        for value in values {
            match value {
                Keyed::Slot(value) => self.visit(value, slot, root),
                Keyed::Block(block) => {
                    let owner = self.retainers.trace.owner_of(block as usize);
                    self.enter(block, Depth::All, Some(owner), slot, root);
                }
            }
        }
    }

    fn is_native(&self, slot: u32) -> bool {
        let slot = self.retainers.space.slots[slot as usize];
        let cause = || self.table.cause_of_data(slot.class as usize);
        slot.kind == SlotType::DATA && cause() == Cause::NativeHeld
    }

    /// Visits the objects that only uncertain words refer to.
    fn visit_uncertain(&mut self) {
        while !self.uncertain.is_empty() {
            for Uncertain { to, block_of, parent, root } in std::mem::take(&mut self.uncertain) {
                match block_of {
                    None => self.visit(to, parent, root),
                    owner => self.enter(to, Depth::All, owner, parent, root),
                }
                self.run();
            }
        }
    }

    /// Searches all blocks of extensions for objects that nothing else leads to. The path does not name the
    /// extension's object, since the word may be an old one.
    fn enter_deeply(&mut self) {
        let root = self.root("(memory of C extensions)".to_owned());
        for slot in 0..self.retainers.space.slots.len() as u32 {
            if self.retainers.parents[slot as usize] != NOWHERE && self.is_native(slot) {
                self.enter_blocks_of(slot, Depth::All, ROOT | root, root);
            }
        }
        self.run();
    }

    fn enter_blocks_of(&mut self, slot: u32, depth: Depth, parent: u32, root: u32) {
        let space = self.retainers.space;
        for (address, content) in space.references.contents_of(slot) {
            if content.may_refer_to_objects()
                && let Referent::Block { number, is_start: true } =
                    self.retainers.addresses.at(address)
            {
                // A block belongs to its owner only: otherwise a path would lead through the interpreter's tables from
                // any object to any other.
                let owner = self.retainers.trace.owner_of(number as usize);
                if self.retainers.trace.is_of_slot(owner, space.slots[slot as usize]) {
                    self.enter(number, depth, Some(owner), parent, root);
                }
            }
        }
    }

    /// Visits all objects that a node refers to, and those that the owner's blocks behind it refer to.
    fn enter(&mut self, node: u32, depth: Depth, owner: Option<Owner>, parent: u32, root: u32) {
        let mut nodes = vec![(node, depth)];
        while let Some((node, depth)) = nodes.pop() {
            let is_block = (node as usize) < self.retainers.heap.block_count();
            let is_known = match depth {
                Depth::First => self.entered.contains(node) || !self.looked_into.insert(node),
                Depth::All => is_block && !self.entered.insert(node),
            };
            if is_known {
                continue;
            }
            if self.weak.is_weak_table(node) {
                continue;
            }
            let (edges, slots) = self.graph.of(node);
            for slot in slots {
                if slot.is_uncertain() {
                    self.uncertain.push(Uncertain { to: slot.to(), block_of: None, parent, root });
                } else {
                    self.visit(slot.to(), parent, root);
                }
            }
            if depth == Depth::First {
                continue;
            }
            for edge in edges {
                let to = edge.to();
                if to as usize >= self.retainers.heap.block_count()
                    || self.thread_structures.contains(to)
                {
                    continue;
                }
                let its = self.retainers.trace.owner_of(to as usize);
                match owner {
                    None if !edge.is_uncertain() => nodes.push((to, Depth::All)),
                    Some(owner)
                        if its == owner && (!edge.is_uncertain() || self.is_core(owner)) =>
                    {
                        nodes.push((to, Depth::All));
                    }
                    Some(owner) if its == owner && !self.entered.contains(to) => {
                        self.uncertain.push(Uncertain { to, block_of: Some(owner), parent, root });
                    }
                    // Structures of threads, fibers and the like refer to each other, and name their objects.
                    Some(owner) if self.is_core(owner) && self.is_named_within(its) => {
                        nodes.push((to, Depth::First));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns true if blocks of this owner begin with a reference to the object that they belong to.
    fn is_named_within(&self, owner: Owner) -> bool {
        self.is_core(owner) || matches!(owner, Owner::Class(class) if self.table.is_internal(class))
    }

    /// Returns true for objects of Ruby's own that wrap a structure, without the interpreter's.
    fn is_core(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Data(class) if self.table.cause_of_data(class) == Cause::RubyMalloc)
    }
}
