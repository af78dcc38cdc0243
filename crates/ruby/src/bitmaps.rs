//! The bitmaps of a heap page's descriptor: a bit for each slot says whether the object in it was
//! found by the last mark, is old, or is without a write barrier.

use std::ops::Range;

use capture::{Address, Image, Memory};

use crate::error::{Check, Failure};
use crate::page::Page;
use crate::pages::Derived;

/// Words of a bitmap of the largest pages with the smallest slots.
pub(crate) const MOST_WORDS: usize = 64;
/// So many pages are looked at to tell which bit is which slot's.
const SAMPLED_PAGES: usize = 128;
/// Every version has set this flag on old objects (`FL_PROMOTED0` or `FL_PROMOTED`, bit 5), but not
/// on those that are kept like old ones because they are without a write barrier.
const PROMOTED: u64 = 1 << 5;

/// Which bit of a bitmap is a slot's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The slot's offset in its page, in units of the smallest slot (up to 4.0).
    Offset,
    /// The slot's number (from 4.1 on).
    Number,
}

/// Where the bitmaps stand in a descriptor, and which bit is which slot's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bitmaps {
    /// Of the first of them, `wb_unprotected_bits`; `mark_bits` and `uncollectible_bits` follow.
    pub(crate) at: usize,
    /// Of 64 bits in each of them.
    pub(crate) words: usize,
    /// Bytes of the smallest slot.
    unit: u32,
    rule: Rule,
}

/// The bitmaps of one page.
pub(crate) struct Marks {
    /// Without a write barrier.
    pub(crate) unprotected: [u64; MOST_WORDS],
    /// Found by the last mark; what was old then is marked anew when its page is swept.
    pub(crate) marked: [u64; MOST_WORDS],
    /// Not to be collected by minor collections: old, or kept like old.
    pub(crate) old: [u64; MOST_WORDS],
}

/// How a page's bitmaps disagree with its slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Bits that no slot or a free slot has, and old objects without a mark.
    wrong: u32,
    /// Old objects that do not say so in their flags.
    unlikely: u32,
}

pub(crate) fn bit(bits: &[u64; MOST_WORDS], at: usize) -> bool {
    bits.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}

pub(crate) fn set(bits: &mut [u64; MOST_WORDS], at: usize) {
    if let Some(word) = bits.get_mut(at / 64) {
        *word |= 1 << (at % 64);
    }
}

/// Clears the bits outside `kept`.
fn keep(bits: &mut [u64; MOST_WORDS], kept: Range<usize>) {
    let below = |end: usize, at: usize| match end.saturating_sub(at * 64) {
        0..64 => (1 << end.saturating_sub(at * 64)) - 1,
        _ => u64::MAX,
    };
    for (at, word) in bits.iter_mut().enumerate() {
        *word &= below(kept.end, at) & !below(kept.start, at);
    }
}

impl Bitmaps {
    /// The bitmaps of these pages, by what fits a sample of them best. Whether they fit all of
    /// them is to be checked when all are read.
    pub(crate) fn find(image: &Image<'_>, heap: &Derived) -> Result<Self, Failure> {
        let step = heap.pages.len().div_ceil(SAMPLED_PAGES).max(1);
        let mut scored: Vec<(Score, Self)> =
            Self::candidates(heap).map(|candidate| (Score::default(), candidate)).collect();
        for page in heap.pages.iter().step_by(step) {
            let mut body = vec![0; (page.slot_bytes * page.slot_count) as usize];
            if image.read(page.first_slot, &mut body) < body.len() {
                continue;
            }
            for (score, candidate) in &mut scored {
                if let Some(marks) = candidate.read(image, page) {
                    candidate.judge(page, &body, &marks, score);
                }
            }
        }
        // What ties has set no bit that would tell, so that it does not matter.
        let best = scored.into_iter().min_by_key(|(score, _)| *score);
        let (_, bitmaps) = best.ok_or(Failure {
            check: Check::Bitmaps,
            at: Address(0),
            page_bytes: 1 << heap.linkage.page_log2,
        })?;
        Ok(bitmaps)
    }

