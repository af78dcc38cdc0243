//! Finds the types of T_DATA objects: the objects of C extensions and of Ruby's own C classes.
//!
//! Typed objects point to an `rb_data_type_t`, a constant of the library that made them, with a name
//! and the functions that mark, free and measure the object
//! (include/ruby/internal/core/rtypeddata.h; its first four words are the same from 2.7 to 4.1).
//! Untyped objects (`Data_Wrap_Struct`) have a function to mark and one to free instead, and none to
//! measure.

use std::collections::HashMap;

use image::{Image, Memory};
use linux::{Address, Mapping};

use crate::address_classifier::AddressClassifier;
use crate::finding::Finding;
use crate::layout::object::Object;
use crate::model::class::{Class, ClassKind};
use crate::model::data_type::{DataObjects, DataType};
use crate::model::slot::{Slot, SlotType};
use crate::word::word;

/// Longer than the name of any type.
const MAX_NAME: usize = 200;
/// More different pairs of words than the types of a process cause; further objects have no known
/// type.
const MAX_SIGNATURES: usize = 1 << 16;
/// `RUBY_DEFAULT_FREE`: memory that `xfree` frees.
const RUBY_DEFAULT_FREE: u64 = u64::MAX;
/// Classes whose objects have a known type in all versions. There is always a thread.
const KNOWN: [(&str, &str); 3] =
    [("Thread", "VM/thread"), ("Encoding", "encoding"), ("Binding", "binding")];

/// The words of T_DATA slots that identify their types, collected while slots are read.
#[derive(Debug, Default)]
pub(crate) struct Signatures {
    known: HashMap<(u64, u64), u32>,
    all: Vec<(u64, u64)>,
    objects: DataObjects,
}

impl Signatures {
    /// Adds the T_DATA object in this slot.
    pub(crate) fn push(
        &mut self,
        slot: u32,
        object: &Object<'_>,
        classifier: &AddressClassifier<'_>,
    ) {
        let (mut first, second) = (object.word(2), object.word(3));
        if classifier.slot_at(first).is_some() {
            // The object's instance variables (from 4.0 on), not its type.
            first = 0;
        }
        let own = self.number((first, second));
        self.objects.slots.push(slot);
        self.objects.types.push(own);
    }

    /// Adds the objects of later slots.
    pub(crate) fn append(&mut self, more: Self) {
        let numbers: Vec<u32> = more.all.iter().map(|&signature| self.number(signature)).collect();
        self.objects.slots.extend(more.objects.slots);
        let number =
            |&own: &u32| numbers.get(own as usize).copied().unwrap_or(DataObjects::NO_TYPE);
        self.objects.types.extend(more.objects.types.iter().map(number));
    }

    fn number(&mut self, signature: (u64, u64)) -> u32 {
        match self.known.get(&signature) {
            Some(&own) => own,
            None if self.all.len() == MAX_SIGNATURES => DataObjects::NO_TYPE,
            None => {
                let own = self.all.len() as u32;
                self.known.insert(signature, own);
                self.all.push(signature);
                own
            }
        }
    }

    /// Finds the types of all objects, and gives each class the type of most of its objects. Objects of the class Object get
    /// classes of their own, which have the names of their types.
    pub(crate) fn resolve(
        self,
        image: &Image<'_>,
        slots: &mut [Slot],
        classes: &mut Vec<Class>,
    ) -> (Vec<DataType>, DataObjects, Option<Finding>) {
        let Self { all, mut objects, .. } = self;
        if objects.slots.is_empty() {
            return Default::default();
        }
        let layout = [Layout::WithFlag, Layout::Tagged].into_iter().find_map(|layout| {
            let (types, meant) = layout.read_all(image, &all);
            let type_of = |signature: u32| types.get(*meant.get(signature as usize)? as usize);
            has_known_types(&objects, slots, classes, type_of).then_some((types, meant))
        });
        let Some((types, meant)) = layout else {
            objects.types.fill(DataObjects::NO_TYPE);
            return (Vec::new(), objects, Some(Finding::DataTypesUnknown));
        };
        for signature in &mut objects.types {
            *signature = meant.get(*signature as usize).copied().unwrap_or(DataObjects::NO_TYPE);
        }
        split_object(&types, &objects, slots, classes);
        split_hidden(&types, &objects, slots, classes);
        give_classes_their_types(&objects, slots, classes);
        (types, objects, None)
    }
}

/// The place of the pointer to the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// The third word, up to 3.4. The fourth is 1; from 3.3 on it is 3 if the structure is in the slot.
    WithFlag,
    /// The fourth word, with flags in its low bits (from 4.0 on).
    Tagged,
}

