//! The words of objects that are in use, by type of object.
//!
//! Memory is recycled without being cleared, so words that are not in use are left over from earlier
//! owners. A type's layout is accepted only if the objects of the heap agree with it: of an object
//! that does not, all words are read, and so they are of all objects of a type with many such
//! objects.

use image::Image;

use crate::address_classifier::{AddressClassifier, Place};
use crate::finding::Finding;
use crate::layout::class_layout::CLASS_BYTES;
use crate::layout::context::Basics;
use crate::layout::embedded::{Embedded, Used};
use crate::layout::imemo;
use crate::layout::object::Object;
use crate::layout::regexp::{self, REGEXP_BYTES};
use crate::layout::shape_tree::{ShapeHome, ShapeTree, Variables};
use crate::layout::st_table::TableLayout;
use crate::model::content::{Content, Form};
use crate::model::imemo::ImemoType;
use crate::model::slot::SlotType;

/// `FL_USHIFT`: the first of the flags that each type defines for itself.
const FL_USHIFT: u32 = 12;
/// `FL_USER0` and so on. The flags below are the same in 2.7 to 3.4 unless noted otherwise.
const fn fl_user(number: u32) -> u64 {
    1 << (FL_USHIFT + number)
}

/// `ROBJECT_EMBED`: the variables are in the slot (up to 3.4).
pub(crate) const OBJECT_EMBEDDED: u64 = fl_user(1);
/// `ROBJECT_HEAP`: they are not (4.0).
pub(crate) const OBJECT_NOT_EMBEDDED: u64 = fl_user(4);
/// `RSTRING_NOEMBED`: the bytes are not in the slot.
pub(crate) const STRING_NOT_EMBEDDED: u64 = fl_user(1);
/// `RARRAY_EMBED_FLAG`: the elements are in the slot.
pub(crate) const ARRAY_EMBEDDED: u64 = fl_user(1);
/// The length of such an array (`RARRAY_EMBED_LEN_MASK`): two bits up to 3.1, seven since. The others
/// are zero.
pub(crate) const ARRAY_LENGTH_SHIFT: u32 = FL_USHIFT + 3;
pub(crate) const ARRAY_LENGTH_MASK: u64 = 0x7f;
/// The number of members in a struct's slot (`RSTRUCT_EMBED_LEN_MASK`): two bits up to 3.2, seven
/// since. Up to 3.2 the third bit means that the members are in the transient heap; as a number it is
/// too large for any slot of these releases.
pub(crate) const STRUCT_LENGTH_SHIFT: u32 = FL_USHIFT + 1;
pub(crate) const STRUCT_LENGTH_MASK: u64 = 0x7f;
/// `BIGNUM_EMBED_FLAG`: the digits are in the slot.
pub(crate) const BIGNUM_EMBEDDED: u64 = fl_user(2);
/// `RHASH_ST_TABLE_FLAG`: it has an `st_table`, not an `ar_table` of up to eight pairs.
pub(crate) const HASH_HAS_TABLE: u64 = fl_user(3);
/// The number of pairs in an `ar_table` (`RHASH_AR_TABLE_SIZE_SHIFT`), and the number of pairs that were ever in use.
pub(crate) const HASH_SIZE_SHIFT: u32 = FL_USHIFT + 4;
pub(crate) const HASH_BOUND_SHIFT: u32 = FL_USHIFT + 8;
pub(crate) const HASH_NUMBER_MASK: u64 = 0xf;
/// `RHASH_AR_TABLE_MAX_SIZE`.
const MAX_PAIRS: u64 = 8;
/// The first word of an `st_table` in the slot (from 3.3 on), and of the pairs of an `ar_table`.
pub(crate) const HASH_TABLE_WORD: usize = 3;
pub(crate) const HASH_PAIRS_WORD: usize = 4;
/// The words of a Hash's slot up to 3.2, which has a pointer to the table. No later Hash is in a slot of this size.
pub(crate) const WORDS_WITH_TABLE_POINTER: usize = 5;
/// The number of `imemo_cref` in all releases.
const IMEMO_CREF: u8 = 1;
/// Further internal objects whose words in use are known.
const IMEMO_TYPES: [ImemoType; 3] =
    [ImemoType::Callcache, ImemoType::Constcache, ImemoType::Fields];
