//! The references that retain objects and blocks, from roots with a name on, and the shortest way to each.

use std::collections::{HashMap, VecDeque};

use allocator::HeapMap;
use capture::Address;
use ruby::{ClassKind, DataType, Frame, ImemoType, NamedRoot, ObjectSpace, Slot, SlotType};

use crate::Cause;
use crate::interpreter::Gem;
use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::bits::Bits;
use crate::ownership::dominators::Digraph;
use crate::ownership::graph::{Keyed, PointerGraph, Root};
use crate::ownership::owner::Owner;
use crate::ownership::table::{ANONYMOUS, OwnerTable};
use crate::ownership::threads::{ThreadName, thread_names};
use crate::ownership::trace::Trace;
use crate::ownership::weak::WeakReferences;

/// The reliability of a reference, best first. What references of one level reach is reached by no reference of a
/// later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Constants and variables of the program, and what objects and blocks in use refer to.
    Named,
    /// Threads, and what the structures of threads and fibers refer to.
    Threads,
    /// Finalizers of objects.
    Finalizers,
    /// Variables of libraries, and thread-local ones.
    Variables,
    /// Stacks and registers, whose words may be long out of use.
    Stacks,
    /// Words that may be no pointers.
    Uncertain,
    /// Words of memory behind the structures of extensions, which mostly has numbers and text.
    Deep,
    /// Nothing: the node is unreachable.
    Unreached,
}

const LEVELS: [Level; 7] = [
    Level::Named,
    Level::Threads,
    Level::Finalizers,
    Level::Variables,
    Level::Stacks,
    Level::Uncertain,
    Level::Deep,
];

/// A node, as numbers decode to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// The root of the graph, which refers to all others.
    Everything,
    /// All threads.
    Threads,
    /// All finalizers.
    Finalizers,
    /// The memory behind the structures of extensions.
    ExtensionMemory,
    /// A constant or variable with a name.
    Named(u32),
    /// The object in a slot.
    Slot(u32),
    /// A node of the pointer graph: a block, an area, or a root.
    Memory(u32),
}

pub(crate) const EVERYTHING: u32 = 0;
const THREADS: u32 = 1;
const FINALIZERS: u32 = 2;
const EXTENSION_MEMORY: u32 = 3;
const FIRST_NAMED: u32 = 4;

const UNKNOWN: &str = "(unknown)";

/// The references between roots, objects and blocks.
pub(crate) struct ObjectGraph<'a> {
    pub(crate) heap: &'a HeapMap,
    pub(crate) space: &'a ObjectSpace,
    pub(crate) table: &'a OwnerTable<'a>,
    pub(crate) trace: &'a Trace,
    addresses: &'a AddressIndex<'a>,
    pointers: &'a PointerGraph,
    pub(crate) named_roots: &'a [NamedRoot],
    /// The named roots without a class, those of the application first.
    global_roots: Vec<u32>,
    /// The names of modules' variables.
    variables_of: Vec<String>,
    weak: WeakReferences,
    threads: Vec<u32>,
    /// The blocks that Thread objects wrap. Pointers to them retain no thread: threads are in a list, and fibers, mutexes and
    /// queues point to their threads, so that a path would lead from any of them to all others.
    thread_structures: Bits,
    /// The blocks that objects refer to themselves.
    structures: Bits,
    /// The slots that have names. The interpreter's tables refer to them too (tables of constants, inline caches), but only
    /// because of their names.
    named_slots: Bits,
    /// The internal objects with the variables of classes (from 4.0 on).
    fields_of_classes: Bits,
    /// The slot of each class.
    class_slots: Vec<Option<u32>>,
    /// The named roots of each class, by the slot of the class; those of the application first.
    named_in_classes: Vec<(u32, u32)>,
    /// The stacks and thread-local variables of threads and fibers, by the slot of these.
    roots_of_objects: Vec<(u32, usize)>,
    /// The names of threads, by slot: their own, and their current method.
    thread_names: HashMap<u32, ThreadName>,
}

/// The shortest ways to all nodes.
pub(crate) struct Paths {
    /// For each node the one before it.
    parents: Vec<u32>,
    /// For each node the root that its path begins with.
    roots: Vec<u32>,
    levels: Vec<Level>,
    /// The named roots whose class nothing leads to.
    orphans: Vec<u32>,
}

