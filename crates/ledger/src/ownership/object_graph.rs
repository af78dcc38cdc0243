//! The graph of the references that retain objects and blocks, from named roots on, and the shortest path to each node.

mod blocks;
mod lasting;
mod names;
mod objects;
mod paths;
mod references;
mod referrers;
mod singletons;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use lasting::lasting_classes;
pub(crate) use objects::ObjectReferences;
use paths::Level;
pub(crate) use paths::{Paths, Reach};
pub use singletons::SingletonClasses;
pub(crate) use singletons::singleton_classes;

use allocator::{Block, HeapMap};
use ruby::{ClassKind, DataType, ImemoType, NamedRoot, ObjectSpace, RootKind, Slot, SlotType};

use crate::interpreter::Gem;
use crate::ownership::bits::Bits;
use crate::ownership::dominators::Digraph;
use crate::ownership::graph::PointerGraph;
use crate::ownership::names::{METHOD, ObjectCode, ObjectNames};
use crate::ownership::root_memory::Root;
use crate::ownership::table::{ANONYMOUS_CLASS, OwnerTable};
use crate::ownership::trace::Trace;
use crate::ownership::weak::WeakReferences;

/// A node, as numbers decode to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// The root of the graph, which refers to all others.
    Everything,
    /// All threads.
    Threads,
    /// A list of the interpreter.
    List(u32),
    /// The memory behind the structures of extensions.
    ExtensionMemory,
    /// A constant or variable with a name.
    Named(u32),
    /// The object in a slot.
    Slot(u32),
    /// A node of the pointer graph: a block, an area, or a root.
    Memory(u32),
}

/// Roots that a program may define for each tenant, each class or each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family<'a> {
    /// The constants of the module in this slot.
    ConstantsOf(u32),
    /// Variables of classes with one name, which begins with its separator: `.@items`, `@@items`.
    VariablesNamed(&'a str),
    /// Constants of Object and global variables whose names are this one with a number behind it: `Report_`, `$job_`.
    Numbered(&'a str),
}

pub(crate) const EVERYTHING: u32 = 0;
const THREADS: u32 = 1;
const EXTENSION_MEMORY: u32 = 2;
const FIRST_LIST: u32 = 3;
const FIRST_NAMED: u32 = FIRST_LIST + LISTS.len() as u32;

/// The names of the interpreter's lists.
const LISTS: [&str; 9] = [
    "(at_exit)",
    "(finalizers)",
    "(TracePoints)",
    "(signal handlers)",
    "(main Ractor)",
    "(Ractors)",
    "(coverage)",
    "(trace_var)",
    "(rb_gc_register_address)",
];

/// The references from a list to an object behind it that are followed back.
const MAX_STEPS_TO_LIST: usize = 256;
/// The list of finalizers.
const FINALIZERS: u32 = FIRST_LIST + 1;
/// The counters of code coverage. Code refers to them, too, but only Coverage lets go of them.
const COVERAGE: u32 = FIRST_LIST + 6;

const UNKNOWN: &str = "(unknown)";

/// The references between roots, objects and blocks.
pub(crate) struct ObjectGraph<'a> {
    pub(crate) heap: &'a HeapMap,
    pub(crate) space: &'a ObjectSpace,
    pub(crate) table: &'a OwnerTable<'a>,
    pub(crate) trace: &'a Trace,
    pub(crate) pointers: &'a PointerGraph,
    pub(crate) named_roots: &'a [NamedRoot],
    /// The named roots without a class. The application's roots come first.
    global_roots: Vec<u32>,
    /// The names of modules' variables.
    variables_of: Vec<String>,
    weak: WeakReferences,
    /// The objects in the lists of the interpreter.
    lists: [Vec<u32>; LISTS.len()],
    /// The blocks with the messages that Ractors have not received yet.
    ractor_queues: HashSet<u32>,
    /// Such blocks that are in lists (from 4.0 on).
    messages: HashSet<u32>,
    /// The structures of the Ractors that run, which are in a list.
    ractors: HashSet<u32>,
    /// The slot of the main Ractor, which is in a list of its own.
    main_ractor: Option<u32>,
    /// The threads that have not ended, ascending by slot.
    threads: Vec<u32>,
    /// The structures of threads (`rb_thread_t`), their execution contexts and VM stacks. Other pointers to them retain
    /// nothing: threads and contexts are in lists, and fibers, mutexes and queues point to their threads, so that a path would
    /// lead from any of them to all threads.
    memory_of_threads: Bits,
    /// Those of threads that have ended, which are in no list: their fibers retain them. Words on stacks do not.
    memory_of_ended_threads: Bits,
    /// The blocks that objects refer to themselves, and those with variables that a table has for them.
    structures: Bits,
    /// The blocks with variables that a table has for objects. Their owner may be a false one, by a word that is left over elsewhere.
    variables: Bits,
    /// The slots that have names. The interpreter's tables refer to them too (tables of constants, inline caches), but only
    /// because of their names.
    named_slots: Bits,
    /// The classes of regular expressions and matches, whose memory refers to no objects.
    text_classes: Bits,
    /// The internal objects with the variables of classes (from 4.0 on).
    fields_of_classes: Bits,
    /// The slot of each class.
    class_slots: Vec<Option<u32>>,
    /// The named roots of each class, by the slot of the class. The application's roots come first.
    named_in_classes: Vec<(u32, u32)>,
    /// The slots of classes that lead from constant to constant, so that they live as long as the program.
    lasting_classes: Bits,
    /// The slots that refer to more than their words do: to the named roots of a class, to stacks and other memory of a thread, or to the
    /// values of which they are the keys.
    with_others: Bits,
    /// The stacks and thread-local variables of threads and fibers, by the slot of these.
    roots_of_objects: Vec<(u32, usize)>,
    names: ObjectNames<'a>,
}

