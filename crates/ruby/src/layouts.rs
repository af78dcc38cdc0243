//! The words of objects that are in use, by type of object.
//!
//! Memory is recycled without being cleared, so the words behind those in use are an earlier
//! owner's. Each type's layout is believed only if the objects of the heap agree with it: an object
//! that does not is searched whole, and so are all objects of a type with many such objects.

use capture::{Finding, Image, Severity};

use crate::contents::{Content, Form};
use crate::hash_tables::HashTable;
use crate::interpreter::Interpreter;
use crate::object::Object;
use crate::object_space::SlotType;
use crate::shapes::Shapes;
use crate::territory::{Place, Territory};

/// The first of the flags that each type has for itself (`FL_USHIFT`).
const OWN_FLAGS: u32 = 12;
/// Flags are the same in 2.7 to 3.4 unless said otherwise.
const fn own_flag(number: u32) -> u64 {
    1 << (OWN_FLAGS + number)
}

/// `ROBJECT_EMBED`: the variables are in the slot.
const OBJECT_EMBEDDED: u64 = own_flag(1);
/// `RSTRING_NOEMBED`: the bytes are not in the slot.
const STRING_NOT_EMBEDDED: u64 = own_flag(1);
/// `RARRAY_EMBED_FLAG`: the elements are in the slot.
pub(crate) const ARRAY_EMBEDDED: u64 = own_flag(1);
/// The length of such an array: two bits up to 3.1, seven since. The others are not set.
pub(crate) const ARRAY_LENGTH_SHIFT: u32 = OWN_FLAGS + 3;
pub(crate) const ARRAY_LENGTH_MASK: u64 = 0x7f;
/// The number of members that are in a struct's slot: two bits up to 3.2, seven since. The third
/// says then that the members are in the transient heap; no slot had room for as many as it means.
const STRUCT_LENGTH_SHIFT: u32 = OWN_FLAGS + 1;
const STRUCT_LENGTH_MASK: u64 = 0x7f;
/// `BIGNUM_EMBED_FLAG`: the digits are in the slot.
const BIGNUM_EMBEDDED: u64 = own_flag(2);
/// `RHASH_ST_TABLE_FLAG`: a table of any size, not one of up to eight pairs.
const HASH_HAS_TABLE: u64 = own_flag(3);
/// The number of pairs in a small table, and of those that were ever used.
const HASH_SIZE_SHIFT: u32 = OWN_FLAGS + 4;
const HASH_BOUND_SHIFT: u32 = OWN_FLAGS + 8;
const HASH_NUMBER_MASK: u64 = 0xf;
/// `RHASH_AR_TABLE_MAX_SIZE`.
const MAX_PAIRS: u64 = 8;
/// The first word of a table that is in the slot (from 3.3 on), and of the pairs of a small one.
const HASH_TABLE_WORD: usize = 3;
const HASH_PAIRS_WORD: usize = 4;
/// The words of a slot that has room for a table.
const WORDS_WITH_TABLE: usize = HASH_TABLE_WORD + (HashTable::BYTES / 8) as usize;
/// `imemo_env`, the variables of a block that outlived its method.
const IMEMO_ENV: u8 = 0;
/// Up to this word no value is the address of an object: `false`, `nil`, and small numbers of C's.
const MAX_SPECIAL: u64 = 0x34;

/// So many objects of a type may be in the midst of a change, or garbage ...
const MAX_MISFITS: u32 = 16;
/// ... and one in so many.
const OBJECTS_PER_MISFIT: u32 = 64;
/// Shapes that are looked up again and again: a power of two.
const REMEMBERED_SHAPES: usize = 1024;

/// A word of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A reference to another object, or a value that is none.
    Value(u64),
    /// Anything.
    Word(u64),
    /// Where its memory is, and what is in it.
    Memory(u64, Content),
    /// Where a Hash's `st_table` is.
    Table(u64),
    /// Where an IO's `rb_io_t` is.
    Io(u64),
}

