//! Where classes have their names, derived from classes whose names are known.

use image::{Image, Memory};
use linux::Address;

use crate::interpreter::Landmark;
use crate::layout::class_layout::DESTINATIONS;
use crate::layout::object;
use crate::layout::shape_tree::{ShapeHome, ShapeTree};
use crate::layout::st_table::read_pairs;
use crate::model::slot::{Slot, SlotType};
use crate::model::slot_index::SlotIndex;
use crate::word::word;

/// Longer names are cut off: a program can give a class any name.
const MAX_NAME: usize = 1024;
/// The first bytes of a class's slot, among which its name or a pointer towards it is searched for.
const SEARCHED_SLOT_BYTES: usize = 512;
/// The first bytes of its extension (`rb_classext_t`), among which the table that has the name is
/// searched for.
const SEARCHED_EXTENSION_BYTES: u64 = 64;
/// More class-level instance variables than a class has.
const MAX_VARIABLES: u64 = 4096;
/// The bytes of the smallest slot that may hold a string or a class.
const MIN_SLOT_BYTES: usize = 32;
/// Strings with this flag have their bytes elsewhere (`RSTRING_NOEMBED`, in all versions).
const NOT_EMBEDDED: u64 = 1 << 13;

/// The layout of strings that are not `NOT_EMBEDDED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringLayout {
    /// The length in five bits of the flags from bit 14 on, the bytes at 16 (up to 3.1).
    LengthInFlags,
    /// The length at 16, the bytes at 24 (from 3.2 on).
    LengthInWord,
}

impl StringLayout {
    /// The offset of the text in a slot that begins with these bytes, and its length, which may exceed the slot.
    fn text_in_slot(self, slot: &[u8]) -> (usize, u64) {
        match self {
            Self::LengthInFlags => (16, word(slot, 0) >> 14 & 31),
            Self::LengthInWord => (24, word(slot, 16)),
        }
    }
}

/// The place of a class's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamePlace {
    /// In a word of its slot (from 3.3 on).
    Word { at: usize },
    /// Among its instance variables, which a word of its slot points to. Its shape has the position
    /// of the one with this ID (3.2).
    Variable { at: usize, shape_tree: ShapeTree, name: u64 },
    /// Under a key of a table. A word of its slot points to its extension, and that to the table of
    /// instance variables, in which the key is the ID of `__classpath__` (up to 3.1).
    Table { at: usize, within: u64, key: u64 },
}

/// The layout of class names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassNames {
    string_layout: StringLayout,
    place: NamePlace,
}

/// Reads objects one by one.
#[derive(Clone, Copy)]
pub(crate) struct ObjectReader<'a> {
    pub(crate) image: &'a Image<'a>,
    /// The slots that were read from the same image; `None` for a process that runs, whose slots change. Then the type
    /// of an object is read from its flags, and callers have to check that there is an object.
    slots: Option<(&'a SlotIndex, &'a [Slot])>,
}

impl<'a> ObjectReader<'a> {
    /// Reads objects of the image that `slots` were read from.
    pub(crate) fn new(image: &'a Image<'a>, index: &'a SlotIndex, slots: &'a [Slot]) -> Self {
        Self { image, slots: Some((index, slots)) }
    }

    /// Reads objects of a running process.
    pub(crate) fn running(image: &'a Image<'a>) -> Self {
        Self { image, slots: None }
    }

    /// The type of the object whose slot begins at `at`.
    pub(crate) fn type_at(&self, at: Address) -> Option<SlotType> {
        match self.slots {
            Some((index, slots)) => Some(slots.get(index.slot_at(at)? as usize)?.kind()),
            None => Some(SlotType::of_flags(self.flags_at(at)?)),
        }
    }

    /// Where the object is to which `at` refers: at its new place if compaction has moved it, and not yet updated this reference.
    pub(crate) fn current_place(&self, at: Address) -> Address {
        if self.slots.is_none() || self.type_at(at) != Some(SlotType::MOVED) {
            return at;
        }
        let place = |word| self.image.read_address(at.offset(8 * word as u64)).ok();
        let is_object =
            |&at: &Address| self.type_at(at).is_some_and(|kind| kind != SlotType::MOVED);
        DESTINATIONS.into_iter().filter_map(place).find(is_object).unwrap_or(at)
    }

    /// The flags of the object whose slot begins at `at`.
    pub(crate) fn flags_at(&self, at: Address) -> Option<u64> {
        let is_address = at.0 != 0 && at.is_aligned(8);
        self.image.read_u64(at).ok().filter(|_| is_address)
    }

