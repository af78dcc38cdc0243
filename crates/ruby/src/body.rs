//! The memory of objects, the part that they use, and their contents. The words are those of
//! [`object_layouts`](crate::layout::object_layouts). Callers verify that an object refers to the memory.

pub(crate) mod details;

use std::collections::HashMap;
use std::ops::Range;

use image::{Image, Memory, Window};
use linux::Address;

use crate::layout::object_layouts::{
    ARRAY_EMBEDDED, ARRAY_LENGTH_MASK, ARRAY_LENGTH_SHIFT, HASH_BOUND_SHIFT, HASH_HAS_TABLE,
    HASH_NUMBER_MASK, HASH_PAIRS_WORD, HASH_SIZE_SHIFT, HASH_TABLE_WORD, OBJECT_EMBEDDED,
    OBJECT_NOT_EMBEDDED, STRING_NOT_EMBEDDED, STRUCT_LENGTH_MASK, STRUCT_LENGTH_SHIFT,
    StructFields, WORDS_WITH_TABLE_POINTER,
};
use crate::layout::room::{Room, Unit};
use crate::layout::set_table;
use crate::layout::shape_tree::{ShapeHome, ShapeTree, Variables};
use crate::layout::st_table::{DELETED_HASH, StTable, TableLayout};
use crate::layout::{embedded, io_buffers, queue};
use crate::model::content::Content;
use crate::model::data_type::DataType;
use crate::model::heap_page::HeapPage;
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::word::{word, words};

/// The bytes of `struct RString` and `struct RArray`. From 4.1 on there are smaller slots.
const MIN_SLOT_BYTES: u64 = 40;
/// The most variables of an object, which are read at once, up to 3.1, and the most bytes of all that one reader reads: objects may share
/// their memory.
const MAX_VARIABLES: u64 = 1 << 16;
const MAX_VARIABLE_BYTES: u64 = 128 << 20;
/// `FL_EXIVAR`: an object with variables in a table of all objects (up to 3.4; no flag since).
const HAS_VARIABLES: u64 = 1 << 10;
/// `RANGE_FL_INIT` and `RANGE_FL_EXCL` (internal/range.h, from 4.1 on). internal/struct.h has no flag in these bits.
const RANGE_FLAGS: u64 = 3 << 30;
/// `RHASH_PROC_DEFAULT`.
const HASH_HAS_PROC: u64 = 1 << 14;
/// The bytes of slots that are read at a time.
const SLOTS_BLOCK: usize = 64 << 10;
/// The first bytes of a slot, which have all but values.
const HEAD_BYTES: usize = 96;
/// The bytes of tables and variables that are read at a time.
const MEMORY_BLOCK: usize = 16 << 10;
/// The mark of a variable that is not set (`Qundef` up to 3.1).
const UNSET: u64 = 0x34;
/// The encoding of a string in its flags (`ENCODING_SHIFT`, 7 bits).
const ENCODING_SHIFT: u32 = 22;
const ENCODING_MASK: u64 = 0x7f;
/// The memory of an object outside its slot, or the room in the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// Memory of its own.
    Own(Room),
    /// A part of another object's memory.
    Slice(Slice),
}

/// The contents of a string or array that another object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The string or array that owns the memory.
    pub owner: Address,
    /// The first byte.
    pub start: Address,
    /// The length in bytes.
    pub bytes: u64,
}

/// The contents of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// The bytes of a string, and the number of its encoding.
    Text {
        /// The first byte.
        at: Address,
        /// The length.
        bytes: u64,
        /// The number of the encoding in the process.
        encoding: u8,
        /// Where the bytes are.
        home: TextHome,
    },
    /// The elements of an array, the members of a struct, or the variables of an object.
    Values {
        /// The first one.
        at: Address,
        /// The number of words.
        words: u64,
    },
    /// The keys and values of a small hash.
    Pairs {
        /// The first key.
        at: Address,
        /// The number of words. Pairs whose key was deleted count.
        words: u64,
        /// The number of pairs.
        count: u64,
        /// The default of the hash for other keys: a word, and not 0 if that is a Proc.
        default: [u64; 2],
    },
    /// The entries of a hash table, or of a Set that is written in C.
    Entries {
        /// The first one.
        at: Address,
        /// The number of words. Deleted entries count.
        words: u64,
        /// The words of an entry: a hash, a key, and the value of a hash.
        entry_words: u8,
        /// The number of entries.
        count: u64,
        /// The functions that hash and compare keys.
        functions: Address,
        /// As for pairs.
        default: [u64; 2],
    },
}

