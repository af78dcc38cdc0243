//! The objects that an object refers to, by itself or over its memory, as the garbage collector marks them.

use std::collections::{BTreeMap, HashSet};

use ruby::{ClassKind, RootKind, SlotType};

use crate::ownership::bits::Bits;
use crate::ownership::root_memory::Root;
use crate::ownership::weak::WeakReferences;

use super::paths::{Level, Paths};
use super::references::Within;
use super::{EVERYTHING, FINALIZERS, FIRST_LIST, Node, ObjectGraph};

/// Several objects may refer to the same memory, whose words are read again for each: this many for each node of the graph.
const MAX_WORDS: usize = 64;
/// The capacity up to which a set is emptied to be used again.
const MAX_CLEARED: usize = 1024;

/// Finds the references of objects, one object after the other.
pub(crate) struct ObjectReferences<'a> {
    graph: &'a ObjectGraph<'a>,
    paths: &'a Paths,
    /// The slot of the class Object, which has the constants without a module.
    object_class: Option<u32>,
    /// The memory that was read once.
    known: Bits,
    /// The words that may still be read again.
    budget: usize,
    /// The memory of the object that is being read, and what is to be read of it.
    own: HashSet<u32>,
    waiting: Vec<u32>,
    /// The type of the object; `None` for a root.
    kind: Option<SlotType>,
}

impl<'a> ObjectReferences<'a> {
    pub(crate) fn new(graph: &'a ObjectGraph<'a>, paths: &'a Paths) -> Self {
        let is_object = |it: &&ruby::Class| {
            matches!(it.kind, ClassKind::Visible(_)) && it.name.as_deref() == Some("Object")
        };
        let address = graph.space.classes.iter().find(is_object).and_then(ruby::Class::address);
        Self {
            graph,
            paths,
            object_class: address.and_then(|at| graph.space.slot_at(at)),
            known: Bits::new(graph.len()),
            budget: MAX_WORDS * graph.len(),
            own: HashSet::new(),
            waiting: Vec::new(),
            kind: None,
        }
    }

    /// Fills `slots` with the objects that the object in `slot` refers to, each once, without its class. Objects that share the
    /// memory of another one refer to that, and not to what is in the memory.
    pub(crate) fn of_object(&mut self, slot: u32, is_shared: bool, slots: &mut Vec<u32>) {
        slots.clear();
        let graph = self.graph;
        let class = graph.class_node(slot);
        self.begin();
        graph.of_node(Node::Slot(slot), |to, level| {
            if Some(to) != class {
                self.add(to, level, !is_shared, slots);
            }
        });
        if !WeakReferences::is_weak_object(graph.space, slot) {
            slots.extend(
                graph.space.links.of(slot).iter().filter(|to| graph.named_slots.contains(**to)),
            );
        }
        if self.object_class == Some(slot) {
            let constants = graph.global_roots.iter().filter_map(|&root| {
                let root = graph.named_roots.get(root as usize)?;
                (root.kind == RootKind::Constant).then_some(root.value)
            });
            slots.extend(constants);
        }
        // Up to 3.1 plain objects refer to the names of their class's variables, too, which only the class marks.
        let has_names = graph.kind(slot) == Some(SlotType::OBJECT) && !graph.space.has_shapes();
        self.kind = graph.kind(slot);
        self.follow(!has_names, slots);
        self.finish(slots);
    }