    /// The number of the type of the internal object at `at` (`imemo_type` in internal/imemo.h); `None` for other objects.
    pub(crate) fn imemo_number_at(&self, at: Address) -> Option<u8> {
        let is_object = self.slots.is_none() || self.type_at(at) == Some(SlotType::IMEMO);
        let flags = self.flags_at(at).filter(|_| is_object)?;
        (SlotType::of_flags(flags) == SlotType::IMEMO).then_some(object::imemo_number(flags))
    }

    /// The first bytes of the slot at `at`, if it holds an object of one of these types.
    fn read(&self, at: Address, kinds: &[SlotType]) -> Option<Vec<u8>> {
        let Some((index, slots)) = self.slots else { return self.read_running(at, kinds) };
        let (slot, slot_bytes) = index.slot_and_bytes_at(at)?;
        if !kinds.contains(&slots.get(slot as usize)?.kind()) {
            return None;
        }
        let mut bytes = vec![0; (slot_bytes as usize).min(SEARCHED_SLOT_BYTES)];
        self.image.read_exact(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The first bytes from `at` on. The size of the slot is unknown, so other slots may follow.
    fn read_running(&self, at: Address, kinds: &[SlotType]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; SEARCHED_SLOT_BYTES];
        let read = self.image.read(at, &mut bytes);
        bytes.truncate(read);
        let is_it = kinds.contains(&SlotType::of_flags(word(&bytes, 0)));
        (at.is_aligned(8) && is_it && read >= MIN_SLOT_BYTES).then_some(bytes)
    }

    /// The first bytes of the slot of a class or module.
    pub(crate) fn class(&self, at: Address) -> Option<Vec<u8>> {
        self.read(at, &[SlotType::CLASS, SlotType::MODULE])
    }

    /// The first bytes of the slot of a class, or of a module in the place where a class includes it.
    pub(crate) fn class_or_included(&self, at: Address) -> Option<Vec<u8>> {
        self.read(at, &[SlotType::CLASS, SlotType::ICLASS])
    }

    fn string(&self, at: u64, layout: StringLayout) -> Option<Vec<u8>> {
        let slot = self.read(Address(at), &[SlotType::STRING])?;
        let flags = word(&slot, 0);
        if flags & NOT_EMBEDDED != 0 {
            let mut bytes = vec![0; usize::try_from(word(&slot, 16)).ok()?.min(MAX_NAME)];
            self.image.read_exact(Address(word(&slot, 24)), &mut bytes).ok()?;
            return Some(bytes);
        }
        let (from, length) = layout.text_in_slot(&slot);
        slot.get(from..from.checked_add(usize::try_from(length).ok()?)?).map(<[u8]>::to_vec)
    }

    fn table(&self, table: Address) -> Option<Vec<(u64, u64)>> {
        read_pairs(self.image, table, MAX_VARIABLES)
    }
}

impl ClassNames {
    /// Derives the place of names from classes and modules whose names are known: it must yield the right name for all
    /// of them.
    pub(crate) fn derive(
        reader: ObjectReader<'_>,
        landmarks: &[Landmark],
        shape_tree: Option<ShapeTree>,
    ) -> Option<Self> {
        let first = landmarks.first()?;
        let slot = reader.class(first.class)?;
        let offsets = || (16..slot.len()).step_by(8);
        let string_layouts = [StringLayout::LengthInWord, StringLayout::LengthInFlags];
        let is_right = |names: &Self| {
            landmarks.iter().all(|landmark| {
                names.bytes(reader, landmark.class).is_some_and(|it| it == landmark.name.as_bytes())
            })
        };
        // The name is the first variable of classes that Ruby itself creates.
        let first_variable =
            shape_tree.filter(|it| it.home == ShapeHome::Vm).and_then(|shape_tree| {
                Some((shape_tree, shape_tree.first(reader.image, word(&slot, 0))?))
            });
        let direct = |string_layout| {
            let words =
                offsets().map(move |at| Self { string_layout, place: NamePlace::Word { at } });
            let variables = offsets().filter_map(move |at| {
                let (shape_tree, name) = first_variable?;
                let place = NamePlace::Variable { at, shape_tree, name };
                Some(Self { string_layout, place })
            });
            words.chain(variables)
        };
        let mut all = string_layouts.into_iter().flat_map(direct);
        if let Some(names) = all.find(is_right) {
            return Some(names);
        }
        let tables = string_layouts.into_iter().flat_map(|string_layout| {
            let slot = &slot;
            offsets().flat_map(move |at| Self::in_tables(reader, string_layout, slot, at, first))
        });
        tables.collect::<Vec<_>>().into_iter().find(is_right)
    }

