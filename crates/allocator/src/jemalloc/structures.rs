use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use capture::{Address, Image, Memory, PAGE_SIZE, Unreadable, intersection};

use crate::candidate_mappings::{is_candidate, lies_in_memory};

const PAGE: usize = PAGE_SIZE as usize;
/// The pages that are kept, 32 MiB of them. Beyond that, pages are read again.
const MAX_PAGES: usize = 8192;
/// The bytes that are read at once.
const PART: u64 = 64 << 10;

/// Reads many small structures of jemalloc's, which lie close together but are visited in no order.
pub(crate) struct Structures<'a> {
    pub(crate) image: &'a Image<'a>,
    pages: HashMap<Address, Box<[u8; PAGE]>>,
}

impl<'a> Structures<'a> {
    pub(crate) fn new(image: &'a Image<'a>) -> Self {
        Self { image, pages: HashMap::new() }
    }

    /// The `N` bytes at `at`.
    pub(crate) fn bytes<const N: usize>(&mut self, at: Address) -> Result<[u8; N], Unreadable> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            let at = at.offset(done as u64);
            let within = (at.0 % PAGE_SIZE) as usize;
            let page = self.page(at.align_down(PAGE_SIZE))?;
            let part = &page[within..PAGE.min(within + N - done)];
            bytes[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        Ok(bytes)
    }

    pub(crate) fn word(&mut self, at: Address) -> Result<u64, Unreadable> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    pub(crate) fn half(&mut self, at: Address) -> Result<u32, Unreadable> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    pub(crate) fn pointer(&mut self, at: Address) -> Result<Address, Unreadable> {
        self.word(at).map(Address)
    }

    fn page(&mut self, at: Address) -> Result<&[u8; PAGE], Unreadable> {
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&at) {
            self.pages.clear();
        }
        match self.pages.entry(at) {
            std::collections::hash_map::Entry::Occupied(page) => Ok(page.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                let mut page = Box::new([0; PAGE]);
                self.image.read_exact(at, &mut page[..])?;
                Ok(place.insert(page))
            }
        }
    }

    /// Returns true if `at` may be a structure of jemalloc's: aligned, in memory that an allocator may have obtained.
    pub(crate) fn is_structure(&self, at: Address, alignment: u64) -> bool {
        at.is_aligned(alignment) && self.image.state.mappings.find(at).is_some_and(is_candidate)
    }

    /// Returns true if `range` may be a structure of jemalloc's.
    pub(crate) fn lies_in_memory(&self, range: &Range<Address>) -> bool {
        lies_in_memory(self.image, range)
    }

    /// Visits the parts of `range` that were ever written to, with their addresses, in ascending order. Parts begin and
    /// end where pages do, or where the range does.
    ///
    /// # Errors
    /// If a part cannot be read.
    pub(crate) fn written_parts(
        &self,
        range: &Range<Address>,
        mut visit: impl FnMut(Address, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Unreadable> {
        let runs: Vec<_> = match &self.image.state.pages {
            Some(pages) => {
                pages.runs_in(range).map(|run| intersection(&run.range, range)).collect()
            }
            None => vec![range.clone()],
        };
        let mut buffer = vec![0; PART as usize];
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let end = at.offset(PART).align_down(PAGE_SIZE).min(run.end);
                let part = &mut buffer[..(end - at) as usize];
                self.image.read_exact(at, part)?;
                if visit(at, part).is_break() {
                    return Ok(());
                }
                at = end;
            }
        }
        Ok(())
    }
}