/// Where a string has its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextHome {
    /// In the slot itself.
    Slot,
    /// In memory that it does not share.
    Own,
    /// In the memory of the string in this slot.
    Shared(u32),
}

impl Contents {
    /// The number of bytes, elements, or entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        match *self {
            Self::Text { bytes, .. } => bytes,
            Self::Values { words, .. } => words,
            Self::Pairs { count, .. } | Self::Entries { count, .. } => count,
        }
    }
}

/// The first bytes of a slot.
#[derive(Debug, Clone, Copy)]
struct Head {
    slot: u32,
    kind: SlotType,
    at: Address,
    /// The size of the slot.
    slot_bytes: usize,
    bytes: [u8; HEAD_BYTES],
}

impl Head {
    const NONE: Self = Self {
        slot: u32::MAX,
        kind: SlotType::NONE,
        at: Address(0),
        slot_bytes: 0,
        bytes: [0; HEAD_BYTES],
    };

    fn word(&self, number: usize) -> u64 {
        word(&self.bytes, number * 8)
    }

    fn flags(&self) -> u64 {
        self.word(0)
    }

    /// The address of a word of the slot.
    fn address(&self, number: usize) -> Address {
        self.at.offset(8 * number as u64)
    }

    /// The number of values for which there is room in the slot from this word on.
    fn room_from(&self, number: usize) -> u64 {
        (self.slot_bytes / 8).saturating_sub(number) as u64
    }

    fn has_table_pointer(&self) -> bool {
        self.slot_bytes / 8 == WORDS_WITH_TABLE_POINTER
    }
}

/// The default of a hash for other keys: a word, and not 0 if that is a Proc.
fn default_of(head: &Head) -> [u64; 2] {
    let default = head.word(if head.has_table_pointer() { 3 } else { 2 });
    [default, head.flags() & HASH_HAS_PROC]
}

/// Reads what objects have and contain, best in the order of their slots.
pub struct BodyReader<'a> {
    image: &'a Image<'a>,
    space: &'a ObjectSpace,
    layout: TableLayout,
    slots: Window<'a>,
    memory: Window<'a>,
    /// The page of the last slot.
    page: usize,
    head: Head,
    /// By the upper half of the flags: the variables of a shape, and how many its objects have room for.
    shapes: HashMap<u32, Option<[u64; 2]>>,
    /// The sizes of slots, ascending.
    slot_sizes: Vec<u64>,
    /// The bytes of variables that may still be read, up to 3.1.
    variables_budget: u64,
    /// The bytes of slots of the smallest size that would do, beyond the needs of their objects.
    slack_of_slots: u64,
}

impl<'a> BodyReader<'a> {
    /// A reader of these objects. `image` is the one that they were read from.
    #[must_use]
    pub fn new(image: &'a Image<'a>, space: &'a ObjectSpace) -> Self {
        let sizes = space.pages.iter().map(|page| u64::from(page.slot_bytes));
        let mut slot_sizes: Vec<u64> = sizes.filter(|bytes| *bytes > 0).collect();
        slot_sizes.sort_unstable();
        slot_sizes.dedup();
        Self {
            image,
            space,
            layout: space.interpreter.table_layout(),
            slots: Window::new(image, SLOTS_BLOCK),
            memory: Window::new(image, MEMORY_BLOCK),
            page: 0,
            head: Head::NONE,
            shapes: HashMap::new(),
            slot_sizes,
            variables_budget: MAX_VARIABLE_BYTES,
            slack_of_slots: 0,
        }
    }

