use super::zero_pages::tests::prepared;
use super::*;

/// Since Linux 6.13.
const MADV_GUARD_INSTALL: i32 = 102;

fn own_mappings() -> Mappings {
    proc::mappings(std::process::id().cast_signed(), true).unwrap()
}

/// The pages of a range of our own, by each way to read them.
fn by_each_way(range: &Range<Address>) -> Vec<(&'static str, Pages)> {
    let file = File::open("/proc/self/pagemap").unwrap();
    let all = own_mappings();
    let own: Vec<Mapping> =
        all.iter().filter(|it| it.range.contains(&range.start)).cloned().collect();
    let mut ways = vec![("pagemap", entries(&file, &Mappings::new(own.clone())))];
    // Of a kernel that reports neither guard pages nor huge pages of zeros.
    let older = CATEGORIES & !(PAGE_IS_GUARD | PAGE_IS_PFNZERO);
    for (name, categories) in [("PAGEMAP_SCAN", CATEGORIES), ("PAGEMAP_SCAN of 6.7", older)] {
        ways.push((name, scan_each(&file, &own.iter().collect::<Vec<_>>(), categories)));
    }
    let is_missing =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL));
    ways.retain(|(_, runs)| !runs.as_ref().is_err_and(is_missing));
    ways.into_iter().map(|(name, runs)| (name, Pages::new(runs.unwrap()))).collect()
}

