//! The map from pages to spans (src/pagemap.h): a root in the library's data, and leaves.

use std::collections::{BTreeMap, HashSet};
use std::ops::{ControlFlow, Range};

use linux::{Address, Mapping};

use super::span::{Span, Use};
use crate::module_data::ModuleData;
use crate::structures::{Structures, written_parts};

/// The bits of addresses that the map is for (`kAddressBits`).
const ADDRESS_BITS: u32 = 48;
/// The sizes that pages may have (`kPageShift`).
const SHIFTS: Range<u32> = 12..19;
/// The elements of a leaf that are examined to recognise it.
const MAX_VOTES: usize = 64;
/// More leaves than a process has memory for: 8 TiB of pages of 8 KiB.
const MAX_LEAVES: usize = 4096;

/// The map of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageMap {
    root: Address,
    /// Pages have `1 << shift` bytes.
    pub(super) shift: u32,
}

/// All spans of a map.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// Ascending and disjoint.
    pub(super) spans: Vec<Span>,
    /// The places at which the map and the spans contradict each other.
    pub(super) contradictions: usize,
    /// The memory of the leaves.
    pub(super) leaves: Vec<Range<Address>>,
}

impl PageMap {
    /// Everything that may be the map, the most likely first.
    pub(super) fn candidates(structures: &mut Structures<'_>, data: &ModuleData) -> Vec<Self> {
        let mut votes = BTreeMap::<Self, usize>::new();
        let mut seen = HashSet::new();
        for (at, words) in data.positions(1) {
            let leaf = Address(words[0]);
            if leaf.0 == 0 || !structures.is_structure(leaf, 8) || !seen.insert(leaf) {
                continue;
            }
            for shift in SHIFTS {
                let map = Self { root: at, shift };
                for number in map.votes(structures, leaf) {
                    if let Some(root) = at.0.checked_sub(number * 8).map(Address) {
                        *votes.entry(Self { root, shift }).or_default() += 1;
                    }
                }
            }
        }
        let mut maps: Vec<(usize, Self)> = votes.into_iter().map(|(map, it)| (it, map)).collect();
        maps.retain(|(_, map)| {
            data.contains(map.root) && data.contains(map.root.offset(map.leaves() * 8 - 8))
        });
        maps.sort_by_key(|(votes, _)| std::cmp::Reverse(*votes));
        maps.into_iter().map(|(_, map)| map).collect()
    }

    /// The elements of a leaf.
    fn leaf_bits(self) -> u32 {
        (ADDRESS_BITS - self.shift).div_ceil(2)
    }

    fn leaf_bytes(self) -> u64 {
        8 << self.leaf_bits()
    }

    /// The elements of the root.
    fn leaves(self) -> u64 {
        1 << (ADDRESS_BITS - self.shift - self.leaf_bits())
    }