    /// Returns true if slots have several sizes, so that one may be larger than its object needs (from 3.2 on).
    #[must_use]
    pub fn has_room_in_slots(&self) -> bool {
        self.slot_sizes.len() > 1
    }

    /// The bytes that sizes of slots added to the needs of the strings, arrays, structs and objects in slots that were read with
    /// [`body`](Self::body).
    #[must_use]
    pub fn slack_of_slots(&self) -> u64 {
        self.slack_of_slots
    }

    /// The slot with this number.
    pub fn slot(&mut self, slot: u32) -> Option<Range<Address>> {
        if self.head.slot != slot {
            self.head(slot)?;
        }
        Some(self.head.at..self.head.at.offset(self.head.slot_bytes as u64))
    }

    /// The memory of the object in a slot; `None` if it has no room, or its layout is unknown.
    pub fn body(&mut self, slot: u32) -> Option<Body> {
        let head = self.head(slot)?;
        match head.kind {
            SlotType::STRING if head.flags() & STRING_NOT_EMBEDDED != 0 => {
                Some(self.buffer(Unit::Byte, [2, 3, 4].map(|it| head.word(it))))
            }
            SlotType::STRING => {
                let (from, length) = self.space.class_names?.text_in_slot(&head.bytes);
                // With the terminator.
                self.slot_room(&head, Unit::Slot, (from as u64 + 1).checked_add(length)?)
            }
            SlotType::ARRAY if head.flags() & ARRAY_EMBEDDED == 0 => {
                Some(self.buffer(Unit::Element, [2, 4, 3].map(|it| head.word(it))))
            }
            SlotType::ARRAY => {
                let elements = head.flags() >> ARRAY_LENGTH_SHIFT & ARRAY_LENGTH_MASK;
                self.slot_room(&head, Unit::Slot, 16 + 8 * elements)
            }
            SlotType::HASH => Some(Body::Own(self.table_of(&head)?.room(Unit::Entry))),
            SlotType::STRUCT => {
                let (first, members, are_inside) = self.members(&head);
                let behind =
                    self.space.interpreter.fields_of_structs() == StructFields::BehindMembers;
                let needed = 8 * (first as u64 + members + u64::from(behind));
                if are_inside { self.slot_room(&head, Unit::Slot, needed) } else { None }
            }
            SlotType::OBJECT => {
                let Some((room, _)) = self.variables(&head) else {
                    return Some(Body::Own(self.table_of_variables(&head)?.room(Unit::Named)));
                };
                let slot = head.at..head.address(head.slot_bytes / 8);
                match slot.contains(&room.start) {
                    true => self.slot_room(&head, Unit::Shape, 16 + 8 * room.used),
                    false => Some(Body::Own(room)),
                }
            }
            SlotType::DATA => {
                let data_type = self.space.data_type_of(slot)?;
                if data_type.is_ring() {
                    return Some(Body::Own(queue::room(self.image, &head.bytes)?));
                }
                let table = embedded::structure_of(&head.bytes).filter(|_| data_type.is_set())?;
                Some(Body::Own(set_table::room(self.layout, table)?))
            }
            _ => None,
        }
    }

    /// The room of the buffers of the IO in a slot.
    pub fn buffers_of_io(&mut self, slot: u32) -> Vec<Room> {
        const STRUCTURE: usize = 2;
        let Some(head) = self.head(slot).filter(|it| it.kind == SlotType::FILE) else {
            return vec![];
        };
        let io = Address(head.word(STRUCTURE));
        let room = |&offset: &usize| io_buffers::room_of(self.image, io, offset);
        self.space.io_buffers.iter().filter_map(room).collect()
    }

    /// The place of the first member of a struct in its slot, the number of members there, and whether they are there.
    fn members(&self, head: &Head) -> (usize, u64, bool) {
        let fields = self.space.interpreter.fields_of_structs();
        let first = if fields == StructFields::BeforeMembers { 3 } else { 2 };
        let words = head.flags() >> STRUCT_LENGTH_SHIFT & STRUCT_LENGTH_MASK;
        (first, words, (1..=head.room_from(first)).contains(&words))
    }

