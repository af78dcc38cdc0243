//! Weak references: memory that refers to objects, but does not retain them.
//!
//! The GC removes these references when the object dies. Until then they would seem to retain garbage. They are:
//!
//! - hash tables of the interpreter whose keys are objects: generic instance variables, object ids, deduplicated
//!   strings, call infos (`generic_iv_tbl_`, `obj_to_id_tbl`, `frozen_strings`, `ci_table`), and the keys of
//!   `finalizer_table`. The value of an object that is alive belongs to that object, as the variables of a string do.
//!   But the GC marks all finalizers: hidden arrays with the procs;
//! - hash tables of the interpreter whose values are objects that it finds by number: `id_to_obj_tbl`;
//! - WeakMap, and the keys of WeakKeyMap (`weakkeymap`), which are pointers to references. A value of the latter belongs
//!   to its key;
//! - sets of deduplicated strings and symbols, and the table of `ObjectSpace._id2ref`, from 4.0 on;
//! - method caches (`imemo_callcache`), and lists of subclasses (`imemo_subclasses`, from 4.0 on).

use ruby::{ClassKind, ImemoType, ObjectSpace, SlotType};

use crate::Cause;
use crate::ownership::bits::Bits;
use crate::ownership::graph::{Keyed, KeyedValue, PointerGraph};
use crate::ownership::owner::Owner;
use crate::ownership::table::OwnerTable;
use crate::ownership::trace::Trace;

/// Structures that T_DATA objects wrap, whose references are all weak: their `wrap_struct_name` in weakmap.c,
/// concurrent_set.c and gc.c.
const WEAK_TYPES: [&str; 3] = ["weakmap", "VM/concurrent_set", "VM/_id2ref_table"];
/// The structure of a WeakKeyMap.
const WEAK_KEYS: &str = "weakkeymap";

/// Internal objects whose references are all weak.
const WEAK_IMEMOS: [ClassKind; 2] =
    [ClassKind::Imemo(ImemoType::Callcache), ClassKind::Imemo(ImemoType::Subclasses)];

/// The weak references of a process.
pub(crate) struct WeakReferences {
    /// Nodes that retain nothing: the entries of weak hash tables.
    tables: Bits,
    /// The values that objects retain as keys of weak hash tables, by key.
    values: Vec<KeyedValue>,
    /// The arrays with the finalizers of objects, which are retained whether the objects are or not.
    pub(crate) finalizers: Vec<u32>,
    /// For each type of structure, true if its references are weak.
    types: Vec<bool>,
}

impl WeakReferences {
    pub(crate) fn find(graph: &PointerGraph, table: &OwnerTable<'_>, trace: &Trace) -> Self {
        let types = &table.space.data_types;
        let types = types.iter().map(|it| it.name.as_deref().is_some_and(is_weak)).collect();
        let mut tables = Bits::new(graph.len());
        for &node in &graph.hash_tables {
            let is_weak = match trace.owner_of(node as usize) {
                Owner::Data(class) if table.type_name(class) == Some(WEAK_KEYS) => true,
                owner => is_interpreters(table, owner),
            };
            if is_weak {
                tables.insert(node);
            }
        }
        let values =
            graph.keyed_values.iter().filter(|value| tables.contains(value.table)).copied();
        let (finalizers, values) = values.partition::<Vec<_>, _>(|value| match value.value {
            Keyed::Slot(slot) => is_hidden_array(table.space, slot),
            Keyed::Block(_) => false,
        });
        let slot = |value: &KeyedValue| match value.value {
            Keyed::Slot(slot) => Some(slot),
            Keyed::Block(_) => None,
        };
        let finalizers = finalizers.iter().filter_map(slot).collect();
        Self { tables, values, finalizers, types }
    }

    /// Returns true if a node retains nothing.
    pub(crate) fn is_weak_table(&self, node: u32) -> bool {
        self.tables.contains(node)
    }

    /// Returns true if the object in this slot retains nothing.
    pub(crate) fn is_weak_object(&self, space: &ObjectSpace, slot: u32) -> bool {
        let Some(it) = space.slots.get(slot as usize) else { return false };
        match it.kind {
            SlotType::DATA => {
                let of_slot = space.data_objects.type_of(slot);
                of_slot.is_some_and(|it| self.types.get(it as usize) == Some(&true))
            }
            SlotType::IMEMO => {
                let class = space.classes.get(it.class as usize);
                class.is_some_and(|class| WEAK_IMEMOS.contains(&class.kind))
            }
            _ => false,
        }
    }

    /// The values that the object in this slot retains, since it is a key of weak hash tables.
    pub(crate) fn values_of(&self, slot: u32) -> impl Iterator<Item = KeyedValue> + '_ {
        let first = self.values.partition_point(|value| value.key < slot);
        self.values[first..].iter().take_while(move |value| value.key == slot).copied()
    }
}

fn is_hidden_array(space: &ObjectSpace, slot: u32) -> bool {
    let class = space.slots.get(slot as usize).and_then(|it| space.classes.get(it.class as usize));
    class.is_some_and(|class| class.kind == ClassKind::Hidden(SlotType::ARRAY))
}

fn is_weak(name: &str) -> bool {
    WEAK_TYPES.contains(&name)
}

/// Returns true for the interpreter's variables and the structures behind them, which it also wraps in objects
/// (RubyVM). Other objects of Ruby's, such as the jump tables of `case`, retain the keys of their tables.
fn is_interpreters(table: &OwnerTable<'_>, owner: Owner) -> bool {
    matches!(owner, Owner::Variables(_) | Owner::Data(_)) && table.cause_of(owner) == Cause::RubyVm
}