impl Layout {
    /// The types of these signatures, and for each signature the index of its type.
    fn read_all(self, image: &Image<'_>, signatures: &[(u64, u64)]) -> (Vec<DataType>, Vec<u32>) {
        let mut types: Vec<DataType> = Vec::new();
        let mut known: HashMap<(Address, bool), u32> = HashMap::new();
        let mut type_of = Vec::with_capacity(signatures.len());
        for &signature in signatures {
            let found = self.read(image, signature);
            let key = (found.address, found.name.is_some());
            type_of.push(*known.entry(key).or_insert_with(|| {
                types.push(found);
                types.len() as u32 - 1
            }));
        }
        (types, type_of)
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
            DataType {
                address: own.unwrap_or_default(),
                name: None,
                has_memsize: false,
                frees: second != 0,
            }
        })
    }
}

/// Reads the `rb_data_type_t` at `at`; `None` if it is not valid.
fn read_type(image: &Image<'_>, at: Address) -> Option<DataType> {
    if at.0 == 0 || !at.is_aligned(8) || is_code(image, at) {
        return None;
    }
    let mut bytes = [0; 32];
    image.read_exact(at, &mut bytes).ok()?;
    let [name, _mark, free, size] = std::array::from_fn(|number| word(&bytes, number * 8));
    // `dmark` may be a list of members instead of a function.
    let may_be_code = |word: u64| word == 0 || is_code(image, Address(word));
    if !may_be_code(size) || !(may_be_code(free) || free == RUBY_DEFAULT_FREE) {
        return None;
    }
    let name = image.read_c_string(Address(name), MAX_NAME + 1).ok()?;
    let name = String::from_utf8(name).ok()?;
    let is_name = (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(linux::is_control);
    is_name.then_some(DataType {
        address: at,
        name: Some(name),
        has_memsize: size != 0,
        frees: free != 0,
    })
}

fn is_code(image: &Image<'_>, at: Address) -> bool {
    image.state.mappings.find(at).is_some_and(|mapping: &Mapping| mapping.executable)
}

/// Returns true if objects of known classes have the types that they must have.
fn has_known_types<'t>(
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
        let class = slots.get(slot as usize).map_or(Slot::NO_CLASS, |slot| slot.class());
        let Some(expected) = known.get(&class) else { continue };
        if type_of(signature).and_then(|it| it.name.as_deref()) != Some(expected) {
            return false;
        }
        met += 1;
    }
    met > 0
}

/// Splits the class Object by type: C code uses it as a dummy for structures that programs hardly see.
fn split_object(
    types: &[DataType],
    objects: &DataObjects,
    slots: &mut [Slot],
    classes: &mut Vec<Class>,
) {
    let is_object = |class: &Class| class.name.as_deref() == Some("Object");
    let Some(object) = classes.iter().position(is_object) else { return };
    let mut known: HashMap<u32, u32> = HashMap::new();
    for (slot, data_type) in objects.iter() {
        let own = slots.get_mut(slot as usize).filter(|it| it.class() as usize == object);
        let name = data_type.and_then(|it| Some((it, types.get(it as usize)?.name.as_ref()?)));
        let (Some(own), Some((data_type, name))) = (own, name) else { continue };
        let class = *known.entry(data_type).or_insert_with(|| {
            classes.push(Class { name: Some(name.clone()), ..classes[object].clone() });
            classes.len() as u32 - 1
        });
        if class < Slot::NO_CLASS {
            *own = own.with_class(class);
        }
    }
}

/// Gives hidden objects for constants that are not loaded yet a class of their own: a module may have thousands.
fn split_hidden(
    types: &[DataType],
    objects: &DataObjects,
    slots: &mut [Slot],
    classes: &mut Vec<Class>,
) {
    let hidden = ClassKind::Hidden(SlotType::DATA);
    let Some(data) = classes.iter().position(|class| class.kind == hidden) else { return };
    let class = classes.len() as u32;
    let is_autoload = |it: u32| types.get(it as usize).is_some_and(DataType::is_autoload);
    let autoloads =
        objects.iter().filter(|it| it.1.is_some_and(is_autoload) && class < Slot::NO_CLASS);
    let mut has_any = false;
    for (slot, _) in autoloads {
        let own = slots.get_mut(slot as usize).filter(|it| it.class() as usize == data);
        if let Some(own) = own {
            *own = own.with_class(class);
            has_any = true;
        }
    }
    if has_any {
        classes.push(Class { kind: hidden, name: Some("(autoload)".into()), data_type: None });
    }
}

/// Gives each class the type of most of its objects. Types differ only if a class also represents anonymous subclasses
/// or Ruby's hidden objects.
fn give_classes_their_types(objects: &DataObjects, slots: &[Slot], classes: &mut [Class]) {
    let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
    for (slot, data_type) in objects.iter() {
        let class = slots.get(slot as usize).map_or(Slot::NO_CLASS, |slot| slot.class());
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