    /// The room in the slot of an object that needs so many bytes of it; `None` if no smaller slot would do.
    fn slot_room(&mut self, head: &Head, unit: Unit, needed: u64) -> Option<Body> {
        let least = needed.max(MIN_SLOT_BYTES);
        let used = *self.slot_sizes.iter().find(|bytes| **bytes >= least)?;
        self.slack_of_slots = self.slack_of_slots.saturating_add(used - needed);
        let (start, capacity) = (head.at, head.slot_bytes as u64);
        let room = Room { start, unit, used, capacity };
        (used < capacity).then_some(Body::Own(room))
    }

    /// A number that objects of one class have in common if their variables have the same names; `None` for objects that are no
    /// [`SlotType::OBJECT`] and have variables, whose values are elsewhere.
    fn names_of_variables(&mut self, head: &Head) -> Option<u64> {
        let flags = head.flags();
        let Some(shape_tree) = self.space.shape_tree else {
            return (flags & HAS_VARIABLES == 0).then_some(0);
        };
        if head.kind == SlotType::OBJECT {
            return Some(flags >> 32);
        }
        let has_none = flags & HAS_VARIABLES == 0
            && match shape_tree.home {
                ShapeHome::Vm | ShapeHome::Tree => true,
                ShapeHome::Variable | ShapeHome::Short => {
                    self.shape(shape_tree, flags).is_some_and(|[used, _]| used == 0)
                }
            };
        has_none.then_some(0)
    }

    /// The contents of a string, an array, a hash, a struct, a Set, or an object with variables, and a number that differs for objects whose
    /// variables have other names, and for ranges that exclude their end; `None` for other objects.
    pub fn contents(&mut self, slot: u32) -> Option<(Contents, u64)> {
        let head = self.head(slot)?;
        let names = self.names_of_variables(&head)?;
        let range = if head.kind == SlotType::STRUCT { head.flags() & RANGE_FLAGS } else { 0 };
        Some((self.contents_of(&head)?, names ^ range))
    }

    fn contents_of(&mut self, head: &Head) -> Option<Contents> {
        let flags = head.flags();
        match head.kind {
            SlotType::STRING => {
                let encoding = (flags >> ENCODING_SHIFT & ENCODING_MASK) as u8;
                let is_in_slot = flags & STRING_NOT_EMBEDDED == 0;
                let (from, length) = self.space.class_names?.text_in_slot(&head.bytes);
                let (at, bytes) = match is_in_slot {
                    true => (head.at.offset(from as u64), length),
                    false => (Address(head.word(3)), head.word(2)),
                };
                let fits = !is_in_slot || bytes <= head.slot_bytes.saturating_sub(from) as u64;
                let home = match self.space.slot_at(Address(head.word(4))) {
                    _ if is_in_slot => TextHome::Slot,
                    Some(owner) => TextHome::Shared(owner),
                    None => TextHome::Own,
                };
                fits.then_some(Contents::Text { at, bytes, encoding, home })
            }
            SlotType::ARRAY if flags & ARRAY_EMBEDDED != 0 => {
                let words = flags >> ARRAY_LENGTH_SHIFT & ARRAY_LENGTH_MASK;
                let fits = words <= head.room_from(2);
                fits.then_some(Contents::Values { at: head.address(2), words })
            }
            SlotType::ARRAY => {
                Some(Contents::Values { at: Address(head.word(4)), words: head.word(2) })
            }
            SlotType::HASH if flags & HASH_HAS_TABLE != 0 => {
                let table = self.table_of(head)?;
                Some(Contents::Entries {
                    at: table.entries,
                    words: table.bound() * (StTable::ENTRY_BYTES / 8),
                    entry_words: (StTable::ENTRY_BYTES / 8) as u8,
                    count: table.count,
                    functions: table.functions,
                    default: default_of(head),
                })
            }
            SlotType::HASH => {
                let [count, bound] =
                    [HASH_SIZE_SHIFT, HASH_BOUND_SHIFT].map(|it| flags >> it & HASH_NUMBER_MASK);
                let at = match head.has_table_pointer() {
                    true => Address(head.word(2)),
                    false => head.address(HASH_PAIRS_WORD),
                };
                Some(Contents::Pairs { at, words: 2 * bound, count, default: default_of(head) })
            }
            SlotType::OBJECT => {
                let (Room { start: at, .. }, words) = self.variables(head)?;
                Some(Contents::Values { at, words })
            }
            SlotType::STRUCT => {
                let (first, words, are_inside) = self.members(head);
                let outside = || Contents::Values {
                    at: Address(head.word(first + 1)),
                    words: head.word(first),
                };
                let inside = Contents::Values { at: head.address(first), words };
                Some(if are_inside { inside } else { outside() })
            }
            SlotType::DATA if self.space.data_type_of(head.slot).is_some_and(DataType::is_set) => {
                let table = embedded::structure_of(&head.bytes)?;
                let (room, bound) = set_table::room_and_bound(self.layout, table)?;
                Some(Contents::Entries {
                    at: room.start,
                    words: bound * set_table::ENTRY_WORDS,
                    entry_words: set_table::ENTRY_WORDS as u8,
                    count: room.used,
                    functions: Address(word(table, 8)),
                    default: [0; 2],
                })
            }
            _ => None,
        }
    }

