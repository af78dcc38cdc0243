//! Heap pages: their addresses, their numbers of slots, and the pages without slots that Ruby keeps.

use super::{MAX_SPACES, RubyHeap};

/// A page with slots of one size.
#[derive(Debug, Clone)]
pub(super) struct HeapPage {
    pub(super) base: u64,
    pub(super) descriptor: u64,
    pub(super) slot_bytes: u64,
    pub(super) first_slot: u64,
    pub(super) slot_count: u64,
    pub(super) used: u64,
}

impl RubyHeap {
    /// Returns a slot that was never used, on the last page of its size or a new one.
    pub(super) fn free_slot(&mut self, bytes: u64) -> u64 {
        let has_room =
            |page: &&mut HeapPage| page.slot_bytes == bytes && page.used < page.slot_count;
        if let Some(page) = self.pages.iter_mut().find(has_room) {
            page.used += 1;
            return page.first_slot + (page.used - 1) * bytes;
        }
        self.add_page(bytes);
        self.free_slot(bytes)
    }

    /// Adds a page for slots of `bytes`.
    ///
    /// # Panics
    /// If the release has no slots of this size.
    pub fn add_page(&mut self, bytes: u64) {
        assert!(self.layout.slot_sizes.contains(&bytes), "no slots of {bytes} bytes");
        let base = self.next_page;
        // Some pages follow one another, others do not.
        let gap = if self.pages.len() % 3 == 2 { 3 } else { 1 };
        self.next_page += gap * self.layout.page_bytes;
        let first_slot = self.first_slot(base, bytes);
        let end = base + self.layout.page_bytes - self.layout.page_tail;
        let slot_count = (end - first_slot) / bytes;
        let descriptor = self.malloc(3072);
        self.pages.push(HeapPage {
            base,
            descriptor,
            slot_bytes: bytes,
            first_slot,
            slot_count,
            used: 0,
        });
    }

    /// Returns the address of the first slot of the page at `base`.
    pub(super) fn first_slot(&self, base: u64, bytes: u64) -> u64 {
        if self.layout.bits_by_number {
            return base + (8_u64).next_multiple_of(bytes.min(64)).min(1032);
        }
        // Slots are aligned by address, and on a page of larger ones so that the first has a number
        // that is a multiple of theirs in units of the smallest.
        let first = (base + 8).next_multiple_of(40);
        if (first - base) / 40 == 1 { first + bytes - 40 } else { first }
    }

    /// Makes Ruby keep this number of pages without slots, as 3.4 and later do.
    ///
    /// # Panics
    /// If the release keeps none.
    pub fn keep_emptied(&mut self, pages: usize) {
        assert!(self.layout.body.is_some(), "this release keeps none");
        self.emptied = pages;
    }

    /// Adds this number of pages that were freed, but not unmapped, as up to 3.0.
    ///
    /// # Panics
    /// If the release unmaps freed pages.
    pub fn leave_freed(&mut self, pages: usize) {
        assert!(self.layout.page_tail > 0, "this release unmaps them");
        self.freed = pages;
    }

    /// Sets the mark bits before the first slot and behind the last one of each page, as Ruby does on a page that it
    /// sweeps.
    pub fn sweep(&mut self) {
        self.is_swept = true;
    }

    /// Distributes the pages among `spaces` object spaces, as 4.1 does for Ractors.
    ///
    /// # Panics
    /// If the number of spaces is zero or too large.
    pub fn share_among(&mut self, spaces: usize) {
        assert!((1..=MAX_SPACES as usize).contains(&spaces), "{spaces} object spaces");
        self.spaces = spaces;
    }
}
