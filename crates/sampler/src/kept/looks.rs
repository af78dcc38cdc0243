use image::{Image, Memory};
use linux::Address;
use ruby::{Ages, CollectionCounts, Collections};

use crate::kept::followed::Contents;

/// Attempts to read slots while no collection begins.
const TRIES: usize = 3;

/// Reads slots of a process that runs.
pub(super) struct Looks {
    pub(super) ages: Ages,
    pub(super) collections: Collections,
}

impl Looks {
    /// The slots that are read between two looks at the number of collections: that takes about a millisecond.
    pub(super) const MAX_SLOTS: usize = 256;

    /// The numbers of collections; `None` if they cannot be read.
    pub(super) fn counts(&self, image: &Image<'_>) -> Option<CollectionCounts> {
        (0..TRIES).find_map(|_| self.collections.read(image))
    }

    /// The contents of slots, and the numbers of collections before and after they were read; `None` if these changed. Slots that cannot
    /// be read have no contents.
    pub(super) fn at(
        &self,
        image: &Image<'_>,
        slots: &[Address],
    ) -> Option<(CollectionCounts, Vec<Option<Contents>>)> {
        (0..TRIES).find_map(|_| {
            let before = self.counts(image)?;
            let contents = slots.iter().map(|&slot| self.contents(image, slot)).collect();
            (self.counts(image)? == before).then_some((before, contents))
        })
    }

    fn contents(&self, image: &Image<'_>, slot: Address) -> Option<Contents> {
        let mut bytes = [0; 40];
        image.read_exact(slot, &mut bytes).ok()?;
        let all: [u64; 5] = std::array::from_fn(|index| {
            u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("8 bytes"))
        });
        let [flags, class, words @ ..] = all;
        let (age, is_kept) = self.ages.of(image, slot, flags)?;
        Some(Contents { kind: flags as u8 & 0x1f, class, age, words, is_kept })
    }
}
