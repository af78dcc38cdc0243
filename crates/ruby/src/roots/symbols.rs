//! Ruby's global symbols: the names that belong to IDs.
//!
//! `ruby_global_symbols` is a variable of the interpreter (symbol.c, `set_id_entry`). Up to 4.0 one of its words is a hidden
//! array of hidden arrays, each with the names of 512 serial numbers, alternately a string and a symbol. From 4.1 on it is a
//! T_DATA object instead, the directory, whose structure points to more such objects; each has a list of 512 entries, a
//! symbol and a string. The word is recognized by names that are known.

use std::cell::RefCell;
use std::collections::HashMap;

use image::{Image, Memory};
use linux::Address;

use crate::layout::array::element;
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::model::slot::{SlotState, SlotType};
use crate::object_space::ObjectSpace;

/// The names of one array.
const ID_ENTRY_UNIT: u32 = 512;
/// An ID is a serial number, and in its lower bits the kind of name.
const ID_SCOPE_SHIFT: u32 = 4;

/// The names that belong to IDs.
#[derive(Debug, Clone)]
pub(crate) struct Symbols {
    class_names: ClassNames,
    place: Place,
    /// Names that were read already, by serial number.
    known: RefCell<HashMap<u32, String>>,
}

/// The object with all names.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The array of arrays.
    Array(Address),
    /// The directory of lists.
    Directory(Address),
}

/// The name of the directory's type.
const DIRECTORY_TYPE: &str = "symbol_id_entry_directory";
/// The offset of the pointer to the structure in T_DATA (`struct RTypedData`, from 3.3 on).
const DATA: u64 = 32;
/// The number of values and the capacity, which a list begins with (`rb_darray_meta_t` in darray.h).
const LIST_HEADER: u64 = 16;
/// `struct sym_id_entry`, and the offset of the string in it.
const LIST_ENTRY: u64 = 16;
const LIST_ENTRY_STRING: u64 = 8;

impl Place {
    /// The place that the object at `at` may be.
    fn of(space: &ObjectSpace, at: u64) -> Option<Self> {
        let index = space.slot_at(Address(at))?;
        let slot = space.slots.get(index as usize)?;
        if slot.state() == SlotState::Unread
            || !space.classes.get(slot.class() as usize)?.is_internal()
        {
            return None;
        }
        let is_directory =
            || space.data_type_of(index).and_then(|it| it.name.as_deref()) == Some(DIRECTORY_TYPE);
        match slot.kind() {
            SlotType::ARRAY => Some(Self::Array(Address(at))),
            SlotType::DATA if is_directory() => Some(Self::Directory(Address(at))),
            _ => None,
        }
    }

    /// The string that is the name with this serial number.
    fn string(self, image: &Image<'_>, serial: u32) -> Option<u64> {
        let (list, index) = (serial / ID_ENTRY_UNIT, serial % ID_ENTRY_UNIT);
        match self {
            Self::Array(array) => {
                let array = element(image, array, list)?;
                element(image, Address(array), index * 2)
            }
            Self::Directory(object) => {
                let within =
                    |count, index: u32| (u64::from(index) < count).then_some(u64::from(index));
                // `struct id_entry_dir`: the capacity, and the objects with the lists.
                let directory = image.read_address(object.offset(DATA)).ok()?;
                let list = within(image.read_u64(directory).ok()?, list)?;
                let lists = image.read_address(directory.offset(8)).ok()?;
                let object = image.read_address(lists.offset(list * 8)).ok()?;
                let list = image.read_address(object.offset(DATA)).ok()?;
                let index = within(image.read_u64(list).ok()?, index)?;
                let entry = list.offset(LIST_HEADER + index * LIST_ENTRY);
                image.read_u64(entry.offset(LIST_ENTRY_STRING)).ok()
            }
        }
    }
}

impl Symbols {
    /// Finds the symbols of a process: those by which each of the `known` names belongs to one of the
    /// serial numbers listed with it.
    pub(crate) fn find(
        space: &ObjectSpace,
        reader: ObjectReader<'_>,
        class_names: ClassNames,
        known: &[(&str, Vec<u32>)],
    ) -> Option<Self> {
        space.interpreter.variable_words(reader.image).find_map(|(_, word)| {
            let place = Place::of(space, word)?;
            let found = Self { class_names, place, known: RefCell::default() };
            let is_right = |(name, serials): &(&str, Vec<u32>)| {
                serials.iter().any(|&serial| found.name(reader, serial).as_deref() == Some(name))
            };
            (!known.is_empty() && known.iter().all(is_right)).then_some(found)
        })
    }

