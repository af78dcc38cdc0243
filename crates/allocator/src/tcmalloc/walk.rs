use std::ops::Range;

use image::Image;
use image::elf::Module;
use linux::{Address, length};

use super::central::Central;
use super::classes::Classes;
use super::objects::Objects;
use super::page_map::{PageMap, Spans};
use super::span::{Span, Use};
use super::thread_caches::ThreadCaches;
use super::{Error, metadata};
use crate::module_data::ModuleData;
use crate::structures::Structures;
use crate::{Arena, Block, BlockState, Extent, ExtentState, Finding, HeapMap, Totals};

/// More maps than a library's data seems to have.
const MAX_MAPS: usize = 8;
/// More tables of sizes than it seems to have.
const MAX_TABLES: usize = 8;
/// More caches than threads that a process has, and had before it was forked.
const MAX_CACHES: usize = 1 << 16;

/// Walks the heap of the tcmalloc in `module`.
///
/// # Errors
/// If its own counts do not agree with what was read.
pub(crate) fn walk(image: &Image<'_>, module: &Module) -> Result<HeapMap, Error> {
    let structures = &mut Structures::new(image);
    let data = ModuleData::read(image, module)?;
    // Each thread may have been stopped while it changed something.
    let changing = image.state.threads.len();
    let maps = PageMap::candidates(structures, &data).into_iter().take(MAX_MAPS);
    let mut most = None;
    for map in maps {
        let Some(spans) = map.spans(structures, &data, changing) else { continue };
        most = most.max(Some(spans.spans.len()));
        if !PageCounts::of(&spans.spans, map.shift).is_counted(&data, &spans.spans, map.shift) {
            continue;
        }
        for classes in Classes::candidates(&data).take(MAX_TABLES) {
            let walk = Walk::read(structures, (module, &data), map, &spans, classes, changing);
            if let Some(heap) = walk {
                return Ok(heap);
            }
        }
    }
    Err(most.map_or(Error::NoPages, |spans| Error::NoLayout { spans }))
}

/// A span is merged with the one before it and the one behind it.
const MAX_MERGED: usize = 3;

/// The bytes of spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PageCounts {
    all: u64,
    normal: u64,
    returned: u64,
}

impl PageCounts {
    fn of(spans: &[Span], shift: u32) -> Self {
        let mut counts = Self::default();
        for span in spans {
            let bytes = span.pages << shift;
            counts.all += bytes;
            match span.usage {
                Use::Normal => counts.normal += bytes,
                Use::Returned => counts.returned += bytes,
                Use::Objects(_) | Use::Large | Use::Changing => {}
            }
        }
        counts
    }

    /// Returns true if the allocator counts the same (`PageHeap::Stats`, src/page_heap.h), except for a few free spans in a row: there is
    /// one lock for all, and a thread that holds it may be taking a span from the free ones, or may be merging one with its neighbours.
    fn is_counted(self, data: &ModuleData, spans: &[Span], shift: u32) -> bool {
        let without = |row: &[Span]| {
            let moving = Self::of(row, shift);
            [self.normal - moving.normal, self.returned - moving.returned]
        };
        data.positions(4).any(|(_, words)| {
            let own = [words[1], words[2]];
            words[0] == self.all
                && words[3] == self.all - self.returned
                && (0..=MAX_MERGED).any(|count| {
                    spans.windows(count.max(1)).any(|row| without(&row[..count]) == own)
                })
        })
    }
}

struct Walk {
    heap: HeapMap,
    /// The beginning of what is not in an extent yet.
    end: Address,
}

impl Walk {
    /// `None` if more of the allocator's counts disagree than threads may have been changing.
    fn read(
        structures: &mut Structures<'_>,
        (module, data): (&Module, &ModuleData),
        map: PageMap,
        spans: &Spans,
        classes: Classes,
        changing: usize,
    ) -> Option<HeapMap> {
        let Spans { spans, leaves, .. } = spans;
        let mut objects = Objects::read(structures, spans, map.shift, classes, changing)?;
        let central = Central::read(structures, data, spans, &mut objects);
        let caches = ThreadCaches::read(structures, module, data, &mut objects, MAX_CACHES);
        let lists = central.changing + caches.changing;
        if central.disagreeing > changing || lists > changing as u64 {
            return None;
        }
        let mut walk = Self { heap: HeapMap::default(), end: Address(0) };
        if lists > 0 {
            walk.heap.findings.push(Finding::ListsChanging { lists });
        }
        if caches.caches.is_empty() {
            walk.heap.findings.push(Finding::CachesNotFound);
        }
        walk.heap.abandoned_bytes = caches.abandoned_bytes;
        walk.heap.bookkeeping = central.ranges;
        walk.heap.bookkeeping.dedup_by(|next, last| next.start < last.end);
        let mut known: Vec<Address> = leaves.iter().map(|leaf| leaf.start).collect();
        known.extend(&caches.caches);
        known.extend(spans.iter().map(|span| span.at).filter(|at| at.0 != 0));
        known.sort_unstable();
        let chunks = metadata::chunks(structures, &known);
        walk.add(&objects, spans, map.shift, &chunks);
        walk.heap.size_classes = objects.classes.iter().map(|(_, bytes)| bytes).collect();
        let all = PageCounts::of(spans, map.shift).all;
        walk.count(all);
        Some(walk.heap)
    }