    /// The first bytes of a slot.
    fn head(&mut self, slot: u32) -> Option<Head> {
        if self.head.slot != slot {
            let number = slot as usize;
            let is_on = |page: &&HeapPage| page.slots.contains(&number);
            if self.space.pages.get(self.page).filter(is_on).is_none() {
                self.page = self.space.pages.partition_point(|page| page.slots.end <= number);
            }
            let page = self.space.pages.get(self.page).filter(is_on)?;
            let slot_bytes = page.slot_bytes as usize;
            let at = page.first_slot.offset(((number - page.slots.start) * slot_bytes) as u64);
            let read = self.slots.bytes(at, slot_bytes.min(HEAD_BYTES)).ok()?;
            let mut bytes = [0; HEAD_BYTES];
            bytes[..read.len()].copy_from_slice(read);
            let kind = self.space.slots.get(number)?.kind();
            self.head = Head { slot, kind, at, slot_bytes, bytes };
        }
        Some(self.head)
    }

    /// Contents outside the slot with this length, pointer, and capacity.
    fn buffer(&self, unit: Unit, [used, start, capacity]: [u64; 3]) -> Body {
        let (owner, start) = (Address(capacity), Address(start));
        // An object that shares its contents has their owner in place of its capacity.
        if self.space.slot_at(owner).is_none() {
            return Body::Own(Room { start, unit, used, capacity: capacity.max(used) });
        }
        let bytes = used.saturating_mul(if unit == Unit::Byte { 1 } else { 8 });
        Body::Slice(Slice { owner, start, bytes })
    }

    /// The table of a Hash; `None` if it has none.
    fn table_of(&mut self, head: &Head) -> Option<StTable> {
        if head.flags() & HASH_HAS_TABLE == 0 {
            return None;
        }
        let bytes = self.layout.bytes() as usize;
        self.layout.table(match head.has_table_pointer() {
            true => self.memory.bytes(Address(head.word(2)), bytes).ok()?,
            false => head.bytes.get(8 * HASH_TABLE_WORD..)?.get(..bytes)?,
        })
    }

    /// The table of an object's variables, if its class has objects of too many shapes (from 3.3 on). From 4.1 on an internal object has it.
    fn table_of_variables(&mut self, head: &Head) -> Option<StTable> {
        let flags = head.flags();
        let tree = self.space.shape_tree.filter(|it| it.home != ShapeHome::Vm)?;
        if tree.variables_of(self.image, flags)? != Variables::Table {
            return None;
        }
        const FIRST: usize = 2;
        let bytes = self.layout.bytes() as usize;
        let at = Address(head.word(FIRST));
        self.layout.table(match (tree.home, head.kind) {
            (ShapeHome::Short, SlotType::IMEMO) => head.bytes.get(8 * FIRST..)?.get(..bytes)?,
            (ShapeHome::Short, _) => {
                let is_extended = ShapeTree::layout(flags) == ShapeTree::EXTENDED;
                self.space.slot_at(at).filter(|_| is_extended)?;
                self.memory.bytes(at.offset(8 * FIRST as u64), bytes).ok()?
            }
            _ => self.memory.bytes(at, bytes).ok()?,
        })
    }

