//! Page states, estimated from the contents of a core, which lacks them.
//!
//! The kernel makes a hole in the file for each page that was absent or the shared page of zeros (fs/coredump.c,
//! `dump_user_range`), so the holes of a core written by the kernel are the absent pages. gdb writes zeros instead, and
//! so do programs that copy a file without its holes: then pages of zeros count as absent.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;

use linux::{Address, Backing, Machine, Mapping, PageRun, PageState, intersection, length};

use crate::Memory;

use super::files::{Files, is_of_file};
use super::headers::{Headers, Segment};
use super::memory::Dumped;
use super::notes::Notes;

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// The evidence by which resident pages are recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The holes in the file.
    Holes,
    /// The contents of pages: pages of zeros count as absent.
    Zeros,
}

/// The estimated states of pages.
pub(crate) struct EstimatedPages {
    /// Bytes of a page.
    page_size: u64,
    pub(crate) runs: Vec<PageRun>,
    pub(crate) evidence: Evidence,
    /// Bytes of mapped files that may or may not have been resident.
    pub(crate) unknown_file_bytes: u64,
    /// Bytes of private memory that may have been resident, but are not in the core.
    pub(crate) lost_bytes: u64,
    /// The number of threads whose thread-local variables, and mostly stacks, a debugger could not read.
    pub(crate) lost_threads: u64,
}

/// Estimates the states of all pages of `mappings`, which ascend and are disjoint.
pub(crate) fn estimate(
    machine: Machine,
    mappings: &[Mapping],
    headers: &Headers,
    dumped: &Dumped,
    files: &Files,
    notes: &Notes,
) -> EstimatedPages {
    let mut states = EstimatedPages {
        page_size: machine.page_size,
        runs: Vec::new(),
        evidence: evidence(machine.page_size, headers, dumped),
        unknown_file_bytes: 0,
        lost_bytes: 0,
        lost_threads: 0,
    };
    let leaves_out_private = leaves_out_private_memory(&dumped.segments, mappings, notes);
    for mapping in mappings {
        let first = dumped.segments.partition_point(|it| it.range.end <= mapping.range.start);
        let segments = dumped.segments[first..].iter();
        let segments: Vec<&Segment> =
            segments.take_while(|it| it.range.start < mapping.range.end).collect();
        let is_written_to = !mapping.shared && mapping.writable;
        let part = |range: Range<Address>| intersection(&range, &mapping.range);
        for segment in &segments {
            states.look_at(mapping, &part(segment.present()), segment, dumped, files);
            states.lose(part(segment.lost()));
            if leaves_out_private && is_written_to && segment.dumped == 0 {
                states.lose(part(segment.range.clone()));
            }
        }
        if mapping.file().is_some() && !mapping.shared && mapping.readable {
            let known = |run: &&PageRun| run.range.start >= mapping.range.start;
            let known = states.runs.iter().rev().take_while(known);
            let known: u64 = known.map(|run| length(&run.range)).sum();
            states.unknown_file_bytes += length(&mapping.range).saturating_sub(known);
        }
    }
    if headers.by_debugger {
        states.lose_threads(dumped, notes);
    }
    states
}

/// Returns the evidence for resident pages. Holes are reliable if the file has some, if they can be as small as a page,
/// and if the dumped memory is aligned to pages.
fn evidence(page_size: u64, headers: &Headers, dumped: &Dumped) -> Evidence {
    let segments = || dumped.segments.iter().filter(|segment| segment.present > 0);
    let has_holes = || {
        segments().any(|segment| {
            let all = segment.offset..segment.offset + segment.present;
            dumped.file.data_in(all.clone()).next() != Some(all)
        })
    };
    let is_as_written = !headers.by_debugger
        && dumped.file.hole_bytes <= page_size
        && segments().all(|segment| segment.offset.is_multiple_of(page_size));
    if is_as_written && has_holes() { Evidence::Holes } else { Evidence::Zeros }
}

/// Returns true if private memory was excluded from the core (bit 0 of coredump_filter): then even the threads' stacks
/// are missing. Otherwise, missing memory was never written to.
fn leaves_out_private_memory(segments: &[Segment], mappings: &[Mapping], notes: &Notes) -> bool {
    notes.threads.iter().any(|thread| {
        let at = thread.stack_pointer;
        let segment = segments.partition_point(|segment| segment.range.end <= at);
        let mapping = mappings.partition_point(|mapping| mapping.range.end <= at);
        let is_left_out = |it: &Segment| it.range.contains(&at) && it.dumped == 0;
        let is_private = |it: &Mapping| it.range.contains(&at) && it.is_private_anonymous();
        segments.get(segment).is_some_and(is_left_out)
            && mappings.get(mapping).is_some_and(is_private)
    })
}

/// The meaning of dumped pages of a mapping.
enum DumpedPages<'a> {
    /// They were resident, in this state.
    Own(PageState),
    /// They are the process's own if they differ from the file's.
    Compare(&'a File),
    /// The file is missing, so pages that are not zeros count as the process's own.
    Guess,
    /// Nothing: the kernel reads pages of files to dump them.
    Nothing,
}

