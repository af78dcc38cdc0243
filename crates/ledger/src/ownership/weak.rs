//! Weak references: memory that refers to objects, but does not retain them.
//!
//! The GC removes these references when the object dies. Until then they would seem to retain garbage. They are:
//!
//! - hash tables of the interpreter whose keys are objects: generic instance variables, object ids, deduplicated
//!   strings, call infos (`generic_iv_tbl_`, `obj_to_id_tbl`, `frozen_strings`, `ci_table`), and the keys of
//!   `finalizer_table`. The value of an object that is alive belongs to that object, as the variables of a string do.
//!   But the GC marks all finalizers: hidden arrays with the procs. And it marks the classes and modules that were defined in C or below
//!   `Struct`, which are a set (`defined_module_hash`, up to 3.3), so these live on without their constant;
//! - hash tables of the interpreter whose values are objects that it finds by number: `id_to_obj_tbl`;
//! - the lists of a class's subclasses, and of the places where a module is included (up to 3.4);
//! - the keys of WeakKeyMap, which are pointers to references. A value belongs to its key. But the GC marks all values, so one that
//!   refers to its own key keeps both;
//! - the list of all fibers' contexts;
//! - the table of objects whose allocations objspace traces;
//! - objects whose references are all weak ([`DataType::is_weak`], [`ruby::ImemoType::is_weak`]). Up to 3.2, method caches
//!   retain their methods nevertheless (`ObjectGraph::cached_method`).

use allocator::HeapMap;
use linux::length;
use ruby::{ClassKind, DataType, ObjectSpace, SUBCLASS_ENTRY_BYTES, SlotType};

use crate::Cause;
use crate::ownership::bits::Bits;
use crate::ownership::finalizers::BehindFinalizers;
use crate::ownership::graph::PointerGraph;
use crate::ownership::hash_tables::{Keyed, KeyedValue};
use crate::ownership::owner::Owner;
use crate::ownership::search::{Follow, Met, search};
use crate::ownership::table::OwnerTable;
use crate::ownership::trace::Trace;

/// The number of references of a WeakKeyMap's value, and of objects behind it, that are searched for its key.
const MAX_REFERENCES_OF_VALUE: usize = 256;

/// The weak references of a process.
pub(crate) struct WeakReferences {
    /// Nodes that retain nothing: the entries of weak hash tables, and of the list of contexts.
    tables: Bits,
    /// Blocks that do not retain their class: the entries of lists of subclasses.
    subclasses: Bits,
    /// The values that objects retain as keys of weak hash tables, by key.
    values: Vec<KeyedValue>,
    /// The values that weak hash tables retain themselves, because they lead to their own keys, by table.
    held_values: Vec<(u32, u32)>,
    /// The arrays with the finalizers of objects, each with its object, and whether it may lead to it. Copies of an object have the same.
    finalizers: Vec<(u32, u32, bool)>,
}

impl WeakReferences {
    pub(crate) fn find(
        heap: &HeapMap,
        graph: &PointerGraph,
        table: &OwnerTable<'_>,
        trace: &Trace,
    ) -> Self {
        let (mut tables, mut key_maps) = (Bits::new(graph.len()), Bits::new(graph.len()));
        for &node in &graph.hash_tables {
            let is_weak = match trace.owner_of(node as usize) {
                Owner::Data(class) if table.type_of(class).is_some_and(DataType::has_weak_keys) => {
                    key_maps.insert(node);
                    true
                }
                owner => {
                    is_interpreters(table, owner) && !is_set_of_modules(graph, table.space, node)
                }
            };
            if is_weak {
                tables.insert(node);
            }
        }
        let values =
            graph.keyed_values.iter().filter(|value| tables.contains(value.table)).copied();
        let (finalizers, values) = values.partition::<Vec<_>, _>(|value| match value.value {
            Keyed::Slot(slot) => table.space.is_hidden_array(slot),
            Keyed::Block(_) => false,
        });
        let slot = |value: &KeyedValue| match value.value {
            Keyed::Slot(slot) => Some(slot),
            Keyed::Block(_) => None,
        };
        let space = table.space;
        let mut behind = BehindFinalizers::new(graph, space);
        let with_key = |value: &KeyedValue| {
            let its = slot(value)?;
            Some((its, value.key, behind.may_include(its, value.key)))
        };
        let mut finalizers: Vec<_> = finalizers.iter().filter_map(with_key).collect();
        finalizers.sort_unstable();
        let of_key_maps = values.iter().filter(|value| key_maps.contains(value.table));
        let held = of_key_maps.filter_map(|value| {
            let its = slot(value)?;
            let is_key = |it| if it == value.key { Met::Wanted } else { Met::Other };
            let search =
                search(graph, space, its, Follow::Certain, MAX_REFERENCES_OF_VALUE, is_key);
            (search.found == Some(true)).then_some((value.table, its))
        });
        let mut held_values: Vec<_> = held.collect();
        held_values.sort_unstable();
        let subclasses = subclass_entries(heap, graph, table, trace);
        contexts_in_list(heap, graph, table, trace)
            .chain(graph.lists.traced_objects)
            .for_each(|node| _ = tables.insert(node));
        Self { tables, subclasses, values, held_values, finalizers }
    }