impl<'a> ObjectGraph<'a> {
    pub(crate) fn new(
        heap: &'a HeapMap,
        pointers: &'a PointerGraph,
        table: &'a OwnerTable<'a>,
        trace: &'a Trace,
        named_roots: &'a [NamedRoot],
        code: &'a ObjectCode,
    ) -> Self {
        let space = table.space;
        let slots = space.slots.len();
        let objects = space.data_objects.iter().map(|(slot, _)| slot);
        // Whatever refers to the object of an ended thread retains it, such as a fiber of the thread.
        let ended = &pointers.lists.ended_threads;
        let (ended, threads): (Vec<u32>, Vec<u32>) =
            objects.filter(|&slot| is_thread(space, slot)).partition(|slot| ended.contains(slot));
        let mut memory_of_threads = Bits::new(heap.block_count());
        let mut memory_of_ended_threads = Bits::new(heap.block_count());
        let blocks = |slot| pointers.of_slots.of(slot).iter().filter_map(|it| pointers.block(*it));
        for block in threads.iter().flat_map(|&slot| blocks(slot)) {
            memory_of_threads.insert(block);
        }
        for block in ended.into_iter().flat_map(blocks) {
            memory_of_threads.insert(block);
            memory_of_ended_threads.insert(block);
        }
        for block in pointers.of_threads.blocks() {
            memory_of_threads.insert(block);
        }
        let mut structures = Bits::new(heap.block_count());
        for edge in pointers.of_slots.values() {
            pointers.block(*edge).map(|block| structures.insert(block));
        }
        let mut named_slots = Bits::new(slots);
        let by_preference = by_preference(named_roots);
        let mut named_in_classes = Vec::new();
        let (mut global_roots, mut hooks) = (Vec::new(), Vec::new());
        for index in by_preference {
            let root = &named_roots[index as usize];
            if root.kind == RootKind::Hook {
                hooks.push(root.value);
                continue;
            }
            if root.kind != RootKind::Local {
                named_slots.insert(root.value);
            }
            match root.class {
                Some(class) => named_in_classes.push((class, index)),
                None => global_roots.push(index),
            }
        }
        named_in_classes.sort_by_key(|&(class, _)| class);
        let lasting_classes = lasting_classes(space, named_roots, &global_roots, &named_in_classes);
        let weak = WeakReferences::find(heap, pointers, table, trace);
        let mut variables = Bits::new(heap.block_count());
        for block in weak.blocks() {
            structures.insert(block);
            variables.insert(block);
        }
        let lists = &pointers.lists;
        let at_exit = lists.at_exit.iter().map(|&(_, slot)| slot).collect();
        let ractor_queues = lists.ractor_queues.iter().copied().collect();
        let messages = lists.messages.iter().map(|it| it.1).collect();
        let ractors = lists.ractors.structures.clone();
        let main_ractor = lists.ractors.main;
        let lists = [
            at_exit,
            weak.finalizers().collect(),
            lists.trace_points.iter().map(|&(_, slot)| slot).collect(),
            lists.signal_handlers.clone(),
            main_ractor.into_iter().collect(),
            lists.ractors.others.clone(),
            lists.coverage.clone(),
            hooks,
            lists.registered.slots.clone(),
        ];
        let objects = pointers.root_objects.iter().enumerate();
        let mut roots_of_objects: Vec<_> =
            objects.filter_map(|(index, object)| Some(((*object)?, index))).collect();
        roots_of_objects.sort_unstable();
        let mut with_others = Bits::new(slots);
        let of_threads = pointers.of_threads.slots.iter().map(|it| it.0);
        let lists_of_ractors = [&pointers.lists.messages, &pointers.lists.ractor_structures];
        let of_ractors = lists_of_ractors.into_iter().flatten().map(|it| it.0);
        let others = named_in_classes.iter().map(|it| it.0).chain(of_threads).chain(of_ractors);
        let others = others.chain(weak.keys());
        others.for_each(|slot| _ = with_others.insert(slot));
        roots_of_objects.iter().for_each(|&(slot, _)| _ = with_others.insert(slot));
        let is_internal = |slot: u32| {
            space.slots.get(slot as usize).is_some_and(|it| it.kind() == SlotType::IMEMO)
        };
        let class_of = |slot| if is_internal(slot) { METHOD } else { class_name(space, slot) };
        let names = ObjectNames::new(&pointers.thread_names, code, class_of);
        let class_slots =
            space.classes.iter().map(|class| space.slot_at(class.address()?)).collect();
        let mut text_classes = Bits::new(space.classes.len());
        let is_text = |slot: &&Slot| matches!(slot.kind(), SlotType::REGEXP | SlotType::MATCH);
        for slot in space.slots.iter().filter(is_text) {
            text_classes.insert(slot.class());
        }
        let mut fields_of_classes = Bits::new(slots);
        if space.classes.iter().any(|class| class.kind == ClassKind::Imemo(ImemoType::Fields)) {
            for slot in (0..slots as u32).filter(|&slot| is_class(space.slots[slot as usize])) {
                for &to in space.links.of(slot) {
                    fields_of_classes.insert(to);
                }
            }
        }
        Self {
            heap,
            space,
            table,
            trace,
            pointers,
            named_roots,
            global_roots,
            variables_of: table
                .modules
                .iter()
                .map(|module| format!("(variables of {})", module.name))
                .collect(),
            weak,
            lists,
            ractor_queues,
            messages,
            ractors,
            main_ractor,
            with_others,
            threads,
            memory_of_threads,
            memory_of_ended_threads,
            structures,
            variables,
            named_slots,
            text_classes,
            fields_of_classes,
            class_slots,
            named_in_classes,
            lasting_classes,
            roots_of_objects,
            names,
        }
    }

