use std::ops::RangeInclusive;

use crate::arch::{self, Registers};
use crate::{Address, Backing, Finding, Mapping, Mappings, Memory, PageState, Pages};

/// Where an image's bytes come from. [`Image`] decides what may be read of it at all.
pub trait Source: Memory {
    /// Reads bytes of `mapping`'s file at `at` whose pages the target has not mapped in, in a way
    /// that does not map them in, if there is one. Returns the bytes read.
    fn read_absent(&self, mapping: &Mapping, at: Address, into: &mut [u8]) -> usize {
        let _ = mapping;
        self.read(at, into)
    }

    /// The state of the page at `at`, `None` if it is absent, and for how many of `bytes` it holds. Asked only
    /// if the state has no page states.
    fn state_at(&self, at: Address, bytes: u64) -> (Option<PageState>, u64) {
        let _ = at;
        (Some(PageState::Anonymous), bytes)
    }
}

/// Who the target is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its process id as rbloat's own namespace counts.
    pub pid: i32,
    /// When it was started, in clock ticks since the machine was: with its id, which process it is.
    /// `None` where that is not known.
    pub started_ticks: Option<u64>,
    /// How long it has been running, in ms; `None` where that is not known.
    pub uptime_ms: Option<u64>,
    /// Its command line, words joined by blanks; the name in brackets where it has none.
    pub command: String,
    /// The variables of its environment that decide how its memory is allocated, as they stood
    /// when it was started. Nothing else of the environment is kept: it holds secrets. `None`
    /// where the environment could not be read.
    pub environment: Option<Vec<(String, String)>>,
    /// Its process id within its own container, where that is another one.
    pub namespace_pid: Option<i32>,
    /// How many threads it has.
    pub threads: u64,
    /// Its resident bytes as ps(1) shows them: a fast count of the kernel's that may be off by
    /// some pages for each processor.
    pub rss_bytes: u64,
}

impl Process {
    /// The value of an environment variable that decides about allocation.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment
            .iter()
            .flatten()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A thread of the target at the instant of the capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// The thread id.
    pub tid: i32,
    /// The thread pointer, from which thread-local variables are addressed.
    pub thread_pointer: Address,
    /// The stack pointer.
    pub stack_pointer: Address,
    /// The other general registers, in no particular order: each may hold the only pointer to a chunk.
    pub registers: Vec<u64>,
}

impl Thread {
    /// Creates the thread `tid` with these registers.
    #[must_use]
    pub fn new(tid: i32, registers: &Registers) -> Self {
        Self {
            tid,
            thread_pointer: registers.thread_pointer(),
            stack_pointer: registers.stack_pointer(),
            registers: registers.general(),
        }
    }

    /// The address of the C library's descriptor of the thread (`struct pthread`).
    #[must_use]
    pub fn pthread(&self) -> Address {
        arch::pthread(self.thread_pointer)
    }

    /// The lowest address of the thread's stack that may be in use: the end of the red zone.
    #[must_use]
    pub fn stack_floor(&self) -> Address {
        self.stack_pointer.before(arch::RED_ZONE)
    }
}

/// Where a state is from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Origin {
    /// The kernel said it of a process.
    #[default]
    Process,
    /// A core file: page states were worked out, and the process may be gone.
    Core,
}

/// All that the kernel says of the target at one instant, without a byte of its memory.
#[derive(Debug, Clone, Default)]
pub struct ProcessState {
    /// Who the target is.
    pub process: Process,
    /// Its mappings.
    pub mappings: Mappings,
    /// The states of its pages, read before any memory; `None` where the kernel did not tell, or
    /// was not asked.
    pub pages: Option<Pages>,
    /// Resident bytes, at least and at most, by a count that was not made from `pages`: to hold the
    /// sum of these against it. `None` where there is none.
    pub rss_bounds: Option<RangeInclusive<u64>>,
    /// Its threads; empty where it was not stopped.
    pub threads: Vec<Thread>,
    /// Where all this is from.
    pub origin: Origin,
    /// What was noticed about that.
    pub findings: Vec<Finding>,
}

impl ProcessState {
    /// Bytes of the target that are in swap.
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
/// Everything after the capture is a pure function of an image.
pub struct Image<'m> {
    /// What the kernel says of it.
    pub state: ProcessState,
    source: Box<dyn Source + Send + 'm>,
}

impl<'m> Image<'m> {
    /// Joins a state and the source of the bytes that it describes.
    #[must_use]
    pub fn new(state: ProcessState, source: impl Source + Send + 'm) -> Self {
        Self { state, source: Box::new(source) }
    }

    /// Reads what the page at `at` begins with, up to `into.len()` bytes or the end of what is
    /// alike: the run of pages, the hole between two runs, the mapping. Returns the bytes read.
    fn read_alike(&self, at: Address, into: &mut [u8]) -> usize {
        let Some(mapping) = self.state.mappings.find(at) else { return 0 };
        let end = mapping.range.end.min(at.offset(into.len() as u64).max(at));
        let (state, bytes) = self.state_at(at, end - at);
        let into = &mut into[..bytes as usize];
        match state {
            Some(state) if state.is_unreadable() => 0,
            // The kernel lets a debugger read what a process forbids itself to read, as GC.compact does with
            // heap pages while it moves objects.
            Some(_) if mapping.readable || mapping.is_private_anonymous() => {
                self.source.read(at, into)
            }
            _ if !mapping.readable => 0,
            _ if mapping.is_private_anonymous() => {
                // Reading it in the target would map a page in, and yield the same.
                into.fill(0);
                into.len()
            }
            // No walker needs the kernel's own pages, and there is no file to read them from.
            _ if matches!(mapping.backing, Backing::Kernel(_)) => 0,
            _ => self.source.read_absent(mapping, at, into),
        }
    }

    /// The state of the page at `at`, `None` if it is absent, and for how many of `bytes` it holds.
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
        let mut done = 0;
        while done < into.len() {
            let got = self.read_alike(at.offset(done as u64), &mut into[done..]);
            if got == 0 {
                break;
            }
            done += got;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageRun, PageState};

    /// Every byte is 7, and reading from 0x5000 on is an error of the test.
    struct Sevens;

    impl Memory for Sevens {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            assert!(at.0 + into.len() as u64 <= 0x5000, "an absent or swapped page was read");
            into.fill(7);
            into.len()
        }
    }

    impl Source for Sevens {}

    fn image() -> Image<'static> {
        let run =
            |start, end, state| PageRun { range: Address(start)..Address(end), state, huge: false };
        let state = ProcessState {
            mappings: Mappings::new(vec![Mapping::anonymous(Address(0x4000)..Address(0x8000))]),
            pages: Some(Pages::new(vec![
                run(0x4000, 0x5000, PageState::Anonymous),
                run(0x7000, 0x8000, PageState::Swapped),
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
    fn what_is_not_mapped_is_not_read() {
        assert_eq!(image().read(Address(0x3000), &mut [0; 16]), 0);
        assert_eq!(image().read(Address(u64::MAX - 3), &mut [0; 16]), 0);
    }
}