impl EstimatedPages {
    fn look_at(
        &mut self,
        mapping: &Mapping,
        range: &Range<Address>,
        segment: &Segment,
        dumped: &Dumped,
        files: &Files,
    ) {
        if length(range) == 0 || mapping.has_bare_frames {
            return;
        }
        let look = match &mapping.backing {
            Backing::Kernel(_) => DumpedPages::Nothing,
            Backing::File(_) if mapping.shared => DumpedPages::Own(PageState::File),
            Backing::File(_) => match files.of(mapping) {
                Some(file) => DumpedPages::Compare(file),
                // The head of a program is dumped for its build id.
                None if mapping.executable || mapping.file_offset == 0 && !mapping.writable => {
                    DumpedPages::Nothing
                }
                None => DumpedPages::Guess,
            },
            Backing::Anonymous if mapping.is_hugetlb => DumpedPages::Own(PageState::Hugetlb),
            Backing::Anonymous | Backing::Heap | Backing::Stack => {
                DumpedPages::Own(PageState::Anonymous)
            }
        };
        let at = |offset: u64| range.start.offset(offset);
        let start = segment.offset + (range.start - segment.range.start);
        let data = dumped.file.data_in(start..start + length(range));
        match (look, self.evidence) {
            (DumpedPages::Nothing, _) => {}
            (DumpedPages::Own(state), Evidence::Holes) => {
                let page_size = self.page_size;
                for data in data {
                    let run = at(data.start - start).align_down(page_size)
                        ..at(data.end - start).align_up(page_size);
                    self.add(&run, state);
                }
            }
            (DumpedPages::Own(state), Evidence::Zeros) => {
                self.read_pages(dumped, range, data, start, state, |_, page| !is_zeros(page));
            }
            (DumpedPages::Guess, _) => {
                let is_own = |_, page: &[u8]| !is_zeros(page);
                self.read_pages(dumped, range, data, start, PageState::Anonymous, is_own);
            }
            (DumpedPages::Compare(file), _) => {
                let is_own = |page: Address, bytes: &[u8]| !is_of_file(file, mapping, page, bytes);
                let all = std::iter::once(start..start + length(range));
                self.read_pages(dumped, range, all, start, PageState::Anonymous, is_own);
            }
        }
    }

    /// Adds the pages with data for which `is_resident` returns true. `start` is the offset of `range` in the file.
    fn read_pages(
        &mut self,
        dumped: &Dumped,
        range: &Range<Address>,
        data: impl Iterator<Item = Range<u64>>,
        start: u64,
        state: PageState,
        is_resident: impl Fn(Address, &[u8]) -> bool,
    ) {
        let page_size = self.page_size;
        let mut bytes = vec![0; STEP.min(length(range) as usize)];
        // Blocks of the file need not be aligned to pages; each page is read once.
        let mut done = range.start;
        for data in data {
            let mut at = range.start.offset(data.start - start).align_down(page_size).max(done);
            let end = range.start.offset(data.end - start).align_up(page_size).min(range.end);
            while at < end {
                let most = (bytes.len() as u64).min(end - at) as usize;
                let read = dumped.file.read(start + (at - range.start), &mut bytes[..most]);
                for page in bytes[..read].chunks_exact(page_size as usize) {
                    if is_resident(at, page) {
                        self.add(&(at..at.offset(page_size)), state);
                    }
                    at = at.offset(page_size);
                }
                if read < most || read < page_size as usize {
                    break;
                }
            }
            done = done.max(end);
        }
    }

    /// Adds a run after the last one, and joins them if possible.
    fn add(&mut self, range: &Range<Address>, state: PageState) {
        match self.runs.last_mut() {
            Some(last) if last.range.end >= range.start && last.state == state => {
                last.range.end = last.range.end.max(range.end);
            }
            _ => self.runs.push(PageRun { range: range.clone(), state, huge: false }),
        }
    }

    /// Marks the stacks that gdb could not read as lost. gdb writes zeros from the first unreadable MiB of a mapping on,
    /// as when it begins with guard pages that are not a mapping of their own (MADV_GUARD_INSTALL; stacks of threads
    /// from glibc 2.42 on). The word at the thread pointer, at the end of the stack, is zero then. Otherwise it is an address:
    /// the thread pointer itself, or that of the table of thread-local variables.
    fn lose_threads(&mut self, dumped: &Dumped, notes: &Notes) {
        let mut known = std::mem::take(&mut self.runs);
        known.sort_by_key(|run| run.range.start);
        let mut lost = BTreeSet::new();
        for thread in &notes.threads {
            let at = thread.thread_pointer;
            let index = dumped.segments.partition_point(|it| it.range.end <= at);
            let Some(segment) = dumped.segments.get(index) else { continue };
            let is_present = dumped.read_address(at) != Ok(Address(0));
            if is_present || !segment.range.contains(&at) {
                continue;
            }
            self.lost_threads += 1;
            let after = known.partition_point(|run| run.range.start < segment.range.end);
            let last = after.checked_sub(1).map_or(Address(0), |last| known[last].range.end);
            let zeros = last.max(segment.range.start)..segment.range.end;
            if lost.insert(index) {
                self.runs.push(PageRun { range: zeros, state: PageState::Lost, huge: false });
            }
        }
        self.runs.append(&mut known);
    }

    fn lose(&mut self, range: Range<Address>) {
        if length(&range) > 0 {
            self.lost_bytes += length(&range);
            self.add(&range, PageState::Lost);
        }
    }
}

fn is_zeros(page: &[u8]) -> bool {
    // In blocks that the CPU compares at once.
    let (blocks, rest) = page.as_chunks::<64>();
    blocks.iter().all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|&byte| byte == 0)
}
