//! The bitmaps of a heap page's descriptor. Their bits for a slot are set if the last mark found its object, if the
//! object is old, or if it has no write barrier.

use std::ops::Range;

use image::{Image, Memory};
use linux::Address;

use crate::error::{Check, Failure};
use crate::layout::heap_layout::HeapLayout;
use crate::model::heap_page::HeapPage;

/// Words of a bitmap of the largest pages with the smallest slots.
pub(crate) const MAX_WORDS: usize = 64;
/// The pages that are read to find out which bit belongs to which slot.
const SAMPLED_PAGES: usize = 128;
/// The flag of old objects in all versions (`FL_PROMOTED0` or `FL_PROMOTED`, bit 5). Objects that are
/// kept like old ones because they have no write barrier do not have it.
pub(crate) const PROMOTED: u64 = 1 << 5;

/// The number of a slot's bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BitIndex {
    /// The slot's offset in its page, in units of the smallest slot (up to 4.0).
    Offset,
    /// The slot's number (from 4.1 on).
    Number,
}

/// The place of the bitmaps in a descriptor, and the relation of bits and slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bitmaps {
    /// The offset of the first, `wb_unprotected_bits`; `mark_bits` and `uncollectible_bits` follow.
    pub(crate) at: usize,
    /// The number of 64-bit words of each.
    pub(crate) words: usize,
    /// The bytes of the smallest slot.
    unit: u32,
    bit_index: BitIndex,
}

/// The bitmaps of one page.
pub(crate) struct PageBitmaps {
    /// `wb_unprotected_bits`: without a write barrier.
    pub(crate) unprotected: [u64; MAX_WORDS],
    /// `mark_bits`: found by the last mark. Objects that were old then are marked again when their
    /// page is swept.
    pub(crate) marked: [u64; MAX_WORDS],
    /// `uncollectible_bits`: not collected by minor collections, as they are old or kept like old.
    pub(crate) old: [u64; MAX_WORDS],
}

/// The contradictions between bitmaps and slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Bits of no slot or of a free slot, and old objects without a mark.
    wrong: u32,
    /// Old objects whose flags do not agree.
    unlikely: u32,
}

pub(crate) fn bit(bits: &[u64; MAX_WORDS], at: usize) -> bool {
    bits.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}

pub(crate) fn set(bits: &mut [u64; MAX_WORDS], at: usize) {
    if let Some(word) = bits.get_mut(at / 64) {
        *word |= 1 << (at % 64);
    }
}

/// Clears the bits outside `kept`.
fn keep(bits: &mut [u64; MAX_WORDS], kept: Range<usize>) {
    let below = |end: usize, at: usize| match end.saturating_sub(at * 64) {
        0..64 => (1 << end.saturating_sub(at * 64)) - 1,
        _ => u64::MAX,
    };
    for (at, word) in bits.iter_mut().enumerate() {
        *word &= below(kept.end, at) & !below(kept.start, at);
    }
}

impl Bitmaps {
    /// The bitmaps that fit a sample of the pages best. Whether they fit all pages is checked when the
    /// slots are read.
    pub(crate) fn find(image: &Image<'_>, heap: &HeapLayout) -> Result<Self, Failure> {
        let step = heap.pages.len().div_ceil(SAMPLED_PAGES).max(1);
        let mut scored: Vec<(Score, Self)> =
            Self::candidates(heap).map(|candidate| (Score::default(), candidate)).collect();
        let pages = heap.pages.iter().zip(&heap.descriptors);
        for (page, &descriptor) in pages.step_by(step) {
            let mut body = vec![0; page.slots_bytes()];
            if image.read(page.first_slot, &mut body) < body.len() {
                continue;
            }
            for (score, candidate) in &mut scored {
                if let Some(bitmaps) = candidate.read(image, page, descriptor) {
                    candidate.judge(page, &body, &bitmaps, score);
                }
            }
        }
        // Candidates that tie differ in no bit that is set, so the choice does not matter.
        let best = scored.into_iter().min_by_key(|(score, _)| *score);
        let (_, bitmaps) = best.ok_or(Failure {
            check: Check::Bitmaps,
            at: Address(0),
            page_bytes: 1 << heap.page_log2(),
        })?;
        Ok(bitmaps)
    }

