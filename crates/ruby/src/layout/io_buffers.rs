//! The buffers of IOs: bytes, in memory that was recycled.
//!
//! An `rb_io_t` has buffers for writing, reading and decoding (`struct rb_io_buffer_t`, later
//! `rb_io_internal_buffer`), each a pointer, an offset, a length and a capacity, packed into 20 bytes
//! (include/ruby/io.h; the same from 2.7 to 3.4), so a pointer may straddle two words. Their offsets
//! differ by release and are derived: at the right ones nearly all IOs have either a buffer or zeros,
//! and one has a buffer.

use image::{Image, Memory};
use linux::Address;

use crate::address_classifier::{AddressClassifier, Place};
use crate::layout::room::{Room, Unit};
use crate::model::content::Content;
use crate::word::word;

/// The first bytes of an `rb_io_t`, among which buffers are searched for: enough for all releases.
const SEARCHED_BYTES: usize = 200;
const BUFFER_BYTES: usize = 20;
/// The alignment of its members.
const STEP: usize = 4;
/// One in this many IOs may be in the middle of a change.
const IOS_PER_MISFIT: usize = 8;

/// The structures and buffers of IOs, and the offsets of the buffers in the structures. `ios` are slots with the addresses of their `rb_io_t`.
pub(crate) fn memory_of(
    image: &Image<'_>,
    classifier: &AddressClassifier<'_>,
    ios: &[(u32, Address)],
) -> (Vec<(u32, Address, Content)>, Vec<usize>) {
    let read = |&(slot, at): &(u32, Address)| {
        let mut bytes = [0; SEARCHED_BYTES];
        let read = image.read(at, &mut bytes);
        (slot, at, bytes, read)
    };
    let ios: Vec<_> = ios.iter().map(read).collect();
    let mut memory: Vec<_> =
        ios.iter().map(|&(slot, at, ..)| (slot, at, Content::UNKNOWN)).collect();
    let mut offsets = Vec::new();
    for offset in (0..=SEARCHED_BYTES - BUFFER_BYTES).step_by(STEP) {
        let (mut buffers, mut misfits) = (Vec::new(), 0);
        for (slot, _, bytes, read) in &ios {
            let member = &bytes[offset..][..BUFFER_BYTES];
            match buffer(member, classifier).filter(|_| offset + BUFFER_BYTES <= *read) {
                Some(at) => buffers.push((*slot, at, Content::BYTES)),
                None if member.iter().all(|byte| *byte == 0) => {}
                None => misfits += 1,
            }
        }
        if misfits <= ios.len() / IOS_PER_MISFIT && !buffers.is_empty() {
            memory.append(&mut buffers);
            offsets.push(offset);
        }
    }
    (memory, offsets)
}

/// The room of the buffer at this offset of the `rb_io_t` at this address; `None` without one.
pub(crate) fn room_of(image: &Image<'_>, io: Address, offset: usize) -> Option<Room> {
    let mut member = [0; BUFFER_BYTES];
    image.read_exact(io.offset(offset as u64), &mut member).ok()?;
    let (start, [from, used, capacity]) = (Address(word(&member, 0)), numbers(&member)?);
    let fits = start.0 != 0 && from + used <= capacity;
    fits.then_some(Room { start, unit: Unit::Buffered, used, capacity })
}

/// The memory of the buffer that these bytes are; `None` if they cannot be one.
fn buffer(member: &[u8], classifier: &AddressClassifier<'_>) -> Option<Address> {
    let (at, [offset, length, capacity]) = (word(member, 0), numbers(member)?);
    let fits = at.is_multiple_of(16)
        && classifier.at(at) == Place::Private
        && capacity > 0
        && offset + length <= capacity;
    fits.then_some(Address(at))
}

/// The offset of the bytes in a buffer, their number, and how many there is room for; `None` if one is negative.
fn numbers(member: &[u8]) -> Option<[u64; 3]> {
    let [offset, length, capacity] = [8, 12, 16].map(|at| {
        let bytes = member[at..at + 4].try_into().expect("4 bytes");
        u64::try_from(i32::from_le_bytes(bytes)).ok()
    });
    Some([offset?, length?, capacity?])
}
