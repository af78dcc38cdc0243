use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Address, intersection, length};

/// The state of a page that is not absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Resident, and the target's own: anonymous, or a private copy of a file's page.
    Anonymous,
    /// Resident, as a page of a file or of shared memory.
    File,
    /// In a huge page of hugetlbfs, which RSS leaves out.
    Hugetlb,
    /// Swapped. Reading it would make it resident.
    Swapped,
    /// A page without contents, which nobody can read: a guard page (madvise(2), MADV_GUARD_INSTALL), or one that
    /// userfaultfd(2) poisoned.
    Guard,
    /// A core file lacks its bytes. It may have been resident, swapped, or absent.
    Lost,
}

impl PageState {
    /// Returns true if RSS counts the page.
    #[must_use]
    pub fn is_resident(self) -> bool {
        matches!(self, Self::Anonymous | Self::File)
    }

    /// Returns true if the page has contents that cannot be read.
    #[must_use]
    pub fn hides_contents(self) -> bool {
        matches!(self, Self::Swapped | Self::Lost)
    }

    /// Returns true if the page can be read.
    #[must_use]
    pub fn is_readable(self) -> bool {
        self.is_resident() || self == Self::Hugetlb
    }
}

/// Neighbouring pages of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRun {
    /// The addresses, in whole pages.
    pub range: Range<Address>,
    /// The state of all its pages.
    pub state: PageState,
    /// True if the page tables map them as part of a huge page; false if the kernel does not report it (before Linux
    /// 6.7).
    pub huge: bool,
}

/// The states of all the target's pages at one instant: runs, ascending and disjoint.
///
/// Pages outside of all runs are absent. The kernel's shared page of zeros counts as absent, as in RSS.
#[derive(Debug, Clone, Default)]
pub struct Pages(Vec<PageRun>);

impl Pages {
    /// Creates the states from runs in any order. Adjoining runs with the same state are joined.
    #[must_use]
    pub fn new(mut runs: Vec<PageRun>) -> Self {
        runs.sort_by_key(|run| run.range.start);
        runs.dedup_by(|next, last| {
            let joins = last.range.end == next.range.start
                && last.state == next.state
                && last.huge == next.huge;
            if joins {
                last.range.end = next.range.end;
            }
            joins
        });
        Self(runs)
    }

    /// Returns the runs that overlap `range`, ascending. They are not cut to it.
    pub fn runs_in(&self, range: &Range<Address>) -> impl Iterator<Item = &PageRun> {
        let first = self.0.partition_point(|run| run.range.end <= range.start);
        let end = range.end;
        self.0[first..].iter().take_while(move |run| run.range.start < end)
    }

    /// Returns the parts of `range` that have contents, ascending: neither absent pages nor guard pages.
    pub fn parts_in(&self, range: &Range<Address>) -> impl Iterator<Item = Range<Address>> {
        let runs = self.runs_in(range).filter(|run| run.state != PageState::Guard);
        runs.map(move |run| intersection(&run.range, range))
    }

    /// Returns the number of resident bytes within `range`.
    #[must_use]
    pub fn resident_bytes(&self, range: &Range<Address>) -> u64 {
        self.bytes_of(range, PageState::is_resident)
    }

    /// Returns the number of bytes within `range` of pages whose state `counts` accepts.
    pub fn bytes_of(&self, range: &Range<Address>, counts: impl Fn(PageState) -> bool) -> u64 {
        let runs = self.runs_in(range).filter(|run| counts(run.state));
        runs.map(|run| length(&intersection(&run.range, range))).sum()
    }

    /// Returns the number of bytes within `ranges`, ascending and disjoint, that belong to transparent huge pages of which
    /// the ranges cover only a part. If they are released, RSS falls at once, but the kernel frees the memory only when
    /// it splits the huge page, which it defers until memory gets short (mm/huge_memory.c, `deferred_split_folio`).
    /// `huge_page_size` is that of the [`Machine`](crate::Machine).
    #[must_use]
    pub fn deferred_bytes(&self, ranges: &[Range<Address>], huge_page_size: u64) -> u64 {
        let mut covered = BTreeMap::<Address, u64>::new();
        for range in ranges {
            for run in self.runs_in(range).filter(|run| run.huge && run.state.is_resident()) {
                let part = intersection(&run.range, range);
                let mut at = part.start;
                while at < part.end {
                    let huge_page = at.align_down(huge_page_size);
                    let end = huge_page.offset(huge_page_size).min(part.end);
                    *covered.entry(huge_page).or_default() += end - at;
                    at = end;
                }
            }
        }
        covered.into_values().filter(|&bytes| bytes < huge_page_size).sum()
    }

    /// Returns the number of swapped bytes.
    #[must_use]
    pub fn swapped_bytes(&self) -> u64 {
        let swapped = self.0.iter().filter(|run| run.state == PageState::Swapped);
        swapped.map(|run| length(&run.range)).sum()
    }

    /// Returns the number of bytes that a core file lacks.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        let lost = self.0.iter().filter(|run| run.state == PageState::Lost);
        lost.map(|run| length(&run.range)).sum()
    }

    /// Iterates over all runs, ascending.
    pub fn iter(&self) -> std::slice::Iter<'_, PageRun> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64, state: PageState) -> PageRun {
        PageRun { range: Address(start)..Address(end), state, huge: false }
    }

    #[test]
    fn a_huge_page_released_in_part_is_deferred() {
        let huge = |start, end| PageRun { huge: true, ..run(start, end, PageState::Anonymous) };
        let pages = Pages::new(vec![
            huge(0x20_0000, 0x80_0000),
            run(0x80_0000, 0xa0_0000, PageState::File),
        ]);
        let deferred = |ranges: &[(u64, u64)]| {
            let ranges: Vec<_> =
                ranges.iter().map(|&(start, end)| Address(start)..Address(end)).collect();
            pages.deferred_bytes(&ranges, 2 << 20)
        };
        assert_eq!(deferred(&[(0x20_1000, 0x40_0000)]), 0x1f_f000);
        assert_eq!(deferred(&[(0x20_0000, 0x40_0000)]), 0);
        assert_eq!(deferred(&[(0x20_0000, 0x30_0000), (0x30_0000, 0x61_0000)]), 0x1_0000);
        assert_eq!(deferred(&[(0x7f_f000, 0x90_0000)]), 0x1000);
    }

    #[test]
    fn neighbours_alike_join_and_only_residents_count() {
        let pages = Pages::new(vec![
            run(0x3000, 0x4000, PageState::Anonymous),
            run(0x1000, 0x2000, PageState::Anonymous),
            run(0x2000, 0x3000, PageState::Anonymous),
            run(0x4000, 0x5000, PageState::Swapped),
            run(0x6000, 0x7000, PageState::File),
            run(0x7000, 0x8000, PageState::Guard),
            run(0x8000, 0x9000, PageState::Hugetlb),
        ]);
        assert_eq!(pages.iter().count(), 5);
        let all = Address(0)..Address(0x10000);
        assert_eq!(pages.resident_bytes(&all), 0x4000);
        assert_eq!(pages.parts_in(&all).map(|part| length(&part)).sum::<u64>(), 0x6000);
        assert_eq!(pages.swapped_bytes(), 0x1000);
        assert_eq!(pages.resident_bytes(&(Address(0x3800)..Address(0x6010))), 0x810);
        assert_eq!(pages.runs_in(&(Address(0x5000)..Address(0x6000))).count(), 0);
    }
}
