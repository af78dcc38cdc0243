//! Heap pages of processes that run.

use image::{Image, Memory};
use linux::Address;

use crate::layout::page_descriptor::MAX_START;
use crate::model::heap_page::HeapPage;
use crate::object_space::ObjectSpace;
use crate::read::PAGE_SIZES_LOG2;
use crate::word::word;

/// The words of a page's descriptor among which that of its first slot is.
const WORDS: usize = 16;
/// The number of pages from which the place of that word is derived.
const SAMPLE: usize = 256;

/// Recognizes the heap pages of a process that runs.
#[derive(Debug, Clone, Copy)]
pub struct HeapPages {
    page_bytes: u64,
    /// The index of the word with the address of the first slot, in a page's descriptor.
    start: usize,
    /// The offset of the two bytes with the size of its slots; `None` if there are none at the same place of all pages.
    slot_bytes_at: Option<usize>,
}

impl HeapPages {
    /// Derives the size of pages, and where their descriptors have the first slot; `None` if no pages have slots.
    #[must_use]
    pub fn derive(image: &Image<'_>, space: &ObjectSpace) -> Option<Self> {
        let mut sizes = PAGE_SIZES_LOG2.map(|log2| 1 << log2);
        let page_bytes = sizes.find(|&bytes| {
            space.pages.iter().all(|page| {
                page.range.start.align_down(bytes) == page.range.end.before(1).align_down(bytes)
            })
        })?;
        let with_slots = || space.pages.iter().filter(|page| !page.slots.is_empty());
        // Neighbours mostly have slots of one size.
        let step = with_slots().count().div_ceil(SAMPLE).max(1);
        let descriptor =
            |page: &HeapPage| descriptor(image, page.range.start.align_down(page_bytes));
        let sample: Vec<([u64; WORDS], &HeapPage)> = with_slots()
            .step_by(step)
            .map(|page| Some((descriptor(page)?, page)))
            .collect::<Option<_>>()?;
        sample.first()?;
        let is_start =
            |&index: &usize| sample.iter().all(|(words, page)| words[index] == page.first_slot.0);
        let start = (0..WORDS).find(is_start)?;
        // The first slot often lies as many bytes behind the page's beginning as a slot has, so its address ends with them.
        let has_slot_bytes = |&at: &usize| {
            let is_it = |(words, page): &([u64; WORDS], &HeapPage)| {
                words[at / 8] >> (at % 8 * 8) & 0xffff == u64::from(page.slot_bytes)
            };
            at / 8 != start && sample.iter().all(is_it)
        };
        let slot_bytes_at = (0..WORDS * 8).step_by(2).find(has_slot_bytes);
        Some(Self { page_bytes, start, slot_bytes_at })
    }

    /// The bytes of a page.
    pub(crate) fn page_bytes(self) -> u64 {
        self.page_bytes
    }

    /// The beginning of the heap page that has the slot at `at`.
    pub(crate) fn page_of(self, at: Address) -> Address {
        at.align_down(self.page_bytes)
    }

    /// The number of the slot at `at` among those of its page, whose descriptor has these bytes; `None` if they say nothing.
    pub(crate) fn slot_number(self, descriptor: &[u8], at: Address) -> Option<u64> {
        let bytes = descriptor.get(..WORDS * 8)?;
        let slot_at = self.slot_bytes_at?;
        let slot_bytes = word(bytes, slot_at / 8 * 8) >> (slot_at % 8 * 8) & 0xffff;
        let first_slot = word(bytes, self.start * 8);
        let number = at.0.checked_sub(first_slot)?.checked_div(slot_bytes)?;
        (number < self.page_bytes / 8).then_some(number)
    }

    /// Returns true if `at` lies in a heap page: the page refers to its descriptor, and that to its first slot. A group of musl's
    /// malloc refers to its meta, and that to the beginning of the group.
    #[must_use]
    pub fn has(self, image: &Image<'_>, at: Address) -> bool {
        let page = at.align_down(self.page_bytes);
        let words = descriptor(image, page);
        words.is_some_and(|words| (page.0 + 8..=page.0 + MAX_START).contains(&words[self.start]))
    }
}

/// The first words of the descriptor of the page at `page`.
fn descriptor(memory: &dyn Memory, page: Address) -> Option<[u64; WORDS]> {
    let descriptor = memory.read_address(page).ok()?;
    let mut bytes = [0; WORDS * 8];
    if descriptor.0 == 0 || !descriptor.is_aligned(8) {
        return None;
    }
    memory.read_exact(descriptor, &mut bytes).ok()?;
    Some(std::array::from_fn(|index| word(&bytes, index * 8)))
}
