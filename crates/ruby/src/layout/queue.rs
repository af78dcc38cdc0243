//! Queues that are rings in C (`struct rb_queue` in thread_sync.c, from 4.1 on): the list of threads that wait, the number of forks, the
//! capacity, the number of elements, the place of the first one, and the elements. The ring grows, and never shrinks.

use image::{Image, Memory};
use linux::Address;

use crate::layout::embedded::STRUCTURE;
use crate::layout::room::{Room, Unit};
use crate::word::word;

/// The place of the capacity in the structure, in bytes, and the words from there to the elements.
const CAPACITY: u64 = 24;
const WORDS: usize = 4;

/// The room of the queue in the slot with these bytes; `None` if its numbers contradict each other. The structure is in memory of its own.
pub(crate) fn room(image: &Image<'_>, slot: &[u8]) -> Option<Room> {
    let mut bytes = [0; 8 * WORDS];
    let structure = slot.get(STRUCTURE..STRUCTURE + 8)?;
    image.read_exact(Address(word(structure, 0)).offset(CAPACITY), &mut bytes).ok()?;
    room_of([0, 1, 2, 3].map(|number| word(&bytes, 8 * number)))
}

fn room_of([capacity, used, first, elements]: [u64; WORDS]) -> Option<Room> {
    let fits = used <= capacity && first < capacity && elements != 0;
    fits.then_some(Room { start: Address(elements), unit: Unit::Queued, used, capacity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_contradict_each_other_are_no_queue() {
        let room = Room { start: Address(0x1000), unit: Unit::Queued, used: 3, capacity: 8 };
        assert_eq!((room_of([8, 3, 7, 0x1000]), room.bytes()), (Some(room), 64));
        for wrong in [[8, 9, 0, 0x1000], [8, 3, 8, 0x1000], [0, 0, 0, 0x1000], [8, 3, 0, 0]] {
            assert_eq!(room_of(wrong), None);
        }
    }
}
