//! What the objects of C extensions and of Ruby's own C classes (T_DATA) wrap.
//!
//! Two kinds are told apart. Typed ones name a `rb_data_type_t`, a constant of the library that
//! made them: its name, and the functions that mark, free and measure the object
//! (include/ruby/internal/core/rtypeddata.h; its first four words are the same from 2.7 to 4.1).
//! Untyped ones (`Data_Wrap_Struct`) have two functions in that place, to mark and to free, and
//! none to measure.

use std::collections::HashMap;

use capture::{Address, Finding, Image, Mapping, Memory, Severity};

use crate::object::Object;
use crate::object_space::{Class, Slot};
use crate::territory::Territory;

/// Longer names are no types' names.
const LONGEST_NAME: usize = 200;
/// More pairs of words than the types of a process give; objects beyond have no known type.
const MOST_SIGNATURES: usize = 1 << 16;
/// The signature or type of what has none.
const NONE: u32 = u32::MAX;
/// `RUBY_DEFAULT_FREE`: memory that `xfree` frees.
const DEFAULT_FREE: u64 = u64::MAX;
/// Classes whose objects are of a type that is known, in all versions. There is always a thread.
const KNOWN: [(&str, &str); 3] =
    [("Thread", "VM/thread"), ("Encoding", "encoding"), ("Binding", "binding")];

/// What objects wrap: the same for all that one piece of C code made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataType {
    /// Where it is known by, which lies in the library that made it: its description, a
    /// `rb_data_type_t`. For objects without a type the function that frees them or, where that is
    /// none of their own, the one that marks them; 0 where they have neither.
    pub address: Address,
    /// Its name, as the library's author chose it: `VM/thread`, `OpenSSL/X509`; `None` for objects
    /// without a type.
    pub name: Option<String>,
    /// Whether it has a function that says how much memory its objects hold: without one Ruby
    /// counts their slots only. That there is one does not mean that it counts everything.
    pub has_memsize: bool,
}

/// The objects that wrap something, eight bytes for each.
#[derive(Debug, Clone, Default)]
pub struct DataObjects {
    slots: Vec<u32>,
    types: Vec<u32>,
}

impl DataObjects {
    /// The slot of each and its type, an index into
    /// [`ObjectSpace::data_types`](crate::ObjectSpace::data_types), ascending by slot; no type
    /// where it could not be told.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<u32>)> + '_ {
        let types = self.types.iter().map(|&it| (it != NONE).then_some(it));
        self.slots.iter().copied().zip(types)
    }

    /// The type of the object in this slot; `None` where it is none that wraps something, or of a
    /// type that could not be told.
    #[must_use]
    pub fn type_of(&self, slot: u32) -> Option<u32> {
        let found = self.slots.binary_search(&slot).ok()?;
        Some(self.types[found]).filter(|&it| it != NONE)
    }
}

/// The words of T_DATA slots by which their types are told, as they are met.
#[derive(Debug, Default)]
pub(crate) struct Signatures {
    known: HashMap<(u64, u64), u32>,
    all: Vec<(u64, u64)>,
    objects: DataObjects,
}

impl Signatures {
    /// Takes the object in this slot, a T_DATA.
    pub(crate) fn push(&mut self, slot: u32, object: &Object<'_>, territory: &Territory<'_>) {
        let (mut first, second) = (object.word(2), object.word(3));
        if territory.slot_at(first).is_some() {
            // The object's instance variables (from 4.0 on), which say nothing of its type.
            first = 0;
        }
        let signature = (first, second);
        let own = match self.known.get(&signature) {
            Some(&own) => own,
            None if self.all.len() == MOST_SIGNATURES => NONE,
            None => {
                let own = self.all.len() as u32;
                self.known.insert(signature, own);
                self.all.push(signature);
                own
            }
        };
        self.objects.slots.push(slot);
        self.objects.types.push(own);
    }

    /// Tells the types of all objects, and gives each class that of most of its objects.
    pub(crate) fn resolve(
        self,
        image: &Image<'_>,
        slots: &[Slot],
        classes: &mut [Class],
    ) -> (Vec<DataType>, DataObjects, Option<Finding>) {
        let Self { all, mut objects, .. } = self;
        if objects.slots.is_empty() {
            return Default::default();
        }
        let layout = [Layout::WithFlag, Layout::Tagged].into_iter().find_map(|layout| {
            let (types, meant) = layout.read_all(image, &all);
            let type_of = |signature: u32| types.get(*meant.get(signature as usize)? as usize);
            names_known(&objects, slots, classes, type_of).then_some((types, meant))
        });
        let Some((types, meant)) = layout else {
            objects.types.fill(NONE);
            let what = "the types of objects of C extensions could not be derived";
            return (Vec::new(), objects, Some(Finding::general(Severity::Note, what)));
        };
        for signature in &mut objects.types {
            *signature = meant.get(*signature as usize).copied().unwrap_or(NONE);
        }
        give_classes_their_types(&objects, slots, classes);
        (types, objects, None)
    }
}

