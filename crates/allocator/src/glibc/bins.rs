//! An arena's bins: rings of free chunks, linked both ways.
//!
//! Every chunk that its neighbour calls free must be in exactly one of them, and nothing else may
//! be. The links were read along with the headers, so nothing is read from the target here.

use capture::{Address, length};

use crate::glibc::piece::Piece;
use crate::glibc::state::State;
use crate::glibc::stretch::{Broken, Links};

/// Checks an arena's bins against its chunks.
pub(crate) fn check(state: &State, pieces: &[Piece]) -> Result<(), Broken> {
    let directories: Vec<Directory<'_>> = pieces.iter().map(Directory::new).collect();
    let find = |at: Address| {
        let piece = pieces.partition_point(|piece| piece.range.start <= at).checked_sub(1)?;
        directories[piece].find(at)
    };
    let free: usize = pieces.iter().map(|piece| piece.stretch.free.len()).sum();
    let mut binned = 0;
    for (index, &(first, last)) in state.bin_links.iter().enumerate() {
        let bin = state.bin_address(index);
        let (mut previous, mut at) = (bin, first);
        while at != bin {
            let Some(links) = find(at) else {
                return Err(Broken::new(at, "a bin names a chunk that is not free"));
            };
            // Since each link is checked backwards, a chunk is reached from one place only, and
            // the walk cannot run in a circle that does not lead back to the bin.
            if links.backward != previous {
                return Err(Broken::new(at, "a free chunk is linked in two places"));
            }
            binned += 1;
            previous = at;
            at = links.forward;
        }
        if last != previous {
            return Err(Broken::new(bin, "a bin does not end in its last chunk"));
        }
    }
    if binned != free {
        let what = format!("{free} chunks are free, but {binned} are in its bins");
        return Err(Broken::new(state.address, what));
    }
    Ok(())
}

/// Finds a free chunk's links by its address, without a search through all of them: there may be
/// hundreds of thousands, in an order that has nothing to do with their addresses.
struct Directory<'a> {
    start: Address,
    /// The free chunks are divided by address into sections of 2 to the power of this.
    shift: u32,
    /// Which of the links each section begins with; one more at the end.
    sections: Vec<u32>,
    links: &'a [Links],
}

impl<'a> Directory<'a> {
    fn new(piece: &'a Piece) -> Self {
        let links = &piece.stretch.free[..];
        let start = piece.range.start;
        let bytes = length(&piece.range);
        // About as many sections as links, whatever the length: their number is bounded by what
        // was really found.
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
