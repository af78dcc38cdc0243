//! Weak references: memory that refers to objects, but does not retain them.
//!
//! The GC removes these references when the object dies. Until then they would seem to retain garbage. They are:
//!
//! - hash tables of the interpreter whose keys are objects: generic instance variables, object ids, deduplicated
//!   strings, call infos (`generic_iv_tbl_`, `obj_to_id_tbl`, `frozen_strings`, `ci_table`), and the keys of
//!   `finalizer_table`. The value of an object that is alive belongs to that object, as the variables of a string do.
//!   But the GC marks all finalizers: hidden arrays with the procs;
//! - hash tables of the interpreter whose values are objects that it finds by number: `id_to_obj_tbl`;
//! - the keys of WeakKeyMap, which are pointers to references. A value belongs to its key;
//! - objects whose references are all weak ([`DataType::is_weak`], [`ruby::ImemoType::is_weak`]).

use ruby::{ClassKind, DataType, ObjectSpace, SlotType};

use crate::Cause;
use crate::ownership::bits::Bits;
use crate::ownership::graph::{Keyed, KeyedValue, PointerGraph};
use crate::ownership::owner::Owner;
use crate::ownership::table::OwnerTable;
use crate::ownership::trace::Trace;

/// The weak references of a process.
pub(crate) struct WeakReferences {
    /// Nodes that retain nothing: the entries of weak hash tables.
    tables: Bits,
    /// The values that objects retain as keys of weak hash tables, by key.
    values: Vec<KeyedValue>,
    /// The arrays with the finalizers of objects. They are retained even if the objects are not.
    pub(crate) finalizers: Vec<u32>,
}

impl WeakReferences {
    pub(crate) fn find(graph: &PointerGraph, table: &OwnerTable<'_>, trace: &Trace) -> Self {
        let mut tables = Bits::new(graph.len());
        for &node in &graph.hash_tables {
            let is_weak = match trace.owner_of(node as usize) {
                Owner::Data(class) if table.type_of(class).is_some_and(DataType::has_weak_keys) => {
                    true
                }
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
        Self { tables, values, finalizers }
    }

    /// Returns true if a node retains nothing.
    pub(crate) fn is_weak_table(&self, node: u32) -> bool {
        self.tables.contains(node)
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

    /// The values that the object in this slot retains, since it is a key of weak hash tables.
    pub(crate) fn values_of(&self, slot: u32) -> impl Iterator<Item = KeyedValue> + '_ {
        let first = self.values.partition_point(|value| value.key < slot);
        self.values[first..].iter().take_while(move |value| value.key == slot).copied()
    }
}

fn is_hidden_array(space: &ObjectSpace, slot: u32) -> bool {
    let class =
        space.slots.get(slot as usize).and_then(|it| space.classes.get(it.class() as usize));
    class.is_some_and(|class| class.kind == ClassKind::Hidden(SlotType::ARRAY))
}

/// Returns true for the interpreter's variables and the structures behind them, which it also wraps in objects
/// (RubyVM). Other objects of Ruby's, such as the jump tables of `case`, retain the keys of their tables.
fn is_interpreters(table: &OwnerTable<'_>, owner: Owner) -> bool {
    matches!(owner, Owner::Variables(_) | Owner::Data(_)) && table.cause_of(owner) == Cause::RubyVm
}
