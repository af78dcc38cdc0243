//! The pages that a process shares with its parent and children since a fork. A page fault in one copies it, or makes it
//! writable if the other process has ended: RSS does not grow.

use std::ops::Range;

/// Ascending runs of the numbers of pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SharedPages(Vec<Range<u64>>);

impl SharedPages {
    pub(crate) fn new(runs: Vec<Range<u64>>) -> Self {
        Self(runs)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, page: u64) -> bool {
        let next = self.0.partition_point(|run| run.end <= page);
        self.0.get(next).is_some_and(|run| run.contains(&page))
    }

    /// Keeps the pages that are in `runs` too: the others were returned to the kernel, and will grow RSS again.
    pub(crate) fn keep(&mut self, runs: &[Range<u64>]) {
        let mut kept = Vec::new();
        let mut next = 0;
        for own in &self.0 {
            while runs.get(next).is_some_and(|run| run.end <= own.start) {
                next += 1;
            }
            let near = runs[next..].iter().take_while(|run| run.start < own.end);
            kept.extend(near.map(|run| own.start.max(run.start)..own.end.min(run.end)));
        }
        self.0 = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_returned_are_shared_no_more() {
        let mut shared = SharedPages::new(vec![10..20, 30..40, 50..60]);
        let has = |shared: &SharedPages| (0..70).filter(|&page| shared.has(page)).count();
        assert_eq!(has(&shared), 30);
        shared.keep(&[0..12, 18..32, 35..36, 38..51]);
        assert_eq!(shared, SharedPages::new(vec![10..12, 18..20, 30..32, 35..36, 38..40, 50..51]));
        assert_eq!(has(&shared), 10);
        shared.keep(&[]);
        assert!(shared.is_empty());
    }
}
