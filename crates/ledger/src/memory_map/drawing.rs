//! Draws an memory_map of what was read: pure, in one pass over chunks, slots and pages.

use std::ops::Range;
use std::path::Path;

use allocator::glibc::{ChunkState, Malloc};
use capture::{
    Address, Backing, Mapping, PAGE_SIZE, PageState, ProcessState, intersection, length,
};
use ruby::{HeapPage, ObjectSpace, SlotState, SlotType};

use crate::memory_map::{Area, AreaKind, MemoryMap, PageUse, UNIT, Use, column};
use crate::owners::{AccountIndex, Owner, Owners};
use crate::{Facts, Ledger};

/// Bytes that are not resident within other memory than malloc's and Ruby's, from which on it is two areas.
const HOLE: u64 = 64 * PAGE_SIZE;

/// What an area is made of.
struct Plot {
    /// Whole pages.
    range: Range<Address>,
    kind: AreaKind,
    name: String,
    content: Content,
}

/// What lies in an area.
enum Content {
    /// Regions of malloc's, by index.
    Regions(Range<usize>),
    /// Heap pages of Ruby's, by index.
    HeapPages(Range<usize>),
    /// One thing as a whole.
    Whole,
}

/// The memory_map of the process that `ledger` is of; pieces have their owners' indices in `ledger.owners`.
pub(crate) fn draw(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    ledger: &Ledger,
) -> MemoryMap {
    let (malloc, space) = (facts.chunks(), facts.objects());
    let plots = plots(state, facts, malloc, space);
    let mut drawing = Drawing {
        state,
        malloc,
        space,
        owners,
        // Otherwise a report names no owners.
        index: owners.index(if ledger.is_traced { &ledger.owners } else { &[] }),
        memory_map: MemoryMap { knows_pages: state.pages.is_some(), ..MemoryMap::default() },
        at: Address(0),
        end: Address(0),
    };
    for plot in plots {
        drawing.draw(plot);
    }
    drawing.memory_map
}

/// All areas to be, ascending and disjoint.
fn plots(state: &ProcessState, facts: &Facts, malloc: &Malloc, space: &ObjectSpace) -> Vec<Plot> {
    let mut claimed = regions(malloc);
    claimed.extend(heap_pages(malloc, space));
    let mut whole = |ranges: &[Range<Address>], kind| {
        claimed.extend(ranges.iter().map(|range| Plot::new(range, kind, Content::Whole)));
    };
    whole(&facts.stacks, AreaKind::ThreadStack);
    whole(&space.fiber_stacks, AreaKind::FiberStack);
    whole(&space.jit_code, AreaKind::Jit);
    whole(space.transient_heap.as_slice(), AreaKind::TransientHeap);
    claimed.sort_by_key(|plot| plot.range.start);
    // What is claimed twice is a finding of the ledger's.
    claimed.dedup_by(|next, last| next.range.start < last.range.end);

    let mut plots = Vec::with_capacity(claimed.len());
    let mut claimed = claimed.into_iter().peekable();
    let mut at = Address(0);
    for mapping in &state.mappings {
        at = at.max(mapping.range.start);
        while let Some(plot) = claimed.peek()
            && plot.range.start < mapping.range.end
        {
            unclaimed(state, mapping, at..plot.range.start, &mut plots);
            let is_whole = matches!(plot.content, Content::Whole);
            at = at.max(if is_whole {
                resident(state, mapping, plot, &mut plots);
                plot.range.end.min(mapping.range.end)
            } else {
                plot.range.end
            });
            if is_whole && plot.range.end > mapping.range.end {
                // The rest of it lies in the mappings that follow.
                break;
            }
            plots.extend(claimed.next().filter(|_| !is_whole));
        }
        unclaimed(state, mapping, at..mapping.range.end, &mut plots);
    }
    plots
}

impl Plot {
    fn new(range: &Range<Address>, kind: AreaKind, content: Content) -> Self {
        let range = range.start.align_down(PAGE_SIZE)..range.end.align_up(PAGE_SIZE);
        Self { range, kind, name: String::new(), content }
    }
}

/// malloc's regions; such of an arena as share a page are one.
fn regions(malloc: &Malloc) -> Vec<Plot> {
    let mut plots: Vec<Plot> = Vec::new();
    for (index, region) in malloc.regions.iter().enumerate() {
        let kind = region.arena.map_or(AreaKind::Mmapped, AreaKind::Arena);
        let plot = Plot::new(&region.range, kind, Content::Regions(index..index + 1));
        match plots.last_mut() {
            Some(Plot { range, kind: last, content: Content::Regions(regions), .. })
                if *last == kind && plot.range.start < range.end =>
            {
                range.end = range.end.max(plot.range.end);
                regions.end = index + 1;
            }
            _ => plots.push(plot),
        }
    }
    plots
}