impl Part {
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Value(word)
            | Self::Word(word)
            | Self::Memory(word, _)
            | Self::Table(word)
            | Self::Io(word) => word,
        }
    }
}

/// How many objects of a type agree with its layout.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    objects: u32,
    misfits: u32,
}

/// The layouts of objects.
pub(crate) struct Layouts<'a> {
    image: &'a Image<'a>,
    /// From 3.2 on, where they can be derived.
    shapes: Option<Shapes>,
    /// The number of variables by shape.
    known_shapes: Vec<Option<(u32, u64)>>,
    /// Whether instance variables of structs have a word behind the members (from 4.0 on).
    has_fields_behind_members: bool,
    /// By type.
    tallies: [Tally; 32],
    is_refuted: [bool; 32],
}

impl<'a> Layouts<'a> {
    pub(crate) fn new(image: &'a Image<'a>, interpreter: &Interpreter) -> Self {
        let shapes = match interpreter.vm(image) {
            Some(_) => Shapes::find(image, interpreter),
            None => Shapes::find_tree(image, interpreter),
        };
        Self {
            image,
            shapes,
            known_shapes: vec![None; REMEMBERED_SHAPES],
            has_fields_behind_members: interpreter.is_at_least(4, 0),
            tallies: Default::default(),
            is_refuted: Default::default(),
        }
    }

    /// Gives up the layouts of types that many objects do not agree with. Returns whether there are
    /// such: then the objects have to be read again.
    pub(crate) fn refute(&mut self) -> bool {
        let mut has_refuted = false;
        for (tally, is_refuted) in self.tallies.iter().zip(&mut self.is_refuted) {
            let tolerated = MAX_MISFITS.max(tally.objects / OBJECTS_PER_MISFIT);
            if tally.misfits > tolerated.min(tally.objects / 2) {
                *is_refuted = true;
                has_refuted = true;
            }
        }
        self.tallies = Default::default();
        has_refuted
    }

    /// Types whose layout is not known.
    pub(crate) fn findings(&self) -> Option<Finding> {
        let types: Vec<&str> = (0..32)
            .filter(|&kind| self.is_refuted[usize::from(kind)])
            .map(|kind| SlotType(kind).name())
            .collect();
        let what = format!(
            "the layout of {} could not be derived: unused words in them may be taken for pointers",
            types.join(", ")
        );
        (!types.is_empty()).then(|| Finding::general(Severity::Note, what))
    }

    /// Calls `part` with each word of an object that is in use; with all of them, if that is not
    /// known.
    pub(crate) fn parts(
        &mut self,
        object: &Object<'_>,
        territory: &Territory<'_>,
        mut part: impl FnMut(Part),
    ) {
        let kind = usize::from(object.kind.0 % 32);
        if !self.is_refuted[kind] {
            let fits = self.known_parts(object, territory, &mut part);
            if let Some(fits) = fits {
                self.tallies[kind].objects += 1;
                if fits {
                    return;
                }
                self.tallies[kind].misfits += 1;
            }
        }
        // These have no class, and another word of theirs in its place.
        let first = if object.kind.has_no_class() { 1 } else { 2 };
        object.words_from(first).for_each(|word| part(Part::Word(word)));
    }

    /// The words of an object in use. Returns whether the object agrees with the layout of its
    /// type; `None` if that is not known at all.
    fn known_parts(
        &mut self,
        object: &Object<'_>,
        territory: &Territory<'_>,
        part: &mut impl FnMut(Part),
    ) -> Option<bool> {
        let mut reader = Reader { object, territory, part };
        Some(match object.kind {
            SlotType::FLOAT => true,
            SlotType::STRING => reader.string(),
            SlotType::ARRAY => reader.array(),
            SlotType::STRUCT => reader.members(self.has_fields_behind_members),
            SlotType::HASH => reader.hash(),
            SlotType::BIGNUM => reader.bignum(),
            SlotType::FILE => reader.memory_at(2, Part::Io),
            SlotType::OBJECT => match self.shapes {
                Some(shapes) => {
                    let variables = self.variables(shapes, object.flags);
                    reader.shaped_object(variables)
                }
                None => reader.object(),
            },
            SlotType::IMEMO if object.imemo_type() == IMEMO_ENV => return reader.env(),
            _ => return None,
        })
    }