    /// The nodes of the pointer graph that refer to other nodes.
    fn inner_nodes(&self) -> Bits {
        let mut inner = Bits::new(self.pointers.len());
        for node in 0..self.pointers.len() as u32 {
            if self.pointers.is_inner(node) {
                inner.insert(node);
            }
        }
        for &(structure, _) in &self.pointers.of_threads.structures {
            inner.insert(structure);
        }
        inner
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
            EXTENSION_MEMORY => Node::ExtensionMemory,
            number if number < FIRST_NAMED => Node::List(number - FIRST_LIST),
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

    /// Returns true for a root that programs know: a constant or a variable, the threads, and lists that programs add to.
    pub(crate) fn is_of_program(&self, root: u32) -> bool {
        match self.node(root) {
            Node::Threads | Node::List(_) => true,
            Node::Named(root) => {
                let kind = self.named_roots.get(root as usize).map(|root| root.kind);
                kind.is_some_and(|kind| kind != RootKind::Table)
            }
            _ => false,
        }
    }

    /// Returns true for memory of C extensions and the variables of libraries other than the interpreter: the GC may not follow them.
    pub(crate) fn is_of_extensions(&self, root: u32) -> bool {
        match self.node(root) {
            Node::ExtensionMemory => true,
            Node::Memory(node) => match self.root_at(node) {
                Some(Root::Variables(module)) => !self.table.is_interpreter(module),
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns true for a block with messages that a Ractor has not received yet.
    fn is_message(&self, node: u32) -> bool {
        self.ractor_queues.contains(&node) || self.messages.contains(&node)
    }

    /// The roots that this one is like; `None` for global variables and constants of Object without a number, and for roots that are no
    /// names.
    pub(crate) fn family_of(&self, number: u32) -> Option<Family<'_>> {
        let Node::Named(root) = self.node(number) else { return None };
        let root = self.named_roots.get(root as usize)?;
        let separator = match root.kind {
            RootKind::Constant if root.class.is_some() => {
                return root.class.map(Family::ConstantsOf);
            }
            // The classes of a program are no copies of one, even if it numbers them.
            RootKind::Constant if self.is_class(root.value) => return None,
            RootKind::Constant | RootKind::GlobalVariable => {
                let begin = root.name.trim_end_matches(|it: char| it.is_ascii_digit());
                return (begin.len() < root.name.len()).then_some(Family::Numbered(begin));
            }
            RootKind::InstanceVariable => ".@",
            RootKind::ClassVariable => "@@",
            RootKind::Local | RootKind::Hook | RootKind::Table => return None,
        };
        root.name.rfind(separator).map(|start| Family::VariablesNamed(&root.name[start..]))
    }

    /// Returns true for nodes that a constant, a list or a variable of a library retains, and for objects that C code registered for ever
    /// (`rb_gc_register_mark_object`), which are in a hidden array. Threads, other variables of the interpreter, which has structures of
    /// threads, and words that may be no pointers retain for some time only.
    pub(crate) fn is_lasting(&self, paths: &Paths, number: u32) -> bool {
        match paths.level(number) {
            Level::Named | Level::Lists => true,
            Level::Variables => {
                let node = |number: Option<u32>| number.map(|number| self.node(number));
                let is_registered = matches!(
                    node(paths.parent(number)),
                    Some(Node::Slot(slot)) if self.space.is_hidden_array(slot)
                );
                is_registered
                    || matches!(
                        node(paths.root(number)),
                        Some(Node::Memory(root)) if self.is_of_library(root)
                    )
            }
            _ => false,
        }
    }

    /// Returns true for the variables of a library other than the interpreter.
    fn is_of_library(&self, node: u32) -> bool {
        matches!(self.root_at(node), Some(Root::Variables(module)) if !self.table.is_interpreter(module))
    }

    /// Returns true for named roots that belong to a thread, without which they do not exist.
    fn is_local(&self, root: u32) -> bool {
        self.named_roots.get(root as usize).is_some_and(|root| root.kind == RootKind::Local)
    }

    /// Returns true for objects of Thread and its subclasses, which wrap the same structure.
    pub(crate) fn is_thread(&self, slot: u32) -> bool {
        is_thread(self.space, slot)
    }

    /// Returns true for threads that have not ended.
    fn is_live_thread(&self, slot: u32) -> bool {
        self.with_others.contains(slot) && self.threads.binary_search(&slot).is_ok()
    }

    /// Returns true for the stack of a thread or of a fiber.
    pub(crate) fn is_stack(&self, number: u32) -> bool {
        match self.node(number) {
            Node::Memory(node) => self.root_at(node).is_some_and(Root::is_stack),
            _ => false,
        }
    }

    /// Returns true for a local variable of a thread, and for a thread that has not ended.
    pub(crate) fn is_of_thread(&self, number: u32) -> bool {
        match self.node(number) {
            Node::Named(root) => self.is_local(root),
            Node::Slot(slot) => self.is_live_thread(slot),
            _ => false,
        }
    }

    /// Returns true if a reference goes together with what has the same root as its target: finalizers retain what they refer to no
    /// longer than their object lives, unless they refer to it, too.
    pub(crate) fn goes_with_its_target(&self, paths: &Paths, from: u32, to: u32) -> bool {
        if paths.root(from) != Some(FINALIZERS) {
            return false;
        }
        let (mut at, mut parent) = (to, Some(from));
        for _ in 0..MAX_STEPS_TO_LIST {
            match parent {
                Some(FINALIZERS) => break,
                Some(it) => (at, parent) = (it, paths.parent(it)),
                None => return false,
            }
        }
        let Node::Slot(slot) = self.node(at) else { return false };
        let goes = |(object, may_lead): (u32, bool)| {
            let root = paths.root(self.slot(object));
            !may_lead && (root.is_none() || root == paths.root(to))
        };
        self.weak.objects_with(slot).all(goes)
    }

    /// Returns true if programs see the object in a slot.
    pub(crate) fn is_visible(&self, slot: u32) -> bool {
        let slot = self.space.slots.get(slot as usize);
        slot.is_some_and(|slot| self.table.is_visible(slot.class() as usize))
    }

    /// Returns true for classes and modules.
    pub(crate) fn is_class(&self, slot: u32) -> bool {
        self.space.slots.get(slot as usize).is_some_and(|it| is_class(*it))
    }

    /// The type of the object in a slot.
    pub(crate) fn kind(&self, slot: u32) -> Option<SlotType> {
        self.space.slots.get(slot as usize).map(|it| it.kind())
    }

    /// The index of the class of the object in a slot.
    pub(crate) fn class_of(&self, slot: u32) -> Option<u32> {
        self.space.slots.get(slot as usize).map(|it| it.class())
    }

    /// The bytes of the slot with the stack of a Fiber, or the resident ones of the block, at a node, headers included; 0 for roots.
    fn own_bytes(&self, number: u32) -> u64 {
        match self.node(number) {
            Node::Slot(slot) => {
                let own = self.space.slot_bytes(slot) + self.space.transient_bytes(slot);
                own.saturating_add(self.pointers.stack_bytes_of(slot))
            }
            Node::Memory(node) => self.block_bytes(node),
            _ => 0,
        }
    }

    /// The resident bytes of a block, headers included; 0 for other nodes.
    pub(crate) fn block_bytes(&self, node: u32) -> u64 {
        let of_block = || self.heap.block(node as usize).map_or(0, Block::bytes);
        self.pointers.partial.get(&node).copied().unwrap_or_else(of_block)
    }

    /// The bytes of objects that would be freed without these nodes, which are left out.
    pub(crate) fn bytes_behind(&self, paths: &Paths, through: &HashSet<u32>) -> u64 {
        if through.is_empty() {
            return 0;
        }
        let mut reached = Bits::new(self.len());
        let mut waiting = vec![EVERYTHING];
        while let Some(from) = waiting.pop() {
            self.references(paths, from, |to, level| {
                // A reference of a later level than its target has retains it only as long as others do.
                let counts = level <= paths.level(to) && !through.contains(&to);
                if counts && reached.insert(to) {
                    waiting.push(to);
                }
            });
        }
        let is_behind = |slot: u32| {
            let own = self.slot(slot);
            paths.root(own).is_some() && !reached.contains(own) && !through.contains(&own)
        };
        let slots = self.space.sized_slots().zip(0..).filter(|(_, slot)| is_behind(*slot));
        let bytes = slots.map(|((_, bytes), _)| bytes).fold(0, u64::saturating_add);
        let blocks = self.bytes_beyond_slots(paths, is_behind);
        blocks.map(|(_, bytes)| bytes).fold(bytes, u64::saturating_add)
    }

    /// The references by which nodes are reached, without references of later levels than the level of their target.
    pub(crate) fn digraph(&self, paths: &Paths) -> Digraph {
        let mut digraph = Digraph::with_nodes(self.len());
        for number in 0..self.len() as u32 {
            let level = paths.level(number);
            if level != Level::Unreached {
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
}

pub(crate) fn class_name(space: &ObjectSpace, slot: u32) -> &str {
    let class = space.slots.get(slot as usize).map(|slot| slot.class() as usize);
    let class = class.and_then(|class| space.classes.get(class));
    class.map_or(UNKNOWN, |class| class.name.as_deref().unwrap_or(ANONYMOUS_CLASS))
}

/// The indices of named roots: first the constants that files of the application set, then all others. The search goes
/// through the first ones first, so of several shortest paths the one through them is found.
fn by_preference(named_roots: &[NamedRoot]) -> Vec<u32> {
    let mut known: HashMap<&str, bool> = HashMap::new();
    let (mut first, others): (Vec<u32>, Vec<u32>) =
        (0..named_roots.len() as u32).partition(|&index| {
            let file = named_roots[index as usize].file.as_ref().map(|(file, _)| &**file);
            let is_of_application = |file| Gem::of(Some(file)).is_application();
            file.is_some_and(|file| *known.entry(file).or_insert_with(|| is_of_application(file)))
        });
    first.extend(others);
    first
}

fn is_thread(space: &ObjectSpace, slot: u32) -> bool {
    space.slots.get(slot as usize).is_some_and(|it| it.kind() == SlotType::DATA)
        && space.data_type_of(slot).is_some_and(DataType::is_thread)
}

fn is_class(slot: Slot) -> bool {
    slot.is_live() && matches!(slot.kind(), SlotType::CLASS | SlotType::MODULE)
}