/// Ruby's heap pages outside malloc's regions; neighbours are one.
fn heap_pages(malloc: &Malloc, space: &ObjectSpace) -> Vec<Plot> {
    let mut plots: Vec<Plot> = Vec::new();
    for (index, page) in space.pages.iter().enumerate() {
        let after = malloc.regions.partition_point(|it| it.range.start <= page.range.start);
        let region = after.checked_sub(1).and_then(|it| malloc.regions.get(it));
        if region.is_some_and(|region| page.range.start < region.range.end) {
            continue;
        }
        match plots.last_mut() {
            Some(Plot { range, content: Content::HeapPages(pages), .. })
                if range.end == page.range.start && pages.end == index =>
            {
                range.end = page.range.end;
                pages.end = index + 1;
            }
            _ => plots.push(Plot::new(
                &page.range,
                AreaKind::HeapPages,
                Content::HeapPages(index..index + 1),
            )),
        }
    }
    plots
}

/// Adds what of a mapping nothing claims.
fn unclaimed(
    state: &ProcessState,
    mapping: &Mapping,
    range: Range<Address>,
    plots: &mut Vec<Plot>,
) {
    let (kind, name) = match &mapping.backing {
        Backing::File(path) => {
            let name = Path::new(path).file_name().unwrap_or_default();
            (AreaKind::File, name.to_string_lossy().into_owned())
        }
        Backing::Kernel(name) => (AreaKind::File, name.clone()),
        Backing::Stack => (AreaKind::ThreadStack, String::new()),
        Backing::Anonymous if mapping.shared => (AreaKind::File, String::new()),
        Backing::Anonymous | Backing::Heap => (AreaKind::Anonymous, String::new()),
    };
    resident(state, mapping, &Plot { range, kind, name, content: Content::Whole }, plots);
}

/// Adds those parts of a plot without pieces that have resident pages, or such in swap.
fn resident(state: &ProcessState, mapping: &Mapping, plot: &Plot, plots: &mut Vec<Plot>) {
    let range = intersection(&plot.range, &mapping.range);
    if length(&range) == 0 {
        return;
    }
    let mut push = |range: Range<Address>| {
        plots.push(Plot {
            range,
            kind: plot.kind,
            name: plot.name.clone(),
            content: Content::Whole,
        });
    };
    let Some(pages) = &state.pages else {
        if mapping.kernel_rss_bytes.is_some_and(|bytes| bytes > 0) {
            push(range);
        }
        return;
    };
    let mut stretch: Option<Range<Address>> = None;
    for run in pages.runs_in(&range) {
        let run = intersection(&run.range, &range);
        match &mut stretch {
            Some(stretch) if run.start - stretch.end < HOLE => stretch.end = run.end,
            _ => {
                if let Some(done) = stretch.replace(run) {
                    push(done);
                }
            }
        }
    }
    if let Some(done) = stretch {
        push(done);
    }
}

struct Drawing<'a> {
    state: &'a ProcessState,
    malloc: &'a Malloc,
    space: &'a ObjectSpace,
    owners: &'a Owners<'a>,
    index: AccountIndex,
    memory_map: MemoryMap,
    /// Up to where the pieces of the area that is drawn reach.
    at: Address,
    /// Where that area ends.
    end: Address,
}