impl<'a> ObjectGraph<'a> {
    pub(crate) fn new(
        heap: &'a HeapMap,
        addresses: &'a AddressIndex<'a>,
        pointers: &'a PointerGraph,
        table: &'a OwnerTable<'a>,
        trace: &'a Trace,
        named_roots: &'a [NamedRoot],
        current_frames: &HashMap<u32, Frame>,
    ) -> Self {
        let space = table.space;
        let slots = space.slots.len();
        let threads: Vec<u32> = (0..slots as u32).filter(|&slot| is_thread(space, slot)).collect();
        let block_at = |address: Address| match addresses.at(address) {
            Referent::Block { number, is_start: true } => Some(number),
            _ => None,
        };
        let mut thread_structures = Bits::new(heap.block_count());
        for (address, _) in threads.iter().flat_map(|&slot| space.references.contents_of(slot)) {
            block_at(address).map(|block| thread_structures.insert(block));
        }
        let mut structures = Bits::new(heap.block_count());
        for (_, address) in space.references.iter() {
            block_at(address).map(|block| structures.insert(block));
        }
        let mut named_slots = Bits::new(slots);
        let by_preference = by_preference(named_roots);
        let mut named_in_classes = Vec::new();
        let mut global_roots = Vec::new();
        for index in by_preference {
            let root = &named_roots[index as usize];
            named_slots.insert(root.value);
            match root.class {
                Some(class) => named_in_classes.push((class, index)),
                None => global_roots.push(index),
            }
        }
        named_in_classes.sort_by_key(|&(class, _)| class);
        let objects = pointers.root_objects.iter().enumerate();
        let mut roots_of_objects: Vec<_> =
            objects.filter_map(|(index, object)| Some(((*object)?, index))).collect();
        roots_of_objects.sort_unstable();
        let class_of = |slot| class_name(space, slot);
        let thread_names = thread_names(&pointers.thread_names, current_frames, class_of);
        let class_slots =
            space.classes.iter().map(|class| space.slot_at(class.address()?)).collect();
        let mut fields_of_classes = Bits::new(slots);
        for slot in (0..slots as u32).filter(|&slot| is_class(space.slots[slot as usize])) {
            for &to in space.links.of(slot) {
                fields_of_classes.insert(to);
            }
        }
        Self {
            heap,
            space,
            table,
            trace,
            addresses,
            pointers,
            named_roots,
            global_roots,
            variables_of: table
                .modules
                .iter()
                .map(|module| format!("(variables of {})", module.name))
                .collect(),
            weak: WeakReferences::find(pointers, table, trace),
            threads,
            thread_structures,
            structures,
            named_slots,
            fields_of_classes,
            class_slots,
            named_in_classes,
            roots_of_objects,
            thread_names,
        }
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.memory(0) as usize + self.pointers.len()
    }

    /// The meaning of a node's number.
    pub(crate) fn node(&self, number: u32) -> Node {
        match number {
            EVERYTHING => Node::Everything,
            THREADS => Node::Threads,
            FINALIZERS => Node::Finalizers,
            EXTENSION_MEMORY => Node::ExtensionMemory,
            number if number < self.slot(0) => Node::Named(number - FIRST_NAMED),
            number if number < self.memory(0) => Node::Slot(number - self.slot(0)),
            number => Node::Memory(number - self.memory(0)),
        }
    }

    /// The number of the node of a slot.
    pub(crate) fn slot(&self, slot: u32) -> u32 {
        FIRST_NAMED + self.named_roots.len() as u32 + slot
    }

    /// The number of the node of a node of the pointer graph.
    pub(crate) fn memory(&self, node: u32) -> u32 {
        self.slot(0) + self.space.slots.len() as u32 + node
    }

    /// The root of the pointer graph at this node, if it is one.
    pub(crate) fn root_at(&self, node: u32) -> Option<Root> {
        let index = node.checked_sub(self.pointers.root(0))?;
        self.pointers.roots.get(index as usize).copied()
    }

    /// The name of a root: `Cache::STORE`, `(variables of libpq.so.5)`, `(threads)`.
    pub(crate) fn root_name(&self, number: u32) -> &str {
        match self.node(number) {
            Node::Named(root) => {
                self.named_roots.get(root as usize).map_or(UNKNOWN, |root| root.name.as_str())
            }
            Node::Threads => "(threads)",
            Node::Finalizers => "(finalizers)",
            Node::ExtensionMemory => "(memory of C extensions)",
            Node::Memory(node) => match self.root_at(node) {
                Some(Root::Variables(module)) => {
                    self.variables_of.get(module).map_or(UNKNOWN, String::as_str)
                }
                Some(Root::Locals) => "(thread-local variables)",
                Some(Root::Stacks) => "(stacks)",
                None => UNKNOWN,
            },
            Node::Everything | Node::Slot(_) => UNKNOWN,
        }
    }

