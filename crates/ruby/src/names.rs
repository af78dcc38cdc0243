//! Where a class keeps its name, derived from classes whose names are known.

use capture::{Address, Image, Memory};

use crate::interpreter::Landmark;
use crate::object_space::SlotType;
use crate::shapes::Shapes;
use crate::slots::Kinds;
use crate::tables::read_st_table;
use crate::word::word;

/// Longer names are cut: a program can give a class any name.
const LONGEST_NAME: usize = 1024;
/// A class's slot is searched so far for its name, or for a pointer towards it.
const SEARCHED_SLOT_BYTES: usize = 512;
/// What a class's slot points to is searched so far.
const SEARCHED_EXTENSION_BYTES: u64 = 64;
/// More class-level instance variables than a class has.
const MOST_VARIABLES: u64 = 4096;
/// Strings with this flag keep their bytes elsewhere (`RSTRING_NOEMBED`, in all versions).
const NOT_EMBEDDED: u64 = 1 << 13;

/// Where strings that are not `NOT_EMBEDDED` keep their length and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Embedding {
    /// The length in five bits of the flags from bit 14 on, the bytes at 16 (up to 3.1).
    LengthInFlags,
    /// The length at 16, the bytes at 24 (from 3.2 on).
    LengthInWord,
}

/// Where a class keeps its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeping {
    /// In a word of its slot (from 3.3 on).
    Word { at: usize },
    /// Among its instance variables, which a word of its slot points to; its shape says at which
    /// place the one with this name is (3.2).
    Variable { at: usize, shapes: Shapes, name: u64 },
    /// Under a key in a table that a word of what a word of its slot points to names (up to 3.1):
    /// the instance variables, among which the key is the id of `__classpath__`.
    Table { at: usize, within: u64, key: u64 },
}

/// How to read the names of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Naming {
    embedding: Embedding,
    keeping: Keeping,
}

/// Objects' slots, to be read one by one.
#[derive(Clone, Copy)]
pub(crate) struct Objects<'a> {
    pub(crate) image: &'a Image<'a>,
    pub(crate) kinds: Kinds<'a>,
}

