use std::ops::Range;
use std::sync::LazyLock;

use image::ProcessState;
use linux::{Address, PageRun, Pages, intersection, length};

/// The page states, which every capture of a stopped process and every core has.
pub(crate) fn pages_of(state: &ProcessState) -> &Pages {
    static NONE: LazyLock<Pages> = LazyLock::new(Pages::default);
    state.pages.as_ref().unwrap_or(&NONE)
}

/// Runs of pages that are looked up in ascending order.
pub(crate) struct Residents<'a> {
    runs: &'a [PageRun],
}

impl<'a> Residents<'a> {
    pub(crate) fn new(pages: &'a Pages) -> Self {
        Self { runs: pages.iter().as_slice() }
    }

    /// The resident bytes of `range`, which does not begin before those of earlier calls.
    pub(crate) fn within(&mut self, range: &Range<Address>) -> u64 {
        while let Some((first, rest)) = self.runs.split_first() {
            if first.range.end > range.start {
                break;
            }
            self.runs = rest;
        }
        let touching = self.runs.iter().take_while(|run| run.range.start < range.end);
        let resident = touching.filter(|run| run.state.is_resident());
        resident.map(|run| length(&intersection(&run.range, range))).sum()
    }
}