    /// Returns true for objects of Thread and its subclasses, which wrap the same structure.
    pub(crate) fn is_thread(&self, slot: u32) -> bool {
        is_thread(self.space, slot)
    }

    /// Returns true if programs see the object in a slot.
    pub(crate) fn is_visible(&self, slot: u32) -> bool {
        let slot = self.space.slots.get(slot as usize);
        slot.is_some_and(|slot| self.table.is_visible(slot.class as usize))
    }

    /// The index of the class of the object in a slot.
    pub(crate) fn class_of(&self, slot: u32) -> Option<u32> {
        self.space.slots.get(slot as usize).map(|it| it.class)
    }

    /// The name of the class of the object in a slot; of a thread its own name and its current method.
    pub(crate) fn class_name(&self, slot: u32) -> &str {
        match self.thread_names.get(&slot) {
            Some(name) => &name.whole,
            None => class_name(self.space, slot),
        }
    }

    /// The name of the thread in a slot; `None` for other objects, and for threads that have none.
    pub(crate) fn thread_name(&self, slot: u32) -> Option<&ThreadName> {
        self.thread_names.get(&slot)
    }

    /// The bytes of the block at `address`, if an object like the one in `slot` owns it.
    pub(crate) fn bytes_of(&self, slot: Slot, address: Address) -> Option<u64> {
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

    /// Finds the shortest way to each node: of the best level first.
    pub(crate) fn paths(&self) -> Paths {
        let mut paths = Paths {
            parents: vec![EVERYTHING; self.len()],
            roots: vec![EVERYTHING; self.len()],
            levels: vec![Level::Unreached; self.len()],
            orphans: Vec::new(),
        };
        let mut search = Search {
            graph: self,
            paths: &mut paths,
            queue: VecDeque::new(),
            waiting: Default::default(),
        };
        search.visit(EVERYTHING, EVERYTHING, Level::Named);
        for level in LEVELS {
            search.run(level);
        }
        paths
    }

    /// The references by which nodes are reached, without those of later levels than the first one to reach their target.
    pub(crate) fn digraph(&self, paths: &Paths) -> Digraph {
        let mut digraph = Digraph::with_nodes(self.len());
        for number in 0..self.len() as u32 {
            let level = paths.level(number);
            if level != Level::Unreached {
                if number == EVERYTHING {
                    paths.orphans.iter().for_each(|&orphan| digraph.push(orphan));
                }
                let mut last = None;
                self.references(paths, number, |to, its| {
                    if its.max(level) <= paths.level(to)
                        && paths.level(to) != Level::Unreached
                        && last.replace(to) != Some(to)
                    {
                        digraph.push(to);
                    }
                });
            }
            digraph.end_node();
        }
        digraph
    }

    /// Calls `each` with the nodes that a node refers to.
    fn references(&self, paths: &Paths, number: u32, mut each: impl FnMut(u32, Level)) {
        match self.node(number) {
            Node::Everything => self.of_everything(each),
            Node::Threads => {
                self.threads.iter().for_each(|&slot| each(self.slot(slot), Level::Threads));
            }
            Node::Finalizers => {
                let finalizers = &self.weak.finalizers;
                finalizers.iter().for_each(|&slot| each(self.slot(slot), Level::Finalizers));
            }
            Node::ExtensionMemory => self.of_extension_memory(paths, each),
            Node::Named(root) => {
                if let Some(root) = self.named_roots.get(root as usize) {
                    each(self.slot(root.value), Level::Named);
                }
            }
            Node::Slot(slot) => self.of_slot(slot, each),
            Node::Memory(node) => self.of_memory(node, each),
        }
    }

    fn of_everything(&self, mut each: impl FnMut(u32, Level)) {
        self.global_roots.iter().for_each(|index| each(FIRST_NAMED + index, Level::Named));
        each(THREADS, Level::Threads);
        each(FINALIZERS, Level::Finalizers);
        for (index, &root) in self.pointers.roots.iter().enumerate() {
            if self.pointers.root_objects[index].is_none() {
                each(self.memory(self.pointers.root(index)), level_of(root));
            }
        }
        each(EXTENSION_MEMORY, Level::Deep);
    }

    /// All words of extensions' memory that is reached, but not the structure of an object. The path does not name the
    /// object, since the word may be an old one.
    fn of_extension_memory(&self, paths: &Paths, mut each: impl FnMut(u32, Level)) {
        for block in 0..self.heap.block_count() as u32 {
            if paths.level(self.memory(block)) < Level::Deep && self.is_behind_structure(block) {
                let (_, slots) = self.pointers.of(block);
                slots.iter().for_each(|slot| each(self.slot(slot.to()), Level::Deep));
            }
        }
    }

    fn of_slot(&self, slot: u32, mut each: impl FnMut(u32, Level)) {
        let Some(&it) = self.space.slots.get(slot as usize) else { return };
        if let Some(class) = self.class_slots.get(it.class as usize).copied().flatten() {
            each(self.slot(class), Level::Named);
        }
        let first = self.named_in_classes.partition_point(|&(class, _)| class < slot);
        let of_class =
            self.named_in_classes[first..].iter().take_while(|(class, _)| *class == slot);
        of_class.for_each(|(_, root)| each(FIRST_NAMED + root, Level::Named));
        for value in self.weak.values_of(slot) {
            match value.value {
                Keyed::Slot(value) => each(self.slot(value), Level::Named),
                Keyed::Block(block) => each(self.memory(block), Level::Named),
            }
        }
        if WeakReferences::is_weak_object(self.space, slot) {
            return;
        }
        let first = self.roots_of_objects.partition_point(|&(object, _)| object < slot);
        let roots = self.roots_of_objects[first..].iter().take_while(|(object, _)| *object == slot);
        for &(_, index) in roots {
            each(self.memory(self.pointers.root(index)), level_of(self.pointers.roots[index]));
        }
        let is_interpreters = self.is_interpreters_object(slot, it);
        for &to in self.space.links.of(slot) {
            if !(is_interpreters && self.named_slots.contains(to)) {
                each(self.slot(to), Level::Named);
            }
        }
        for (address, _) in self.space.references.contents_of(slot) {
            match self.addresses.at(address) {
                Referent::Block { number, is_start } => {
                    let owner = self.trace.owner_of(number as usize);
                    let level = if is_start { Level::Named } else { Level::Uncertain };
                    if self.trace.is_of_slot(owner, it) || self.is_shared(number) {
                        each(self.memory(number), level);
                    }
                }
                Referent::Area(area) => {
                    each(self.memory(self.heap.block_count() as u32 + area), Level::Named);
                }
                Referent::Slot(_) | Referent::Nothing => {}
            }
        }
    }

    fn of_memory(&self, node: u32, mut each: impl FnMut(u32, Level)) {
        if self.weak.is_weak_table(node) {
            return;
        }
        let owner = self.trace.owner_of(node as usize);
        let is_root = self.root_at(node).is_some();
        let is_interpreters = self.table.cause_of(owner) == Cause::RubyVm;
        let (edges, slots) = self.pointers.of(node);
        if !self.is_behind_structure(node) {
            for slot in slots {
                if !(is_interpreters && self.named_slots.contains(slot.to())) {
                    let level = if slot.is_uncertain() { Level::Uncertain } else { Level::Named };
                    each(self.slot(slot.to()), level);
                }
            }
        }
        for edge in edges {
            let to = edge.to();
            if self.thread_structures.contains(to) {
                continue;
            }
            let its = self.trace.owner_of(to as usize);
            // A block belongs to its owner only: otherwise a path would lead through the interpreter's tables from any
            // object to any other.
            let level = match edge.is_uncertain() {
                true if is_root => continue,
                false if is_root => Level::Named,
                true if its == owner && !self.is_core(owner) => Level::Uncertain,
                _ if its == owner => Level::Named,
                false if self.is_shared(to) => Level::Named,
                // Structures of threads, fibers and the like refer to each other, and name their objects.
                _ if self.is_core(owner) && self.is_named_within(its) => Level::Threads,
                _ => continue,
            };
            each(self.memory(to), level);
        }
    }

    /// Returns true if other owners than the block's own refer to it too, and share it.
    fn is_shared(&self, block: u32) -> bool {
        let owner = self.trace.owner_of(block as usize);
        self.trace.is_shared(block as usize) && !self.table.is_rubys(owner)
    }

    /// Returns true for an extension's block that no object refers to itself.
    fn is_behind_structure(&self, block: u32) -> bool {
        let owner = self.trace.owner_of(block as usize);
        matches!(owner, Owner::Data(class) if self.table.cause_of_data(class) == Cause::NativeHeld)
            && !self.structures.contains(block)
    }

    /// Returns true for objects of the interpreter that refer to values of constants and variables because of their
    /// names (inline caches, bytecode, variables of classes), and for classes: a singleton class refers to its object, and
    /// lists of subclasses lead to both.
    fn is_interpreters_object(&self, slot: u32, it: Slot) -> bool {
        let class = self.space.classes.get(it.class as usize);
        match it.kind {
            SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS => true,
            SlotType::IMEMO => match class.map(|class| class.kind) {
                Some(ClassKind::Imemo(ImemoType::Fields)) => self.fields_of_classes.contains(slot),
                Some(ClassKind::Imemo(_)) => true,
                _ => false,
            },
            _ => false,
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

fn class_name(space: &ObjectSpace, slot: u32) -> &str {
    let class = space.slots.get(slot as usize).map(|slot| slot.class as usize);
    let class = class.and_then(|class| space.classes.get(class));
    class.map_or(UNKNOWN, |class| class.name.as_deref().unwrap_or(ANONYMOUS))
}

/// The indices of named roots: first the constants that files of the application set, then all others. The search goes
/// through the first ones first, so of several shortest paths the one through them is found.
fn by_preference(named_roots: &[NamedRoot]) -> Vec<u32> {
    let mut known: HashMap<&str, bool> = HashMap::new();
    let (mut first, others): (Vec<u32>, Vec<u32>) =
        (0..named_roots.len() as u32).partition(|&index| {
            let file = named_roots[index as usize].file.as_deref();
            let is_of_application = |file| Gem::of(Some(file)).is_application();
            file.is_some_and(|file| *known.entry(file).or_insert_with(|| is_of_application(file)))
        });
    first.extend(others);
    first
}

fn level_of(root: Root) -> Level {
    match root {
        Root::Stacks => Level::Stacks,
        Root::Variables(_) | Root::Locals => Level::Variables,
    }
}

fn is_thread(space: &ObjectSpace, slot: u32) -> bool {
    space.slots.get(slot as usize).is_some_and(|it| it.kind == SlotType::DATA)
        && space.data_type_of(slot).is_some_and(DataType::is_thread)
}

fn is_class(slot: Slot) -> bool {
    slot.is_live() && matches!(slot.kind, SlotType::CLASS | SlotType::MODULE)
}

impl Paths {
    /// The level of the reference by which a node is reached.
    pub(crate) fn level(&self, number: u32) -> Level {
        self.levels.get(number as usize).copied().unwrap_or(Level::Unreached)
    }

    /// The node before a node; `None` for the first one, and for those that are not reached.
    pub(crate) fn parent(&self, number: u32) -> Option<u32> {
        let is_reached = self.level(number) != Level::Unreached;
        (number != EVERYTHING && is_reached).then(|| self.parents[number as usize])
    }

    /// The root that the path to a node begins with; `None` for nodes that are not reached.
    pub(crate) fn root(&self, number: u32) -> Option<u32> {
        (self.level(number) != Level::Unreached).then(|| self.roots[number as usize])
    }
}

/// A breadth-first search, level by level.
struct Search<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a mut Paths,
    queue: VecDeque<u32>,
    /// References of later levels: from and to.
    waiting: [Vec<(u32, u32)>; LEVELS.len()],
}

impl Search<'_> {
    fn visit(&mut self, number: u32, from: u32, level: Level) {
        let graph = self.graph;
        if self.paths.level(number) != Level::Unreached || number as usize >= graph.len() {
            return;
        }
        let is_root = match graph.node(number) {
            // A word may be the address of a slot that is free.
            Node::Slot(slot) if !graph.space.slots[slot as usize].is_live() => return,
            Node::Slot(_) => false,
            // The stack of a thread belongs to it.
            Node::Memory(node) => graph.root_at(node).is_some() && from == EVERYTHING,
            _ => true,
        };
        let index = number as usize;
        self.paths.levels[index] = level;
        self.paths.parents[index] = from;
        self.paths.roots[index] = if is_root { number } else { self.paths.roots[from as usize] };
        self.queue.push_back(number);
    }

    fn run(&mut self, level: Level) {
        for (from, to) in std::mem::take(&mut self.waiting[level as usize]) {
            self.visit(to, from, level);
        }
        self.follow(level);
        if level == Level::Named {
            // Nothing leads to the class of these roots, such as the singleton class of an object.
            for index in 0..self.graph.named_roots.len() as u32 {
                let number = FIRST_NAMED + index;
                if self.paths.level(number) == Level::Unreached {
                    self.paths.orphans.push(number);
                    self.visit(number, EVERYTHING, level);
                    self.follow(level);
                }
            }
        }
    }

    fn follow(&mut self, level: Level) {
        let mut found = Vec::new();
        while let Some(number) = self.queue.pop_front() {
            self.graph.references(self.paths, number, |to, its| found.push((to, its)));
            for (to, its) in found.drain(..) {
                if its <= level {
                    self.visit(to, number, level);
                } else if self.paths.level(to) == Level::Unreached {
                    self.waiting[its as usize].push((number, to));
                }
            }
        }
    }
}