impl Objects<'_> {
    /// The bytes of the slot at `at`, where it holds an object of this type.
    fn read(&self, at: Address, kind: SlotType) -> Option<Vec<u8>> {
        let (found, slot_bytes) = self.kinds.at(at)?;
        if found != kind {
            return None;
        }
        let mut bytes = vec![0; (slot_bytes as usize).min(SEARCHED_SLOT_BYTES)];
        self.image.read_exact(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The bytes of a class's or a module's slot.
    pub(crate) fn class(&self, at: Address) -> Option<Vec<u8>> {
        self.read(at, SlotType::CLASS).or_else(|| self.read(at, SlotType::MODULE))
    }

    fn string(&self, at: u64, embedding: Embedding) -> Option<Vec<u8>> {
        let slot = self.read(Address(at), SlotType::STRING)?;
        let flags = word(&slot, 0);
        if flags & NOT_EMBEDDED != 0 {
            let mut bytes = vec![0; usize::try_from(word(&slot, 16)).ok()?.min(LONGEST_NAME)];
            self.image.read_exact(Address(word(&slot, 24)), &mut bytes).ok()?;
            return Some(bytes);
        }
        let (length, from): (usize, usize) = match embedding {
            Embedding::LengthInFlags => ((flags >> 14 & 31) as usize, 16),
            Embedding::LengthInWord => (usize::try_from(word(&slot, 16)).ok()?, 24),
        };
        slot.get(from..from.checked_add(length)?).map(<[u8]>::to_vec)
    }

    /// The key and value pairs of the table at `table`.
    fn table(&self, table: Address) -> Option<Vec<(u64, u64)>> {
        read_st_table(self.image, table, MOST_VARIABLES)
    }
}

impl Naming {
    /// Derives where names are from classes and modules whose names are known: what names all of
    /// them right names the others too.
    pub(crate) fn derive(
        objects: Objects<'_>,
        landmarks: &[Landmark],
        shapes: Option<Shapes>,
    ) -> Option<Self> {
        let first = landmarks.first()?;
        let slot = objects.class(first.class)?;
        let offsets = || (16..slot.len()).step_by(8);
        let embeddings = [Embedding::LengthInWord, Embedding::LengthInFlags];
        let right = |naming: &Self| {
            landmarks.iter().all(|landmark| {
                naming
                    .bytes(objects, landmark.class)
                    .is_some_and(|it| it == landmark.name.as_bytes())
            })
        };
        // The name is the first variable that classes get which Ruby makes itself.
        let first_variable =
            shapes.and_then(|shapes| Some((shapes, shapes.first(objects.image, word(&slot, 0))?)));
        let direct = |embedding| {
            let words = offsets().map(move |at| Self { embedding, keeping: Keeping::Word { at } });
            let variables = offsets().filter_map(move |at| {
                let (shapes, name) = first_variable?;
                Some(Self { embedding, keeping: Keeping::Variable { at, shapes, name } })
            });
            words.chain(variables)
        };
        let mut all = embeddings.into_iter().flat_map(direct);
        if let Some(naming) = all.find(right) {
            return Some(naming);
        }
        let tables = embeddings.into_iter().flat_map(|embedding| {
            let slot = &slot;
            offsets().flat_map(move |at| Self::tables(objects, embedding, slot, at, first))
        });
        tables.collect::<Vec<_>>().into_iter().find(right)
    }

    /// The tables behind the pointer at `at` in which the class `of` has its name.
    fn tables(
        objects: Objects<'_>,
        embedding: Embedding,
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
            let Ok(table) = objects.image.read_address(extension.offset(within)) else {
                break;
            };
            for (key, value) in objects.table(table).into_iter().flatten() {
                if objects.string(value, embedding).is_some_and(|it| it == of.name.as_bytes()) {
                    found.push(Self { embedding, keeping: Keeping::Table { at, within, key } });
                }
            }
        }
        found
    }

    /// The bytes of a class's name.
    fn bytes(&self, objects: Objects<'_>, class: Address) -> Option<Vec<u8>> {
        let slot = objects.class(class)?;
        let name = match self.keeping {
            Keeping::Word { at } => word(&slot, at),
            Keeping::Variable { at, shapes, name } => {
                let place = shapes.place(objects.image, word(&slot, 0), name)?;
                let variables = Address(word(&slot, at));
                objects.image.read_u64(variables.offset(place * 8)).ok()?
            }
            Keeping::Table { at, within, key } => {
                let extension = Address(word(&slot, at));
                let table = objects.image.read_address(extension.offset(within)).ok()?;
                let mut variables = objects.table(table)?.into_iter();
                variables.find(|(own, _)| *own == key)?.1
            }
        };
        objects.string(name, self.embedding)
    }

    /// The content of the string in the slot at `at`, as it can be printed on terminals.
    pub(crate) fn text(&self, objects: Objects<'_>, at: u64) -> Option<String> {
        Some(printable(&objects.string(at, self.embedding)?))
    }

    /// The table of instance variables of a class, where it has its name in one (up to 3.1).
    pub(crate) fn variables(&self, objects: Objects<'_>, class: Address) -> Option<Address> {
        let Keeping::Table { at, within, .. } = self.keeping else { return None };
        let extension = Address(word(&objects.class(class)?, at));
        objects.image.read_address(extension.offset(within)).ok().filter(|it| it.0 != 0)
    }

    /// A class's name; `None` where it is anonymous, or has only a name that Ruby made up.
    pub(crate) fn name(&self, objects: Objects<'_>, class: Address) -> Option<String> {
        let bytes = self.bytes(objects, class)?;
        let text = printable(&bytes);
        let is_made_up = text.is_empty() || text.starts_with("#<");
        (!is_made_up).then_some(text)
    }
}

/// It will be printed on terminals.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_NAME)]);
    let plain = |it: char| if capture::is_control(it) { char::REPLACEMENT_CHARACTER } else { it };
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
