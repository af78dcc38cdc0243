//! The map of v3: from each slice to its page (src/page-map.c).

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use image::Memory;
use linux::Address;

use super::pages::{Page, SLICE, WORDS};
use crate::module_data::ModuleData;
use crate::structures::Structures;

/// The elements of a part of the map (`MI_PAGE_MAP_SUB_COUNT`), and the memory that a part is for.
const PART_SLICES: u64 = 1 << 13;
const PART: u64 = PART_SLICES * SLICE;
const PART_BYTES: u64 = PART_SLICES * 8;

/// More bytes than a structure in front of the map's elements has. They come first up to 3.3.
const MAX_HEADER: u64 = 256;
/// More parts than a process has memory for: 2 TiB.
const MAX_PARTS: usize = 4096;

/// A map of pages.
#[derive(Debug)]
pub(super) struct PageMap {
    /// The pages, ascending by their areas.
    pub(super) pages: Vec<Page>,
    /// The memory of its parts.
    pub(super) parts: Vec<Range<Address>>,
}

impl PageMap {
    /// Everything that may be the map, in an order that is likely.
    pub(super) fn candidates(
        structures: &mut Structures<'_>,
        data: &ModuleData,
        memory: &[Range<Address>],
        max_pages: u64,
    ) -> Vec<Self> {
        let numbers: BTreeSet<u64> = memory
            .iter()
            .flat_map(|range| range.start.0 / PART..=range.end.before(1).0 / PART)
            .take(MAX_PARTS)
            .collect();
        let mut seen = HashSet::new();
        let mut maps = Vec::new();
        for (_, words) in data.positions(1) {
            let at = Address(words[0]);
            if !structures.is_structure(at, 8) || !seen.insert(at) {
                continue;
            }
            for header in (0..=MAX_HEADER).step_by(8) {
                maps.extend(Self::read(structures, at.offset(header), &numbers, max_pages));
            }
        }
        maps.sort_by_key(|map| std::cmp::Reverse(map.pages.len()));
        maps
    }

    /// Reads the map with its first element at `at`. `None` if it is none.
    fn read(
        structures: &mut Structures<'_>,
        at: Address,
        numbers: &BTreeSet<u64>,
        max_pages: u64,
    ) -> Option<Self> {
        let mut areas: Vec<(Address, Range<Address>)> = Vec::new();
        let mut parts = Vec::new();
        // 3.0 leaves elements of pages that are gone.
        let mut wrong = HashSet::new();
        for number in numbers {
            let part = structures.pointer(at.offset(number * 8)).ok()?;
            if part.0 == 0 {
                continue;
            }
            if !structures.is_structure(part, 8) {
                return None;
            }
            let mut bytes = vec![0; PART_BYTES as usize];
            structures.image.read_exact(part, &mut bytes).ok()?;
            parts.push(part..part.offset(PART_BYTES));
            let elements =
                bytes.as_chunks::<8>().0.iter().map(|it| Address(u64::from_le_bytes(*it)));
            for (page, slice) in elements.zip((number * PART..).step_by(SLICE as usize)) {
                let slice = Address(slice);
                match areas.last_mut() {
                    _ if page.0 == 0 => {}
                    Some((last, area)) if *last == page && area.end == slice => {
                        area.end = slice.offset(SLICE);
                    }
                    _ if structures.is_structure(page, 8) => {
                        areas.push((page, slice..slice.offset(SLICE)));
                    }
                    _ => {
                        wrong.insert(page);
                    }
                }
            }
            if areas.len() as u64 > max_pages {
                return None;
            }
        }
        if wrong.len() > areas.len() {
            return None;
        }
        let mut pages = Vec::new();
        for (at, area) in areas {
            pages.push(Page::read(structures, at, WORDS as u64 * 8, area).ok()?);
        }
        (!pages.is_empty()).then_some(Self { pages, parts })
    }
}