    /// The places in tables behind the pointer at `at` that have the name of the class `of`.
    fn in_tables(
        reader: ObjectReader<'_>,
        string_layout: StringLayout,
        slot: &[u8],
        at: usize,
        of: &Landmark,
    ) -> Vec<Self> {
        let extension = Address(word(slot, at));
        if extension.0 == 0 || !extension.is_aligned(8) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for within in (0..SEARCHED_EXTENSION_BYTES).step_by(8) {
            let Ok(table) = reader.image.read_address(extension.offset(within)) else {
                break;
            };
            for (key, value) in reader.table(table).into_iter().flatten() {
                if reader.string(value, string_layout).is_some_and(|it| it == of.name.as_bytes()) {
                    found.push(Self { string_layout, place: NamePlace::Table { at, within, key } });
                }
            }
        }
        found
    }

    /// The bytes of a class's name.
    fn bytes(&self, reader: ObjectReader<'_>, class: Address) -> Option<Vec<u8>> {
        let slot = reader.class(class)?;
        let name = match self.place {
            NamePlace::Word { at } => word(&slot, at),
            NamePlace::Variable { at, shape_tree, name } => {
                let position = shape_tree.position(reader.image, word(&slot, 0), name)?;
                let variables = Address(word(&slot, at));
                reader.image.read_u64(variables.offset(position * 8)).ok()?
            }
            NamePlace::Table { at, within, key } => {
                let extension = Address(word(&slot, at));
                let table = reader.image.read_address(extension.offset(within)).ok()?;
                let mut variables = reader.table(table)?.into_iter();
                variables.find(|(own, _)| *own == key)?.1
            }
        };
        reader.string(name, self.string_layout)
    }

    /// The offset of the text of a string in its slot, which begins with these bytes, and its length, which may exceed the slot.
    pub(crate) fn text_in_slot(&self, slot: &[u8]) -> (usize, u64) {
        self.string_layout.text_in_slot(slot)
    }

    /// The content of the string at `at`, printable on terminals.
    pub(crate) fn text(&self, reader: ObjectReader<'_>, at: u64) -> Option<String> {
        Some(printable(&reader.string(at, self.string_layout)?))
    }

    /// The table of a class's instance variables, if its name is in one (up to 3.1).
    pub(crate) fn variables(&self, reader: ObjectReader<'_>, class: Address) -> Option<Address> {
        let NamePlace::Table { at, within, .. } = self.place else { return None };
        let extension = Address(word(&reader.class(class)?, at));
        reader.image.read_address(extension.offset(within)).ok().filter(|it| it.0 != 0)
    }

    /// The table with the indices of the variables of a class's objects (`iv_index_tbl`), which lies before that of its own variables (up
    /// to 3.1).
    pub(crate) fn indices_of_variables(
        &self,
        reader: ObjectReader<'_>,
        class: Address,
    ) -> Option<Address> {
        let NamePlace::Table { at, within, .. } = self.place else { return None };
        let extension = Address(word(&reader.class(class)?, at));
        let table = reader.image.read_address(extension.offset(within.checked_sub(8)?)).ok()?;
        Some(table).filter(|it| it.0 != 0 && it.is_aligned(8))
    }

    /// A class's name; `None` if it is anonymous, or has a name that Ruby made up.
    pub(crate) fn name(&self, reader: ObjectReader<'_>, class: Address) -> Option<String> {
        let bytes = self.bytes(reader, class)?;
        let text = printable(&bytes);
        let is_made_up = text.is_empty() || text.starts_with("#<");
        (!is_made_up).then_some(text)
    }
}

/// Text without control characters: names are printed on terminals.
fn printable(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(MAX_NAME)];
    let text = String::from_utf8_lossy(bytes);
    // Nearly all names.
    if bytes.iter().all(|it| it.is_ascii() && !it.is_ascii_control()) {
        return text.into_owned();
    }
    let plain = |it: char| if linux::is_control(it) { char::REPLACEMENT_CHARACTER } else { it };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_neither_moves_the_cursor_nor_turns_text() {
        assert_eq!(
            printable("Größe::\u{202e}Live\u{1b}[2J".as_bytes()),
            "Größe::\u{fffd}Live\u{fffd}[2J"
        );
    }
}