    /// The objects that roots refer to, by the names that roots have in Ruby (`rb_gc_mark_roots` in gc.c).
    pub(crate) fn of_roots(&mut self) -> BTreeMap<&'static str, Vec<u32>> {
        let mut roots: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        let mut nodes = Vec::new();
        self.graph.references(self.paths, EVERYTHING, |to, _| nodes.push(to));
        for node in nodes {
            let Some(category) = self.category(node) else { continue };
            let slots = roots.entry(category).or_default();
            self.begin();
            // Of libraries the collector knows variables, and not what is behind.
            let follows = category != "global_list";
            let node = self.graph.node(node);
            self.graph.of_node(node, |to, level| self.add(to, level, follows, slots));
            if let Node::Memory(root) = node {
                self.add_named(root, slots);
            }
            self.kind = None;
            self.follow(true, slots);
        }
        // Their words, and not what is behind memory: threads and fibers have that.
        let pointers = self.graph.pointers;
        let stacks = (0..pointers.roots.len()).filter(|it| pointers.roots[*it].is_stack());
        let words = stacks.flat_map(|index| pointers.slots(pointers.root(index)));
        roots.entry("machine_context").or_default().extend(words.map(|it| it.to()));
        roots.values_mut().for_each(|slots| self.finish(slots));
        roots.retain(|_, slots| !slots.is_empty());
        roots
    }

    fn category(&self, root: u32) -> Option<&'static str> {
        Some(match self.graph.node(root) {
            Node::Named(index) => {
                let root = self.graph.named_roots.get(index as usize)?;
                match root.kind {
                    RootKind::GlobalVariable => "global_tbl",
                    RootKind::Table if root.name == "(symbols)" => "global_symbols",
                    RootKind::Table => "vm",
                    // Classes and threads refer to these.
                    _ => return None,
                }
            }
            Node::List(0) => "end_proc",
            Node::List(list) if FIRST_LIST + list == FINALIZERS => "finalizers",
            Node::List(3) => "trap_list",
            Node::List(_) | Node::Threads => "vm",
            Node::Memory(node) => match self.graph.root_at(node)? {
                Root::Variables(module) if self.graph.table.is_interpreter(module) => "vm",
                Root::Variables(_) => "global_list",
                Root::Locals => "machine_context",
                // Their words come last.
                Root::Stacks | Root::Values => return None,
            },
            Node::Everything | Node::ExtensionMemory | Node::Slot(_) => return None,
        })
    }

    /// Leaves each object once, and no words that are left over from objects that are gone.
    fn finish(&self, slots: &mut Vec<u32>) {
        let all = &self.graph.space.slots;
        slots.sort_unstable();
        slots.dedup();
        slots.retain(|slot| all.get(*slot as usize).is_some_and(|it| it.is_live()));
    }

    fn begin(&mut self) {
        // Clearing a large set for each small object would take long.
        if self.own.capacity() > MAX_CLEARED {
            self.own = HashSet::new();
        }
        self.own.clear();
        self.waiting.clear();
    }

    fn add(&mut self, to: u32, level: Level, follows: bool, slots: &mut Vec<u32>) {
        if level >= Level::Uncertain {
            return;
        }
        match self.graph.node(to) {
            Node::Slot(slot) => slots.push(slot),
            Node::Named(root) => {
                slots.extend(self.graph.named_roots.get(root as usize).map(|root| root.value));
            }
            Node::Memory(node) if follows && self.may_read(to, node) => self.waiting.push(node),
            _ => {}
        }
    }

    /// Returns true for memory of the object that is not read yet.
    fn may_read(&mut self, to: u32, node: u32) -> bool {
        if !self.own.insert(node) {
            return false;
        }
        if !self.known.insert(to) {
            let pointers = self.graph.pointers;
            let words = 1 + pointers.slots(node).len() + pointers.edges(node).len();
            let Some(budget) = self.budget.checked_sub(words) else { return false };
            self.budget = budget;
        }
        true
    }

    /// Adds what the waiting memory refers to and, if it is wanted, the memory behind it.
    fn follow(&mut self, further: bool, slots: &mut Vec<u32>) {
        while let Some(node) = self.waiting.pop() {
            let graph = self.graph;
            // A word of an extension may point to memory of Ruby's, too, and lend it its name.
            let may_be_extensions = matches!(self.kind, None | Some(SlotType::DATA));
            let within = Within {
                is_behind_structure: may_be_extensions && graph.is_behind_structure(node),
                is_class: matches!(self.kind, Some(SlotType::CLASS | SlotType::MODULE)),
            };
            graph.of_memory(node, within, |to, level| self.add(to, level, further, slots));
            self.add_named(node, slots);
        }
    }

    /// Adds the objects with a name to which memory refers. Paths to them lead over their names only, but the collector marks them.
    fn add_named(&self, node: u32, slots: &mut Vec<u32>) {
        let graph = self.graph;
        let is_weak = graph.weak.is_weak_table(node)
            || graph.weak.is_subclass_entry(node)
            || graph.pointers.lists.has_entry(node);
        if !is_weak && graph.pointers.is_inner(node) {
            let edges = graph.pointers.slots(node).iter();
            let named =
                edges.filter(|it| !it.is_uncertain() && graph.named_slots.contains(it.to()));
            slots.extend(named.map(|it| it.to()));
        }
    }
}