/// A new private anonymous mapping of ours that begins at a huge page, leaked. The kernel joins it with no other.
fn mapped(bytes: u64) -> Range<Address> {
    let huge = Machine::own().huge_page_size();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, to which nothing refers.
    let start = unsafe {
        let bytes = (bytes + 2 * huge) as usize;
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = Address(start as u64 + 1).align_up(huge);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a part of the new mapping.
    let result = unsafe { libc::mprotect(start.0 as *mut _, bytes as usize, protection) };
    assert_eq!(result, 0);
    start..start.offset(bytes)
}

fn advise(range: &Range<Address>, advice: i32) -> io::Result<()> {
    // SAFETY: callers pass their own mapping, whose contents nothing relies on.
    match unsafe { libc::madvise(range.start.0 as *mut _, length(range) as usize, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn written_pages_are_resident_and_pages_of_zeros_are_not() {
    let (range, written_bytes) = prepared();
    for (way, pages) in by_each_way(&range) {
        // A scan for fewer categories does not report small pages of zeros.
        if way != "PAGEMAP_SCAN of 6.7" {
            assert_eq!(pages.resident_bytes(&range), written_bytes, "{way}");
        }
    }
}

/// A thread's stack of glibc 2.42 has such pages; a report counted them as swapped.
#[test]
fn guard_pages_are_not_swapped() {
    let range = mapped(16 * page_size());
    let guard = range.start..range.start.offset(4 * page_size());
    // SAFETY: the mapping is ours and writable.
    unsafe { std::ptr::write_bytes(range.start.0 as *mut u8, 1, length(&range) as usize) };
    if advise(&guard, MADV_GUARD_INSTALL).is_err() {
        return testkit::skip("this kernel has no guard pages (Linux 6.13)");
    }
    let truth = own_mappings();
    let swapped = truth.find(range.start).unwrap().swap_bytes;
    for (way, pages) in by_each_way(&range) {
        let runs: Vec<&PageRun> = pages.runs_in(&range).collect();
        assert_eq!((&runs[0].range, runs[0].state), (&guard, PageState::Guard), "{way}");
        assert_eq!(pages.resident_bytes(&range), 12 * page_size() - swapped, "{way}");
        assert_eq!(pages.swapped_bytes(), swapped, "{way}");
    }
    let pagemap = Pagemap::open(std::process::id().cast_signed()).unwrap();
    let first = range.start.0 / page_size();
    assert_eq!(pagemap.are_present(&[first, first + 8]), [false, true]);
    assert_eq!(pagemap.state_at(range.start, 1), (Some(PageState::Guard), 1));
}

/// On a kernel that reports no guard pages, both kinds lie in the same region of a scan.
#[test]
fn swapped_pages_beside_guard_pages_are_swapped() {
    let range = mapped(64 * page_size());
    let guard = range.start..range.start.offset(4 * page_size());
    // SAFETY: the mapping is ours and writable.
    unsafe { std::ptr::write_bytes(range.start.0 as *mut u8, 1, length(&range) as usize) };
    let has_guard = advise(&guard, MADV_GUARD_INSTALL).is_ok();
    let paged_out = advise(&(guard.end..range.end), libc::MADV_PAGEOUT);
    let swapped = own_mappings().find(range.start).unwrap().swap_bytes;
    if paged_out.is_err() || swapped == 0 {
        return testkit::skip(
            "the machine has no swap, or the kernel pages nothing out on request",
        );
    }
    for (way, pages) in by_each_way(&range) {
        assert_eq!(pages.swapped_bytes(), swapped, "{way}");
        let guards = pages.iter().filter(|run| run.state == PageState::Guard);
        let guards: u64 = guards.map(|run| length(&run.range)).sum();
        assert_eq!(guards, if has_guard { length(&guard) } else { 0 }, "{way}");
    }
}

#[test]
fn the_huge_page_of_zeros_is_not_resident() {
    let huge = Machine::own().huge_page_size();
    let range = mapped(2 * huge);
    let _ = advise(&range, libc::MADV_HUGEPAGE);
    // SAFETY: the mapping is ours, readable and writable.
    unsafe {
        std::ptr::read_volatile(range.start.0 as *const u8);
        std::ptr::write_volatile((range.start.0 + huge) as *mut u8, 1);
    }
    let pagemap = Pagemap::open(std::process::id().cast_signed()).unwrap();
    let first = pagemap.entries(&(range.start..range.start.offset(page_size()))).unwrap();
    if !first.first().is_some_and(|(_, entry)| entry.is_of_file()) {
        return testkit::skip("the kernel uses no huge page of zeros");
    }
    let truth = own_mappings().find(range.start).unwrap().kernel_rss_bytes.unwrap();
    for (way, pages) in by_each_way(&range) {
        assert_eq!(pages.resident_bytes(&range), truth, "{way}");
    }
}

/// A fault used to count as one page, or as 512, which only huge pages of x86-64 have.
#[test]
fn a_fault_adds_the_pages_that_it_made_present() {
    let pagemap = Pagemap::open(std::process::id().cast_signed()).unwrap();
    let huge = Machine::own().huge_page_size();
    for bytes in [huge, huge / 2, page_size()] {
        let range = mapped(bytes);
        let _ = advise(&range, libc::MADV_HUGEPAGE);
        let at = range.start.offset(bytes / 2);
        // SAFETY: the mapping is ours and writable.
        unsafe { std::ptr::write_volatile(at.0 as *mut u8, 1) };
        let entries = pagemap.entries(&range).unwrap();
        let hides_frames = entries[0].1.frame().is_some_and(|(frame, _)| frame == 0);
        // Before Linux 6.7, a scan does not report huge pages, and such a fault counts as one page.
        if entries.len() > 1 && !pagemap.is_huge(at) && !*HAS_SIZES_IN_BETWEEN {
            return testkit::skip("the kernel does not tell the sizes of pages");
        }
        if hides_frames && *HAS_SIZES_IN_BETWEEN && bytes < huge {
            return testkit::skip("frame numbers take CAP_SYS_ADMIN");
        }
        assert_eq!(pagemap.pages_of_fault(at), entries.len() as u64, "{bytes}");
    }
}

/// Memory of hugetlbfs was read as zeros.
#[test]
fn pages_of_hugetlbfs_are_outside_rss() {
    // SAFETY: a new mapping, to which nothing refers.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            Machine::own().huge_page_size() as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return testkit::skip("no huge page of hugetlbfs is free");
    }
    // SAFETY: the mapping is ours and writable.
    unsafe { std::ptr::write_volatile(start.cast::<u8>(), 1) };
    let start = Address(start as u64);
    let range = start..start.offset(Machine::own().huge_page_size());
    for (way, pages) in by_each_way(&range) {
        assert_eq!(pages.resident_bytes(&range), 0, "{way}");
        let states: Vec<_> = pages.runs_in(&range).map(|run| run.state).collect();
        assert_eq!(states, [PageState::Hugetlb], "{way}");
    }
}
