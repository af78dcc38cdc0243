//! The buffers of IOs: bytes, in memory that was recycled.
//!
//! An `rb_io_t` has buffers for writing, for reading and for decoding, each a pointer, an offset, a
//! length and a capacity, packed into 20 bytes (include/ruby/io.h; the same from 2.7 to 3.4): a
//! pointer may stand between two words. At which offsets they are differs by release, and is
//! derived: nearly all IOs have either a buffer or zeros there, and one has a buffer.

use capture::{Address, Image, Memory};

use crate::contents::Content;
use crate::object_space::References;
use crate::territory::{Place, Territory};
use crate::word::word;

/// As much of an `rb_io_t` as is searched: no release has its buffers further behind.
const SEARCHED_BYTES: usize = 200;
/// `sizeof(struct rb_io_buffer_t)`.
const BUFFER_BYTES: usize = 20;
/// The alignment of its members.
const STEP: usize = 4;
/// One in so many IOs may be in the midst of a change.
const IOS_PER_MISFIT: usize = 8;

/// Adds the buffers of IOs: each a slot, and where its structure is.
pub(crate) fn add_references(
    image: &Image<'_>,
    territory: &Territory<'_>,
    ios: &[(u32, Address)],
    references: &mut References,
) {
    let read = |&(slot, at): &(u32, Address)| {
        let mut bytes = [0; SEARCHED_BYTES];
        let read = image.read(at, &mut bytes);
        (slot, at, bytes, read)
    };
    let ios: Vec<_> = ios.iter().map(read).collect();
    let mut added: Vec<_> =
        ios.iter().map(|&(slot, at, ..)| (slot, at, Content::UNKNOWN)).collect();
    for offset in (0..=SEARCHED_BYTES - BUFFER_BYTES).step_by(STEP) {
        let (mut buffers, mut misfits) = (Vec::new(), 0);
        for (slot, _, bytes, read) in &ios {
            let member = &bytes[offset..][..BUFFER_BYTES];
            match buffer(member, territory).filter(|_| offset + BUFFER_BYTES <= *read) {
                Some(at) => buffers.push((*slot, at, Content::BYTES)),
                None if member.iter().all(|byte| *byte == 0) => {}
                None => misfits += 1,
            }
        }
        if misfits <= ios.len() / IOS_PER_MISFIT {
            added.append(&mut buffers);
        }
    }
    references.merge(added);
}

/// The memory of the buffer that these bytes are; `None` if they are none.
fn buffer(member: &[u8], territory: &Territory<'_>) -> Option<Address> {
    let at = word(member, 0);
    let number = |at: usize| i32::from_le_bytes(member[at..at + 4].try_into().expect("4 bytes"));
    let [offset, length, capacity] = [8, 12, 16].map(number);
    let fits = at.is_multiple_of(16)
        && territory.at(at) == Place::Private
        && offset >= 0
        && length >= 0
        && capacity > 0
        && offset.checked_add(length)? <= capacity;
    fits.then_some(Address(at))
}
