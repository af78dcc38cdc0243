use image::{Image, Memory};
use linux::Address;

use crate::layout::heap_layout::SpaceMembers;
use crate::layout::page_finder::{words_around, words_around_start};

/// The garbage collector's own number of old objects, in a process that runs.
///
/// The object space has four words side by side (`rgengc` in gc.c, from 3.4 on gc/default/default.c; the same from 2.7 to 4.1): the
/// number of objects that are kept like old ones because they have no write barrier, its limit, the number of old objects, and
/// its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldObjects {
    at: Address,
}

impl OldObjects {
    /// The only place whose two numbers add up to the number of bits for uncollectible objects. In the middle of a collection there
    /// may be none.
    pub(crate) fn find(image: &Image<'_>, spaces: &[SpaceMembers], bits: u64) -> Option<Self> {
        // From 4.1 on each Ractor has an object space of its own.
        let [space] = spaces else { return None };
        let words = words_around(image, space.list_head);
        let start = words_around_start(image, space.list_head)?;
        let is_place = |words: &[u64]| words[0].checked_add(words[2]) == Some(bits) && words[2] > 0;
        let mut places = (0..).step_by(8).zip(words.windows(4)).filter(|it| is_place(it.1));
        let (offset, _) = places.next().filter(|_| places.next().is_none())?;
        Some(Self { at: start.offset(offset + 16) })
    }

    /// The number now; `None` if it could not be read.
    #[must_use]
    pub fn read(self, memory: &dyn Memory) -> Option<u64> {
        memory.read_u64(self.at).ok()
    }
}
