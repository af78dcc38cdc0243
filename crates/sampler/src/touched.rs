//! The sampled pages, for as long as they stay resident. Their use at a later time tells what became of the memory.

use std::collections::HashMap;

use linux::arch::page_size;

use crate::profile::{Touched, TouchedPage};

/// Sampled pages of all processes that are kept, at most. If there are more, every other one is dropped, and those that remain
/// stand for twice as much.
const MAX_PAGES: usize = 1 << 17;

/// The sampled pages of all processes.
#[derive(Default)]
pub(crate) struct TouchedPages {
    processes: HashMap<i32, Pages>,
    /// Pages are kept if so many bits of their hash are zero.
    zero_bits: u32,
}

#[derive(Default)]
struct Pages {
    /// The stack whose page fault mapped each page in, and the faults that the sample stands for.
    kept: HashMap<u64, (Option<u32>, u64)>,
    /// The faults that all samples stand for, also those of pages that are not kept.
    sampled_faults: u64,
}

impl TouchedPages {
    /// Adds a sample of a page, which stands for so many faults; without a page it is only counted.
    pub(crate) fn add(&mut self, pid: i32, page: Option<u64>, stack: Option<u32>, faults: u64) {
        let pages = self.processes.entry(pid).or_default();
        pages.sampled_faults += faults;
        let Some(page) = page.filter(|&page| is_kept(page, self.zero_bits)) else { return };
        pages.kept.insert(page, (stack, faults));
        while self.processes.values().map(|pages| pages.kept.len()).sum::<usize>() > MAX_PAGES {
            self.zero_bits += 1;
            for pages in self.processes.values_mut() {
                pages.kept.retain(|&page, _| is_kept(page, self.zero_bits));
            }
        }
    }

    /// Keeps the pages of a process that are still there: `are_present` returns that for pages in ascending order.
    pub(crate) fn keep(&mut self, pid: i32, are_present: impl FnOnce(&[u64]) -> Vec<bool>) {
        if let Some(Pages { kept, .. }) = self.processes.get_mut(&pid) {
            let mut pages: Vec<u64> = kept.keys().copied().collect();
            pages.sort_unstable();
            for (page, is_present) in pages.iter().zip(are_present(&pages)) {
                if !is_present {
                    kept.remove(page);
                }
            }
        }
    }

    /// Returns true if pages of the process were sampled.
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Forgets the pages of a process, which has a new memory.
    pub(crate) fn forget(&mut self, pid: i32) {
        self.processes.remove(&pid);
    }

    /// The pages of a process, which had `faults` page faults in all. Threads that ended between two samples leave faults
    /// without one, which count as the others.
    pub(crate) fn take(&mut self, pid: i32, started_ticks: Option<u64>, faults: u64) -> Touched {
        let Pages { kept, sampled_faults } = self.processes.remove(&pid).unwrap_or_default();
        let scale = faults.max(sampled_faults) as f64 / sampled_faults.max(1) as f64;
        let scale = scale * f64::from(1 << self.zero_bits.min(30)) * page_size() as f64;
        let page = |(page, (stack, faults)): (u64, (Option<u32>, u64))| TouchedPage {
            page,
            stack,
            bytes: (faults as f64 * scale) as u64,
        };
        let mut pages: Vec<TouchedPage> = kept.into_iter().map(page).collect();
        pages.sort_unstable_by_key(|it| it.page);
        Touched { pid, started_ticks, page_size: page_size(), pages }
    }
}

/// Returns true if the first `bits` bits of the page's hash are zero.
fn is_kept(page: u64, bits: u32) -> bool {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros() >= bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_sample_of_a_page_counts_and_faults_without_samples_count_as_others() {
        let mut touched = TouchedPages::default();
        touched.add(7, Some(100), Some(1), 16);
        touched.add(7, Some(100), Some(2), 16);
        touched.add(7, Some(90), None, 32);
        touched.add(8, Some(50), Some(3), 16);
        let Touched { pid, started_ticks, pages, .. } = touched.take(7, Some(5), 128);
        assert_eq!((pid, started_ticks), (7, Some(5)));
        let page = |page, stack, faults| TouchedPage { page, stack, bytes: faults * page_size() };
        // 64 of 128 faults are in samples.
        assert_eq!(pages, [page(90, None, 64), page(100, Some(2), 32)]);
        touched.keep(8, |pages| pages.iter().map(|&page| page != 50).collect());
        assert_eq!(touched.take(8, None, 0).pages, []);
    }

    #[test]
    fn the_number_of_pages_is_limited_and_their_sum_stays() {
        let mut touched = TouchedPages::default();
        let count = 3 * MAX_PAGES as u64;
        for page in 0..count {
            touched.add(7, Some(4096 * page), Some(0), 1);
        }
        let pages = touched.take(7, None, count).pages;
        assert!(pages.len() <= MAX_PAGES, "{}", pages.len());
        let bytes: u64 = pages.iter().map(|it| it.bytes).sum();
        let share = bytes as f64 / (count * page_size()) as f64;
        assert!((0.97..1.03).contains(&share), "{share}");
    }
}
