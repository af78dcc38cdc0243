//! What the numbers of names mean: Ruby's global symbols.
//!
//! `ruby_global_symbols` is a variable of the interpreter. Among its words is a hidden array of
//! hidden arrays, each with the names of 512 numbers, a string and a symbol in turn (symbol.c,
//! `set_id_entry`; up to 3.4). Which array it is, is told by names that are known.

use std::cell::RefCell;
use std::collections::HashMap;

use capture::{Address, Image, Memory};

use crate::interpreter::Interpreter;
use crate::layouts::{ARRAY_EMBEDDED, ARRAY_LENGTH_MASK, ARRAY_LENGTH_SHIFT};
use crate::names::{Naming, Objects};
use crate::object_space::{ObjectSpace, SlotState, SlotType};
use crate::word::word;

/// `ID_ENTRY_UNIT`.
const NAMES_IN_AN_ARRAY: u32 = 512;
/// `ID_SCOPE_SHIFT`: an ID is a serial number, and what kind of name it is.
const SCOPE_BITS: u32 = 4;
/// More bytes of variables than an interpreter has.
const MOST_VARIABLES: u64 = 16 << 20;
/// More arrays of names than there are: 67 million names.
const MOST_ARRAYS: u64 = 1 << 17;

/// The names of numbers.
pub(crate) struct Symbols<'a> {
    objects: Objects<'a>,
    naming: Naming,
    arrays: Vec<u64>,
    /// What was read already.
    known: RefCell<HashMap<u32, Option<String>>>,
}

impl<'a> Symbols<'a> {
    /// Finds the symbols of a process: those by which each of some known names is that of one of
    /// the serial numbers that it may have.
    pub(crate) fn find(
        space: &ObjectSpace,
        interpreter: &Interpreter,
        objects: Objects<'a>,
        naming: Naming,
        known: &[(&str, Vec<u32>)],
    ) -> Option<Self> {
        let hidden = |at: u64| {
            let slot = space.slots.get(space.slot_at(Address(at))? as usize)?;
            let is_hidden = space.classes.get(slot.class as usize)?.address.is_none();
            (is_hidden && slot.kind == SlotType::ARRAY && slot.state != SlotState::Unread)
                .then_some(())
        };
        variables(objects.image, interpreter).find_map(|(_, word)| {
            hidden(word)?;
            let arrays = read_array(objects.image, Address(word), MOST_ARRAYS)?;
            let found = Self { objects, naming, arrays, known: RefCell::default() };
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

    /// The name with this ID. (IDs of operators are no serial numbers; no variable has one.)
    pub(crate) fn name_of_id(&self, id: u64) -> Option<String> {
        self.name(u32::try_from(id >> SCOPE_BITS).ok()?)
    }

    fn read(&self, serial: u32) -> Option<String> {
        let array = *self.arrays.get((serial / NAMES_IN_AN_ARRAY) as usize)?;
        let place = serial % NAMES_IN_AN_ARRAY * 2;
        let image = self.objects.image;
        let (elements, length) = elements(image, Address(array))?;
        if u64::from(place) >= length {
            return None;
        }
        let name = image.read_u64(elements.offset(u64::from(place) * 8)).ok()?;
        self.naming.text(self.objects, name)
    }
}

/// The words of the interpreter's variables, with their addresses.
pub(crate) fn variables(
    image: &Image<'_>,
    interpreter: &Interpreter,
) -> impl Iterator<Item = (Address, u64)> {
    interpreter.variables.iter().flat_map(|range| {
        let mut bytes = vec![0; capture::length(range).min(MOST_VARIABLES) as usize];
        let read = image.read(range.start, &mut bytes);
        let start = range.start;
        (0..read / 8).map(move |at| (start.offset(at as u64 * 8), word(&bytes, at * 8)))
    })
}

/// Where the elements of the array in the slot at `at` are, and how many it has (`struct RArray` in
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

fn read_array(image: &Image<'_>, at: Address, most: u64) -> Option<Vec<u64>> {
    let (elements, length) = elements(image, at)?;
    if length > most {
        return None;
    }
    let mut bytes = vec![0; length as usize * 8];
    image.read_exact(elements, &mut bytes).ok()?;
    Some(bytes.chunks_exact(8).map(|it| word(it, 0)).collect())
}