    /// The object with all names.
    pub(crate) fn object(&self) -> Address {
        match self.place {
            Place::Array(object) | Place::Directory(object) => object,
        }
    }

    /// The name with this serial number.
    pub(crate) fn name(&self, reader: ObjectReader<'_>, serial: u32) -> Option<String> {
        if let Some(known) = self.known.borrow().get(&serial) {
            return Some(known.clone());
        }
        let name = self.read(reader, serial)?;
        self.known.borrow_mut().insert(serial, name.clone());
        Some(name)
    }

    /// The name with this ID. (IDs of operators are not serial numbers, but no variable has one.)
    pub(crate) fn name_of_id(&self, reader: ObjectReader<'_>, id: u64) -> Option<String> {
        self.name(reader, u32::try_from(id >> ID_SCOPE_SHIFT).ok()?)
    }

    /// The name with this ID, which may be an operator's: the IDs of operators are their serial numbers
    /// (`rb_id_to_serial` in symbol.h).
    pub(crate) fn name_of_any_id(&self, reader: ObjectReader<'_>, id: u64) -> Option<String> {
        const MAX_OPERATOR: u64 = 255;
        if id <= MAX_OPERATOR { self.name(reader, id as u32) } else { self.name_of_id(reader, id) }
    }

    /// The name of the symbol that is this value: an ID with a tag, or an object with the name (`struct RSymbol` in symbol.h).
    pub(crate) fn name_of_symbol(&self, reader: ObjectReader<'_>, value: u64) -> Option<String> {
        const TAG: u64 = 0x0c;
        const NAME: u64 = 24;
        if value & 0xff == TAG {
            return self.name_of_id(reader, value >> 8);
        }
        let is_symbol = reader.type_at(Address(value)) == Some(SlotType::SYMBOL);
        let name = reader.image.read_u64(Address(value).offset(NAME)).ok().filter(|_| is_symbol)?;
        self.class_names.text(reader, name)
    }

    fn read(&self, reader: ObjectReader<'_>, serial: u32) -> Option<String> {
        self.class_names.text(reader, self.place.string(reader.image, serial)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::SyntheticMemory;

    /// A directory with room for three lists of 512 entries, of which the second is missing, as Ruby 4.1 writes it.
    #[test]
    fn the_strings_of_a_directory_are_found_by_serial_number() {
        const OBJECTS: u64 = 0x7f00_0000_0000;
        const STRUCTURES: u64 = 0x7f00_0010_0000;
        let mut memory = SyntheticMemory::default();
        memory.map(OBJECTS, 0x1000);
        memory.map(STRUCTURES, 0x10000);
        let data = |index: u64| OBJECTS + index * 40;
        memory.write_u64(data(0) + 32, STRUCTURES);
        memory.write_u64(STRUCTURES, 3);
        memory.write_u64(STRUCTURES + 8, STRUCTURES + 64);
        for (list, at) in [(0, STRUCTURES + 0x1000), (2, STRUCTURES + 0x8000)] {
            memory.write_u64(STRUCTURES + 64 + list * 8, data(1 + list));
            memory.write_u64(data(1 + list) + 32, at);
            memory.write_u64(at, 512);
            memory.write_u64(at + 8, 512);
            for entry in 0..512 {
                memory.write_u64(at + 16 + entry * 16, 0xdead);
                memory.write_u64(at + 24 + entry * 16, list << 16 | entry);
            }
        }
        memory.write_u64(STRUCTURES + 64 + 8, 0);
        let image = memory.image();
        let string = |serial| Place::Directory(Address(data(0))).string(&image, serial);
        assert_eq!([0, 7, 511].map(string), [Some(0), Some(7), Some(511)]);
        assert_eq!([512, 1023].map(string), [None; 2]);
        assert_eq!([1024, 1535].map(string), [Some(2 << 16), Some(2 << 16 | 511)]);
        assert_eq!([1536, u32::MAX].map(string), [None; 2]);
    }
}
