use std::ops::Range;

use image::Unreadable;
use linux::Address;

use crate::structures::Structures;

/// A slice, of which pages consist (`MI_ARENA_SLICE_SIZE`, `MI_SEGMENT_SLICE_SIZE`).
pub(super) const SLICE: u64 = 64 << 10;

/// The words of a page's structure that are read. All members that matter are among them.
pub(super) const WORDS: usize = 16;

/// A page: an area with blocks of one size.
#[derive(Debug, Clone)]
pub(super) struct Page {
    /// Its structure (`mi_page_t`).
    pub(super) at: Address,
    /// Its slices. For a page of one large block they may be only the first ones.
    pub(super) area: Range<Address>,
    /// The words of its structure.
    pub(super) words: [u64; WORDS],
}

impl Page {
    /// Reads the first `bytes` of the structure at `at`.
    pub(super) fn read(
        structures: &mut Structures<'_>,
        at: Address,
        bytes: u64,
        area: Range<Address>,
    ) -> Result<Self, Unreadable> {
        let mut words = [0; WORDS];
        for (word, number) in words.iter_mut().zip(0..bytes / 8) {
            *word = structures.word(at.offset(number * 8))?;
        }
        Ok(Self { at, area, words })
    }

    /// The 32 bits at this multiple of 4 bytes.
    pub(super) fn half(&self, number: usize) -> u64 {
        self.words[number / 2] >> (32 * (number % 2)) & u64::from(u32::MAX)
    }

    /// The 16 bits at this multiple of 2 bytes.
    pub(super) fn quarter(&self, number: usize) -> u64 {
        self.words[number / 4] >> (16 * (number % 4)) & u64::from(u16::MAX)
    }

    /// The first block of the list at this word, 0 if it is empty. The low bits of some are flags.
    pub(super) fn head(&self, word: usize) -> u64 {
        self.words[word] & !7
    }
}