/// The words of a MatchData up to its regular expression. The others are numbers and pointers to such.
const MATCH_WORDS: usize = 5;
/// No value up to this one is the address of an object: `false`, `nil`, and small numbers of C code.
pub const MAX_SPECIAL: u64 = 0x34;

/// Of the objects of a type, this many may disagree with its layout, since they are in the middle of
/// a change, or garbage ...
const MAX_MISFITS: u32 = 16;
/// ... or one in this many.
const OBJECTS_PER_MISFIT: u32 = 64;
/// The size of the cache of shapes, a power of two.
const CACHED_SHAPES: usize = 1024;

/// A word of an object, by its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectWord {
    /// A `VALUE`: a reference to another object, or a value that is not an object.
    Value(u64),
    /// Anything; if it points to memory, with this content.
    Any(u64, Content),
    /// A pointer to memory of its own, and the content of that.
    Memory(u64, Content),
    /// A pointer to a Hash's `st_table`.
    Table(u64),
    /// A pointer to an IO's `rb_io_t`.
    Io(u64),
}

impl ObjectWord {
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Value(word)
            | Self::Any(word, _)
            | Self::Memory(word, _)
            | Self::Table(word)
            | Self::Io(word) => word,
        }
    }
}

/// The place of a struct's instance variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StructFields {
    /// In a table of all objects (up to 3.4).
    Elsewhere,
    /// In the internal object that the word behind the members refers to (4.0).
    BehindMembers,
    /// In the one that the word before the members refers to (from 4.1 on).
    BeforeMembers,
}

/// The number of objects of a type, and the number of them that disagree with its layout.
#[derive(Debug, Clone, Copy, Default)]
struct Agreement {
    objects: u32,
    misfits: u32,
}

impl Agreement {
    fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.misfits += other.misfits;
    }
}

/// The objects of a type that the last collection marked, and the others: what garbage refers to may be gone before it.
#[derive(Debug, Clone, Copy, Default)]
struct Agreements {
    marked: Agreement,
    unmarked: Agreement,
}

impl Agreements {
    fn count(&mut self, is_marked: bool, fits: bool) {
        let objects = if is_marked { &mut self.marked } else { &mut self.unmarked };
        objects.add(Agreement { objects: 1, misfits: (!fits).into() });
    }

    /// Returns true if many objects disagree. The others count only if hardly any are marked.
    fn refute(self) -> bool {
        let mut decisive = self.marked;
        if decisive.objects < MAX_MISFITS {
            decisive.add(self.unmarked);
        }
        let Agreement { objects, misfits } = decisive;
        misfits > MAX_MISFITS.max(objects / OBJECTS_PER_MISFIT).min(objects / 2)
    }
}

/// The layouts of objects, by type.
pub(crate) struct ObjectLayouts<'a> {
    image: &'a Image<'a>,
    /// From 3.2 on.
    shape_tree: Option<ShapeTree>,
    /// Shapes with their variables.
    cached_shapes: Vec<Option<(u32, Variables)>>,
    fields_of_structs: StructFields,
    table_layout: TableLayout,
    /// The numbers of `imemo_callcache`, `imemo_constcache` and `imemo_fields`.
    imemo_numbers: [u8; 3],
    /// The words of a class that may refer to objects.
    class_words: usize,
    embedded: Embedded<'a>,
    agreements: [Agreements; 32],
    is_refuted: [bool; 32],
}

impl<'a> ObjectLayouts<'a> {
    pub(crate) fn new(basics: &'a Basics<'a>) -> Self {
        Self {
            image: basics.image,
            shape_tree: basics.shape_tree,
            cached_shapes: vec![None; CACHED_SHAPES],
            fields_of_structs: basics.interpreter.fields_of_structs(),
            table_layout: basics.interpreter.table_layout(),
            imemo_numbers: imemo::numbers_of(basics.interpreter, IMEMO_TYPES),
            class_words: basics.class_layout.words,
            embedded: Embedded::new(basics.image, basics.interpreter.table_layout()),
            agreements: Default::default(),
            is_refuted: Default::default(),
        }
    }