    /// The number of variables of an object with these flags.
    fn variables(&mut self, shapes: Shapes, flags: u64) -> Option<u64> {
        let number = (flags >> 32) as u32;
        let place = number as usize % REMEMBERED_SHAPES;
        match self.known_shapes[place] {
            Some((known, variables)) if known == number => Some(variables),
            _ => {
                let variables = shapes.count(self.image, flags)?;
                self.known_shapes[place] = Some((number, variables));
                Some(variables)
            }
        }
    }
}

/// Reads the parts of one object. Each way returns whether the object is as the layout has it.
struct Reader<'a, F> {
    object: &'a Object<'a>,
    territory: &'a Territory<'a>,
    part: &'a mut F,
}

impl<F: FnMut(Part)> Reader<'_, F> {
    fn is_slot(&self, word: u64) -> bool {
        self.territory.slot_at(word).is_some()
    }

    fn is_memory(&self, word: u64) -> bool {
        word.is_multiple_of(8) && self.territory.at(word) == Place::Private
    }

    /// The values in `count` words of the slot, from `first` on.
    fn values(&mut self, first: usize, count: usize) -> bool {
        if first + count > self.object.len() {
            return false;
        }
        let mut are_values = true;
        for number in first..first + count {
            let word = self.object.word(number);
            (self.part)(Part::Value(word));
            are_values &= !word.is_multiple_of(8) || word <= MAX_SPECIAL || self.is_slot(word);
        }
        are_values
    }

    /// The pointer in this word, if there is one.
    fn memory_at(&mut self, number: usize, meaning: impl Fn(u64) -> Part) -> bool {
        let word = self.object.word(number);
        if word == 0 {
            return true;
        }
        let is_memory = self.is_memory(word);
        if is_memory {
            (self.part)(meaning(word));
        }
        is_memory
    }

    /// A string that shares another's bytes names that one where its capacity would be, so the flag
    /// that says so, another one from 3.4 on, need not be known.
    fn string(&mut self) -> bool {
        const POINTER: usize = 3;
        const OWNER: usize = 4;
        if self.object.flags & STRING_NOT_EMBEDDED != 0 {
            let owner = self.object.word(OWNER);
            let is_shared = matches!(self.territory.at(owner), Place::HeapPage(_));
            // The bytes of a literal may be the interpreter's or a library's own.
            (self.part)(if is_shared {
                Part::Value(owner)
            } else {
                Part::Memory(self.object.word(POINTER), Content::BYTES)
            });
        }
        true
    }

    /// `struct RArray`: the length, the capacity or the array whose elements they are, the pointer.
    fn array(&mut self) -> bool {
        let flags = self.object.flags;
        if flags & ARRAY_EMBEDDED != 0 {
            return self.values(2, (flags >> ARRAY_LENGTH_SHIFT & ARRAY_LENGTH_MASK) as usize);
        }
        let (length, owner) = (self.object.word(2), self.object.word(3));
        if self.is_slot(owner) {
            (self.part)(Part::Value(owner));
        }
        self.memory_at(4, |at| Part::Memory(at, Content::new(Form::Values, length)))
    }

    /// `struct RStruct`: the members, or their number and a pointer to them.
    fn members(&mut self, has_fields: bool) -> bool {
        let length = (self.object.flags >> STRUCT_LENGTH_SHIFT & STRUCT_LENGTH_MASK) as usize;
        if length > 0 && 2 + length <= self.object.len() {
            if has_fields {
                (self.part)(Part::Value(self.object.word(2 + length)));
            }
            return self.values(2, length);
        }
        let length = self.object.word(2);
        self.memory_at(3, |at| Part::Memory(at, Content::new(Form::Values, length)))
    }

    /// `struct RHash`: up to 3.2 a pointer to the table, the default, and hints; from 3.3 on the
    /// default, and the table itself.
    fn hash(&mut self) -> bool {
        let flags = self.object.flags;
        let has_table = flags & HASH_HAS_TABLE != 0;
        let number = |shift: u32| flags >> shift & HASH_NUMBER_MASK;
        let (pairs, bound) = (number(HASH_SIZE_SHIFT), number(HASH_BOUND_SHIFT));
        if !has_table && (pairs > bound || bound > MAX_PAIRS) {
            return false;
        }
        if self.object.len() < WORDS_WITH_TABLE {
            return self.values(3, 1)
                && if has_table {
                    self.object.word(2) != 0 && self.memory_at(2, Part::Table)
                } else {
                    let content = Content::new(Form::Values, 2 * bound);
                    self.memory_at(2, |at| Part::Memory(at, content))
                };
        }
        if !has_table {
            return self.values(2, 1) && self.values(HASH_PAIRS_WORD, 2 * bound as usize);
        }
        let words = std::array::from_fn(|word| self.object.word(HASH_TABLE_WORD + word));
        let table = HashTable::from_words(words).filter(|it| it.is_in(self.territory));
        let Some(table) = table else { return false };
        for (at, content) in table.memory() {
            (self.part)(Part::Memory(at.0, content));
        }
        self.values(2, 1)
    }

    /// `struct RBignum`: the digits, or their number and a pointer to them.
    fn bignum(&mut self) -> bool {
        self.object.flags & BIGNUM_EMBEDDED != 0
            || self.memory_at(3, |at| Part::Memory(at, Content::BYTES))
    }

    /// `struct RObject` up to 3.1: three variables; or the number that there is room for, of which
    /// the unused are undefined, a pointer to them, and the class's table of names.
    fn object(&mut self) -> bool {
        if self.object.flags & OBJECT_EMBEDDED != 0 {
            return self.values(2, 3);
        }
        let (room, names) = (self.object.word(2) as u32, self.object.word(4));
        if names != 0 && !self.is_memory(names) || room == 0 && self.object.word(3) != 0 {
            return false;
        }
        (self.part)(Part::Word(names));
        self.memory_at(3, |at| Part::Memory(at, Content::new(Form::Values, u64::from(room))))
    }

    /// `struct RObject` from 3.2 on: as many variables as the shape says, or a pointer to them.
    /// There may be a table instead, if there are too many shapes.
    fn shaped_object(&mut self, variables: Option<u64>) -> bool {
        let Some(variables) = variables else { return false };
        if self.object.flags & OBJECT_EMBEDDED != 0 {
            return self.values(2, variables as usize);
        }
        let content = match variables {
            0 => Content::UNKNOWN,
            _ => Content::new(Form::Values, variables),
        };
        self.memory_at(2, |at| Part::Memory(at, content))
    }

    /// `rb_env_t`: the bytecode, where the environment ends, where it begins, and its size. The
    /// first two prove the others.
    fn env(&mut self) -> Option<bool> {
        let [code, end, at] = [1, 2, 3].map(|word| self.object.word(word));
        let words = u64::from(self.object.word(4) as u32);
        let is_within = (1..words).contains(&(end.wrapping_sub(at) / 8)) && end > at;
        let fits = (code == 0 || self.is_slot(code)) && is_within && self.is_memory(at);
        if !fits {
            return None;
        }
        (self.part)(Part::Value(code));
        (self.part)(Part::Memory(at, Content::new(Form::Words, words)));
        Some(true)
    }
}
