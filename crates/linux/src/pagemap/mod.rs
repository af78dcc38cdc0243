//! Page states, by ioctl PAGEMAP_SCAN (Linux 6.7) or by reading /proc/PID/pagemap.
//!
//! Both follow the kernel's Documentation/admin-guide/mm/pagemap.rst. A page counts as resident
//! where smaps counts it in Rss: present, and not a shared page of zeros.

mod entry;
mod frames;
mod zero_pages;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use crate::arch::page_size;
use crate::proc::refusal;
use crate::{
    Address, Error, Machine, Mapping, Mappings, PageRun, PageState, Pages, both, length, proc,
};
use entry::{ENTRIES_PER_READ, Entry};
use frames::pages_of_frame;
pub use frames::{PageFrame, groups_of_frames, map_counts, page_frames};
use zero_pages::{drop_zero_pages, zero_frame};

/// Runs that one call of PAGEMAP_SCAN may return.
const RUNS_PER_SCAN: usize = 4096;
/// The bytes of mappings from which two threads find their pages earlier than one: 256 MiB take some 4 ms.
const ENOUGH_BYTES: u64 = 256 << 20;
/// Pages that are read for nothing between two wanted ones, at most.
const ENTRIES_PER_GAP: u64 = 64;

const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Since Linux 6.16. Earlier kernels report guard pages as swapped, and the huge page of zeros as another page.
const PAGE_IS_GUARD: u64 = 1 << 8;

/// The categories that a scan returns.
const CATEGORIES: u64 = PAGE_IS_FILE
    | PAGE_IS_PRESENT
    | PAGE_IS_SWAPPED
    | PAGE_IS_PFNZERO
    | PAGE_IS_HUGE
    | PAGE_IS_GUARD;

