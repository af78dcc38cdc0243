use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use capture::{Address, Finding};

use crate::contents::Content;
use crate::data_types::{DataObjects, DataType};
use crate::links::Links;
use crate::page_index::PageIndex;

/// CRuby's object space of one process at one instant, as plain data.
#[derive(Debug, Clone, Default)]
pub struct ObjectSpace {
    /// Ruby's version, as in `RUBY_VERSION`.
    pub version: String,
    /// Where the interpreter's own module is: libruby, or an executable that it is linked into.
    pub interpreter: Range<Address>,
    /// Its heap pages, ascending by address.
    pub pages: Vec<HeapPage>,
    /// The slots of all pages, in the order of the pages.
    pub slots: Vec<Slot>,
    /// The classes that live slots name, and one for each kind of object that has none.
    pub classes: Vec<Class>,
    /// The words of live slots that may name malloc'ed memory.
    pub references: References,
    /// The words of live slots that name other live slots.
    pub links: Links,
    /// What the objects of C extensions, and of Ruby's own C classes, wrap.
    pub data_types: Vec<DataType>,
    /// The slots of such objects (T_DATA), and which of those they wrap.
    pub data_objects: DataObjects,
    /// The machine stacks of fibers, without their guard pages, in use or kept for the next.
    pub fiber_stacks: Vec<Range<Address>>,
    /// Code that a JIT compiler made, and the room that it has left.
    pub jit_code: Vec<Range<Address>>,
    /// Where small arrays, hashes and structs live for a short while (2.6 to 3.2), outside malloc.
    pub transient_heap: Option<Range<Address>>,
    /// What was noticed on the way.
    pub findings: Vec<Finding>,
    pub(crate) page_index: PageIndex,
}

/// A heap page: a header, slots of one size, and what is left over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapPage {
    /// All of it.
    pub range: Range<Address>,
    /// Where its first slot is; its beginning where it has no slots.
    pub first_slot: Address,
    /// The size of each of its slots, in bytes; 0 where it has none: Ruby keeps emptied pages, for
    /// slots of any size (from 3.4 on).
    pub slot_bytes: u32,
    /// Its slots, indices into [`ObjectSpace::slots`].
    pub slots: Range<usize>,
}

/// The type of a slot, as `ObjectSpace.count_objects` names it: the low five bits of its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotType(pub u8);

/// What a slot is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotState {
    /// No object (T_NONE).
    Free,
    /// An object with a mark. Between two collections these are the old ones, since sweeping a
    /// page takes the marks of all others away; during one they are all that it has found so far.
    Marked,
    /// An object without a mark: young, or garbage that is not swept yet. Which of the two cannot
    /// be told without tracing, so never call it retained, nor garbage.
    Unmarked,
    /// Nothing is known: its memory is swapped out.
    Unread,
}

/// A slot. Eight bytes, since there are millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its class, an index into [`ObjectSpace::classes`]: that which `Object#class` returns, no
    /// singleton class. [`Slot::NO_CLASS`] for free slots, and for garbage whose class is gone.
    pub class: u32,
    /// Its type.
    pub kind: SlotType,
    /// What it is in.
    pub state: SlotState,
}

/// A class that live slots name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Where its own slot is; `None` for what stands for objects without a class.
    pub address: Option<Address>,
    /// Its name; `None` for anonymous classes and such as have no name yet.
    ///
    /// Objects without a class have their type in parentheses: `(T_ICLASS)`, `(T_STRING)` for
    /// strings that Ruby hides from programs, `(imemo_iseq)` for bytecode.
    pub name: Option<String>,
    /// What those of its objects wrap that are T_DATA, an index into [`ObjectSpace::data_types`];
    /// `None` where none is, or it could not be told. Where they differ, what most of them wrap:
    /// see [`ObjectSpace::data_objects`] for each. (ENV is an Object, and T_DATA from 2.7 on.)
    pub data_type: Option<u32>,
}

