//! The elements of an array.

use image::{Image, Memory};
use linux::Address;

use crate::layout::object_layouts::{ARRAY_EMBEDDED, ARRAY_LENGTH_MASK, ARRAY_LENGTH_SHIFT};
use crate::model::slot::SlotType;
use crate::word::word;

/// The element with this index of the array in the slot at `at`.
pub(crate) fn element(image: &Image<'_>, at: Address, index: u32) -> Option<u64> {
    let (elements, length) = elements(image, at)?;
    let index = u64::from(index);
    image.read_u64(elements.offset(index * 8)).ok().filter(|_| index < length)
}

/// The address and number of the elements of the array in the slot at `at` (`struct RArray` in
/// include/ruby/internal/core/rarray.h: length and pointer at 16 and 32; the same in all versions).
fn elements(image: &Image<'_>, at: Address) -> Option<(Address, u64)> {
    let mut slot = [0; 40];
    image.read_exact(at, &mut slot).ok()?;
    let flags = word(&slot, 0);
    if SlotType::of_flags(flags) != SlotType::ARRAY {
        return None;
    }
    if flags & ARRAY_EMBEDDED != 0 {
        return Some((at.offset(16), flags >> ARRAY_LENGTH_SHIFT & ARRAY_LENGTH_MASK));
    }
    Some((Address(word(&slot, 32)), word(&slot, 16)))
}
