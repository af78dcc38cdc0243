use std::fmt;

/// The type of a slot, as `ObjectSpace.count_objects` names it: the low five bits of its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotType(pub u8);

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotState {
    /// No object (T_NONE).
    Free,
    /// An object with a mark. Between two collections these are the old objects, since sweeping a
    /// page clears all other marks; during a collection, those found so far.
    Marked,
    /// An object without a mark: young, or garbage that is not swept yet. Only tracing can distinguish the two, so such
    /// an object must be called neither retained nor garbage.
    Unmarked,
    /// Unknown: its memory is swapped out.
    Unread,
}

/// A slot. Four bytes, since there are millions of them: five bits for the type, two for the state, the others for the
/// class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

const KIND_BITS: u32 = 5;
const CLASS_SHIFT: u32 = KIND_BITS + 2;

impl SlotType {
    /// No object.
    pub const NONE: Self = Self(0x00);
    /// An object of a class that a program defined.
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
    /// A file, or another IO.
    pub const FILE: Self = Self(0x0b);
    /// An object that wraps a C structure.
    pub const DATA: Self = Self(0x0c);
    /// The result of matching a regular expression.
    pub const MATCH: Self = Self(0x0d);
    /// A symbol that has a slot, as symbols made by programs do.
    pub const SYMBOL: Self = Self(0x14);
    /// An internal object of the interpreter.
    pub const IMEMO: Self = Self(0x1a);
    /// A module as it appears among the ancestors of a class.
    pub const ICLASS: Self = Self(0x1c);
    /// An object that is dead, but still has to be finalized.
    pub const ZOMBIE: Self = Self(0x1d);
    /// A forwarding address, left by compaction.
    pub const MOVED: Self = Self(0x1e);

    /// The type of an object with these flags (`RUBY_T_MASK`).
    pub(crate) const fn of_flags(flags: u64) -> Self {
        Self(flags as u8 & 0x1f)
    }

    /// Its name in `ObjectSpace.count_objects` (`enum ruby_value_type`, the same numbers from 2.7
    /// to 4.1).
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

    /// Returns the types that a slot in use can have.
    pub fn all_in_slots() -> impl Iterator<Item = Self> {
        (0..1 << KIND_BITS).map(Self).filter(|kind| kind.may_be_in_a_slot())
    }

    /// Returns true if a slot in use can have this type. The others are unassigned numbers, types
    /// of values that are not objects, and T_NODE, which no heap has since 2.5.
    pub(crate) fn may_be_in_a_slot(self) -> bool {
        matches!(self.0, 0x01..=0x0f | 0x14 | 0x1a | 0x1c..=0x1e)
    }

    /// Returns true if the second word of such slots is not a class.
    pub(crate) fn has_no_class(self) -> bool {
        matches!(self, Self::IMEMO | Self::ICLASS | Self::ZOMBIE | Self::MOVED)
    }
}

impl fmt::Display for SlotType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of class {} ({:?})", self.kind(), self.class(), self.state())
    }
}

impl Slot {
    /// The class of free slots, and of garbage whose class is gone.
    pub const NO_CLASS: u32 = u32::MAX >> CLASS_SHIFT;
    pub(crate) const FREE: Self = Self::new(Self::NO_CLASS, SlotType::NONE, SlotState::Free);
    pub(crate) const UNREAD: Self = Self::new(Self::NO_CLASS, SlotType::NONE, SlotState::Unread);

    /// `class` is at most [`Slot::NO_CLASS`].
    pub(crate) const fn new(class: u32, kind: SlotType, state: SlotState) -> Self {
        Self(class << CLASS_SHIFT | (state as u32) << KIND_BITS | (kind.0 as u32 & 0x1f))
    }

    /// The same slot with another class.
    pub(crate) fn with_class(self, class: u32) -> Self {
        Self::new(class, self.kind(), self.state())
    }

    /// Its class, an index into [`ObjectSpace::classes`](crate::ObjectSpace::classes): the one that
    /// `Object#class` returns, never a singleton class. [`Slot::NO_CLASS`] for free slots, and for
    /// garbage whose class is gone.
    #[inline]
    #[must_use]
    pub fn class(self) -> u32 {
        self.0 >> CLASS_SHIFT
    }

    /// Its type.
    #[inline]
    #[must_use]
    pub fn kind(self) -> SlotType {
        SlotType((self.0 & 0x1f) as u8)
    }

    /// Its state.
    #[inline]
    #[must_use]
    pub fn state(self) -> SlotState {
        match self.0 >> KIND_BITS & 3 {
            0 => SlotState::Free,
            1 => SlotState::Marked,
            2 => SlotState::Unmarked,
            _ => SlotState::Unread,
        }
    }

    /// Returns true if it holds an object, including garbage that is not swept yet.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self.state(), SlotState::Marked | SlotState::Unmarked)
    }
}
