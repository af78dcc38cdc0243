//! The image: a process's state and its memory.

use std::ops::RangeInclusive;

use linux::proc::Identity;
use linux::{Address, Backing, Machine, Mapping, Mappings, PageState, Pages, ProcessInfo, Thread};

use crate::page_cache::PageCache;
use crate::{Finding, Memory, Unreadable};

/// The source of an image's bytes. [`Image`] decides which of them are read.
pub trait Source: Memory {
    /// Reads bytes of `mapping`'s file at `at` whose pages are not mapped into the target, without mapping them in
    /// if possible. Returns the number of bytes read.
    fn read_absent(&self, mapping: &Mapping, at: Address, into: &mut [u8]) -> usize {
        let _ = mapping;
        self.read(at, into)
    }

    /// Reads bytes at `at` that were in no mapping when the state was read. Returns the number of bytes read.
    fn read_unmapped(&self, at: Address, into: &mut [u8]) -> usize {
        let _ = (at, into);
        0
    }

    /// Returns the state of the page at `at` (`None` if it is absent), and the number of the following `bytes` with
    /// the same state. Called only if [`ProcessState::pages`] is `None`.
    fn state_at(&self, at: Address, bytes: u64) -> (Option<PageState>, u64) {
        let _ = at;
        (Some(PageState::Anonymous), bytes)
    }
}

/// The origin of a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    /// A process, by the kernel's account.
    #[default]
    Process,
    /// A core file: page states are estimates, and the process may be gone.
    Core,
}

/// The kernel's account of the target at one instant, without a byte of its memory.
#[derive(Debug, Clone, Default)]
pub struct ProcessState {
    /// The program that runs in the target; the default if there is no process, as for a core.
    pub program: Identity,
    /// The ids of the target, and some facts about it.
    pub process: ProcessInfo,
    /// The machine that it runs on.
    pub machine: Machine,
    /// The mappings.
    pub mappings: Mappings,
    /// The states of the pages, read before any memory; `None` if the process was not stopped.
    pub pages: Option<Pages>,
    /// Bounds of the resident bytes by a count that is independent of `pages`, as a check; `None` without such a count.
    pub rss_bounds: Option<RangeInclusive<u64>>,
    /// The threads; empty if the process was not stopped.
    pub threads: Vec<Thread>,
    /// The origin of this state.
    pub origin: Origin,
    /// Findings about the capture.
    pub findings: Vec<Finding>,
}

impl ProcessState {
    /// Returns the swapped bytes of the target.
    #[must_use]
    pub fn swap_bytes(&self) -> u64 {
        match &self.pages {
            Some(pages) => pages.swapped_bytes(),
            None => self.mappings.iter().map(|mapping| mapping.swap_bytes).sum(),
        }
    }
}

/// The target at one instant: its state and its memory.
///
/// All analysis is a pure function of an image.
pub struct Image<'m> {
    /// The kernel's account.
    pub state: ProcessState,
    source: Box<dyn Source + Send + 'm>,
    /// `None` for a process that runs, whose memory changes.
    cache: Option<PageCache>,
}

impl<'m> Image<'m> {
    /// Creates an image of a state and the source of its bytes.
    #[must_use]
    pub fn new(state: ProcessState, source: impl Source + Send + 'm) -> Self {
        let cache = state.pages.as_ref().map(|_| PageCache::new());
        Self { state, source: Box::new(source), cache }
    }

    /// Bytes of a page of the target's kernel.
    #[must_use]
    pub fn page_size(&self) -> u64 {
        self.state.machine.page_size
    }

    /// Makes room for more pages in the cache of small reads, for walks that follow pointers all over the memory.
    pub fn widen_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.widen();
        }
    }

    /// Reads the little-endian 64-bit word at `at`, and nothing else of its page. For a search that needs a word of each of many
    /// pages.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn peek_u64(&self, at: Address) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        match self.read_runs(at, &mut bytes) {
            8 => Ok(u64::from_le_bytes(bytes)),
            _ => Err(Unreadable { at, bytes: 8 }),
        }
    }

    fn read_runs(&self, at: Address, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let got = self.read_run(at.offset(done as u64), &mut into[done..]);
            if got == 0 {
                break;
            }
            done += got;
        }
        done
    }

    /// Reads from `at` up to the end of the run of pages, of the hole between two runs, or of the mapping. Returns the
    /// number of bytes read.
    fn read_run(&self, at: Address, into: &mut [u8]) -> usize {
        let Some(mapping) = self.state.mappings.find(at) else {
            return self.source.read_unmapped(at, into);
        };
        let end = mapping.range.end.min(at.offset(into.len() as u64).max(at));
        let (state, bytes) = self.state_at(at, end - at);
        let into = &mut into[..bytes as usize];
        match state {
            Some(state) if !state.is_readable() => 0,
            // The kernel lets a debugger read memory that the process protected from itself.
            Some(_) if mapping.readable || mapping.is_private_anonymous() => {
                self.source.read(at, into)
            }
            _ if !mapping.readable => 0,
            _ if mapping.is_private_anonymous() => {
                // Reading it in the target would map a page of zeros in.
                into.fill(0);
                into.len()
            }
            // The kernel's own pages have no file, and no walker needs them.
            _ if matches!(mapping.backing, Backing::Kernel(_)) => 0,
            _ => self.source.read_absent(mapping, at, into),
        }
    }

    /// Returns the state of the page at `at` (`None` if it is absent), and the number of the following `bytes` with
    /// the same state.
    fn state_at(&self, at: Address, bytes: u64) -> (Option<PageState>, u64) {
        let Some(pages) = &self.state.pages else { return self.source.state_at(at, bytes) };
        let end = at.offset(bytes);
        match pages.runs_in(&(at..end)).next() {
            Some(run) if run.range.start <= at => (Some(run.state), end.min(run.range.end) - at),
            Some(run) => (None, end.min(run.range.start) - at),
            None => (None, bytes),
        }
    }
}

