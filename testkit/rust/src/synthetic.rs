use std::collections::BTreeMap;

use image::{Image, Memory, ProcessState, Source};
use linux::{Address, MIN_PAGE_SIZE, Machine, Mapping, Mappings, PageRun, PageState, Pages};

/// The bytes that are kept together, whatever the pages of the machine are.
const PART: usize = MIN_PAGE_SIZE as usize;

/// Memory that a test writes: pages become resident when they are written, and unwritten pages within a mapping are
/// absent (zeros), as in a process.
#[derive(Debug, Clone, Default)]
pub struct SyntheticMemory {
    /// The mappings of the process. Pages outside them cannot be read.
    pub mappings: Vec<Mapping>,
    /// The machine of the process, whose pages become resident as a whole.
    pub machine: Machine,
    /// The written memory, in parts of at most a page.
    parts: BTreeMap<u64, Box<[u8; PART]>>,
}

impl SyntheticMemory {
    /// Adds a private anonymous mapping, readable and writable.
    pub fn map(&mut self, start: u64, bytes: u64) {
        self.mappings.push(Mapping::anonymous(Address(start)..Address(start + bytes)));
    }

    /// Writes `bytes` at `at`; their pages become resident.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = at + index as u64;
            let part = self.parts.entry(at / MIN_PAGE_SIZE).or_insert_with(|| Box::new([0; PART]));
            part[(at % MIN_PAGE_SIZE) as usize] = *byte;
        }
    }

    /// Writes a little-endian 64-bit word.
    pub fn write_u64(&mut self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }

    /// Makes the whole pages within `start..start + bytes` absent, as madvise(MADV_DONTNEED) does.
    pub fn discard(&mut self, start: u64, bytes: u64) {
        let page_size = self.machine.page_size;
        let absent = start.next_multiple_of(page_size)..(start + bytes) / page_size * page_size;
        self.parts.retain(|part, _| !absent.contains(&(part * MIN_PAGE_SIZE)));
    }

    /// The word at `at`; zero if nothing was written there.
    #[must_use]
    pub fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(Address(at), &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// The state of a process with this memory: its mappings, and its pages as resident.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let page_size = self.machine.page_size;
        let run = |page: u64| PageRun {
            range: Address(page * page_size)..Address((page + 1) * page_size),
            state: PageState::Anonymous,
            huge: false,
        };
        let mut pages: Vec<u64> =
            self.parts.keys().map(|part| part * MIN_PAGE_SIZE / page_size).collect();
        pages.dedup();
        ProcessState {
            machine: self.machine,
            mappings: Mappings::new(self.mappings.clone()),
            pages: Some(Pages::new(pages.into_iter().map(run).collect())),
            ..ProcessState::default()
        }
    }

    /// The image of a process with this memory.
    #[must_use]
    pub fn image(&self) -> Image<'static> {
        Image::new(self.state(), self.clone())
    }
}

impl Memory for SyntheticMemory {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = at.offset(done as u64).0;
            let within = (at % MIN_PAGE_SIZE) as usize;
            let bytes = (into.len() - done).min(PART - within);
            let part = &mut into[done..done + bytes];
            match self.parts.get(&(at / MIN_PAGE_SIZE)) {
                Some(kept) => part.copy_from_slice(&kept[within..within + bytes]),
                None => part.fill(0),
            }
            done += bytes;
        }
        done
    }
}

impl Source for SyntheticMemory {}
