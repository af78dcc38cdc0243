//! Page states, by ioctl PAGEMAP_SCAN (Linux 6.7) or by reading /proc/PID/pagemap.
//!
//! Both follow the kernel's Documentation/admin-guide/mm/pagemap.rst. A page counts as resident
//! where smaps counts it in Rss: present, and not the shared page of zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::arch::page_size;
use crate::proc::refusal;
use crate::{Address, Error, Mapping, Mappings, PageRun, PageState, Pages, both, length, proc};

/// Runs that one call of PAGEMAP_SCAN may return.
const RUNS_PER_SCAN: usize = 4096;
/// The bytes of mappings from which two threads find their pages earlier than one: 256 MiB take some 4 ms.
const ENOUGH_BYTES: u64 = 256 << 20;
/// Pages whose entries are read at a time from /proc/PID/pagemap.
const ENTRIES_PER_READ: u64 = 16384;
/// Pages that are read for nothing between two wanted ones, at most.
const ENTRIES_PER_GAP: u64 = 64;

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, ScanArguments);

/// The mappings whose page states are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageScope {
    /// All mappings.
    All,
    /// Mappings whose page tables fork(2) copies.
    CopiedByFork,
    /// Mappings whose page tables fork(2) does not copy: of files and shared memory, and of MADV_DONTFORK and
    /// MADV_WIPEONFORK.
    NotCopiedByFork,
}

impl PageScope {
    fn has(self, mapping: &Mapping) -> bool {
        match self {
            Self::All => true,
            Self::CopiedByFork => mapping.is_copied_by_fork(),
            Self::NotCopiedByFork => !mapping.is_copied_by_fork(),
        }
    }
}

/// The open pagemap of a process: the states of its pages.
pub struct Pagemap {
    pid: i32,
    file: File,
}

