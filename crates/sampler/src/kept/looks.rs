use image::{Image, Memory};
use linux::Address;
use ruby::{Ages, CollectionCounts, Collections, FreeLists, OLD_AGE, ObjectAge, PageAges};

use crate::kept::followed::Contents;

/// Attempts to read slots while no collection begins.
const TRIES: usize = 3;
/// The first bytes of a slot that are compared, at most.
const MAX_COMPARED: u64 = 40;
/// The bytes between two slots of a page that are read at once, at most.
const MAX_GAP: u64 = 1 << 10;

/// Reads slots of a process that runs.
pub(super) struct Looks {
    ages: Ages,
    collections: Collections,
    /// The first bytes of a slot that are compared.
    compared: usize,
}

impl Looks {
    /// Looks at the slots of these lists.
    pub(super) fn new(ages: Ages, collections: Collections, lists: &FreeLists) -> Self {
        let compared = lists.smallest_slot().min(MAX_COMPARED) as usize;
        Self { ages, collections, compared }
    }

    /// The slots that are read between two looks at the number of collections: that takes less than a millisecond.
    pub(super) const MAX_SLOTS: usize = 256;

    /// The numbers of collections; `None` if they cannot be read.
    pub(super) fn counts(&self, image: &Image<'_>) -> Option<CollectionCounts> {
        (0..TRIES).find_map(|_| self.collections.read(image))
    }

    /// Returns true if the collector marks objects; `None` if its state is unknown.
    pub(super) fn is_marking(&self, image: &Image<'_>) -> Option<bool> {
        self.collections.is_marking(image)
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
            let contents = self.contents(image, slots);
            (self.counts(image)? == before).then_some((before, contents))
        })
    }

    fn contents(&self, image: &Image<'_>, slots: &[Address]) -> Vec<Option<Contents>> {
        let mut contents = vec![None; slots.len()];
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_unstable_by_key(|&index| slots[index]);
        let page = |index: usize| self.ages.page_of(slots[index]);
        for of_page in order.chunk_by(|&one, &next| page(one) == page(next)) {
            // Before the ages: a slot that is taken again meanwhile must not have the age of the object before.
            let mut read = Vec::new();
            // New objects lie side by side, so one read has many.
            for run in of_page.chunk_by(|&one, &next| slots[next] - slots[one] <= MAX_GAP) {
                let start = slots[run[0]];
                let mut bytes =
                    vec![0; (slots[run[run.len() - 1]] - start) as usize + self.compared];
                if image.read_exact(start, &mut bytes).is_ok() {
                    read.push((run, bytes));
                }
            }
            let ages = self.ages.of_page(image, page(of_page[0]));
            for (run, bytes) in read {
                for &index in run {
                    let at = (slots[index] - slots[run[0]]) as usize;
                    let bytes = &bytes[at..][..self.compared];
                    contents[index] = contents_of(&ages, slots[index], bytes);
                }
            }
        }
        contents
    }
}

fn contents_of(ages: &PageAges<'_>, slot: Address, bytes: &[u8]) -> Option<Contents> {
    let mut all =
        bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().expect("8 bytes")));
    let (flags, class) = (all.next()?, all.next()?);
    let words = std::array::from_fn(|_| all.next().unwrap_or_default());
    let ObjectAge { collections, is_kept, is_unprotected } = ages.of(slot, flags)?;
    // One without a write barrier is as old as it can be once minor collections keep it.
    let age = if is_unprotected && is_kept { OLD_AGE } else { collections };
    Some(Contents { kind: flags as u8 & 0x1f, class, age, words, is_kept, is_unprotected })
}