impl Memory for Image<'_> {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        match &self.cache {
            Some(cache) if into.len() <= PageCache::MAX_READ => {
                cache.read(at, into, |at, into| self.read_runs(at, into))
            }
            _ => self.read_runs(at, into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::{PageRun, PageState};

    /// Every byte is 7, and reading from 0x5000 to 0x9000 is an error of the test.
    struct Sevens;

    impl Memory for Sevens {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let end = at.offset(into.len() as u64);
            assert!(end.0 <= 0x5000 || at.0 >= 0x9000, "{at:?}: a page without contents was read");
            into.fill(7);
            into.len()
        }
    }

    impl Source for Sevens {}

    fn image() -> Image<'static> {
        let run =
            |start, end, state| PageRun { range: Address(start)..Address(end), state, huge: false };
        let huge = Mapping {
            is_hugetlb: true,
            ..Mapping::anonymous(Address(0x20_0000)..Address(0x60_0000))
        };
        let state = ProcessState {
            mappings: Mappings::new(vec![
                Mapping::anonymous(Address(0x4000)..Address(0x8000)),
                Mapping::anonymous(Address(0x8000)..Address(0x9000)),
                huge,
            ]),
            pages: Some(Pages::new(vec![
                run(0x4000, 0x5000, PageState::Anonymous),
                run(0x7000, 0x8000, PageState::Swapped),
                run(0x8000, 0x8800, PageState::Guard),
                run(0x8800, 0x9000, PageState::Lost),
                run(0x20_0000, 0x40_0000, PageState::Hugetlb),
            ])),
            ..ProcessState::default()
        };
        Image::new(state, Sevens)
    }

    #[test]
    fn absent_pages_are_zeros_and_swapped_ones_are_not_read_back_in() {
        let mut bytes = [1; 0x4000];
        assert_eq!(image().read(Address(0x4000), &mut bytes), 0x3000);
        assert!(bytes[..0x1000].iter().all(|&byte| byte == 7));
        assert!(bytes[0x1000..0x3000].iter().all(|&byte| byte == 0));
        assert!(bytes[0x3000..].iter().all(|&byte| byte == 1));
    }

    #[test]
    fn pages_of_guards_and_those_that_were_lost_have_no_contents() {
        assert_eq!(image().read(Address(0x8000), &mut [0; 16]), 0);
        assert_eq!(image().read(Address(0x8800), &mut [0; 16]), 0);
    }

    /// They were read as zeros.
    #[test]
    fn pages_of_hugetlbfs_have_their_contents() {
        let mut bytes = [1; 16];
        assert_eq!(image().read(Address(0x3f_fff8), &mut bytes), 16);
        assert_eq!(bytes, [7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_not_mapped_is_not_read() {
        assert_eq!(image().read(Address(0x3000), &mut [0; 16]), 0);
        assert_eq!(image().read(Address(u64::MAX - 3), &mut [0; 16]), 0);
    }

    /// A search for Ruby's heap pages read 33,000 whole pages of a process with 512 MiB of strings.
    #[test]
    fn a_search_reads_no_more_of_a_page_than_a_word() {
        struct Words;
        impl Memory for Words {
            fn read(&self, _: Address, into: &mut [u8]) -> usize {
                assert_eq!(into.len(), 8);
                into.fill(7);
                8
            }
        }
        impl Source for Words {}
        let image = Image::new(image().state, Words);
        assert_eq!(image.peek_u64(Address(0x4008)), Ok(0x0707_0707_0707_0707));
        let unreadable = Unreadable { at: Address(0x7000), bytes: 8 };
        assert_eq!(image.peek_u64(Address(0x7000)), Err(unreadable));
    }
}
