//! The memory in a core, and in the files that the process had mapped.

use linux::{Address, Mapping};

use crate::{Memory, Source};

use super::file::{CoreFile, read_fully};
use super::files::Files;
use super::headers::Segment;

/// The dumped memory.
pub(crate) struct Dumped {
    pub(crate) file: CoreFile,
    /// Ascending by address and disjoint.
    pub(crate) segments: Vec<Segment>,
}

impl Dumped {
    /// Returns the segment that contains `at`.
    fn segment(&self, at: Address) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.range.start <= at);
        let segment = &self.segments[after.checked_sub(1)?];
        (at < segment.range.end).then_some(segment)
    }
}

impl Memory for Dumped {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = at.offset(done as u64);
            let Some(segment) = self.segment(at) else { break };
            let within = at - segment.range.start;
            let left =
                segment.present.saturating_sub(within).min((into.len() - done) as u64) as usize;
            let read = self.file.read(segment.offset + within, &mut into[done..done + left]);
            done += read;
            if read == 0 {
                break;
            }
        }
        done
    }
}

/// The memory of the process: the dumped memory and its files.
pub(crate) struct CoreMemory {
    pub(crate) dumped: Dumped,
    pub(crate) files: Files,
}

impl Memory for CoreMemory {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        self.dumped.read(at, into)
    }
}

impl Source for CoreMemory {
    /// Reads dumped pages of a file, which need not have been resident, or else the file itself.
    fn read_absent(&self, mapping: &Mapping, at: Address, into: &mut [u8]) -> usize {
        let read = self.dumped.read(at, into);
        if read > 0 {
            return read;
        }
        let Some(file) = self.files.of(mapping) else { return 0 };
        // Up to the next dumped part of the mapping, if there is one.
        let next = self.dumped.segments.partition_point(|it| it.range.start <= at);
        let next = self
            .dumped
            .segments
            .get(next)
            .map_or(at.offset(into.len() as u64), |it| it.range.start);
        let most = (next - at).min(into.len() as u64) as usize;
        let offset = mapping.file_offset.saturating_add(at - mapping.range.start);
        read_fully(file, offset, &mut into[..most])
    }
}