impl Pagemap {
    /// Opens the pagemap of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn open(pid: i32) -> Result<Self, Error> {
        Ok(Self { pid, file: proc::open(pid, "pagemap")? })
    }

    /// Reads the mappings of the stopped process, and the page states of those in `scope`. Returns them, and the scope
    /// that was read: all mappings on kernels without PAGEMAP_SCAN.
    ///
    /// `before` are the mappings with the kernel's counts from before the stop. Counting again makes the kernel walk
    /// the page tables once more, some 10 ms for a GiB, so it is done only on kernels without PAGEMAP_SCAN.
    pub(crate) fn read(
        &self,
        before: &Mappings,
        scope: PageScope,
    ) -> Result<(Mappings, Pages, PageScope), Error> {
        let mut mappings = proc::mappings(self.pid, false)?;
        mappings.copy_flags_from(before);
        match scan(&self.file, &mappings, scope) {
            // Before Linux 6.7 the ioctl does not exist.
            Err(nix::errno::Errno::ENOTTY | nix::errno::Errno::EINVAL) => {
                mappings = proc::mappings(self.pid, true)?;
                let runs = entries(&self.file, &mappings).map_err(|source| self.error(source))?;
                Ok((mappings, Pages::new(runs), PageScope::All))
            }
            Err(errno) => Err(self.error(io::Error::from(errno))),
            Ok(runs) => Ok((mappings, Pages::new(runs), scope)),
        }
    }

    /// Returns the page states of a forked process at the instant of the fork. `self` is the pagemap of the copy, and
    /// `pages` are the states of [`PageScope::NotCopiedByFork`] in the original.
    ///
    /// # Errors
    /// If the copy has ended, or the kernel does not have PAGEMAP_SCAN.
    pub fn complete(&self, mappings: &Mappings, pages: &Pages) -> Result<Pages, Error> {
        let runs = scan(&self.file, mappings, PageScope::CopiedByFork)
            .map_err(|errno| self.error(io::Error::from(errno)))?;
        Ok(Pages::new(pages.iter().cloned().chain(runs).collect()))
    }

    /// Returns true if all pages of `range` are resident and exclusive to the process: writing to them copies nothing.
    #[must_use]
    pub fn are_exclusive(&self, range: &Range<Address>) -> bool {
        let first = range.start.align_down(page_size());
        let pages = (range.end - first).div_ceil(page_size()) as usize;
        let mut entries = [0; 64 * 8];
        let Some(wanted) = entries.get_mut(..pages * 8) else { return false };
        let read = self.file.read_exact_at(wanted, first.0 / page_size() * 8);
        read.is_ok() && wanted.chunks_exact(8).all(|it| is_exclusive(entry(it)))
    }

    /// Returns which of these pages are resident or in swap. The pages are numbers (addresses divided by the size of a page),
    /// ascending. If the process has ended, all of them count as such.
    #[must_use]
    pub fn are_present(&self, pages: &[u64]) -> Vec<bool> {
        let mut present = Vec::with_capacity(pages.len());
        let mut entries = Vec::new();
        while let Some(&first) = pages.get(present.len()) {
            // A read walks the page tables of everything in between, which soon costs more than another read.
            let rest = &pages[present.len()..];
            let gap = rest.windows(2).position(|pair| pair[1] - pair[0] > ENTRIES_PER_GAP);
            let near = &rest[..gap.map_or(rest.len(), |gap| gap + 1)];
            let near = &near[..near.partition_point(|page| page - first < ENTRIES_PER_READ)];
            let last = near[near.len() - 1];
            entries.resize((last - first + 1) as usize * 8, 0);
            let read = self.file.read_at(&mut entries, first * 8).unwrap_or(0);
            present.extend(near.iter().map(|page| {
                let at = (page - first) as usize * 8;
                let entry = entries[..read].get(at..at + 8).map(entry);
                entry.is_none_or(|entry| entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0)
            }));
        }
        present
    }

    /// Returns the resident anonymous pages as ascending runs of their numbers. Empty on kernels without PAGEMAP_SCAN.
    #[must_use]
    pub fn anonymous_pages(&self, mappings: &Mappings) -> Vec<Range<u64>> {
        let runs = scan(&self.file, mappings, PageScope::CopiedByFork).unwrap_or_default();
        let own = runs.into_iter().filter(|run| run.state == PageState::Anonymous);
        own.map(|run| run.range.start.0 / page_size()..run.range.end.0 / page_size()).collect()
    }

    /// Returns those of `runs` of anonymous pages that other processes map too: a write to one copies it.
    #[must_use]
    pub fn shared_pages(&self, runs: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut shared: Vec<Range<u64>> = Vec::new();
        let mut entries = Vec::new();
        for &Range { start: mut page, end } in runs {
            while page < end {
                entries.resize((end - page).min(ENTRIES_PER_READ) as usize * 8, 0);
                let read = self.file.read_at(&mut entries, page * 8).unwrap_or(0);
                for entry in entries[..read].chunks_exact(8).map(entry) {
                    let is_shared = entry & (ENTRY_PRESENT | ENTRY_FILE | ENTRY_EXCLUSIVE);
                    if is_shared == ENTRY_PRESENT {
                        match shared.last_mut().filter(|last| last.end == page) {
                            Some(last) => last.end += 1,
                            None => shared.push(page..page + 1),
                        }
                    }
                    page += 1;
                }
                if read < 8 {
                    break;
                }
            }
        }
        shared
    }

    /// Returns the bytes of those anonymous pages among `pages` that no other process maps; `None` if the process has ended.
    #[must_use]
    pub fn exclusive_bytes(&self, pages: &Pages) -> Option<u64> {
        let anonymous = pages.iter().filter(|run| run.state == PageState::Anonymous);
        let runs: Vec<&PageRun> = anonymous.collect();
        let counts = halved(&runs, |run| length(&run.range), |runs| self.exclusive_bytes_of(runs));
        counts.into_iter().sum()
    }

    fn exclusive_bytes_of(&self, runs: &[&PageRun]) -> Option<u64> {
        let mut entries = Vec::new();
        let mut exclusive = 0;
        // Pages between runs are not exclusive, and reading some of them costs less than another call.
        let is_near = |before: &&PageRun, run: &&PageRun| {
            run.range.start - before.range.end <= ENTRIES_PER_GAP * page_size()
        };
        for near in runs.chunk_by(is_near) {
            let [first, ..] = near else { continue };
            let end = near.last().map_or(0, |last| last.range.end.0 / page_size());
            let mut page = first.range.start.0 / page_size();
            while page < end {
                entries.resize((end - page).min(ENTRIES_PER_READ) as usize * 8, 0);
                let read = self.file.read_at(&mut entries, page * 8).ok().filter(|it| *it >= 8)?;
                let read = entries[..read].chunks_exact(8);
                page += read.len() as u64;
                exclusive += read.filter(|it| is_exclusive(entry(it))).count() as u64;
            }
        }
        Some(exclusive * page_size())
    }

    /// Returns true if the page at `at` is a part of a huge page. False on kernels without PAGEMAP_SCAN.
    #[must_use]
    pub fn is_huge(&self, at: Address) -> bool {
        let start = at.align_down(page_size()).0;
        let mut region = PageRegion::default();
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start,
            end: start + page_size(),
            regions: &raw mut region as u64,
            regions_length: 1,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..ScanArguments::default()
        };
        // SAFETY: the arguments have the layout of linux/fs.h, and the region is writable and outlives the call.
        let found = unsafe { pagemap_scan(self.file.as_raw_fd(), &raw mut arguments) };
        found.is_ok_and(|found| found > 0)
    }

    /// Returns the state of the page at `at` (`None` if it is absent), and the number of the following `bytes` that
    /// surely have the same.
    pub(crate) fn state_at(&self, at: Address, bytes: u64) -> (Option<PageState>, u64) {
        let state = |entry: u64| match entry {
            entry if entry & ENTRY_SWAPPED != 0 => Some(PageState::Swapped),
            entry if entry & ENTRY_PRESENT == 0 => None,
            entry if entry & ENTRY_FILE != 0 => Some(PageState::File),
            _ => Some(PageState::Anonymous),
        };
        self.run_at(at, bytes, state).unwrap_or((Some(PageState::Lost), bytes))
    }

    /// Returns the number of bytes from `at` on, at most `bytes`, that surely lie in resident anonymous pages of the process
    /// alone: neither of files, nor shared, nor of devices.
    pub(crate) fn own_bytes_at(&self, at: Address, bytes: u64) -> u64 {
        self.run_at(at, bytes, is_exclusive).filter(|run| run.0).map_or(0, |run| run.1)
    }

    /// The property of the page at `at`, and the number of the following `bytes` that surely have the same; `None` if the
    /// pagemap cannot be read.
    fn run_at<T: PartialEq>(
        &self,
        at: Address,
        bytes: u64,
        property: impl Fn(u64) -> T,
    ) -> Option<(T, u64)> {
        const ENTRIES: usize = 64;
        let first = at.align_down(page_size());
        let pages = (at.offset(bytes) - first).div_ceil(page_size()).min(ENTRIES as u64);
        let mut entries = [0; ENTRIES * 8];
        let wanted = &mut entries[..pages as usize * 8];
        let read = self.file.read_at(wanted, first.0 / page_size() * 8).unwrap_or(0);
        let mut properties = wanted[..read].chunks_exact(8).map(|it| property(entry(it)));
        let property = properties.next()?;
        let alike = 1 + properties.take_while(|it| *it == property).count() as u64;
        Some((property, (first.offset(alike * page_size()) - at).min(bytes)))
    }

    /// Returns the pages of `range` that are present or swapped.
    pub(super) fn entries(&self, range: &Range<Address>) -> Result<Vec<(Address, Entry)>, Error> {
        let entries = mapping_entries(&self.file, range).map_err(|source| self.error(source))?;
        Ok(entries.into_iter().map(|(at, entry)| (at, Entry(entry))).collect())
    }

    fn error(&self, source: io::Error) -> Error {
        refusal(self.pid, format!("/proc/{}/pagemap", self.pid), source)
    }
}