/// The words of live slots that may be pointers to malloc'ed memory, in slot order: aligned to 16
/// bytes, into private writable memory that is no heap page. Those of the tables of Hashes and of
/// the structures of IOs are among them.
#[derive(Debug, Clone, Default)]
pub struct References {
    slots: Vec<u32>,
    addresses: Vec<Address>,
    contents: Vec<Content>,
}

impl ObjectSpace {
    /// The slots by type, as `ObjectSpace.count_objects` counts them: `TOTAL`, `FREE`, and each
    /// type of which there is one.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut by_type = [0_u64; 32];
        let mut free = 0;
        for slot in &self.slots {
            match slot.state {
                SlotState::Free => free += 1,
                SlotState::Unread => {}
                SlotState::Marked | SlotState::Unmarked => {
                    by_type[usize::from(slot.kind.0 % 32)] += 1;
                }
            }
        }
        let types = (0..32).filter(|&kind| by_type[kind] > 0);
        let mut counts: BTreeMap<_, _> =
            types.map(|kind| (SlotType(kind as u8).name(), by_type[kind])).collect();
        counts.insert("TOTAL", self.slots.len() as u64);
        counts.insert("FREE", free);
        counts
    }

    /// All slots, in their order, each with its size in bytes. There are millions: `for_each` takes a
    /// fifth less time than a loop over them.
    pub fn sized_slots(&self) -> impl Iterator<Item = (Slot, u64)> + '_ {
        self.pages.iter().flat_map(|page| {
            let slots = self.slots.get(page.slots.clone()).unwrap_or_default();
            let bytes = u64::from(page.slot_bytes);
            slots.iter().map(move |&slot| (slot, bytes))
        })
    }

    /// The index of the slot that begins at `at`, in constant time. What points into a slot, but
    /// not to its beginning, is no reference to its object: Ruby's own never do.
    #[inline]
    #[must_use]
    pub fn slot_at(&self, at: Address) -> Option<u32> {
        self.page_index.slot_at(at)
    }

    /// Where the slot with this index is.
    #[must_use]
    pub fn slot_address(&self, slot: usize) -> Option<Address> {
        let after = self.pages.partition_point(|page| page.slots.end <= slot);
        let page = self.pages.get(after).filter(|page| page.slots.contains(&slot))?;
        let within = (slot - page.slots.start) as u64 * u64::from(page.slot_bytes);
        Some(page.first_slot.offset(within))
    }
}

impl SlotType {
    /// No object.
    pub const NONE: Self = Self(0x00);
    /// An object of a class that a program made.
    pub const OBJECT: Self = Self(0x01);
    /// A class.
    pub const CLASS: Self = Self(0x02);
    /// A module.
    pub const MODULE: Self = Self(0x03);
    /// A floating-point number.
    pub const FLOAT: Self = Self(0x04);
    /// A string.
    pub const STRING: Self = Self(0x05);
    /// A regular expression.
    pub const REGEXP: Self = Self(0x06);
    /// An array.
    pub const ARRAY: Self = Self(0x07);
    /// A hash.
    pub const HASH: Self = Self(0x08);
    /// An instance of a struct.
    pub const STRUCT: Self = Self(0x09);
    /// An integer that is too large for a word.
    pub const BIGNUM: Self = Self(0x0a);
    /// An object of an extension, around a pointer of its own.
    pub const DATA: Self = Self(0x0c);
    /// A file, or another IO.
    pub const FILE: Self = Self(0x0b);
    /// What a regular expression matched.
    pub const MATCH: Self = Self(0x0d);
    /// An internal object of the interpreter.
    pub const IMEMO: Self = Self(0x1a);
    /// A module as it stands among a class's ancestors.
    pub const ICLASS: Self = Self(0x1c);
    /// An object that is dead, but still has to be finalized.
    pub const ZOMBIE: Self = Self(0x1d);
    /// What compaction leaves where an object was.
    pub const MOVED: Self = Self(0x1e);

