//! What objects have outside their slots and what they use of it, and what they contain. The words are those of
//! [`object_layouts`](crate::layout::object_layouts); callers verify that an address is one to which the object refers.

use std::collections::HashMap;

use image::{Image, Window};
use linux::Address;

use crate::layout::embedded;
use crate::layout::object_layouts::{
    ARRAY_EMBEDDED, ARRAY_LENGTH_MASK, ARRAY_LENGTH_SHIFT, HASH_BOUND_SHIFT, HASH_HAS_TABLE,
    HASH_NUMBER_MASK, HASH_PAIRS_WORD, HASH_SIZE_SHIFT, HASH_TABLE_WORD, OBJECT_EMBEDDED,
    OBJECT_NOT_EMBEDDED, STRING_NOT_EMBEDDED, STRUCT_LENGTH_MASK, STRUCT_LENGTH_SHIFT,
    StructFields, WORDS_WITH_TABLE_POINTER,
};
use crate::layout::room::{Room, Unit};
use crate::layout::set_table;
use crate::layout::shape_tree::{ShapeHome, ShapeTree, Variables};
use crate::layout::st_table::{StTable, TableLayout};
use crate::model::data_type::DataType;
use crate::model::heap_page::HeapPage;
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::word::{word, words};

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
/// The length of a string in its flags (`RSTRING_EMBED_LEN_SHIFT`, 5 bits, up to 3.1).
const STRING_LENGTH_SHIFT: u32 = 14;
const STRING_LENGTH_MASK: u64 = 0x1f;

/// What an object has outside its slot.
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

/// What an object contains.
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
        /// True if the bytes are in the slot itself.
        is_in_slot: bool,
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
    },
    /// So many entries of a hash table.
    Entries(u64),
}

impl Contents {
    /// The number of bytes, elements, or entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        match *self {
            Self::Text { bytes, .. } => bytes,
            Self::Values { words, .. } => words,
            Self::Pairs { count, .. } | Self::Entries(count) => count,
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
}

impl<'a> BodyReader<'a> {
    /// A reader of these objects. `image` is the one that they were read from.
    #[must_use]
    pub fn new(image: &'a Image<'a>, space: &'a ObjectSpace) -> Self {
        Self {
            image,
            space,
            layout: space.interpreter.table_layout(),
            slots: Window::new(image, SLOTS_BLOCK),
            memory: Window::new(image, MEMORY_BLOCK),
            page: 0,
            head: Head::NONE,
            shapes: HashMap::new(),
        }
    }

    /// What the object in a slot has outside it; `None` if it has nothing there, or that is unknown.
    pub fn body(&mut self, slot: u32) -> Option<Body> {
        let head = self.head(slot)?;
        match head.kind {
            SlotType::STRING => {
                let is_outside = head.flags() & STRING_NOT_EMBEDDED != 0;
                is_outside.then(|| self.buffer(Unit::Byte, [2, 3, 4].map(|it| head.word(it))))
            }
            SlotType::ARRAY => {
                let is_outside = head.flags() & ARRAY_EMBEDDED == 0;
                is_outside.then(|| self.buffer(Unit::Element, [2, 4, 3].map(|it| head.word(it))))
            }
            SlotType::HASH => {
                let table = self.table_of(&head)?;
                let StTable { entries: start, count: used, capacity, .. } = table;
                Some(Body::Own(Room { start, unit: Unit::Entry, used, capacity }))
            }
            SlotType::OBJECT => {
                let room = self.variables(&head)?;
                let slot = head.at..head.address(head.slot_bytes / 8);
                (!slot.contains(&room.start)).then_some(Body::Own(room))
            }
            SlotType::DATA if self.space.data_type_of(slot).is_some_and(DataType::is_set) => {
                let table = embedded::structure_of(&head.bytes)?;
                Some(Body::Own(set_table::room(self.layout, table)?))
            }
            _ => None,
        }
    }

    /// What a string, an array, a hash, a struct, or an object with variables contains; `None` for other objects.
    pub fn contents(&mut self, slot: u32) -> Option<Contents> {
        let head = self.head(slot)?;
        let flags = head.flags();
        match head.kind {
            SlotType::STRING => {
                let encoding = (flags >> ENCODING_SHIFT & ENCODING_MASK) as u8;
                let has_length = self.space.class_names?.strings_have_length();
                let is_in_slot = flags & STRING_NOT_EMBEDDED == 0;
                let (at, bytes, first) = match () {
                    () if !is_in_slot => (Address(head.word(3)), head.word(2), 0),
                    () if has_length => (head.address(3), head.word(2), 3),
                    () => (head.address(2), flags >> STRING_LENGTH_SHIFT & STRING_LENGTH_MASK, 2),
                };
                let fits = !is_in_slot || bytes <= 8 * head.room_from(first);
                fits.then_some(Contents::Text { at, bytes, encoding, is_in_slot })
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
                Some(Contents::Entries(self.table_of(&head)?.count))
            }
            SlotType::HASH => {
                let [count, bound] =
                    [HASH_SIZE_SHIFT, HASH_BOUND_SHIFT].map(|it| flags >> it & HASH_NUMBER_MASK);
                let at = match head.has_table_pointer() {
                    true => Address(head.word(2)),
                    false => head.address(HASH_PAIRS_WORD),
                };
                Some(Contents::Pairs { at, words: 2 * bound, count })
            }
            SlotType::OBJECT => {
                let Room { start: at, used: words, .. } = self.variables(&head)?;
                Some(Contents::Values { at, words })
            }
            SlotType::STRUCT => {
                let fields = self.space.interpreter.fields_of_structs();
                let first = if fields == StructFields::BeforeMembers { 3 } else { 2 };
                let words = flags >> STRUCT_LENGTH_SHIFT & STRUCT_LENGTH_MASK;
                let are_inside = (1..=head.room_from(first)).contains(&words);
                let outside = || Contents::Values {
                    at: Address(head.word(first + 1)),
                    words: head.word(first),
                };
                let inside = Contents::Values { at: head.address(first), words };
                Some(if are_inside { inside } else { outside() })
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

    /// The variables of an object, side by side, in the slot or outside.
    fn variables(&mut self, head: &Head) -> Option<Room> {
        const FIRST: usize = 2;
        let (flags, unit) = (head.flags(), Unit::Variable);
        let (in_slot, in_slot_capacity) = (head.address(FIRST), head.room_from(FIRST));
        let Some(shape_tree) = self.space.shape_tree else {
            let (start, capacity) = match flags & OBJECT_EMBEDDED != 0 {
                true => (in_slot, in_slot_capacity),
                false => (Address(head.word(3)), u64::from(head.word(2) as u32)),
            };
            let bytes = Some(capacity as usize * 8).filter(|it| *it <= MEMORY_BLOCK)?;
            let memory = if start == in_slot { &mut self.slots } else { &mut self.memory };
            let variables = memory.bytes(start, bytes).ok()?;
            let used = words(variables).take_while(|word| *word != UNSET).count() as u64;
            return Some(Room { start, unit, used, capacity });
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
        (used <= capacity).then_some(Room { start, unit, used, capacity })
    }

    /// The variables of objects with these flags, and how many they have room for.
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
