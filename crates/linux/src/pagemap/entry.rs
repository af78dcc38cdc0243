//! Entries of /proc/PID/pagemap: one word for each page.
//!
//! The kernel's Documentation/admin-guide/mm/pagemap.rst describes them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use crate::arch::page_size;
use crate::proc::kernel_version;
use crate::{Address, PageState, length};

/// Entries that are read at a time.
pub(super) const ENTRIES_PER_READ: u64 = 16384;

const PRESENT: u64 = 1 << 63;
/// Set for all entries of page tables that are neither empty nor present, not only for those of swap.
const SWAPPED: u64 = 1 << 62;
const FILE: u64 = 1 << 61;
/// Since Linux 6.15.
const GUARD: u64 = 1 << 58;
const EXCLUSIVE: u64 = 1 << 56;
/// The frame of a present page, or the type and the offset of an entry of swap; zeros without CAP_SYS_ADMIN.
const FRAME: u64 = (1 << 55) - 1;

/// The bits of the type before the offset (`MAX_SWAPFILES_SHIFT` in linux/swap.h).
const TYPE_BITS: u32 = 5;
/// Kernels use between 3 and 9 of the 32 types for other things than swap (`MAX_SWAPFILES` in linux/swap.h).
const MAX_SWAP_DEVICES: u64 = 23;
/// The type of markers since Linux 5.19 (`SWP_PTE_MARKER`). Before, it may be that of a page that migrates, whose offset
/// is its frame.
const MARKER: u64 = 31;
/// The offset of a marker is a set of three flags (`PTE_MARKER_MASK` in linux/swapops.h). The first one alone is
/// userfaultfd's mark of an empty page; the others are poison and a guard page.
const MARKER_OF_EMPTY_PAGE: u64 = 1;
const MAX_MARKERS: u64 = 7;

/// True on kernels with guard pages (MADV_GUARD_INSTALL), as of the first use.
static HAS_GUARDS: LazyLock<bool> = LazyLock::new(|| kernel_version() >= (6, 13));

/// The entry of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Returns true for an entry of a page table that is not empty.
    pub(super) fn is_used(self) -> bool {
        self.0 & (PRESENT | SWAPPED) != 0
    }

    /// Returns true if the kernel counts the page as one of a file. In anonymous memory, it is the huge page of zeros.
    pub(super) fn is_of_file(self) -> bool {
        self.is_present() && self.0 & FILE != 0
    }

    /// Returns true for a resident anonymous page that no other process maps.
    pub(super) fn is_exclusive(self) -> bool {
        self.0 & (PRESENT | FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE
    }

    /// Returns true for a resident anonymous page that other processes map, too.
    pub(super) fn is_shared(self) -> bool {
        self.0 & (PRESENT | FILE | EXCLUSIVE) == PRESENT
    }

    /// Returns the number of the page's frame, 0 if it is hidden, and true if it is mapped once; `None` if the page is not
    /// present.
    pub(super) fn frame(self) -> Option<(u64, bool)> {
        self.is_present().then_some((self.0 & FRAME, self.0 & EXCLUSIVE != 0))
    }

    /// Returns the state of the page; `None` if it is absent. `may_be_swapped` is true unless the kernel counts no swapped
    /// page in the mapping. Only that separates a swapped page from other entries if the kernel hides their types.
    pub(super) fn state(self, may_be_swapped: bool) -> Option<PageState> {
        let resident = if self.0 & FILE != 0 { PageState::File } else { PageState::Anonymous };
        let (kind, offset) = (self.0 & ((1 << TYPE_BITS) - 1), (self.0 & FRAME) >> TYPE_BITS);
        match kind {
            _ if self.is_present() => Some(resident),
            _ if self.0 & SWAPPED == 0 => None,
            _ if self.0 & GUARD != 0 => Some(PageState::Guard),
            // The first page of a swap device is its header.
            0 if offset == 0 && !may_be_swapped && *HAS_GUARDS => Some(PageState::Guard),
            0 if offset == 0 && !may_be_swapped => Some(resident),
            MARKER if offset == MARKER_OF_EMPTY_PAGE => None,
            MARKER if offset <= MAX_MARKERS => Some(PageState::Guard),
            // It migrates, or is a device's: RSS counts it, and a read waits for it.
            MAX_SWAP_DEVICES.. => Some(resident),
            _ => Some(PageState::Swapped),
        }
    }
}

/// Reads the entries of whole pages.
pub(super) fn parse(bytes: &[u8]) -> impl Iterator<Item = Entry> {
    bytes.chunks_exact(8).map(|word| {
        let word = word.try_into().expect("chunks of eight");
        Entry(u64::from_le_bytes(word))
    })
}

/// Calls `each` for the pages of `range` whose entries are used.
pub(super) fn for_each(
    file: &File,
    range: &Range<Address>,
    mut each: impl FnMut(Address, Entry),
) -> io::Result<()> {
    let mut bytes = vec![0; (ENTRIES_PER_READ.min(length(range) / page_size()) * 8) as usize];
    let mut at = range.start;
    while at < range.end {
        let wanted = ((range.end - at) / page_size() * 8).min(bytes.len() as u64) as usize;
        let read = file.read_at(&mut bytes[..wanted], at.0 / page_size() * 8)?;
        if read < 8 {
            break;
        }
        for entry in parse(&bytes[..read]) {
            if entry.is_used() {
                each(at, entry);
            }
            at = at.offset(page_size());
        }
    }
    Ok(())
}

/// Returns the pages of `range` whose entries are used.
pub(super) fn used(file: &File, range: &Range<Address>) -> io::Result<Vec<(Address, Entry)>> {
    let mut pages = Vec::new();
    for_each(file, range, |at, entry| pages.push((at, entry)))?;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn swap_entry(kind: u64, offset: u64) -> Entry {
        Entry(SWAPPED | kind | offset << TYPE_BITS)
    }

    #[test]
    fn only_entries_of_swap_devices_are_swapped_pages() {
        let states = [
            (Entry(0), None),
            (Entry(PRESENT | 5), Some(PageState::Anonymous)),
            (Entry(PRESENT | FILE | 5), Some(PageState::File)),
            (swap_entry(0, 1), Some(PageState::Swapped)),
            (swap_entry(1, 0x12_3456), Some(PageState::Swapped)),
            // Linux 6.13 and 6.14 have guard pages, but no bit for them.
            (swap_entry(MARKER, 4), Some(PageState::Guard)),
            (Entry(swap_entry(MARKER, 4).0 | GUARD), Some(PageState::Guard)),
            (swap_entry(MARKER, 2), Some(PageState::Guard)),
            (swap_entry(MARKER, 1), None),
            // Migration, on kernels with and without markers and memory of devices.
            (swap_entry(24, 0x12_3456), Some(PageState::Anonymous)),
            (swap_entry(28, 0x12_3456), Some(PageState::Anonymous)),
            (swap_entry(31, 0x12_3456), Some(PageState::Anonymous)),
            (Entry(swap_entry(31, 0x12_3456).0 | FILE), Some(PageState::File)),
        ];
        for (entry, state) in states {
            assert_eq!(entry.state(true), state, "{entry:x?}");
            let hidden = entry.state(false);
            assert_eq!(hidden, state, "the count is needed for hidden types only: {entry:x?}");
        }
        let hidden = swap_entry(0, 0);
        assert_eq!(hidden.state(true), Some(PageState::Swapped));
        assert_eq!(hidden.state(false), Some(PageState::Guard));
        assert_eq!(Entry(hidden.0 | GUARD).state(true), Some(PageState::Guard));
    }
}