    /// Bits by offset have one unit for all sizes of slots.
    fn candidates(heap: &HeapLayout) -> impl Iterator<Item = Self> {
        // In all versions the bitmaps follow the two words of the list node.
        let at = heap.descriptor.node + 16;
        let page_bytes = 1_u32 << heap.page_log2();
        let rules = [
            (40, BitIndex::Offset),
            (32, BitIndex::Number),
            (40, BitIndex::Number),
            (32, BitIndex::Offset),
        ];
        // Few objects may have a bit, and none of them on a page of the sample.
        let fits_slots = |unit: u32| heap.pages.iter().all(|it| it.slot_bytes.is_multiple_of(unit));
        let fits = move |&(unit, bit_index): &_| bit_index == BitIndex::Number || fits_slots(unit);
        rules.into_iter().filter(fits).map(move |(unit, bit_index)| {
            let words = page_bytes.div_ceil(unit).div_ceil(64) as usize;
            Self { at, words: words.min(MAX_WORDS), unit, bit_index }
        })
    }

    #[cfg(test)]
    pub(crate) fn mutations(self) -> Vec<Self> {
        let moved =
            [-16, -8, 8, 16].map(|by| Self { at: self.at.saturating_add_signed(by), ..self });
        let others = [
            Self { words: self.words + 1, ..self },
            Self { words: self.words - 1, ..self },
            Self { unit: if self.unit == 40 { 32 } else { 40 }, ..self },
            Self {
                bit_index: match self.bit_index {
                    BitIndex::Number => BitIndex::Offset,
                    BitIndex::Offset => BitIndex::Number,
                },
                ..self
            },
        ];
        let changes_nothing = |it: &Self| {
            [it.bit_index, self.bit_index] == [BitIndex::Number; 2] && it.unit != self.unit
        };
        moved.into_iter().chain(others).filter(|it| !changes_nothing(it)).collect()
    }

    /// The bit of the slot with this number, in each of a page's bitmaps.
    pub(crate) fn index(&self, page: &HeapPage, slot: u32) -> usize {
        match self.bit_index {
            BitIndex::Number => slot as usize,
            BitIndex::Offset => {
                let first = (page.first_slot - page.range.start) as u32;
                ((first + slot * page.slot_bytes) / self.unit) as usize
            }
        }
    }

    /// The bits of a page's slots, in their order: as [`index`](Self::index), without a division for each.
    pub(crate) fn indices(&self, page: &HeapPage) -> impl Iterator<Item = usize> + use<> {
        let (first, slot_bytes, unit) = match self.bit_index {
            BitIndex::Number => (0, 1, 1),
            BitIndex::Offset => (
                (page.first_slot - page.range.start) as usize,
                page.slot_bytes as usize,
                self.unit as usize,
            ),
        };
        let (step, rest_of_step) = (slot_bytes / unit, slot_bytes % unit);
        let (mut index, mut rest) = (first / unit, first % unit);
        std::iter::repeat_with(move || {
            let own = index;
            rest += rest_of_step;
            index += step + usize::from(rest >= unit);
            rest -= if rest >= unit { unit } else { 0 };
            own
        })
    }

    /// The bytes of a slot's offset that a bit stands for; `None` if bits are numbered as slots are.
    pub(crate) fn offset_unit(&self) -> Option<u32> {
        (self.bit_index == BitIndex::Offset).then_some(self.unit)
    }

    /// The offset of the bitmap with this number, counted from the first, in a descriptor.
    pub(crate) fn place(&self, number: usize) -> u64 {
        (self.at + number * self.words * 8) as u64
    }

