use image::{Image, Memory};
use linux::Address;

use crate::interpreter::Landmark;
use crate::layout::class_names::ObjectReader;
use crate::roots::id_table::{self, Budget};
use crate::word::word;

/// The first bytes of a class's extension (`rb_classext_t`), among which the table of its constants
/// is searched for.
const SEARCHED_EXTENSION_BYTES: u64 = 128;
/// The offset of the line in a constant's entry (`rb_const_entry_t` in constant.h, in all versions), behind the flag: both have 32 bits.
/// Then the value and the file.
const LINE: usize = 4;
const VALUE: usize = 8;
const FILE: usize = 16;

/// A constant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Constant {
    /// The serial number of its name.
    pub(crate) serial: u32,
    pub(crate) value: u64,
    /// The path of the file in which it was set, a string; 0 for Ruby's own.
    pub(crate) file: u64,
    /// The line of that file.
    pub(crate) line: u32,
}

/// The place of the table of a class's constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConstantPlace {
    /// The offset of the word of its slot that points to the table, or to its extension ...
    at: usize,
    /// ... which points to the table at this offset (up to 3.1).
    within: Option<u64>,
}

impl ConstantPlace {
    /// The place at which Object has a constant for each of the landmarks.
    pub(crate) fn derive(
        reader: ObjectReader<'_>,
        landmarks: &[Landmark],
        budget: &Budget,
    ) -> Option<Self> {
        let object = landmarks.iter().find(|it| it.name == "Object")?;
        let slot = reader.class(object.class)?;
        let offsets = || (16..slot.len()).step_by(8);
        let direct = offsets().map(|at| Self { at, within: None });
        let behind = offsets().flat_map(|at| {
            let within = (0..SEARCHED_EXTENSION_BYTES).step_by(8);
            within.map(move |within| Self { at, within: Some(within) })
        });
        direct.chain(behind).find(|place| {
            let constants = place.read(reader.image, &slot, budget);
            let has = |class: Address| constants.iter().any(|it| it.value == class.0);
            landmarks.iter().all(|landmark| has(landmark.class))
        })
    }

    /// The constants of the class in `slot`.
    pub(crate) fn read(self, image: &Image<'_>, slot: &[u8], budget: &Budget) -> Vec<Constant> {
        let table = self.table(image, slot);
        let table = table.and_then(|table| id_table::read(image, table, budget));
        let constant = |(serial, entry): (u32, u64)| {
            let mut bytes = [0; FILE + 8];
            image.read_exact(Address(entry), &mut bytes).ok()?;
            let line = (word(&bytes, 0) >> (8 * LINE)) as u32;
            Some(Constant { serial, value: word(&bytes, VALUE), file: word(&bytes, FILE), line })
        };
        table.into_iter().flatten().filter_map(constant).collect()
    }

    fn table(self, image: &Image<'_>, slot: &[u8]) -> Option<Address> {
        let pointer = Address(word(slot, self.at));
        if pointer.0 == 0 || !pointer.is_aligned(8) {
            return None;
        }
        match self.within {
            Some(within) => image.read_address(pointer.offset(within)).ok(),
            None => Some(pointer),
        }
    }
}