    /// The numbers that `leaf` has in the root, by some of its elements: each begins a span, whose first page has the element's number
    /// in its lower bits.
    fn votes(self, structures: &mut Structures<'_>, leaf: Address) -> Vec<u64> {
        let mut votes = Vec::new();
        let (mut elements, mut end) = (0, 0);
        let range = leaf..leaf.offset(self.leaf_bytes());
        if !structures.lies_in_memory(&range) {
            return votes;
        }
        let image = structures.image;
        let _ = written_parts(image, &range, |at, bytes| {
            for (index, element) in elements_of(at - leaf, bytes) {
                // The elements within a span lead to anything.
                if element.0 == 0 || index < end {
                    continue;
                }
                let span = self.span(structures, element);
                let span = span.filter(|span| span.first & ((1 << self.leaf_bits()) - 1) == index);
                elements += 1;
                match span {
                    Some(span) => {
                        votes.push(span.first >> self.leaf_bits());
                        end = index + span.pages;
                    }
                    // Nearly all structures that are no leaf begin with something else.
                    None if votes.is_empty() => return ControlFlow::Break(()),
                    None => {}
                }
                if elements == MAX_VOTES {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        votes
    }

    /// The span whose structure is at `at`, if it is one in memory.
    fn span(self, structures: &mut Structures<'_>, at: Address) -> Option<Span> {
        if !structures.is_structure(at, 8) {
            return None;
        }
        let span = Span::read(structures, at).ok()??;
        if span.end() >> (ADDRESS_BITS - self.shift) > 0 {
            return None;
        }
        is_memory(structures, &span.area(self.shift)).then_some(span)
    }

    /// Reads all spans. `None` if more than `max_contradictions` places contradict it.
    pub(super) fn spans(
        self,
        structures: &mut Structures<'_>,
        data: &ModuleData,
        max_contradictions: usize,
    ) -> Option<Spans> {
        let root = data.positions(self.leaves()).find(|(at, _)| *at == self.root)?.1;
        let leaves = root.iter().zip(0..self.leaves()).filter(|(leaf, _)| **leaf != 0);
        let leaves: Vec<(Address, u64)> =
            leaves.take(MAX_LEAVES).map(|(leaf, number)| (Address(*leaf), number)).collect();
        let mut all = Spans::default();
        for &(leaf, _) in &leaves {
            let range = leaf..leaf.offset(self.leaf_bytes());
            if !leaf.is_aligned(8) || !structures.lies_in_memory(&range) {
                return None;
            }
            all.leaves.push(range);
        }
        all.leaves.sort_by_key(|range| range.start);
        if all.leaves.windows(2).any(|pair| pair[1].start < pair[0].end) {
            return None;
        }
        let image = structures.image;
        for (leaf, number) in leaves {
            let range = leaf..leaf.offset(self.leaf_bytes());
            written_parts(image, &range, |at, bytes| {
                for (index, element) in elements_of(at - leaf, bytes) {
                    let page = number << self.leaf_bits() | index;
                    if element.0 != 0 && all.spans.last().is_none_or(|it| page + 1 >= it.end()) {
                        all.add(page, element, self.span(structures, element));
                    }
                    if all.contradictions > max_contradictions {
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })
            .ok()?;
        }
        let is_sane = all.contradictions <= max_contradictions
            && !all.spans.is_empty()
            && all.spans.iter().all(|span| {
                span.usage != Use::Changing || is_memory(structures, &span.area(self.shift))
            });
        is_sane.then_some(all)
    }
}

impl Spans {
    /// Adds the element of a page that no span has yet, or of a span's last page. It leads to `span`, or to none. The structures of
    /// a few spans may be halfway to a split, or to be merged with their neighbours.
    fn add(&mut self, page: u64, element: Address, span: Option<Span>) {
        let last = self.spans.last_mut();
        let end = last.as_ref().map_or(0, |last| last.end());
        match (last, span) {
            (Some(last), _) if page < end && last.at == element => {}
            // It was not shortened yet.
            (Some(last), Some(span))
                if page < end && last.first < span.first && span.end() == end =>
            {
                last.pages = span.first - last.first;
                self.spans.push(span);
            }
            (_, Some(span)) if end <= page && span.first == page => self.spans.push(span),
            // The element of its new first page is still that of its neighbour.
            (Some(last), Some(span))
                if last.usage == Use::Changing && last.first <= span.first && page < span.end() =>
            {
                last.pages = span.first - last.first;
                if last.pages == 0 {
                    self.spans.pop();
                }
                self.spans.push(span);
            }
            // The structure of a neighbour is gone already.
            (Some(last), _) if last.usage == Use::Changing => last.pages = page + 1 - last.first,
            _ => {
                self.contradictions += 1;
                if end <= page {
                    self.spans.push(Span::changing(page));
                }
            }
        }
    }
}

/// Returns true if `area` is memory of a program, which may have protected a part of it.
fn is_memory(structures: &Structures<'_>, area: &Range<Address>) -> bool {
    let mappings = &structures.image.state.mappings;
    let around = mappings.contiguous(area.start, Mapping::is_private_anonymous);
    around.start <= area.start && area.end <= around.end
}

/// The elements of a part of a leaf, which begins `offset` bytes behind the leaf's beginning.
fn elements_of(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, Address)> {
    let words = bytes.as_chunks::<8>().0.iter();
    (offset / 8..).zip(words.map(|word| Address(u64::from_le_bytes(*word))))
}