    /// Reads the bitmaps of a page.
    pub(crate) fn read(
        &self,
        image: &Image<'_>,
        page: &HeapPage,
        descriptor: Address,
    ) -> Option<PageBitmaps> {
        let mut bytes = [0; MAX_WORDS * 8 * 3];
        let bytes = &mut bytes[..self.words * 8 * 3];
        image.read_exact(descriptor.offset(self.at as u64), bytes).ok()?;
        let map = |number: usize| {
            let own = &bytes[number * self.words * 8..][..self.words * 8];
            let mut words = [0; MAX_WORDS];
            for (word, bytes) in words.iter_mut().zip(own.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
            words
        };
        let mut bitmaps = PageBitmaps { unprotected: map(0), marked: map(1), old: map(2) };
        // While it sweeps a page, Ruby marks everything before the first slot and behind the last one
        // (gc.c, gc_page_sweep: `out_of_range_bits`).
        keep(&mut bitmaps.marked, self.index(page, 0)..self.index(page, page.slots.len() as u32));
        Some(bitmaps)
    }

    fn judge(&self, page: &HeapPage, body: &[u8], bitmaps: &PageBitmaps, score: &mut Score) {
        let mut live = [0; MAX_WORDS];
        for (number, slot) in body.chunks_exact(page.slot_bytes.max(8) as usize).enumerate() {
            let flags = u64::from_le_bytes(slot[..8].try_into().expect("8 bytes"));
            let at = self.index(page, number as u32);
            if flags != 0 {
                set(&mut live, at);
            }
            let young = flags & PROMOTED == 0 && !bit(&bitmaps.unprotected, at);
            score.unlikely += u32::from(young && bit(&bitmaps.old, at));
        }
        score.wrong += bitmaps.wrong(&live);
    }
}

impl PageBitmaps {
    /// The number of bits that are set for no live slot, and of old objects without a mark.
    pub(crate) fn wrong(&self, live: &[u64; MAX_WORDS]) -> u32 {
        (0..MAX_WORDS)
            .map(|at| {
                let stray = (self.unprotected[at] | self.marked[at] | self.old[at]) & !live[at];
                let unmarked = self.old[at] & !self.marked[at];
                stray.count_ones() + unmarked.count_ones()
            })
            .sum()
    }

    /// The number of free slots with a mark bit and no other.
    ///
    /// Up to 3.0 a program may free an object by itself (`rb_gc_force_recycle`). Its mark remains until
    /// its page is swept (gc.c).
    pub(crate) fn recycled(&self, live: &[u64; MAX_WORDS]) -> u32 {
        let lone = |at: usize| self.marked[at] & !self.old[at] & !self.unprotected[at] & !live[at];
        (0..MAX_WORDS).map(|at| lone(at).count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bits_of_slots_are_kept() {
        let places = [0, 1, 63, 64, 65, 130, MAX_WORDS * 64, MAX_WORDS * 64 + 9];
        for (start, end) in places.into_iter().flat_map(|start| places.map(|end| (start, end))) {
            let mut bits = [u64::MAX; MAX_WORDS];
            keep(&mut bits, start..end);
            for at in 0..MAX_WORDS * 64 {
                assert_eq!(bit(&bits, at), (start..end).contains(&at), "{at} of {start}..{end}");
            }
        }
    }

    #[test]
    fn the_bits_of_slots_in_their_order_are_those_of_each() {
        for bit_index in [BitIndex::Offset, BitIndex::Number] {
            for (first, slot_bytes, unit) in [
                (40, 40, 40),
                (16, 40, 40),
                (8, 160, 40),
                (64, 96, 40),
                (24, 640, 32),
                (56, 72, 32),
            ] {
                let page = HeapPage {
                    range: Address(1 << 16)..Address(2 << 16),
                    first_slot: Address((1 << 16) + first),
                    slot_bytes,
                    slots: 0..80,
                    space: 0,
                };
                let bitmaps = Bitmaps { at: 0, words: 26, unit, bit_index };
                let each = (0..80).map(|slot| bitmaps.index(&page, slot));
                assert!(bitmaps.indices(&page).take(80).eq(each), "{first} {slot_bytes} {unit}");
            }
        }
    }

    #[test]
    fn bits_outside_a_bitmap_are_not_set() {
        let mut bits = [0; MAX_WORDS];
        set(&mut bits, MAX_WORDS * 64);
        set(&mut bits, 70);
        assert!(bit(&bits, 70) && !bit(&bits, usize::MAX));
        assert_eq!(bits.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    }
}