    /// The keys and values of a hash; `None` if it has room for more than `max`, or cannot be read.
    pub(crate) fn pairs(&mut self, slot: u32, max: u64) -> Option<Vec<(u64, u64)>> {
        let head = self.head(slot).filter(|head| head.kind == SlotType::HASH)?;
        let (at, pairs, pair_bytes) = match (self.table_of(&head), self.contents_of(&head)?) {
            (Some(table), _) => (table.entries, table.bound(), StTable::ENTRY_BYTES as usize),
            (None, Contents::Pairs { at, words, .. }) => (at, words / 2, 16),
            _ => return None,
        };
        let mut bytes = vec![0; pair_bytes * Some(pairs).filter(|it| *it <= max)? as usize];
        self.image.read_exact(at, &mut bytes).ok()?;
        // An entry of a table begins with the hash of its key.
        let is_deleted = |pair: &[u8]| pair.len() > 16 && word(pair, 0) == DELETED_HASH;
        let pairs = bytes.chunks_exact(pair_bytes).filter(|pair| !is_deleted(pair));
        let pairs = pairs.map(|it| (word(it, pair_bytes - 16), word(it, pair_bytes - 8)));
        Some(pairs.filter(|(key, _)| !Content::is_deleted_key(*key)).collect())
    }

    /// The variables of an object, side by side, in the slot or outside, and the place of the last one.
    fn variables(&mut self, head: &Head) -> Option<(Room, u64)> {
        const FIRST: usize = 2;
        let (flags, unit) = (head.flags(), Unit::Variable);
        let (in_slot, in_slot_capacity) = (head.address(FIRST), head.room_from(FIRST));
        let Some(shape_tree) = self.space.shape_tree else {
            let (start, capacity) = match flags & OBJECT_EMBEDDED != 0 {
                true => (in_slot, in_slot_capacity),
                false => (Address(head.word(3)), u64::from(head.word(2) as u32)),
            };
            let length = 8 * Some(capacity).filter(|it| *it <= MAX_VARIABLES)?;
            self.variables_budget = self.variables_budget.checked_sub(length)?;
            let mut bytes = vec![0; length as usize];
            self.image.read_exact(start, &mut bytes).ok()?;
            // Variables that the object does not have lie between those that it has.
            let is_set = || words(&bytes).map(|word| word != UNSET);
            let used = is_set().filter(|is_set| *is_set).count() as u64;
            let end = is_set().zip(1..).filter(|(is_set, _)| *is_set).last().map_or(0, |it| it.1);
            return Some((Room { start, unit, used, capacity }, end));
        };
        let is_outside = match shape_tree.home {
            // Others are in an internal object.
            ShapeHome::Short if ShapeTree::layout(flags) == ShapeTree::EMBEDDED => false,
            ShapeHome::Short => return None,
            ShapeHome::Variable => flags & OBJECT_NOT_EMBEDDED != 0,
            ShapeHome::Vm | ShapeHome::Tree => flags & OBJECT_EMBEDDED == 0,
        };
        let [used, capacity] = self.shape(shape_tree, flags)?;
        let (start, capacity) = match is_outside {
            true => (Address(head.word(FIRST)), capacity.max(used)),
            false => (in_slot, in_slot_capacity),
        };
        (used <= capacity).then_some((Room { start, unit, used, capacity }, used))
    }

    /// The number of variables of objects with these flags, and the number that they have room for.
    fn shape(&mut self, shape_tree: ShapeTree, flags: u64) -> Option<[u64; 2]> {
        let image = self.image;
        *self.shapes.entry((flags >> 32) as u32).or_insert_with(|| {
            match shape_tree.variables_of(image, flags)? {
                Variables::Row(used) => Some([used, shape_tree.capacity(image, flags)?]),
                Variables::Table => None,
            }
        })
    }
}
