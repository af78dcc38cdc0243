//! The references of each node.

use ruby::{ClassKind, DataType, ImemoType, Slot, SlotType};

use crate::Cause;
use crate::ownership::bits::{Bits, Ranks};
use crate::ownership::hash_tables::Keyed;
use crate::ownership::owner::Owner;
use crate::ownership::root_memory::Root;
use crate::ownership::weak::WeakReferences;

use super::paths::{Level, Paths};
use super::{
    COVERAGE, EXTENSION_MEMORY, FIRST_LIST, FIRST_NAMED, Node, ObjectGraph, THREADS, is_class,
};

/// Whose memory is followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Within {
    /// True if its words may be no references to objects.
    pub(super) is_behind_structure: bool,
    /// True for that of a class or module.
    pub(super) is_class: bool,
}

impl ObjectGraph<'_> {
    /// Calls `each` with the nodes that a node refers to.
    pub(super) fn references(&self, paths: &Paths, number: u32, each: impl FnMut(u32, Level)) {
        match self.node(number) {
            Node::Everything => {
                self.of_everything(each);
            }
            Node::ExtensionMemory => self.of_extension_memory(paths, each),
            node => self.of_node(node, each),
        }
    }

    /// Calls `each` with the nodes that a node refers to, other than the two that refer to what was reached or not.
    pub(super) fn of_node(&self, node: Node, mut each: impl FnMut(u32, Level)) {
        match node {
            Node::Everything | Node::ExtensionMemory => {}
            Node::Threads => {
                self.threads.iter().for_each(|&slot| each(self.slot(slot), Level::Threads));
            }
            Node::List(list) => {
                let slots = self.lists.get(list as usize).into_iter().flatten();
                slots.for_each(|&slot| each(self.slot(slot), level_of_list(FIRST_LIST + list)));
            }
            Node::Named(root) => {
                if let Some(root) = self.named_roots.get(root as usize) {
                    each(self.slot(root.value), self.level_to(root.value));
                }
            }
            Node::Slot(slot) => self.of_slot(slot, each),
            Node::Memory(node) => {
                let is_behind_structure = self.is_behind_structure(node);
                self.of_memory(node, Within { is_behind_structure, is_class: false }, each);
            }
        }
    }

    /// The node of the class of the object in a slot, if it has one.
    pub(super) fn class_node(&self, slot: u32) -> Option<u32> {
        let class = self.class_slots.get(self.class_of(slot)? as usize)?;
        class.map(|class| self.slot(class))
    }

    /// The slots of objects that refer to other objects than their class, or to one of these `inner` nodes. Most objects are
    /// strings, which do not.
    pub(super) fn referring_slots(&self, inner: &Ranks) -> Bits {
        let mut slots = self.with_others.clone();
        self.space.links.slots().for_each(|slot| _ = slots.insert(slot));
        for (slot, edges) in self.pointers.of_slots.iter() {
            if edges.iter().any(|edge| inner.of(edge.to()).is_some()) {
                slots.insert(slot);
            }
        }
        slots
    }

    fn of_everything(&self, mut each: impl FnMut(u32, Level)) {
        self.global_roots.iter().for_each(|index| each(FIRST_NAMED + index, Level::Named));
        each(THREADS, Level::Threads);
        (FIRST_LIST..FIRST_NAMED).for_each(|list| each(list, level_of_list(list)));
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
        let areas = self.pointers.areas.len();
        for node in 0..(self.heap.block_count() + areas) as u32 {
            let is_reached = paths.level(self.memory(node)) < Level::Deep;
            let is_weak = self.weak.is_weak_table(node) || self.weak.is_subclass_entry(node);
            if is_reached && self.is_behind_structure(node) && !is_weak {
                let slots = self.pointers.slots(node);
                slots.iter().for_each(|slot| each(self.slot(slot.to()), Level::Deep));
            }
        }
    }

    fn of_slot(&self, slot: u32, mut each: impl FnMut(u32, Level)) {
        let Some(&it) = self.space.slots.get(slot as usize) else { return };
        if let Some(class) = self.class_slots.get(it.class() as usize).copied().flatten() {
            each(self.slot(class), Level::Named);
        }
        let has_others = self.with_others.contains(slot);
        if has_others {
            for root in values_of(&self.named_in_classes, slot) {
                each(FIRST_NAMED + root, Level::Named);
            }
            for value in self.weak.values_of(slot) {
                match value.value {
                    Keyed::Slot(value) => each(self.slot(value), Level::Named),
                    Keyed::Block(block) => each(self.memory(block), Level::Named),
                }
            }
        }
        if WeakReferences::is_weak_object(self.space, slot) {
            if let Some(method) = self.cached_method(slot) {
                each(self.slot(method), Level::Lists);
            }
            // Its instance variables (from 4.0 on) are no weak references.
            let fields = self.space.links.of(slot).iter().filter(|to| self.is_fields(**to));
            fields.for_each(|&to| each(self.slot(to), Level::Named));
            return;
        }
        if has_others {
            let of_threads = values_of(&self.pointers.of_threads.slots, slot);
            let messages = values_of(&self.pointers.lists.messages, slot);
            let structures = values_of(&self.pointers.lists.ractor_structures, slot);
            for block in of_threads.chain(messages).chain(structures) {
                each(self.memory(block), Level::Named);
            }
            for index in values_of(&self.roots_of_objects, slot) {
                each(self.memory(self.pointers.root(index)), level_of(self.pointers.roots[index]));
            }
        }
        let is_interpreters = self.is_interpreters_object(slot, it);
        let is_lock =
            self.trace.code_of_slot(it).is_some_and(|code| self.is_lock(self.trace.owner(code)));
        for &to in self.space.links.of(slot) {
            let is_locker = is_lock && self.is_thread(to);
            let is_left_out = is_locker
                || is_interpreters && self.named_slots.contains(to)
                || self.main_ractor == Some(to);
            if !is_left_out {
                each(self.slot(to), self.level_to(to));
            }
        }
        for edge in self.pointers.of_slots.of(slot) {
            let to = edge.to();
            let is_area = to as usize >= self.heap.block_count();
            let level = if edge.is_uncertain() { Level::Uncertain } else { Level::Named };
            if is_area || self.is_of_slot(to, it) || self.is_shared(to) {
                each(self.memory(to), level);
            }
        }
    }

    pub(super) fn of_memory(&self, node: u32, within: Within, mut each: impl FnMut(u32, Level)) {
        if self.weak.is_weak_table(node) {
            self.weak.held_by(node).for_each(|value| each(self.slot(value), Level::Named));
            return;
        }
        if self.pointers.lists.has_entry(node) {
            return;
        }
        for block in values_of(&self.pointers.of_threads.structures, node) {
            each(self.memory(block), Level::Named);
        }
        if !self.pointers.is_inner(node) {
            return;
        }
        let owner = self.trace.owner_of(node as usize);
        let is_root = self.root_at(node).is_some();
        let is_interpreters = self.trace.cause_of(node as usize) == Cause::RubyVm;
        let is_text =
            matches!(owner, Owner::Class(class) if self.text_classes.contains(class as u32));
        // An area may hold many unrelated structures, so its references to objects do not show which object retains which.
        let is_area = !is_root && node as usize >= self.heap.block_count();
        let has_objects = self.variables.contains(node)
            || !is_text && !is_area && !self.weak.is_subclass_entry(node);
        if has_objects && !within.is_behind_structure {
            let is_lock = self.is_lock(owner);
            let is_message = self.messages.contains(&node);
            for slot in self.pointers.slots(node) {
                let is_locker = is_lock && self.is_thread(slot.to());
                let is_left_out = is_locker
                    || self.main_ractor == Some(slot.to())
                    // Its sender.
                    || is_message && self.is_ractor(slot.to())
                    || is_interpreters
                        && (self.named_slots.contains(slot.to()) || self.is_ractor(slot.to()));
                if !is_left_out {
                    let certain = self.level_to(slot.to());
                    let level = if slot.is_uncertain() { Level::Uncertain } else { certain };
                    each(self.slot(slot.to()), level);
                }
            }
        }
        // A message has values only. Other words are those of earlier owners.
        if self.ractor_queues.contains(&node) {
            return;
        }
        for edge in self.pointers.edges(node) {
            let to = edge.to();
            // Ractors are in a list, and threads refer to theirs.
            let is_ractor = self.ractors.contains(&to);
            if self.messages.contains(&to) {
                continue;
            }
            let is_listed = self.memory_of_threads.contains(to)
                && (is_root || !self.memory_of_ended_threads.contains(to));
            if is_listed || is_ractor {
                continue;
            }
            let its = self.trace.owner_of(to as usize);
            let is_own = its == owner
                || self.table.may_share(owner, its)
                || within.is_class && self.may_be_of_class(to);
            // A block belongs to its owner only: otherwise a path would lead through the interpreter's tables from any
            // object to any other.
            let level = match edge.is_uncertain() {
                true if is_root => continue,
                false if is_root => Level::Named,
                true if is_own && !self.is_core(owner) => Level::Uncertain,
                _ if is_own => Level::Named,
                false if self.is_shared(to) => Level::Named,
                // Structures of threads, fibers and the like refer to each other, and name their objects.
                _ if self.is_core(owner) && self.is_named_within(its) => Level::Threads,
                _ => continue,
            };
            each(self.memory(to), level);
        }
    }

    /// The level of a certain reference to an object. A thread that has not ended lives without the references to it, and only the thread
    /// can let go of what is on its stack. So paths lead to it from the list of threads.
    fn level_to(&self, slot: u32) -> Level {
        if self.is_live_thread(slot) { Level::Lists } else { Level::Named }
    }

    /// The method that the method cache in a slot retains; `None` for other objects, and for caches out of use, which have no class.
    pub(super) fn cached_method(&self, slot: u32) -> Option<u32> {
        let it = |slot: u32| self.space.slots.get(slot as usize);
        let class = self.space.classes.get(it(slot)?.class() as usize)?;
        if class.kind != ClassKind::Imemo(ImemoType::Callcache)
            || !self.space.interpreter.retains_cached_methods()
        {
            return None;
        }
        let links = self.space.links.of(slot);
        let is_class = |&to: &u32| {
            let kind = it(to).map(|it| it.kind());
            matches!(kind, Some(SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS))
        };
        links.iter().any(is_class).then(|| links.iter().copied().find(|to| !is_class(to)))?
    }

    /// Returns true for an internal object with instance variables.
    fn is_fields(&self, slot: u32) -> bool {
        let it = self.space.slots.get(slot as usize);
        let class = it.and_then(|it| self.space.classes.get(it.class() as usize));
        class.is_some_and(|class| class.kind == ClassKind::Imemo(ImemoType::Fields))
    }

    /// Returns true if objects like the one in this slot own a block. Arrays share their elements with hidden ones.
    fn is_of_slot(&self, block: u32, slot: Slot) -> bool {
        let may_share = || {
            let own = self.trace.code_of_slot(slot).map(|code| self.trace.owner(code));
            own.is_some_and(|own| self.table.may_share(own, self.trace.owner_of(block as usize)))
        };
        // The objects of a subclass of Module do not have its name.
        let is_class =
            || is_class(slot) && self.table.is_of_interpreter(self.trace.owner_of(block as usize));
        let is_array = || slot.kind() == SlotType::ARRAY && self.pointers.is_known(block);
        self.trace.is_of_slot(block, slot) || is_array() || is_class() || may_share()
    }

    /// Returns true if other owners than the block's own refer to it too, and share it.
    fn is_shared(&self, block: u32) -> bool {
        self.trace.is_shared(block as usize) && !self.trace.cause_of(block as usize).is_rubys()
    }

    /// Returns true for Ractors, which are in a list. A method that a block defines has the Ractor that defined it, but does not
    /// retain it: a path would lead from any of these methods to all threads.
    fn is_ractor(&self, slot: u32) -> bool {
        self.space.data_type_of(slot).is_some_and(DataType::is_ractor)
    }

    /// Returns true for a block to which memory of a class refers, if it may belong to the class. A word that is left over in a buffer of
    /// an extension may have given it the extension's name.
    fn may_be_of_class(&self, block: u32) -> bool {
        let owner = self.trace.owner_of(block as usize);
        self.table.is_of_interpreter(owner)
            || matches!(owner, Owner::Data(_)) && !self.structures.contains(block)
    }

    /// Returns true for an extension's block or area that no object refers to itself.
    pub(super) fn is_behind_structure(&self, node: u32) -> bool {
        let number = node as usize;
        self.trace.cause_of(number) == Cause::NativeHeld
            && matches!(self.trace.owner_of(number), Owner::Data(_))
            && !self.structures.contains(node)
    }

    /// Returns true for objects of the interpreter that refer to values of constants and variables because of their
    /// names (inline caches, bytecode, variables of classes), and for classes: a singleton class refers to its object.
    fn is_interpreters_object(&self, slot: u32, it: Slot) -> bool {
        let class = self.space.classes.get(it.class() as usize);
        match it.kind() {
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

    /// Returns true for mutexes, which name the thread that locked them last (from 3.4 on). Threads are in a list, so a path would
    /// lead from any mutex to all that a thread retains.
    fn is_lock(&self, owner: Owner) -> bool {
        let Owner::Data(class) = owner else { return false };
        self.table.type_of(class).is_some_and(DataType::is_mutex)
    }

    /// Returns true for objects of Ruby's own that wrap a structure, without the interpreter's.
    fn is_core(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Data(class) if self.table.cause_of_data(class) == Cause::RubyMalloc)
    }
}

/// The values of a key, in pairs that are sorted by their keys.
pub(super) fn values_of<T: Copy>(pairs: &[(u32, T)], key: u32) -> impl Iterator<Item = T> + '_ {
    let first = pairs.partition_point(|pair| pair.0 < key);
    pairs[first..].iter().take_while(move |pair| pair.0 == key).map(|pair| pair.1)
}

fn level_of_list(list: u32) -> Level {
    if list == COVERAGE { Level::Named } else { Level::Lists }
}

fn level_of(root: Root) -> Level {
    match root {
        Root::Values => Level::Threads,
        Root::Stacks => Level::Stacks,
        Root::Variables(_) | Root::Locals => Level::Variables,
    }
}