    /// Adds spans, and structures where no span is.
    fn add(
        &mut self,
        objects: &Objects<'_>,
        spans: &[Span],
        shift: u32,
        mut chunks: &[Range<Address>],
    ) {
        let (mut extents, mut bytes) = (0, 0);
        for (span, states) in spans.iter().zip(&objects.states) {
            let area = span.area(shift);
            chunks = self.add_structures(chunks, area.start);
            if matches!(span.usage, Use::Objects(_) | Use::Changing) && states.is_none() {
                extents += 1;
                bytes += length(&area);
            }
            self.add_span(objects, span, states.as_deref(), area);
        }
        self.add_structures(chunks, Address(u64::MAX));
        if extents > 0 {
            self.heap.findings.push(Finding::ExtentsChanging { extents, bytes });
        }
    }

    /// Adds the chunks up to `limit`, and returns those behind it.
    fn add_structures<'c>(
        &mut self,
        mut chunks: &'c [Range<Address>],
        limit: Address,
    ) -> &'c [Range<Address>] {
        while let Some((chunk, rest)) = chunks.split_first() {
            let part = chunk.start.max(self.end)..chunk.end.min(limit);
            if part.start < part.end {
                let block = Block::new(part.start, length(&part), BlockState::Overhead);
                self.push(part, ExtentState::Metadata, None, [block]);
            }
            if chunk.end > limit {
                break;
            }
            chunks = rest;
        }
        chunks
    }

    fn add_span(
        &mut self,
        objects: &Objects<'_>,
        span: &Span,
        states: Option<&[BlockState]>,
        area: Range<Address>,
    ) {
        let whole = |state| [Block::new(area.start, length(&area), state)];
        match span.usage {
            Use::Objects(class) => {
                let object = objects.classes.bytes(class).unwrap_or(0);
                let states = states.unwrap_or_default();
                let region = (states.len() > 1).then_some(object);
                let blocks = states.iter().zip(0..).map(|(state, number)| {
                    Block::new(area.start.offset(number * object), object, *state)
                });
                self.push(area.clone(), ExtentState::Active, region, blocks);
            }
            Use::Large => {
                let blocks = whole(BlockState::InUse);
                self.push(area, ExtentState::Active, None, blocks);
            }
            Use::Normal => {
                self.heap.trimmable.push(area.clone());
                let blocks = whole(BlockState::Free);
                self.push(area, ExtentState::Dirty, None, blocks);
            }
            Use::Changing => self.push(area, ExtentState::Active, None, []),
            Use::Returned => {
                let blocks = whole(BlockState::Free);
                self.push(area, ExtentState::Retained, None, blocks);
            }
        }
    }

    fn push(
        &mut self,
        range: Range<Address>,
        state: ExtentState,
        region_bytes: Option<u64>,
        blocks: impl IntoIterator<Item = Block>,
    ) {
        let first = self.heap.blocks.len();
        self.heap.blocks.extend(blocks);
        self.end = range.end;
        let blocks = first..self.heap.blocks.len();
        self.heap.extents.push(Extent { range, arena: Some(0), blocks, state, region_bytes });
    }

    fn count(&mut self, system_bytes: u64) {
        let heap = &mut self.heap;
        heap.walker = "tcmalloc".into();
        let mut totals = Totals { system_bytes, ..Totals::default() };
        for (_, block) in heap.all_blocks() {
            totals.add(block);
        }
        heap.arenas.push(Arena {
            is_main: true,
            heaps: heap.extents.iter().filter(|it| it.state == ExtentState::Active).count() as u32,
            system_bytes,
            walked: true,
            totals,
            ..Arena::default()
        });
        heap.totals = totals;
    }
}