    /// Layouts for other objects: the same types have none, and no object was counted.
    pub(crate) fn for_others(&self) -> Self {
        Self {
            image: self.image,
            shape_tree: self.shape_tree,
            cached_shapes: vec![None; CACHED_SHAPES],
            fields_of_structs: self.fields_of_structs,
            table_layout: self.table_layout,
            imemo_numbers: self.imemo_numbers,
            class_words: self.class_words,
            embedded: self.embedded.for_others(),
            agreements: Default::default(),
            is_refuted: self.is_refuted,
        }
    }

    /// Counts the objects that were read with `others`, too.
    pub(crate) fn count(&mut self, others: &Self) {
        for (all, more) in self.agreements.iter_mut().zip(&others.agreements) {
            all.marked.add(more.marked);
            all.unmarked.add(more.unmarked);
        }
    }

    /// Gives up the layouts of types that many objects disagree with. Returns true if there are any:
    /// the objects have to be read again then.
    pub(crate) fn refute(&mut self) -> bool {
        let mut has_refuted = false;
        for (agreements, is_refuted) in self.agreements.iter().zip(&mut self.is_refuted) {
            if agreements.refute() {
                *is_refuted = true;
                has_refuted = true;
            }
        }
        self.agreements = Default::default();
        has_refuted
    }

    /// Reports the types whose layout was given up.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let types: Vec<_> = (0..32)
            .filter(|&kind| self.is_refuted[usize::from(kind)])
            .map(|kind| SlotType(kind).name())
            .collect();
        (!types.is_empty()).then_some(Finding::ObjectLayoutsUnknown { types })
    }

    /// Calls `each` with the words of an object that are in use, or with all of them if its layout is
    /// unknown. `is_marked` is true if the last collection marked it.
    pub(crate) fn words_of(
        &mut self,
        object: &Object<'_>,
        is_marked: bool,
        classifier: &AddressClassifier<'_>,
        mut each: impl FnMut(ObjectWord),
    ) {
        let kind = usize::from(object.kind.0 % 32);
        if !self.is_refuted[kind] {
            let fits = self.known_words(object, classifier, &mut each);
            if let Some(fits) = fits {
                self.agreements[kind].count(is_marked, fits);
                if fits {
                    return;
                }
            }
        }
        let first = if object.kind.has_no_class() { 1 } else { 2 };
        let content = content_of(object.kind);
        let used = match object.kind {
            SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS
                if object.len() <= CLASS_BYTES / 8 =>
            {
                &Used::UpTo(self.class_words)
            }
            SlotType::MATCH => &Used::UpTo(MATCH_WORDS),
            SlotType::DATA => self.embedded.used(object),
            _ => &Used::All,
        };
        for (number, word) in (first..).zip(object.words_from(first)) {
            if used.has(number) || classifier.slot_at(word).is_none() {
                each(ObjectWord::Any(word, content));
            }
        }
    }

    /// Calls `each` with the words of an object that are in use. Returns true if the object agrees
    /// with the layout of its type; `None` if its type has no known layout.
    fn known_words(
        &mut self,
        object: &Object<'_>,
        classifier: &AddressClassifier<'_>,
        each: &mut impl FnMut(ObjectWord),
    ) -> Option<bool> {
        let mut reader = Reader { object, classifier, each };
        let [call_cache, constant_cache, fields] = self.imemo_numbers;
        Some(match object.kind {
            SlotType::FLOAT => true,
            SlotType::STRING => reader.string(),
            SlotType::ARRAY => reader.array(),
            SlotType::STRUCT => reader.members(self.fields_of_structs),
            SlotType::HASH => reader.hash(self.table_layout),
            SlotType::BIGNUM => reader.bignum(),
            SlotType::REGEXP => reader.regexp(),
            SlotType::FILE => reader.memory_at(2, ObjectWord::Io),
            SlotType::OBJECT => match self.shape_tree {
                Some(shape_tree) => {
                    let variables = self.variables(shape_tree, object.flags);
                    let flags = object.flags;
                    let is_embedded = match shape_tree.home {
                        ShapeHome::Short => match ShapeTree::layout(flags) {
                            ShapeTree::EMBEDDED => true,
                            ShapeTree::EXTENDED => return Some(reader.values(2, 1)),
                            _ => return Some(false),
                        },
                        ShapeHome::Variable => flags & OBJECT_NOT_EMBEDDED == 0,
                        ShapeHome::Vm | ShapeHome::Tree => flags & OBJECT_EMBEDDED != 0,
                    };
                    let Some(variables) = variables else { return Some(false) };
                    reader.shaped_object(shape_tree.home, variables, is_embedded)
                }
                None => reader.object(),
            },
            SlotType::IMEMO if object.is_environment() => return reader.env(),
            // The refinements, the module and the outer place. The visibility behind them is in a few bits of its word.
            SlotType::IMEMO if object.imemo_number() == IMEMO_CREF => reader.values(1, 3),
            // The GC marks the value, but not the place of the code (`ic_cref`), which may be gone.
            SlotType::IMEMO if object.imemo_number() == constant_cache => reader.values(1, 1),
            // The class and its method, which may be gone. The words behind them are no pointers to objects or memory, and from 4.0 on the
            // last one of a new cache is an earlier object's.
            SlotType::IMEMO if object.imemo_number() == call_cache => {
                reader.values(1, 2);
                true
            }
            // The object that has the variables, and as many variables as the shape has.
            SlotType::IMEMO if object.imemo_number() == fields => {
                let shape_tree = self.shape_tree?;
                let variables = self.variables(shape_tree, object.flags)?;
                let is_embedded = object.flags & OBJECT_NOT_EMBEDDED == 0;
                let fits = reader.values(1, 1)
                    && reader.shaped_object(shape_tree.home, variables, is_embedded);
                return fits.then_some(true);
            }
            _ => return None,
        })
    }

    /// The variables of an object with these flags.
    fn variables(&mut self, shape_tree: ShapeTree, flags: u64) -> Option<Variables> {
        let number = (flags >> 32) as u32;
        let place = number as usize % CACHED_SHAPES;
        match self.cached_shapes[place] {
            Some((known, variables)) if known == number => Some(variables),
            _ => {
                let variables = shape_tree.variables_of(self.image, flags)?;
                self.cached_shapes[place] = Some((number, variables));
                Some(variables)
            }
        }
    }
}

