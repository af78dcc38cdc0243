use std::ops::Range;

use image::Unreadable;
use linux::Address;

use crate::structures::Structures;

/// The bytes of a span's structure (`Span`, src/span.h).
pub(super) const SPAN_BYTES: u64 = 48;

/// What a span is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Objects of this size class.
    Objects(u8),
    /// One large block.
    Large,
    /// It is free, and its pages were kept.
    Normal,
    /// It is free, and its pages were returned to the kernel.
    Returned,
    /// It is halfway from one use to another.
    Changing,
}

/// A span: pages in a row.
#[derive(Debug, Clone)]
pub(super) struct Span {
    /// Its structure.
    pub(super) at: Address,
    /// The number of its first page.
    pub(super) first: u64,
    /// The number of its pages.
    pub(super) pages: u64,
    pub(super) usage: Use,
    /// Its list of free objects. If it is free and large, a node of the tree of such spans.
    pub(super) objects: Address,
    /// The objects that are not on that list.
    pub(super) in_use: u64,
}

impl Span {
    /// Reads the structure at `at`. The inner value is `None` if it is none.
    pub(super) fn read(
        structures: &mut Structures<'_>,
        at: Address,
    ) -> Result<Option<Self>, Unreadable> {
        let bytes = structures.bytes::<{ SPAN_BYTES as usize }>(at)?;
        let [first, pages, _, _, objects, bits] =
            [0, 1, 2, 3, 4, 5].map(|word| word_of(&bytes, word));
        let usage = match (bits >> 24 & 3, (bits >> 16) as u8) {
            (0, 0) => Use::Large,
            (0, class) => Use::Objects(class),
            (1, _) => Use::Normal,
            (2, _) => Use::Returned,
            _ => return Ok(None),
        };
        let in_use = bits & u64::from(u16::MAX);
        let span = Self { at, first, pages, usage, objects: Address(objects), in_use };
        Ok((pages > 0 && first.checked_add(pages).is_some()).then_some(span))
    }

    /// A page of a span whose structure is being changed.
    pub(super) fn changing(page: u64) -> Self {
        let usage = Use::Changing;
        Self { at: Address(0), first: page, pages: 1, usage, objects: Address(0), in_use: 0 }
    }

    /// The number of the page behind it.
    pub(super) fn end(&self) -> u64 {
        self.first + self.pages
    }

    /// Its memory, with pages of `1 << shift` bytes.
    pub(super) fn area(&self, shift: u32) -> Range<Address> {
        Address(self.first << shift)..Address(self.end() << shift)
    }
}

fn word_of(bytes: &[u8; SPAN_BYTES as usize], word: usize) -> u64 {
    bytes.as_chunks::<8>().0.get(word).map_or(0, |word| u64::from_le_bytes(*word))
}
