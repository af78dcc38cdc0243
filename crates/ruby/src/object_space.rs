use std::ops::Range;

use target::{Address, Finding};

/// CRuby's object space of one process at one instant, as plain data.
#[derive(Debug, Clone, Default)]
pub struct ObjectSpace {
    /// Ruby's version, as in `RUBY_VERSION`.
    pub version: String,
    /// Its heap pages, ascending by address.
    pub pages: Vec<HeapPage>,
    /// The slots of all pages, in the order of the pages.
    pub slots: Vec<Slot>,
    /// The classes that live slots name.
    pub classes: Vec<Class>,
    /// The words of live slots that may name malloc'ed memory.
    pub references: References,
    /// The machine stacks of fibers, without their guard pages, in use or kept for the next.
    pub fiber_stacks: Vec<Range<Address>>,
    /// Code that a JIT compiler made.
    pub jit_code: Vec<Range<Address>>,
    /// What was noticed on the way.
    pub findings: Vec<Finding>,
}

/// A heap page: a header, slots of one size, and what is left over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapPage {
    /// All of it.
    pub range: Range<Address>,
    /// Where its first slot is.
    pub first_slot: Address,
    /// The size of each of its slots, in bytes.
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
    /// An object that the last mark found, or an old one.
    Marked,
    /// An object without a mark: garbage that is not swept yet, or newer than the last mark.
    Unmarked,
}

/// A slot. Eight bytes, since there are millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its class, an index into [`ObjectSpace::classes`]; [`Slot::NO_CLASS`] where it has none.
    pub class: u32,
    /// Its type.
    pub kind: SlotType,
    /// What it is in.
    pub state: SlotState,
}

impl Slot {
    /// The class of slots that have none: free ones and Ruby's internal objects.
    pub const NO_CLASS: u32 = u32::MAX;
}

/// A class that live slots name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Where its own slot is.
    pub address: Address,
    /// Its name; `None` for anonymous classes and such as have no name yet.
    pub name: Option<String>,
}

/// The words of live slots that may be pointers to malloc'ed memory, in slot order: aligned to 16
/// bytes, into private writable memory that is no heap page.
#[derive(Debug, Clone, Default)]
pub struct References {
    slots: Vec<u32>,
    addresses: Vec<Address>,
}

impl References {
    /// Adds a word of the slot with this index.
    pub fn push(&mut self, slot: u32, to: Address) {
        self.slots.push(slot);
        self.addresses.push(to);
    }

    /// The index of each slot and a word of it, ascending by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Address)> + '_ {
        self.slots.iter().copied().zip(self.addresses.iter().copied())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}
