//! An object as the words of its slot: flags, class, and others.

use crate::model::slot::SlotType;
use crate::word::{word, words};

/// The number of `imemo_env` in all releases.
const IMEMO_ENV: u8 = 0;

/// The object in a slot that is not free.
pub(crate) struct Object<'a> {
    pub(crate) flags: u64,
    pub(crate) kind: SlotType,
    bytes: &'a [u8],
}

impl<'a> Object<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let mut object = Self { flags: 0, kind: SlotType::NONE, bytes };
        object.flags = object.word(0);
        object.kind = SlotType::of_flags(object.flags);
        object
    }

    /// A word of the slot; 0 behind its end. The first is the flags, the second mostly the class.
    pub(crate) fn word(&self, number: usize) -> u64 {
        word(self.bytes, number * 8)
    }

    /// The number of words of the slot.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / 8
    }

    /// The words of the slot from this one on.
    pub(crate) fn words_from(&self, first: usize) -> impl Iterator<Item = u64> + 'a {
        words(self.bytes).skip(first)
    }

    /// Returns true for the variables of a block.
    pub(crate) fn is_environment(&self) -> bool {
        self.kind == SlotType::IMEMO && self.imemo_number() == IMEMO_ENV
    }

    /// The number of an internal object's type: flags FL_USER0 to FL_USER3 (internal/imemo.h).
    pub(crate) fn imemo_number(&self) -> u8 {
        imemo_number(self.flags)
    }
}

/// The number of the type of the internal object with these flags.
pub(crate) fn imemo_number(flags: u64) -> u8 {
    (flags >> 12 & 15) as u8
}