    /// Returns true if a node retains nothing.
    pub(crate) fn is_weak_table(&self, node: u32) -> bool {
        self.tables.contains(node)
    }

    /// The values that a weak hash table retains all the same.
    pub(crate) fn held_by(&self, table: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.held_values.partition_point(|&(its, _)| its < table);
        let held = self.held_values[first..].iter().take_while(move |&&(its, _)| its == table);
        held.map(|&(_, value)| value)
    }

    /// The arrays with the finalizers of objects. They are retained even if the objects are not.
    pub(crate) fn finalizers(&self) -> impl Iterator<Item = u32> {
        self.finalizers.iter().map(|&(finalizers, _, _)| finalizers)
    }

    /// The objects that have these finalizers, and whether these may lead to it, so that they retain it.
    pub(crate) fn objects_with(&self, finalizers: u32) -> impl Iterator<Item = (u32, bool)> {
        let first = self.finalizers.partition_point(|it| it.0 < finalizers);
        let those = self.finalizers[first..].iter().take_while(move |it| it.0 == finalizers);
        those.map(|&(_, object, may_lead)| (object, may_lead))
    }

    /// Returns true if a node does not retain the objects that it refers to.
    pub(crate) fn is_subclass_entry(&self, node: u32) -> bool {
        self.subclasses.contains(node)
    }

    /// Returns true if the object in this slot retains nothing.
    pub(crate) fn is_weak_object(space: &ObjectSpace, slot: u32) -> bool {
        let Some(it) = space.slots.get(slot as usize) else { return false };
        match it.kind() {
            SlotType::DATA => space.data_type_of(slot).is_some_and(DataType::is_weak),
            SlotType::IMEMO => {
                let class = space.classes.get(it.class() as usize);
                class.is_some_and(
                    |class| matches!(class.kind, ClassKind::Imemo(kind) if kind.is_weak()),
                )
            }
            _ => false,
        }
    }

    /// The slots that are keys of weak hash tables.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.values.iter().map(|value| value.key)
    }

    /// The blocks that objects retain as keys of weak hash tables.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.values.iter().filter_map(|value| match value.value {
            Keyed::Block(block) => Some(block),
            Keyed::Slot(_) => None,
        })
    }

    /// The values that the object in this slot retains, since it is a key of weak hash tables.
    pub(crate) fn values_of(&self, slot: u32) -> impl Iterator<Item = KeyedValue> + '_ {
        let first = self.values.partition_point(|value| value.key < slot);
        self.values[first..].iter().take_while(move |value| value.key == slot).copied()
    }
}

/// Returns true if the node is a set of nothing but classes and modules.
fn is_set_of_modules(graph: &PointerGraph, space: &ObjectSpace, node: u32) -> bool {
    let is_module = |slot: u32| {
        let slot = space.slots.get(slot as usize);
        slot.is_some_and(|it| matches!(it.kind(), SlotType::CLASS | SlotType::MODULE))
    };
    let slots = graph.slots(node);
    graph.hash_sets.binary_search(&node).is_ok()
        && !slots.is_empty()
        && slots.iter().all(|edge| is_module(edge.to()))
}