impl Drawing<'_> {
    fn draw(&mut self, plot: Plot) {
        let columns = &self.memory_map.columns;
        let (sizes, uses) = (columns.sizes.len(), columns.uses.len());
        let (owners, pages) = (columns.owners.len(), columns.pages.len());
        (self.at, self.end) = (plot.range.start, plot.range.end);
        match plot.content {
            Content::Regions(regions) => {
                for region in regions {
                    self.draw_region(region);
                }
            }
            Content::HeapPages(pages) => {
                for index in pages {
                    self.draw_heap_page(&self.space.pages[index]);
                }
            }
            Content::Whole => {}
        }
        if self.at > plot.range.start {
            self.fill(plot.range.end, Use::Foreign);
        }
        self.draw_pages(&plot.range);
        let columns = &self.memory_map.columns;
        self.memory_map.areas.push(Area {
            pieces: (columns.uses.len() - uses) as u64,
            sizes: sizes..columns.sizes.len(),
            uses: uses..columns.uses.len(),
            owners: owners..columns.owners.len(),
            pages: pages..columns.pages.len(),
            ..Area::new(plot.range, plot.kind, plot.name)
        });
    }

    /// Draws a region; nothing of one that could not be walked.
    fn draw_region(&mut self, index: usize) {
        let region = &self.malloc.regions[index];
        let chunks = self.malloc.chunks.get(region.chunks.clone()).unwrap_or_default();
        let Some(first) = chunks.first() else { return };
        self.fill(region.range.start, Use::Foreign);
        // The gap before a chunk that was mapped with an alignment is nobody's.
        let before = if region.arena.is_some() { Use::Overhead } else { Use::Foreign };
        self.fill(first.address, before);
        let mut heap_page = self.space.pages.partition_point(|it| it.range.start < first.address);
        for (number, chunk) in chunks.iter().enumerate() {
            let used = match chunk.state() {
                ChunkState::InUse | ChunkState::Mmapped => {
                    let owner = self.index.of(self.owners.owner_of(region.chunks.start + number));
                    let end = std::mem::replace(&mut self.end, chunk.end());
                    while let Some(page) = self.space.pages.get(heap_page)
                        && page.range.start < chunk.end()
                    {
                        // It may reach into the next chunk's first word, which is this one's.
                        if page.range.start >= self.at && page.range.end <= chunk.end().offset(8) {
                            self.push(page.range.start, Use::InUse, owner);
                            self.draw_heap_page(page);
                        }
                        heap_page += 1;
                    }
                    self.end = end;
                    self.push(chunk.end(), Use::InUse, owner);
                    continue;
                }
                ChunkState::Free => Use::Free,
                ChunkState::Fastbin => Use::Fastbin,
                ChunkState::Tcache => Use::Tcache,
                ChunkState::Top => Use::Top,
                ChunkState::Fencepost => Use::Overhead,
            };
            self.fill(chunk.end(), used);
        }
    }

    fn draw_heap_page(&mut self, page: &HeapPage) {
        if page.slot_bytes == 0 {
            return self.fill(page.range.end, Use::FreeSlot);
        }
        self.fill(page.first_slot, Use::Overhead);
        for slot in self.space.slots.get(page.slots.clone()).unwrap_or_default() {
            let end = self.at.offset(u64::from(page.slot_bytes));
            let used = match slot.state {
                SlotState::Free => Use::FreeSlot,
                SlotState::Marked => Use::OldSlot,
                SlotState::Unmarked => Use::YoungSlot,
                SlotState::Unread => Use::UnreadSlot,
            };
            let class = slot.class as usize;
            let owner =
                if slot.kind == SlotType::DATA { Owner::Data(class) } else { Owner::Class(class) };
            self.push(end, used, self.index.of(owner));
        }
        self.fill(page.range.end, Use::Overhead);
    }

    /// A piece without owner from where the last one ended up to `end`; none where that is behind it.
    fn fill(&mut self, end: Address, used: Use) {
        self.push(end, used, None);
    }

    fn push(&mut self, end: Address, used: Use, owner: Option<u32>) {
        let end = end.min(self.end).align_down(UNIT);
        if end <= self.at {
            return;
        }
        let columns = &mut self.memory_map.columns;
        column::push(&mut columns.sizes, (end - self.at) / UNIT);
        columns.uses.push(used as u8);
        if used.has_owner() {
            column::push(&mut columns.owners, owner.map_or(0, |owner| u64::from(owner) + 1));
        }
        self.at = end;
    }

    fn draw_pages(&mut self, range: &Range<Address>) {
        let mut at = range.start;
        let column = &mut self.memory_map.columns.pages;
        let mut push = |range: Range<Address>, used: PageUse| {
            for (end, used) in [(range.start, PageUse::Returned), (range.end, used)] {
                if end > at {
                    column::push(column, (end - at) / PAGE_SIZE * 4 + used as u64);
                    at = end;
                }
            }
        };
        let Some(pages) = &self.state.pages else {
            return push(range.clone(), PageUse::Resident);
        };
        let trimmable = &self.malloc.trimmable;
        let mut next = trimmable.partition_point(|it| it.end <= range.start);
        for run in pages.runs_in(range) {
            let run_range = intersection(&run.range, range);
            if run.state == PageState::Swapped {
                push(run_range, PageUse::Swapped);
                continue;
            }
            let mut from = run_range.start;
            while let Some(trim) = trimmable.get(next).filter(|it| it.start < run_range.end) {
                let trim_range = intersection(trim, &run_range);
                push(from..trim_range.start, PageUse::Resident);
                push(trim_range.clone(), PageUse::Unreturned);
                from = trim_range.end.max(from);
                if trim.end > run_range.end {
                    break;
                }
                next += 1;
            }
            push(from..run_range.end, PageUse::Resident);
        }
        push(range.end..range.end, PageUse::Returned);
    }
}
