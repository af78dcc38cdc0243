//! CRuby's object space of another process: heap pages, slots, types and class names as plain
//! data, walked out of an image.

mod object_space;

pub use object_space::{
    Class, HeapPage, ObjectSpace, References, Slot, SlotState, SlotType,
};