/// The content of memory that an object of this type points to, if its layout is unknown.
fn content_of(kind: SlotType) -> Content {
    match kind {
        SlotType::REGEXP => Content::REGEXP,
        SlotType::MATCH => Content::NO_OBJECTS,
        _ => Content::UNKNOWN,
    }
}

/// Reads the words of one object. The methods named after types return true if the object agrees
/// with the layout.
struct Reader<'a, F> {
    object: &'a Object<'a>,
    classifier: &'a AddressClassifier<'a>,
    each: &'a mut F,
}

impl<F: FnMut(ObjectWord)> Reader<'_, F> {
    fn is_slot(&self, word: u64) -> bool {
        self.classifier.slot_at(word).is_some()
    }

    fn is_memory(&self, word: u64) -> bool {
        word.is_multiple_of(8) && self.classifier.at(word) == Place::Private
    }

    /// Reads `count` values of the slot, from the word `first` on.
    fn values(&mut self, first: usize, count: usize) -> bool {
        if first + count > self.object.len() {
            return false;
        }
        let mut are_values = true;
        for number in first..first + count {
            let word = self.object.word(number);
            (self.each)(ObjectWord::Value(word));
            are_values &= !word.is_multiple_of(8) || word <= MAX_SPECIAL || self.is_slot(word);
        }
        are_values
    }

    /// Reads `count` keys and values from this word on. A value whose key was deleted stays, but is no reference.
    fn pairs(&mut self, first: usize, count: usize) -> bool {
        if first + 2 * count > self.object.len() {
            return false;
        }
        let words = (first..first + 2 * count).map(|number| self.object.word(number));
        let mut are_values = true;
        for word in Content::of_pairs(count as u64).references(words) {
            (self.each)(ObjectWord::Value(word));
            are_values &= !word.is_multiple_of(8) || word <= MAX_SPECIAL || self.is_slot(word);
        }
        are_values
    }

    /// Reads the pointer in this word, if there is one.
    fn memory_at(&mut self, number: usize, meaning: impl Fn(u64) -> ObjectWord) -> bool {
        let word = self.object.word(number);
        if word == 0 {
            return true;
        }
        let is_memory = self.is_memory(word);
        if is_memory {
            (self.each)(meaning(word));
        }
        is_memory
    }

    /// A string that shares the bytes of another one refers to that one in place of its capacity, so
    /// the flag for it, which differs from 3.4 on, need not be known.
    fn string(&mut self) -> bool {
        const POINTER: usize = 3;
        const OWNER: usize = 4;
        if self.object.flags & STRING_NOT_EMBEDDED != 0 {
            let owner = self.object.word(OWNER);
            let is_shared = matches!(self.classifier.at(owner), Place::HeapPage);
            // The bytes of a literal may belong to the interpreter or a library.
            (self.each)(if is_shared {
                ObjectWord::Value(owner)
            } else {
                ObjectWord::Memory(self.object.word(POINTER), Content::BYTES)
            });
        }
        true
    }

    /// `struct RRegexp`: the program, and the source, which is a string. From 4.1 on the source comes first, and behind the number of
    /// users the program is in the slot itself.
    fn regexp(&mut self) -> bool {
        const PROGRAM: usize = 4;
        if self.object.len() >= PROGRAM + REGEXP_BYTES / 8 {
            for part in regexp::POINTERS {
                for number in part.start / 8..part.end / 8 {
                    let word = self.object.word(PROGRAM + number as usize);
                    (self.each)(ObjectWord::Any(word, Content::NO_OBJECTS));
                }
            }
            return self.values(2, 1);
        }
        self.memory_at(2, |at| ObjectWord::Memory(at, Content::REGEXP)) && self.values(3, 1)
    }

    /// `struct RArray`: the length, the capacity or the array that owns the elements, the pointer.
    fn array(&mut self) -> bool {
        let flags = self.object.flags;
        if flags & ARRAY_EMBEDDED != 0 {
            return self.values(2, (flags >> ARRAY_LENGTH_SHIFT & ARRAY_LENGTH_MASK) as usize);
        }
        let (length, owner) = (self.object.word(2), self.object.word(3));
        if self.is_slot(owner) {
            (self.each)(ObjectWord::Value(owner));
            // The elements are in the slot of the owner (from 3.3 on), which refers to them.
            if self.classifier.at(self.object.word(4)) == Place::HeapPage {
                return true;
            }
        }
        self.memory_at(4, |at| ObjectWord::Memory(at, Content::new(Form::Values, length)))
    }

    /// `struct RStruct`: the members, or their number and a pointer to them.
    fn members(&mut self, fields: StructFields) -> bool {
        let length = (self.object.flags >> STRUCT_LENGTH_SHIFT & STRUCT_LENGTH_MASK) as usize;
        let first = if fields == StructFields::BeforeMembers { 3 } else { 2 };
        let are_inside = length > 0 && first + length <= self.object.len();
        match fields {
            StructFields::BeforeMembers => (self.each)(ObjectWord::Value(self.object.word(2))),
            StructFields::BehindMembers if are_inside => {
                (self.each)(ObjectWord::Value(self.object.word(first + length)));
            }
            StructFields::BehindMembers | StructFields::Elsewhere => {}
        }
        if are_inside {
            return self.values(first, length);
        }
        let length = self.object.word(first);
        self.memory_at(first + 1, |at| ObjectWord::Memory(at, Content::new(Form::Values, length)))
    }

    /// `struct RHash`: up to 3.2 a pointer to the table, the default, and hints; from 3.3 on the
    /// default, and the table itself.
    fn hash(&mut self, table_layout: TableLayout) -> bool {
        let flags = self.object.flags;
        let has_table = flags & HASH_HAS_TABLE != 0;
        let number = |shift: u32| flags >> shift & HASH_NUMBER_MASK;
        let (pairs, bound) = (number(HASH_SIZE_SHIFT), number(HASH_BOUND_SHIFT));
        if !has_table && (pairs > bound || bound > MAX_PAIRS) {
            return false;
        }
        if self.object.len() == WORDS_WITH_TABLE_POINTER {
            return self.values(3, 1)
                && if has_table {
                    self.object.word(2) != 0 && self.memory_at(2, ObjectWord::Table)
                } else {
                    self.memory_at(2, |at| ObjectWord::Memory(at, Content::of_pairs(bound)))
                };
        }
        if !has_table {
            return self.values(2, 1) && self.pairs(HASH_PAIRS_WORD, bound as usize);
        }
        let table = table_layout
            .table_of(|word| self.object.word(HASH_TABLE_WORD + word))
            .filter(|it| it.is_in_private_memory(self.classifier));
        let Some(table) = table else { return false };
        for (at, content) in table.memory() {
            (self.each)(ObjectWord::Memory(at.0, content));
        }
        self.values(2, 1)
    }

    /// `struct RBignum`: the digits, or their number and a pointer to them.
    fn bignum(&mut self) -> bool {
        self.object.flags & BIGNUM_EMBEDDED != 0
            || self.memory_at(3, |at| ObjectWord::Memory(at, Content::BYTES))
    }

    /// `struct RObject` up to 3.1: three variables; or the number of variables that there is room for
    /// (unused ones are undefined), a pointer to them, and the class's table of names.
    fn object(&mut self) -> bool {
        if self.object.flags & OBJECT_EMBEDDED != 0 {
            return self.values(2, 3);
        }
        let (room, names) = (self.object.word(2) as u32, self.object.word(4));
        if names != 0 && !self.is_memory(names) || room == 0 && self.object.word(3) != 0 {
            return false;
        }
        (self.each)(ObjectWord::Any(names, Content::UNKNOWN));
        self.memory_at(3, |at| ObjectWord::Memory(at, Content::new(Form::Values, u64::from(room))))
    }

    /// `struct RObject` from 3.2 on: as many variables as its shape has, or a pointer to them. If its class has objects of too many
    /// shapes, it points to a table instead, whether or not its flags say that the variables are in the slot (up to 3.4): an
    /// `rb_id_table` in 3.2, an `st_table` since.
    fn shaped_object(&mut self, home: ShapeHome, variables: Variables, is_embedded: bool) -> bool {
        match variables {
            Variables::Row(count) if is_embedded => self.values(2, count as usize),
            Variables::Table if matches!(home, ShapeHome::Tree | ShapeHome::Variable) => {
                self.memory_at(2, ObjectWord::Table)
            }
            Variables::Row(0) | Variables::Table => {
                self.memory_at(2, |at| ObjectWord::Memory(at, Content::UNKNOWN))
            }
            Variables::Row(count) => {
                let content = Content::new(Form::Values, count);
                self.memory_at(2, |at| ObjectWord::Memory(at, content))
            }
        }
    }

    /// `rb_env_t`: the bytecode (none if the frame is of a function in C), the end of the environment, its beginning, and
    /// its size. The first two confirm the others.
    fn env(&mut self) -> Option<bool> {
        let [code, end, at] = [1, 2, 3].map(|word| self.object.word(word));
        let words = u64::from(self.object.word(4) as u32);
        let is_within = (1..words).contains(&(end.wrapping_sub(at) / 8)) && end > at;
        let fits = (code == 0 || self.is_slot(code)) && is_within && self.is_memory(at);
        if !fits {
            return None;
        }
        // Behind the end is only the object itself.
        let form = if at + 8 * words == end + 16 { Form::Environment } else { Form::Words };
        (self.each)(ObjectWord::Value(code));
        (self.each)(ObjectWord::Memory(at, Content::new(form, words)));
        Some(true)
    }
}
