//! The kernel's pages of zeros, which RSS leaves out.

use std::fs::File;

use super::entry::{self, Entry};
use crate::arch::page_size;
use crate::{Address, Mapping};

/// Removes pages that are the kernel's pages of zeros. Of all pages in anonymous memory, only the huge one counts as a
/// file's. If frame numbers are hidden from us, the number of others follows from the kernel's count of resident pages;
/// exclusive pages are not among them.
pub(super) fn drop_zero_pages(
    pages: &mut Vec<(Address, Entry)>,
    mapping: &Mapping,
    zero_frame: Option<u64>,
) {
    if mapping.is_hugetlb {
        return;
    }
    if mapping.is_private_anonymous() {
        pages.retain(|(_, entry)| !entry.is_of_file());
    }
    if let Some(zero_frame) = zero_frame {
        pages.retain(|(_, entry)| entry.frame().is_none_or(|(frame, _)| frame != zero_frame));
        return;
    }
    let present = pages.iter().filter(|(_, entry)| entry.is_present()).count() as u64;
    let counted = mapping.kernel_rss_bytes.map_or(present, |bytes| bytes / page_size());
    let mut zeros = present.saturating_sub(counted);
    pages.retain(|(_, entry)| {
        let drop = entry.is_shared() && zeros > 0;
        zeros -= u64::from(drop);
        !drop
    });
}

/// Returns the frame number of the kernel's page of zeros, learned from a page of our own that was only read;
/// `None` if the kernel hides frame numbers from us.
pub(super) fn zero_frame() -> Option<u64> {
    // SAFETY: a new private anonymous mapping, of which one byte is read before it is unmapped.
    let page = unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            page_size() as usize,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return None;
        }
        std::ptr::read_volatile(page.cast::<u8>());
        page
    };
    let start = Address(page as u64);
    let own = File::open("/proc/self/pagemap").ok();
    let entries = own.and_then(|own| entry::used(&own, &(start..start.offset(page_size()))).ok());
    // SAFETY: the mapping made above, to which nothing refers any more.
    unsafe { libc::munmap(page, page_size() as usize) };
    let (_, entry) = *entries?.first()?;
    entry.frame().map(|(frame, _)| frame).filter(|&frame| frame != 0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::ops::Range;

    use super::*;

    /// A mapping of ours with written pages, pages of zeros that were only read, and absent ones.
    pub(crate) fn prepared() -> (Range<Address>, u64) {
        let pages = 64;
        // SAFETY: a new private anonymous mapping, written and read within its length, leaked.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                pages * page_size() as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
            .cast::<u8>();
            for page in 0..pages {
                let at = start.add(page * page_size() as usize);
                match page % 4 {
                    0 | 1 => at.write_volatile(1),
                    2 => _ = at.read_volatile(),
                    _ => {}
                }
            }
            let start = Address(start as u64);
            (start..start.offset(pages as u64 * page_size()), pages as u64 / 2 * page_size())
        }
    }

    #[test]
    fn pages_of_zeros_are_told_apart_without_frame_numbers() {
        let (range, written_bytes) = prepared();
        let file = File::open("/proc/self/pagemap").unwrap();
        let mut pages = entry::used(&file, &range).unwrap();
        let mut mapping = Mapping::anonymous(range);
        mapping.kernel_rss_bytes = Some(written_bytes);
        drop_zero_pages(&mut pages, &mapping, None);
        assert_eq!(pages.len() as u64 * page_size(), written_bytes);
        assert!(pages.iter().all(|(_, entry)| entry.is_exclusive()));
    }
}