/// Where typed objects name their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// In the third word; the fourth is 1, from 3.3 on 3 where the struct is in the slot too (up
    /// to 3.4).
    WithFlag,
    /// In the fourth word, whose low bits say whether the struct is in the slot (from 4.0 on).
    Tagged,
}

impl Layout {
    /// The types that these signatures mean, and for each signature which of them.
    fn read_all(self, image: &Image<'_>, signatures: &[(u64, u64)]) -> (Vec<DataType>, Vec<u32>) {
        let mut types: Vec<DataType> = Vec::new();
        let mut known: HashMap<(Address, bool), u32> = HashMap::new();
        let mut meant = Vec::with_capacity(signatures.len());
        for &signature in signatures {
            let found = self.read(image, signature);
            let key = (found.address, found.name.is_some());
            meant.push(*known.entry(key).or_insert_with(|| {
                types.push(found);
                types.len() as u32 - 1
            }));
        }
        (types, meant)
    }

    fn read(self, image: &Image<'_>, (first, second): (u64, u64)) -> DataType {
        let named = match self {
            Self::WithFlag => matches!(second, 1..=3).then_some(first),
            Self::Tagged => Some(second & !7),
        };
        let typed = named.and_then(|at| read_type(image, Address(at)));
        typed.unwrap_or_else(|| {
            let mut functions = [second, first].into_iter().map(Address);
            let own = functions.find(|&it| is_code(image, it));
            DataType { address: own.unwrap_or_default(), name: None, has_memsize: false }
        })
    }
}

/// Reads the `rb_data_type_t` at `at`; `None` where there is none.
fn read_type(image: &Image<'_>, at: Address) -> Option<DataType> {
    if at.0 == 0 || !at.is_aligned(8) || is_code(image, at) {
        return None;
    }
    let [name, _mark, free, size] = {
        let mut bytes = [0; 32];
        image.read_exact(at, &mut bytes).ok()?;
        std::array::from_fn(|word| {
            u64::from_le_bytes(bytes[word * 8..][..8].try_into().expect("8 bytes"))
        })
    };
    // What marks may be a list of members instead of a function.
    let may_be_code = |word: u64| word == 0 || is_code(image, Address(word));
    if !may_be_code(size) || !(may_be_code(free) || free == DEFAULT_FREE) {
        return None;
    }
    let name = image.read_c_string(Address(name), LONGEST_NAME + 1).ok()?;
    let name = String::from_utf8(name).ok()?;
    let is_name =
        (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(capture::is_control);
    is_name.then_some(DataType { address: at, name: Some(name), has_memsize: size != 0 })
}

fn is_code(image: &Image<'_>, at: Address) -> bool {
    image.state.mappings.find(at).is_some_and(|mapping: &Mapping| mapping.executable)
}

/// Whether the objects of the classes that are known are of the types that they must be of.
fn names_known<'t>(
    objects: &DataObjects,
    slots: &[Slot],
    classes: &[Class],
    type_of: impl Fn(u32) -> Option<&'t DataType>,
) -> bool {
    let known: HashMap<u32, &str> = (0..)
        .zip(classes)
        .filter_map(|(index, class)| {
            let own = class.name.as_deref()?;
            Some((index, KNOWN.iter().find(|(name, _)| *name == own)?.1))
        })
        .collect();
    let mut met = 0;
    for (&slot, &signature) in objects.slots.iter().zip(&objects.types) {
        let class = slots.get(slot as usize).map_or(Slot::NO_CLASS, |slot| slot.class);
        let Some(expected) = known.get(&class) else { continue };
        if type_of(signature).and_then(|it| it.name.as_deref()) != Some(expected) {
            return false;
        }
        met += 1;
    }
    met > 0
}

/// Gives each class the type of most of its objects: all are of one, unless subclasses that have no
/// name of their own or Ruby's hidden objects are counted together.
fn give_classes_their_types(objects: &DataObjects, slots: &[Slot], classes: &mut [Class]) {
    let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
    for (slot, data_type) in objects.iter() {
        let class = slots.get(slot as usize).map_or(Slot::NO_CLASS, |slot| slot.class);
        if let Some(data_type) = data_type {
            *counts.entry((class, data_type)).or_default() += 1;
        }
    }
    let mut counts: Vec<((u32, u32), u64)> = counts.into_iter().collect();
    counts
        .sort_unstable_by_key(|&((class, data_type), count)| (class, count, u32::MAX - data_type));
    for ((class, data_type), _) in counts {
        if let Some(class) = classes.get_mut(class as usize) {
            class.data_type = Some(data_type);
        }
    }
}
