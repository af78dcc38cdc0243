//! The bins of an arena: circular, doubly linked lists of free chunks.
//!
//! Every chunk that its neighbour calls free must be in exactly one bin, and no other chunk may be in one. The
//! links were read together with the headers, so nothing is read from the target here.

use linux::{Address, length};

use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::segment::{Links, Segment};
use crate::glibc::state::State;

/// Checks an arena's bins against its chunks.
pub(crate) fn check(state: &State, segments: &[Segment]) -> Result<(), Inconsistency> {
    let directories: Vec<Directory<'_>> = segments.iter().map(Directory::new).collect();
    let find = |at: Address| {
        let segment =
            segments.partition_point(|segment| segment.range.start <= at).checked_sub(1)?;
        directories[segment].find(at)
    };
    let free: usize = segments.iter().map(|segment| segment.free.len()).sum();
    let mut binned = 0;
    for (index, &(first, last)) in state.bin_links.iter().enumerate() {
        let bin = state.bin_address(index);
        let (mut previous, mut at) = (bin, first);
        while at != bin {
            let Some(links) = find(at) else {
                return Err(Inconsistency::new(at, "a bin names a chunk that is not free"));
            };
            // Each link is checked backwards, so a chunk is reached from one place only, and the walk cannot
            // run in a circle that does not include the bin.
            if links.bk != previous {
                return Err(Inconsistency::new(at, "a free chunk is linked in two places"));
            }
            binned += 1;
            previous = at;
            at = links.fd;
        }
        if last != previous {
            return Err(Inconsistency::new(bin, "a bin does not end in its last chunk"));
        }
    }
    if binned != free {
        let what = format!("{free} chunks are free, but {binned} are in its bins");
        return Err(Inconsistency::new(state.address, what));
    }
    Ok(())
}

/// Finds the links of a free chunk by its address. A binary search through all of them would be too slow:
/// there may be hundreds of thousands, and bins are not ordered by address.
struct Directory<'a> {
    start: Address,
    /// The binary logarithm of the bytes in a section.
    shift: u32,
    /// The index of the first link of each section, and one more at the end.
    sections: Vec<u32>,
    links: &'a [Links],
}

impl<'a> Directory<'a> {
    fn new(segment: &'a Segment) -> Self {
        let links = &segment.free[..];
        let start = segment.range.start;
        let bytes = length(&segment.range);
        // About as many sections as links: their number is bounded by the chunks that were found.
        let shift = (bytes / (links.len() as u64 + 1)).max(1).ilog2();
        let mut sections = Vec::with_capacity((bytes >> shift) as usize + 2);
        for (index, links) in links.iter().enumerate() {
            let section = ((links.chunk - start) >> shift) as usize;
            sections.resize(sections.len().max(section + 1), index as u32);
        }
        sections.resize((bytes >> shift) as usize + 2, links.len() as u32);
        Self { start, shift, sections, links }
    }

    fn find(&self, at: Address) -> Option<&Links> {
        let section = ((at - self.start) >> self.shift) as usize;
        let first = *self.sections.get(section)? as usize;
        let end = *self.sections.get(section + 1)? as usize;
        let within = &self.links[first..end];
        let index = within.binary_search_by_key(&at, |links| links.chunk).ok()?;
        Some(&within[index])
    }
}