/// The blocks that are entries of lists of subclasses (`rb_subclass_entry` in class.c): a class, the next entry, and from 3.1
/// on the previous one, or the list's head. No other memory of classes is as small and refers to one object only, which
/// is a class, and to other memory. An old word of an extension may have given it entries, which refer to each other like no other memory.
fn subclass_entries(
    heap: &HeapMap,
    graph: &PointerGraph,
    table: &OwnerTable<'_>,
    trace: &Trace,
) -> Bits {
    let space = table.space;
    let mut entries = Bits::new(heap.block_count());
    let max = heap.max_usable_bytes_for(SUBCLASS_ENTRY_BYTES);
    let has_previous = space.interpreter.has_previous_subclass();
    let is_class = |slot: u32| {
        let slot = space.slots.get(slot as usize);
        // A refinement is a module below the class.
        const KINDS: [SlotType; 3] = [SlotType::CLASS, SlotType::ICLASS, SlotType::MODULE];
        slot.is_some_and(|it| KINDS.contains(&it.kind()))
    };
    let refers_to_one_class = |node: u32| {
        let mut slots = graph.slots(node).iter().filter(|slot| !slot.is_uncertain());
        slots.next().is_some_and(|slot| is_class(slot.to())) && slots.next().is_none()
    };
    let refers_to = |from: u32, to: u32| graph.edges(from).iter().any(|edge| edge.to() == to);
    let is_neighbour = |node: u32, other: u32| {
        (other as usize) < heap.block_count()
            && other != node
            && heap.usable_bytes(other) <= max
            && refers_to_one_class(other)
            && refers_to(other, node)
    };
    for (number, block) in heap.all_blocks() {
        let node = number as u32;
        let usable = length(&heap.header.usable(block));
        if !block.state().is_in_use() || usable > max || !refers_to_one_class(node) {
            continue;
        }
        let is_entry = match table.is_classes(trace.owner_of(number)) {
            true => graph.has_edges(node) || !has_previous,
            false => {
                let mut edges = graph.edges(node).iter().map(|edge| edge.to());
                has_previous && edges.any(|other| is_neighbour(node, other))
            }
        };
        if is_entry {
            entries.insert(node);
        }
    }
    entries
}

/// The entries of the list of all contexts (`struct rb_jit_cont` in cont.c, from 3.2 on): a context, which lies in a fiber's structure, and the
/// previous and the next entry. The structure leads to its entry. A variable of the interpreter leads to the last one.
fn contexts_in_list<'a>(
    heap: &'a HeapMap,
    graph: &'a PointerGraph,
    table: &'a OwnerTable<'_>,
    trace: &'a Trace,
) -> impl Iterator<Item = u32> + 'a {
    const BYTES: u64 = 24;
    // A context alone has as much.
    const MIN_FIBER_BYTES: u64 = 256;
    let max = heap.max_usable_bytes_for(BYTES);
    let may_have_it = |number: usize| match trace.owner_of(number) {
        Owner::Variables(module) => table.is_interpreter(module),
        // A thread's own variable has its context, and so the whole list.
        Owner::Locals => true,
        Owner::Data(class) => {
            let data_type = table.type_of(class);
            is_interpreters(table, Owner::Data(class))
                || data_type.is_some_and(|it| it.is_fiber() || it.is_thread())
        }
        _ => false,
    };
    let is_fiber_of = move |entry: u32, to: u32| {
        // The pointer to a context is one into a block.
        let mut edges = graph.edges(to).iter().map(|edge| edge.to());
        heap.usable_bytes(to) >= MIN_FIBER_BYTES && edges.any(|it| it == entry)
    };
    let entries = heap.all_blocks().filter(move |&(number, block)| {
        let node = number as u32;
        let is_small = block.state().is_in_use() && length(&heap.header.usable(block)) <= max;
        let mut edges = graph.edges(node).iter().map(|edge| edge.to());
        is_small && may_have_it(number) && edges.any(|to| is_fiber_of(node, to))
    });
    entries.map(|(number, _)| number as u32)
}

/// Returns true for the interpreter's variables and the structures behind them, which it also wraps in objects
/// (RubyVM). Other objects of Ruby's, such as the jump tables of `case` and hidden objects, retain the keys of their tables.
fn is_interpreters(table: &OwnerTable<'_>, owner: Owner) -> bool {
    let may_be = match owner {
        Owner::Variables(_) => true,
        Owner::Data(class) => !table.is_internal(class),
        _ => false,
    };
    may_be && table.cause_of(owner) == Cause::RubyVm
}