    fn candidates(heap: &Derived) -> impl Iterator<Item = Self> {
        // The list node's two words are followed by the bitmaps in all versions.
        let at = heap.linkage.node + 16;
        let page_bytes = 1_u32 << heap.linkage.page_log2;
        let rules =
            [(40, Rule::Offset), (32, Rule::Number), (40, Rule::Number), (32, Rule::Offset)];
        rules.into_iter().map(move |(unit, rule)| {
            let words = page_bytes.div_ceil(unit).div_ceil(64) as usize;
            Self { at, words: words.min(MOST_WORDS), unit, rule }
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
                rule: if self.rule == Rule::Number { Rule::Offset } else { Rule::Number },
                ..self
            },
        ];
        let changes_nothing = |it: &Self| {
            it.rule == Rule::Number && self.rule == Rule::Number && it.unit != self.unit
        };
        moved.into_iter().chain(others).filter(|it| !changes_nothing(it)).collect()
    }

    /// The bit of the slot with this number, in each of a page's bitmaps.
    pub(crate) fn index(&self, page: &Page, slot: u32) -> usize {
        match self.rule {
            Rule::Number => slot as usize,
            Rule::Offset => {
                let first = (page.first_slot - page.base) as u32;
                ((first + slot * page.slot_bytes) / self.unit) as usize
            }
        }
    }

    /// Reads a page's bitmaps.
    pub(crate) fn read(&self, image: &Image<'_>, page: &Page) -> Option<Marks> {
        let mut bytes = [0; MOST_WORDS * 8 * 3];
        let bytes = &mut bytes[..self.words * 8 * 3];
        image.read_exact(page.descriptor.offset(self.at as u64), bytes).ok()?;
        let map = |number: usize| {
            let own = &bytes[number * self.words * 8..][..self.words * 8];
            let mut words = [0; MOST_WORDS];
            for (word, bytes) in words.iter_mut().zip(own.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
            words
        };
        let mut marks = Marks { unprotected: map(0), marked: map(1), old: map(2) };
        // While it sweeps a page, Ruby marks what is before the first slot and behind the last one
        // (gc.c, gc_page_sweep: `out_of_range_bits`), so that it need not tell it from objects.
        keep(&mut marks.marked, self.index(page, 0)..self.index(page, page.slot_count));
        Some(marks)
    }

    fn judge(&self, page: &Page, body: &[u8], marks: &Marks, score: &mut Score) {
        let mut live = [0; MOST_WORDS];
        for (number, slot) in body.chunks_exact(page.slot_bytes.max(8) as usize).enumerate() {
            let flags = u64::from_le_bytes(slot[..8].try_into().expect("8 bytes"));
            let at = self.index(page, number as u32);
            if flags != 0 {
                set(&mut live, at);
            }
            let young = flags & PROMOTED == 0 && !bit(&marks.unprotected, at);
            score.unlikely += u32::from(young && bit(&marks.old, at));
        }
        score.wrong += marks.wrong(&live);
    }
}

impl Marks {
    /// The bits that are set although no live slot has them, and the old objects without a mark.
    pub(crate) fn wrong(&self, live: &[u64; MOST_WORDS]) -> u32 {
        (0..MOST_WORDS)
            .map(|at| {
                let stray = (self.unprotected[at] | self.marked[at] | self.old[at]) & !live[at];
                let unmarked = self.old[at] & !self.marked[at];
                stray.count_ones() + unmarked.count_ones()
            })
            .sum()
    }

    /// The bits that say of free slots that the last mark found them, and no more.
    ///
    /// Up to 3.0 a program may free an object by itself (`rb_gc_force_recycle`), and where its page
    /// is not swept yet, its mark stays until it is (gc.c).
    pub(crate) fn recycled(&self, live: &[u64; MOST_WORDS]) -> u32 {
        let lone = |at: usize| self.marked[at] & !self.old[at] & !self.unprotected[at] & !live[at];
        (0..MOST_WORDS).map(|at| lone(at).count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bits_of_slots_are_kept() {
        let places = [0, 1, 63, 64, 65, 130, MOST_WORDS * 64, MOST_WORDS * 64 + 9];
        for (start, end) in places.into_iter().flat_map(|start| places.map(|end| (start, end))) {
            let mut bits = [u64::MAX; MOST_WORDS];
            keep(&mut bits, start..end);
            for at in 0..MOST_WORDS * 64 {
                assert_eq!(bit(&bits, at), (start..end).contains(&at), "{at} of {start}..{end}");
            }
        }
    }

    #[test]
    fn bits_outside_a_bitmap_are_not_set() {
        let mut bits = [0; MOST_WORDS];
        set(&mut bits, MOST_WORDS * 64);
        set(&mut bits, 70);
        assert!(bit(&bits, 70) && !bit(&bits, usize::MAX));
        assert_eq!(bits.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    }
}
