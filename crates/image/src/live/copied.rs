//! A copy of the memory that a process may change, made while it was stopped.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use linux::{Address, Mapping, PageState, each, intersection, length};

use super::LiveMemory;
use crate::{Image, Memory, ProcessState, Source};

/// The bytes that are read at a time.
const PART_BYTES: u64 = 1 << 20;

/// The bytes that were copied. All others are of pages of files that the process cannot write to.
pub(crate) struct CopiedMemory {
    /// The ranges, ascending, and the place of the bytes of each.
    parts: Vec<(Range<Address>, usize)>,
    bytes: Vec<u8>,
    live: LiveMemory,
}

impl CopiedMemory {
    /// Copies the [`changeable`] memory of the image of a stopped process into `room`. What does not fit is left out.
    pub(crate) fn of(image: &Image<'_>, mut room: Vec<u8>, live: LiveMemory) -> Self {
        let (mut ranges, mut rest, mut at) = (Vec::new(), &mut room[..], 0);
        for range in changeable(&image.state) {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start.offset(PART_BYTES));
                let bytes = (end - start) as usize;
                let Some(own) = rest.split_off_mut(..bytes) else { break };
                ranges.push((start..end, at, Mutex::new(own)));
                (at, start) = (at + bytes, end);
            }
        }
        let parts = each(ranges.len(), |number| {
            let (range, at, into) = &ranges[number];
            let read =
                image.read(range.start, &mut into.lock().unwrap_or_else(PoisonError::into_inner));
            (range.start..range.start.offset(read as u64), *at)
        });
        Self { parts, bytes: room, live }
    }
}

/// The memory that a process may change once it continues: resident pages of its own, and of mappings that it may write to.
pub(crate) fn changeable(state: &ProcessState) -> impl Iterator<Item = Range<Address>> {
    let pages = state.pages.iter();
    pages.flat_map(|pages| {
        state.mappings.iter().flat_map(|mapping| {
            let may_change = |page: PageState| {
                page.is_readable() && (mapping.writable || page == PageState::Anonymous)
            };
            let runs = pages.runs_in(&mapping.range).filter(move |run| may_change(run.state));
            runs.map(|run| intersection(&run.range, &mapping.range))
        })
    })
}

impl Memory for CopiedMemory {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let before = self.parts.partition_point(|(range, _)| range.end <= at);
        let end = at.offset(into.len() as u64);
        match self.parts.get(before) {
            Some((range, place)) if range.start <= at => {
                let place = place + (at - range.start) as usize;
                let bytes = length(&(at..range.end.min(end))) as usize;
                into[..bytes].copy_from_slice(&self.bytes[place..place + bytes]);
                bytes
            }
            Some((range, _)) if range.start < end => {
                self.live.read(at, &mut into[..(range.start - at) as usize])
            }
            _ => self.live.read(at, into),
        }
    }
}

impl Source for CopiedMemory {
    fn read_absent(&self, mapping: &Mapping, at: Address, into: &mut [u8]) -> usize {
        self.live.read_absent(mapping, at, into)
    }
}