    /// Its name, as `ObjectSpace.count_objects` has it (`enum ruby_value_type`, the same numbers
    /// from 2.7 to 4.1).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            0x00 => "T_NONE",
            0x01 => "T_OBJECT",
            0x02 => "T_CLASS",
            0x03 => "T_MODULE",
            0x04 => "T_FLOAT",
            0x05 => "T_STRING",
            0x06 => "T_REGEXP",
            0x07 => "T_ARRAY",
            0x08 => "T_HASH",
            0x09 => "T_STRUCT",
            0x0a => "T_BIGNUM",
            0x0b => "T_FILE",
            0x0c => "T_DATA",
            0x0d => "T_MATCH",
            0x0e => "T_COMPLEX",
            0x0f => "T_RATIONAL",
            0x11 => "T_NIL",
            0x12 => "T_TRUE",
            0x13 => "T_FALSE",
            0x14 => "T_SYMBOL",
            0x15 => "T_FIXNUM",
            0x16 => "T_UNDEF",
            0x1a => "T_IMEMO",
            0x1b => "T_NODE",
            0x1c => "T_ICLASS",
            0x1d => "T_ZOMBIE",
            0x1e => "T_MOVED",
            _ => "unknown type",
        }
    }

    /// Whether a slot that is not free can be of this type. The others are numbers without a type,
    /// types of values that are no objects, and T_NODE, which is in no heap since 2.5.
    pub(crate) fn may_be_in_a_slot(self) -> bool {
        matches!(self.0, 0x01..=0x0f | 0x14 | 0x1a | 0x1c..=0x1e)
    }

    /// Whether what stands in the place of the class is another thing.
    pub(crate) fn has_no_class(self) -> bool {
        matches!(self, Self::IMEMO | Self::ICLASS | Self::ZOMBIE | Self::MOVED)
    }
}

impl fmt::Display for SlotType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Slot {
    /// The class of free slots, and of garbage whose class is gone.
    pub const NO_CLASS: u32 = u32::MAX;
    pub(crate) const FREE: Self =
        Self { class: Self::NO_CLASS, kind: SlotType::NONE, state: SlotState::Free };
    pub(crate) const UNREAD: Self =
        Self { class: Self::NO_CLASS, kind: SlotType::NONE, state: SlotState::Unread };

    /// Whether an object is in it, garbage that is not swept yet included.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self.state, SlotState::Marked | SlotState::Unmarked)
    }
}

impl References {
    /// Adds a word of the slot with this index.
    pub fn push(&mut self, slot: u32, to: Address, content: Content) {
        self.slots.push(slot);
        self.addresses.push(to);
        self.contents.push(content);
    }

    /// Adds references of any slots, each behind those that its slot has already.
    pub(crate) fn merge(&mut self, mut added: Vec<(u32, Address, Content)>) {
        added.sort_by_key(|&(slot, ..)| slot);
        let mut old = self.slots.len();
        let mut end = old + added.len();
        self.slots.resize(end, 0);
        self.addresses.resize(end, Address(0));
        self.contents.resize(end, Content::UNKNOWN);
        // From the end on, so that each is moved once.
        for (slot, to, content) in added.into_iter().rev() {
            while old > 0 && self.slots[old - 1] > slot {
                (old, end) = (old - 1, end - 1);
                self.slots[end] = self.slots[old];
                self.addresses[end] = self.addresses[old];
                self.contents[end] = self.contents[old];
            }
            end -= 1;
            (self.slots[end], self.addresses[end], self.contents[end]) = (slot, to, content);
        }
    }

    /// The index of each slot and a word of it, ascending by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Address)> + '_ {
        self.slots.iter().copied().zip(self.addresses.iter().copied())
    }

    /// The address of each word, and what its slot uses there.
    pub fn contents(&self) -> impl Iterator<Item = (Address, Content)> + '_ {
        self.addresses.iter().copied().zip(self.contents.iter().copied())
    }

    /// The words of the slot with this index.
    #[must_use]
    pub fn of(&self, slot: u32) -> &[Address] {
        let first = self.slots.partition_point(|&it| it < slot);
        let count = self.slots[first..].iter().take_while(|&&it| it == slot).count();
        &self.addresses[first..first + count]
    }
}
