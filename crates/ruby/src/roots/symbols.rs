//! Ruby's global symbols: the names that belong to IDs.
//!
//! `ruby_global_symbols` is a variable of the interpreter. Among its words is a hidden array of hidden
//! arrays, each with the names of 512 serial numbers, alternately a string and a symbol (symbol.c,
//! `set_id_entry`; up to 3.4). The array is recognized by names that are known.

use std::cell::RefCell;
use std::collections::HashMap;

use capture::{Address, Image, Memory};

use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::layout::object_layouts::{ARRAY_EMBEDDED, ARRAY_LENGTH_MASK, ARRAY_LENGTH_SHIFT};
use crate::model::slot::{SlotState, SlotType};
use crate::object_space::ObjectSpace;
use crate::word::{word, words};

/// The names of one array.
const ID_ENTRY_UNIT: u32 = 512;
/// An ID is a serial number, and in its lower bits the kind of name.
const ID_SCOPE_SHIFT: u32 = 4;
/// More arrays of names than there are: 67 million names.
const MAX_ARRAYS: u64 = 1 << 17;

/// The names that belong to IDs.
pub(crate) struct Symbols<'a> {
    reader: ObjectReader<'a>,
    class_names: ClassNames,
    arrays: Vec<u64>,
    /// Names that were read already, by serial number.
    known: RefCell<HashMap<u32, Option<String>>>,
}

impl<'a> Symbols<'a> {
    /// Finds the symbols of a process: those by which each of the `known` names belongs to one of the
    /// serial numbers listed with it.
    pub(crate) fn find(
        space: &ObjectSpace,
        reader: ObjectReader<'a>,
        class_names: ClassNames,
        known: &[(&str, Vec<u32>)],
    ) -> Option<Self> {
        let hidden = |at: u64| {
            let slot = space.slots.get(space.slot_at(Address(at))? as usize)?;
            let is_hidden = space.classes.get(slot.class() as usize)?.is_internal();
            (is_hidden && slot.kind() == SlotType::ARRAY && slot.state() != SlotState::Unread)
                .then_some(())
        };
        space.interpreter.variable_words(reader.image).find_map(|(_, word)| {
            hidden(word)?;
            let arrays = read_array(reader.image, Address(word), MAX_ARRAYS)?;
            let found = Self { reader, class_names, arrays, known: RefCell::default() };
            let is_right = |(name, serials): &(&str, Vec<u32>)| {
                serials.iter().any(|&serial| found.name(serial).as_deref() == Some(name))
            };
            (!known.is_empty() && known.iter().all(is_right)).then_some(found)
        })
    }

    /// The name with this serial number.
    pub(crate) fn name(&self, serial: u32) -> Option<String> {
        if let Some(known) = self.known.borrow().get(&serial) {
            return known.clone();
        }
        let name = self.read(serial);
        self.known.borrow_mut().insert(serial, name.clone());
        name
    }

    /// The name with this ID. (IDs of operators are not serial numbers, but no variable has one.)
    pub(crate) fn name_of_id(&self, id: u64) -> Option<String> {
        self.name(u32::try_from(id >> ID_SCOPE_SHIFT).ok()?)
    }

    /// The name with this ID, which may be an operator's: the IDs of operators are their serial numbers
    /// (`rb_id_to_serial` in symbol.h).
    pub(crate) fn name_of_any_id(&self, id: u64) -> Option<String> {
        const MAX_OPERATOR: u64 = 255;
        if id <= MAX_OPERATOR { self.name(id as u32) } else { self.name_of_id(id) }
    }

    fn read(&self, serial: u32) -> Option<String> {
        let array = *self.arrays.get((serial / ID_ENTRY_UNIT) as usize)?;
        let place = serial % ID_ENTRY_UNIT * 2;
        let image = self.reader.image;
        let (elements, length) = elements(image, Address(array))?;
        if u64::from(place) >= length {
            return None;
        }
        let name = image.read_u64(elements.offset(u64::from(place) * 8)).ok()?;
        self.class_names.text(self.reader, name)
    }
}

/// The address and number of the elements of the array in the slot at `at` (`struct RArray` in
/// include/ruby/internal/core/rarray.h: length and pointer at 16 and 32; the same in all versions).
fn elements(image: &Image<'_>, at: Address) -> Option<(Address, u64)> {
    let mut slot = [0; 40];
    image.read_exact(at, &mut slot).ok()?;
    let flags = word(&slot, 0);
    if flags & 31 != u64::from(SlotType::ARRAY.0) {
        return None;
    }
    if flags & ARRAY_EMBEDDED != 0 {
        return Some((at.offset(16), flags >> ARRAY_LENGTH_SHIFT & ARRAY_LENGTH_MASK));
    }
    Some((Address(word(&slot, 32)), word(&slot, 16)))
}

fn read_array(image: &Image<'_>, at: Address, max: u64) -> Option<Vec<u64>> {
    let (elements, length) = elements(image, at)?;
    if length > max {
        return None;
    }
    let mut bytes = vec![0; length as usize * 8];
    image.read_exact(elements, &mut bytes).ok()?;
    Some(words(&bytes).collect())
}