/// True if anonymous memory may have pages of sizes between the smallest and the huge one, as of the first use.
static HAS_SIZES_IN_BETWEEN: LazyLock<bool> = LazyLock::new(|| {
    let huge = format!("hugepages-{}kB", Machine::own().huge_page_size() >> 10);
    let sizes = std::fs::read_dir("/sys/kernel/mm/transparent_hugepage").into_iter().flatten();
    sizes.flatten().filter(|size| size.file_name() != *huge).any(|size| {
        let enabled = std::fs::read_to_string(size.path().join("enabled"));
        enabled.is_ok_and(|it| !it.contains("[never]"))
    })
});

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
    pub fn read(
        &self,
        before: &Mappings,
        scope: PageScope,
    ) -> Result<(Mappings, Pages, PageScope), Error> {
        let mut mappings = proc::mappings(self.pid, false)?;
        mappings.copy_flags_from(before);
        match scan(&self.file, &mappings, scope) {
            // Before Linux 6.7 the ioctl does not exist.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                mappings = proc::mappings(self.pid, true)?;
                let runs = entries(&self.file, &mappings).map_err(|source| self.error(source))?;
                Ok((mappings, Pages::new(runs), PageScope::All))
            }
            Err(error) => Err(self.error(error)),
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
            .map_err(|source| self.error(source))?;
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
        read.is_ok() && entry::parse(wanted).all(Entry::is_exclusive)
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
                let entry = entries[..read].get(at..at + 8).and_then(|it| entry::parse(it).next());
                let state = entry.map(|entry| entry.state(true));
                state.is_none_or(|state| state.is_some_and(|state| state != PageState::Guard))
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
                for entry in entry::parse(&entries[..read]) {
                    if entry.is_shared() {
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
                page += read as u64 / 8;
                let read = entry::parse(&entries[..read]);
                exclusive += read.filter(|entry| entry.is_exclusive()).count() as u64;
            }
        }
        Some(exclusive * page_size())
    }

    /// Returns the number of pages that a fault at `at` has added, as far as the kernel reports it: those of the huge page
    /// at `at` since Linux 6.7, those of an anonymous page of a size in between (`hugepages-64kB` ...) to
    /// CAP_SYS_ADMIN, and 1 otherwise.
    #[must_use]
    pub fn pages_of_fault(&self, at: Address) -> u64 {
        let page = at.align_down(page_size())..at.align_down(page_size()).offset(page_size());
        if self.is_huge(at) {
            return Machine::own().huge_page_size() / page_size();
        }
        if !*HAS_SIZES_IN_BETWEEN {
            return 1;
        }
        let entries = entry::used(&self.file, &page).unwrap_or_default();
        let frame = entries.first().filter(|(_, it)| !it.is_of_file()).and_then(|it| it.1.frame());
        let pages = frame.filter(|it| it.0 != 0).and_then(|it| pages_of_frame(it.0).ok());
        pages.unwrap_or(1)
    }

    /// Returns true if the page at `at` is a part of a huge page. False on kernels without PAGEMAP_SCAN.
    fn is_huge(&self, at: Address) -> bool {
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
    #[must_use]
    pub fn state_at(&self, at: Address, bytes: u64) -> (Option<PageState>, u64) {
        let run = self.run_at(at, bytes, |entry| entry.state(true));
        run.unwrap_or((Some(PageState::Lost), bytes))
    }

    /// Returns the number of bytes from `at` on, at most `bytes`, that surely lie in resident anonymous pages of the process
    /// alone: neither of files, nor shared, nor of devices.
    #[must_use]
    pub fn own_bytes_at(&self, at: Address, bytes: u64) -> u64 {
        self.run_at(at, bytes, Entry::is_exclusive).filter(|run| run.0).map_or(0, |run| run.1)
    }

    /// The property of the page at `at`, and the number of the following `bytes` that surely have the same; `None` if the
    /// pagemap cannot be read.
    fn run_at<T: PartialEq>(
        &self,
        at: Address,
        bytes: u64,
        property: impl Fn(Entry) -> T,
    ) -> Option<(T, u64)> {
        const ENTRIES: usize = 64;
        let first = at.align_down(page_size());
        let pages = (at.offset(bytes) - first).div_ceil(page_size()).min(ENTRIES as u64);
        let mut entries = [0; ENTRIES * 8];
        let wanted = &mut entries[..pages as usize * 8];
        let read = self.file.read_at(wanted, first.0 / page_size() * 8).unwrap_or(0);
        let mut properties = entry::parse(&wanted[..read]).map(property);
        let property = properties.next()?;
        let alike = 1 + properties.take_while(|it| *it == property).count() as u64;
        Some((property, (first.offset(alike * page_size()) - at).min(bytes)))
    }

    /// Returns the pages of `range` that are not absent.
    fn entries(&self, range: &Range<Address>) -> Result<Vec<(Address, Entry)>, Error> {
        entry::used(&self.file, range).map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> Error {
        refusal(self.pid, format!("/proc/{}/pagemap", self.pid), source)
    }
}

/// Returns the mappings that may have pages.
fn populated(mappings: &Mappings) -> impl Iterator<Item = &Mapping> {
    mappings.iter().filter(|mapping| {
        let empty = mapping.kernel_rss_bytes == Some(0) && mapping.swap_bytes == 0;
        !mapping.has_bare_frames && (!empty || mapping.is_hugetlb)
    })
}

/// Returns the pages of the mappings in `scope`.
fn scan(file: &File, mappings: &Mappings, scope: PageScope) -> io::Result<Vec<PageRun>> {
    let mappings: Vec<&Mapping> = populated(mappings).filter(|it| scope.has(it)).collect();
    // What is reserved for later has no pages.
    let bytes_of = |it: &&Mapping| if it.readable { length(&it.range) } else { 0 };
    let scan = |mappings: &[&Mapping]| scan_each(file, mappings, CATEGORIES);
    let runs: io::Result<Vec<_>> = halved(&mappings, bytes_of, scan).into_iter().collect();
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

/// Returns the pages of the mappings, by a scan that returns these categories.
fn scan_each(file: &File, mappings: &[&Mapping], mut categories: u64) -> io::Result<Vec<PageRun>> {
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
                return_mask: categories,
                ..ScanArguments::default()
            };
            // SAFETY: the arguments have the layout of linux/fs.h, and `regions` is writable for
            // the length given and outlives the call.
            let found = unsafe { pagemap_scan(file.as_raw_fd(), &raw mut arguments) };
            if found == Err(nix::errno::Errno::EINVAL) && categories & PAGE_IS_GUARD != 0 {
                categories &= !PAGE_IS_GUARD;
                continue;
            }
            let found = usize::try_from(found?).unwrap_or(0).min(regions.len());
            for region in &regions[..found] {
                add_region(file, mapping, region, categories, &mut runs)?;
            }
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

/// Adds the pages of a region of `mapping` that a scan for `categories` has found.
fn add_region(
    file: &File,
    mapping: &Mapping,
    region: &PageRegion,
    categories: u64,
    runs: &mut Vec<PageRun>,
) -> io::Result<()> {
    let range = Address(region.start)..Address(region.end);
    let is = |category| region.categories & category != 0;
    let huge = is(PAGE_IS_HUGE);
    let mut add = |range, state| runs.push(PageRun { range, state, huge });
    let may_be_zeros = categories & PAGE_IS_GUARD == 0 && mapping.is_private_anonymous();
    if is(PAGE_IS_PFNZERO) {
        // Absent, as in RSS.
    } else if is(PAGE_IS_GUARD) {
        add(range, PageState::Guard);
    } else if is(PAGE_IS_SWAPPED) {
        entry::for_each(file, &range, |at, entry| add_page(mapping, at, entry, runs))?;
    } else if mapping.is_hugetlb {
        add(range, PageState::Hugetlb);
    } else if is(PAGE_IS_FILE) {
        add(range, PageState::File);
    } else if huge && may_be_zeros {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.offset(1).align_up(Machine::own().huge_page_size()));
            let first = entry::used(file, &(at..at.offset(page_size())))?;
            if !first.iter().any(|(_, entry)| entry.is_of_file()) {
                add(at..end, PageState::Anonymous);
            }
            at = end;
        }
    } else {
        add(range, PageState::Anonymous);
    }
    Ok(())
}

/// Adds a page of `mapping`, to the last run if that continues.
fn add_page(mapping: &Mapping, at: Address, entry: Entry, runs: &mut Vec<PageRun>) {
    let Some(state) = entry.state(mapping.swap_bytes > 0) else { return };
    let state = if mapping.is_hugetlb && state.is_resident() { PageState::Hugetlb } else { state };
    match runs.last_mut() {
        Some(last) if last.range.end == at && last.state == state && !last.huge => {
            last.range.end = at.offset(page_size());
        }
        _ => runs.push(PageRun { range: at..at.offset(page_size()), state, huge: false }),
    }
}

fn entries(file: &File, mappings: &Mappings) -> io::Result<Vec<PageRun>> {
    let zero_frame = zero_frame();
    let mut runs = Vec::new();
    for mapping in populated(mappings) {
        let mut pages = entry::used(file, &mapping.range)?;
        drop_zero_pages(&mut pages, mapping, zero_frame);
        for (at, entry) in pages {
            add_page(mapping, at, entry, &mut runs);
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
