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
use crate::word::word;

/// The names of one array.
const ID_ENTRY_UNIT: u32 = 512;
/// An ID is a serial number, and in its lower bits the kind of name.
const ID_SCOPE_SHIFT: u32 = 4;

/// The names that belong to IDs.
#[derive(Debug, Clone)]
pub(crate) struct Symbols {
    class_names: ClassNames,
    /// The array of arrays.
    array: Address,
    /// Names that were read already, by serial number.
    known: RefCell<HashMap<u32, String>>,
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
        let hidden = |at: u64| {
            let slot = space.slots.get(space.slot_at(Address(at))? as usize)?;
            let is_hidden = space.classes.get(slot.class() as usize)?.is_internal();
            (is_hidden && slot.kind() == SlotType::ARRAY && slot.state() != SlotState::Unread)
                .then_some(())
        };
        space.interpreter.variable_words(reader.image).find_map(|(_, word)| {
            hidden(word)?;
            let found = Self { class_names, array: Address(word), known: RefCell::default() };
            let is_right = |(name, serials): &(&str, Vec<u32>)| {
                serials.iter().any(|&serial| found.name(reader, serial).as_deref() == Some(name))
            };
            (!known.is_empty() && known.iter().all(is_right)).then_some(found)
        })
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

    fn read(&self, reader: ObjectReader<'_>, serial: u32) -> Option<String> {
        let array = element(reader.image, self.array, serial / ID_ENTRY_UNIT)?;
        let name = element(reader.image, Address(array), serial % ID_ENTRY_UNIT * 2)?;
        self.class_names.text(reader, name)
    }
}

/// The element with this index of the array in the slot at `at`.
pub(crate) fn element(image: &Image<'_>, at: Address, index: u32) -> Option<u64> {
    let (elements, length) = elements(image, at)?;
    let index = u64::from(index);
    image.read_u64(elements.offset(index * 8)).ok().filter(|_| index < length)
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