/// The entry of one page.
fn entry(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns true for a resident anonymous page that no other process maps.
fn is_exclusive(entry: u64) -> bool {
    entry & (ENTRY_PRESENT | ENTRY_FILE | ENTRY_EXCLUSIVE) == ENTRY_PRESENT | ENTRY_EXCLUSIVE
}

/// Returns the mappings that may have pages in RSS or swap.
fn populated(mappings: &Mappings) -> impl Iterator<Item = &Mapping> {
    mappings.iter().filter(|mapping| {
        let empty = mapping.kernel_rss_bytes == Some(0) && mapping.swap_bytes == 0;
        !mapping.outside_rss && !empty
    })
}

/// Returns the pages of the mappings in `scope`.
fn scan(
    file: &File,
    mappings: &Mappings,
    scope: PageScope,
) -> Result<Vec<PageRun>, nix::errno::Errno> {
    let mappings: Vec<&Mapping> = populated(mappings).filter(|it| scope.has(it)).collect();
    // What is reserved for later has no pages.
    let bytes_of = |it: &&Mapping| if it.readable { length(&it.range) } else { 0 };
    let runs: Result<Vec<_>, _> =
        halved(&mappings, bytes_of, |mappings| scan_each(file, mappings)).into_iter().collect();
    Ok(runs?.concat())
}

/// Calls `read` for all items, or on two threads for the items with about half of the bytes each, if there are enough.
fn halved<T: Sync, R: Send>(
    items: &[T],
    bytes_of: impl Fn(&T) -> u64,
    read: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    let all_bytes: u64 = items.iter().map(&bytes_of).sum();
    if all_bytes < ENOUGH_BYTES {
        return vec![read(items)];
    }
    let ends = items.iter().scan(0, |end, it| {
        *end += bytes_of(it);
        Some(*end)
    });
    let (first, second) = items.split_at(ends.take_while(|&end| end <= all_bytes / 2).count());
    let (first, second) = both(|| read(first), || read(second));
    vec![first, second]
}

fn scan_each(file: &File, mappings: &[&Mapping]) -> Result<Vec<PageRun>, nix::errno::Errno> {
    let mut regions = vec![PageRegion::default(); RUNS_PER_SCAN];
    let mut runs = Vec::new();
    for mapping in mappings {
        let mut start = mapping.range.start.0;
        while start < mapping.range.end.0 {
            let mut arguments = ScanArguments {
                size: size_of::<ScanArguments>() as u64,
                start,
                end: mapping.range.end.0,
                regions: regions.as_mut_ptr() as u64,
                regions_length: regions.len() as u64,
                category_any_of_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: PAGE_IS_FILE
                    | PAGE_IS_PRESENT
                    | PAGE_IS_SWAPPED
                    | PAGE_IS_PFNZERO
                    | PAGE_IS_HUGE,
                ..ScanArguments::default()
            };
            // SAFETY: the arguments have the layout of linux/fs.h, and `regions` is writable for
            // the length given and outlives the call.
            let found = unsafe { pagemap_scan(file.as_raw_fd(), &raw mut arguments)? };
            let found = usize::try_from(found).unwrap_or(0).min(regions.len());
            runs.extend(regions[..found].iter().filter_map(|region| {
                let state = match region.categories {
                    bits if bits & PAGE_IS_PFNZERO != 0 => return None,
                    bits if bits & PAGE_IS_SWAPPED != 0 => PageState::Swapped,
                    bits if bits & PAGE_IS_FILE != 0 => PageState::File,
                    _ => PageState::Anonymous,
                };
                Some(PageRun {
                    range: Address(region.start)..Address(region.end),
                    state,
                    huge: region.categories & PAGE_IS_HUGE != 0,
                })
            }));
            // The kernel leaves walk_end where it last emptied its own buffer, so after a walk to the end it may point
            // back into the regions that were returned. There are more regions only if the vector is full, and they
            // begin where the last one ends.
            match regions[..found].last() {
                Some(last) if found == regions.len() => start = last.end,
                _ => break,
            }
        }
    }
    Ok(runs)
}

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_FRAME: u64 = (1 << 55) - 1;

/// An entry of /proc/PID/pagemap.
pub(super) struct Entry(u64);

impl Entry {
    /// Returns the number of the page's frame, and true if it is mapped once; `None` if the page is not present.
    pub(super) fn frame(&self) -> Option<(u64, bool)> {
        let is_present = self.0 & ENTRY_PRESENT != 0;
        is_present.then_some((self.0 & ENTRY_FRAME, self.0 & ENTRY_EXCLUSIVE != 0))
    }
}

fn entries(file: &File, mappings: &Mappings) -> io::Result<Vec<PageRun>> {
    let zero_frame = zero_frame();
    let mut runs = Vec::new();
    for mapping in populated(mappings) {
        let mut pages = mapping_entries(file, &mapping.range)?;
        drop_zero_pages(&mut pages, mapping, zero_frame);
        runs.extend(pages.into_iter().map(|(page, entry)| PageRun {
            range: page..page.offset(page_size()),
            state: match entry {
                entry if entry & ENTRY_SWAPPED != 0 => PageState::Swapped,
                entry if entry & ENTRY_FILE != 0 => PageState::File,
                _ => PageState::Anonymous,
            },
            huge: false,
        }));
    }
    Ok(runs)
}

/// Returns the pages of `range` that are present or swapped, with their pagemap entries.
fn mapping_entries(file: &File, range: &Range<Address>) -> io::Result<Vec<(Address, u64)>> {
    let mut pages = Vec::new();
    let mut bytes = vec![0; (ENTRIES_PER_READ.min(length(range) / page_size()) * 8) as usize];
    let mut at = range.start;
    while at < range.end {
        let wanted = ((range.end - at) / page_size() * 8).min(bytes.len() as u64) as usize;
        let read = file.read_at(&mut bytes[..wanted], at.0 / page_size() * 8)?;
        if read < 8 {
            break;
        }
        for word in bytes[..read].chunks_exact(8) {
            let entry = u64::from_le_bytes(word.try_into().expect("chunks of eight"));
            if entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 {
                pages.push((at, entry));
            }
            at = at.offset(page_size());
        }
    }
    Ok(pages)
}

/// Removes pages that are the kernel's page of zeros. If frame numbers are hidden from us, their number follows from
/// the kernel's count of resident pages; exclusive pages are not among them.
fn drop_zero_pages(pages: &mut Vec<(Address, u64)>, mapping: &Mapping, zero_frame: Option<u64>) {
    if let Some(zero_frame) = zero_frame {
        pages.retain(|(_, entry)| entry & ENTRY_PRESENT == 0 || entry & ENTRY_FRAME != zero_frame);
        return;
    }
    let present = pages.iter().filter(|(_, entry)| entry & ENTRY_PRESENT != 0).count() as u64;
    let counted = mapping.kernel_rss_bytes.map_or(present, |bytes| bytes / page_size());
    let mut zeros = present.saturating_sub(counted);
    pages.retain(|(_, entry)| {
        let may_be_zeros =
            entry & ENTRY_PRESENT != 0 && entry & (ENTRY_FILE | ENTRY_EXCLUSIVE) == 0;
        let drop = may_be_zeros && zeros > 0;
        zeros -= u64::from(drop);
        !drop
    });
}

/// Returns the frame number of the kernel's page of zeros, learned from a page of our own that was only read;
/// `None` if the kernel hides frame numbers from us.
fn zero_frame() -> Option<u64> {
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
    let entries =
        own.and_then(|own| mapping_entries(&own, &(start..start.offset(page_size()))).ok());
    // SAFETY: the mapping made above, to which nothing refers any more.
    unsafe { libc::munmap(page, page_size() as usize) };
    let (_, entry) = *entries?.first()?;
    Some(entry & ENTRY_FRAME).filter(|&frame| frame != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_mappings() -> Mappings {
        proc::mappings(std::process::id().cast_signed(), true).unwrap()
    }

    /// A mapping of ours with written pages, pages of zeros that were only read, and absent ones.
    fn prepared() -> (Range<Address>, u64) {
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
    fn written_pages_are_resident_and_pages_of_zeros_are_not() {
        let (range, written_bytes) = prepared();
        let file = File::open("/proc/self/pagemap").unwrap();
        let mappings = own_mappings();
        if let Ok(runs) = scan(&file, &mappings, PageScope::All) {
            assert_eq!(Pages::new(runs).resident_bytes(&range), written_bytes, "PAGEMAP_SCAN");
        }
        let runs = entries(&file, &mappings).unwrap();
        assert_eq!(Pages::new(runs).resident_bytes(&range), written_bytes, "pagemap");
    }

    #[test]
    fn pages_of_zeros_are_told_apart_without_frame_numbers() {
        let (range, written_bytes) = prepared();
        let file = File::open("/proc/self/pagemap").unwrap();
        let mut pages = mapping_entries(&file, &range).unwrap();
        let mut mapping = Mapping::anonymous(range);
        mapping.kernel_rss_bytes = Some(written_bytes);
        drop_zero_pages(&mut pages, &mapping, None);
        assert_eq!(pages.len() as u64 * page_size(), written_bytes);
        assert!(pages.iter().all(|(_, entry)| entry & ENTRY_EXCLUSIVE != 0));
    }
}
