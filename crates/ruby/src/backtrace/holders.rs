//! The instance variables of objects that have large collections.
//!
//! Up to 3.1 a class has a table with the index of each variable (`iv_index_tbl` of `rb_classext_t` in internal/class.h), before the table
//! of its own variables: the value is the index (2.7), or points to it (`rb_iv_index_tbl_entry` in variable.h). Later an object's shape
//! has the names in the order of the variables.

use std::collections::{BTreeSet, HashMap};

use image::{Image, Memory};
use linux::Address;

use crate::body::{BodyReader, Contents};
use crate::layout::class_names::ObjectReader;
use crate::layout::st_table::read_pairs;
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::roots::id_table::Budget;
use crate::roots::names::{MAX_VARIABLES, Names};
use crate::word::{word, words};

/// The elements of a large collection, at least. Smaller ones are no leak.
const MIN_ELEMENTS: u64 = 64;
/// The variables of an object that are looked at.
const MAX_WORDS: u64 = 256;
/// More variables of classes than a report names.
const MAX_HOLDERS: usize = 1 << 10;
/// The collections whose holders are looked at: more than a program has large ones.
const MAX_COLLECTIONS: usize = 1 << 22;
/// More ancestors than a class has.
const MAX_ANCESTORS: usize = 64;

/// A variable with which objects of a class hold a large collection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    /// The ID of its name.
    pub(crate) id: u64,
    /// Its name: `@rows`.
    pub(crate) variable: String,
    /// The names of the class and its ancestors, without modules.
    pub(crate) classes: Vec<String>,
}

impl Holder {
    /// The owners of the methods that use it, as labels begin.
    pub(crate) fn method_owners(&self) -> Vec<String> {
        self.classes.iter().map(|class| format!("{class}#")).collect()
    }

    /// Its class and name: `Registry#@rows`.
    pub(crate) fn name(&self) -> String {
        format!("{}#{}", self.classes.first().map_or("", String::as_str), self.variable)
    }
}

/// The variables with which objects hold large arrays, hashes and Sets.
pub(crate) fn holders(image: &Image<'_>, space: &ObjectSpace, names: &Names) -> Vec<Holder> {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let mut bodies = BodyReader::new(image, space);
    let is = |slot: u32, kinds: &[SlotType]| {
        space.slots.get(slot as usize).is_some_and(|it| it.is_live() && kinds.contains(&it.kind()))
    };
    // Collections are read in the order of memory.
    let mut held: Vec<(u32, u32, u64)> = Vec::new();
    for slot in 0..space.slots.len() as u32 {
        if !is(slot, &[SlotType::OBJECT]) || held.len() >= MAX_COLLECTIONS {
            continue;
        }
        let Some((Contents::Values { at, words: count }, _)) = bodies.contents(slot) else {
            continue;
        };
        let mut bytes = vec![0; (count.min(MAX_WORDS) * 8) as usize];
        let read = image.read(at, &mut bytes);
        let collections = (0..).zip(words(&bytes[..read])).filter_map(|(index, value)| {
            let value = space.slot_at(Address(value))?;
            let kinds = [SlotType::ARRAY, SlotType::HASH, SlotType::DATA];
            is(value, &kinds).then_some((value, slot, index))
        });
        held.extend(collections);
    }
    held.sort_unstable();
    held.retain(|&(collection, ..)| {
        bodies.contents(collection).is_some_and(|(contents, _)| contents.count() >= MIN_ELEMENTS)
    });
    let mut found: BTreeSet<(Address, u64)> = BTreeSet::new();
    let mut known = HashMap::new();
    let budget = Budget::new();
    for (_, holder, index) in held {
        let Some(at) = space.slot_address(holder as usize) else { continue };
        let mut head = [0; 16];
        if image.read_exact(at, &mut head).is_err() || found.len() >= MAX_HOLDERS {
            continue;
        }
        let (flags, class) = (word(&head, 0), Address(word(&head, 8)));
        let shape = space.shape_tree.map_or(0, |_| flags >> 32);
        let id = *known
            .entry((class, shape, index))
            .or_insert_with(|| id_of(reader, space, names, class, flags, index, &budget));
        found.extend(id.map(|id| (class, id)));
    }
    let holder = |(class, id): (Address, u64)| {
        let variable = names.symbols.name_of_id(reader, id).filter(|it| it.starts_with('@'))?;
        let classes = ancestors(reader, space, names, class);
        (!classes.is_empty()).then_some(Holder { id, variable, classes })
    };
    found.into_iter().filter_map(holder).collect()
}

/// The ID of the variable with this index of an object with these flags.
fn id_of(
    reader: ObjectReader<'_>,
    space: &ObjectSpace,
    names: &Names,
    class: Address,
    flags: u64,
    index: u64,
    budget: &Budget,
) -> Option<u64> {
    let image = reader.image;
    if budget.is_spent() {
        return None;
    }
    if let Some(shapes) = space.shape_tree {
        let mut positions = shapes.positions(image, flags, || budget.spend(1).is_some());
        return positions.find(|(_, position)| *position == index).map(|(id, _)| id);
    }
    let table = names.class_names.indices_of_variables(reader, class)?;
    let pairs = read_pairs(image, table, MAX_VARIABLES)?;
    budget.spend(pairs.len() as u64)?;
    let index_of = |value: u64| match value {
        0..=MAX_WORDS => Some(value),
        entry => image.read_u64(Address(entry)).ok().map(|it| it & u64::from(u32::MAX)),
    };
    pairs.into_iter().find(|(_, value)| index_of(*value) == Some(index)).map(|(id, _)| id)
}

/// The names of a class and of those that it inherits from. A class without a name, such as a singleton class, has that of the next one.
fn ancestors(
    reader: ObjectReader<'_>,
    space: &ObjectSpace,
    names: &Names,
    class: Address,
) -> Vec<String> {
    let Some(layout) = space.class_layout else { return Vec::new() };
    let mut all = Vec::new();
    let mut class = Some(class);
    for _ in 0..MAX_ANCESTORS {
        let Some(slot) = class.and_then(|at| reader.class_or_included(at)) else { break };
        all.extend(class.and_then(|class| names.class_names.name(reader, class)));
        class = layout.superclass_of(|number| word(&slot, number * 8));
    }
    all
}
