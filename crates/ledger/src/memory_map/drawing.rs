//! Draws a map of the facts, in one pass over blocks, slots and pages.

use std::ops::Range;

use allocator::{BlockState, Extent, ExtentState, HeapMap};
use image::ProcessState;
use linux::{Address, PageState, intersection};
use ruby::{HeapPage, ObjectSpace, SlotState};

use crate::Facts;
use crate::memory_map::area_plan::{AreaPlan, Content, plans};
use crate::memory_map::{Area, MapRoots, MemoryMap, PAGE_USES, PageUse, UNIT, Use, column};
use crate::ownership::{AccountIndex, OwnerAccount, Owners, SlotRoots};
use crate::pages::pages_of;

/// Draws the map of a process. The owners of blocks are indices into `accounts`. `roots` is `None` if they are unknown.
pub(crate) fn draw(
    state: &ProcessState,
    facts: &Facts,
    owners: &Owners<'_>,
    accounts: &[OwnerAccount],
    roots: Option<SlotRoots>,
) -> MemoryMap {
    let (of_slots, roots) =
        roots.map_or_else(Default::default, |roots| (roots.of_slots, roots.roots));
    let mut drawing = Drawing {
        state,
        heap: facts.heap(),
        space: facts.objects(),
        index: owners.index(accounts),
        roots: of_slots,
        memory_map: MemoryMap {
            page_size: state.machine.page_size,
            roots: MapRoots { roots, ..MapRoots::default() },
            ..MemoryMap::default()
        },
        at: Address(0),
        end: Address(0),
    };
    for plan in plans(state, facts) {
        drawing.draw(plan);
    }
    let mut memory_map = drawing.memory_map;
    if memory_map.roots.of_objects.is_empty() {
        memory_map.roots.roots.clear();
    }
    memory_map
}

struct Drawing<'a> {
    state: &'a ProcessState,
    heap: &'a HeapMap,
    space: &'a ObjectSpace,
    index: AccountIndex<'a>,
    /// The number of the root of the object in each slot; empty if roots are unknown.
    roots: Vec<u16>,
    memory_map: MemoryMap,
    /// The end of the blocks drawn so far.
    at: Address,
    /// The end of the area that is being drawn.
    end: Address,
}

impl Drawing<'_> {
    fn draw(&mut self, plan: AreaPlan) {
        let columns = &self.memory_map.columns;
        let (sizes, uses) = (columns.sizes.len(), columns.uses.len());
        let (owners, pages) = (columns.owners.len(), columns.pages.len());
        (self.at, self.end) = (plan.range.start, plan.range.end);
        match plan.content {
            Content::Extents(extents) => {
                for index in extents {
                    self.draw_extent(&self.heap.extents[index]);
                }
            }
            Content::HeapPages(pages) => {
                for index in pages {
                    self.draw_heap_page(&self.space.pages[index]);
                }
            }
            Content::Whole => {}
        }
        if self.at > plan.range.start {
            self.fill(plan.range.end, Use::Foreign);
        }
        self.draw_pages(&plan.range);
        let columns = &self.memory_map.columns;
        self.memory_map.areas.push(Area {
            blocks: (columns.uses.len() - uses) as u64,
            sizes: sizes..columns.sizes.len(),
            uses: uses..columns.uses.len(),
            owners: owners..columns.owners.len(),
            pages: pages..columns.pages.len(),
            ..Area::new(plan.range, plan.kind, plan.name)
        });
    }

    /// Draws the blocks of an extent, if they are known.
    fn draw_extent(&mut self, extent: &Extent) {
        let mut blocks = self.heap.blocks_of(extent).peekable();
        let Some(&(_, first)) = blocks.peek() else { return };
        self.fill(extent.range.start, Use::Foreign);
        // No owner has the gap before a chunk that was mapped with an alignment.
        let before = if extent.arena.is_some() { Use::Overhead } else { Use::Foreign };
        self.fill(first.address, before);
        let mut heap_page = self.space.pages.partition_point(|it| it.range.start < first.address);
        for (number, block) in blocks {
            // Memory between blocks is a structure of the allocator, or padding.
            self.fill(block.address, Use::Overhead);
            let used = match block.state() {
                BlockState::InUse | BlockState::Mmapped => {
                    let owner = self.index.of_block(number);
                    let end = std::mem::replace(&mut self.end, block.end());
                    let usable_end = self.heap.header.usable(block).end;
                    while let Some(page) = self.space.pages.get(heap_page)
                        && page.range.start < block.end()
                    {
                        if page.range.start >= self.at && page.range.end <= usable_end {
                            self.push(page.range.start, Use::InUse, owner);
                            self.draw_heap_page(page);
                        }
                        heap_page += 1;
                    }
                    self.end = end;
                    self.push(block.end(), Use::InUse, owner);
                    continue;
                }
                BlockState::Free if extent.state == ExtentState::Muzzy => Use::Muzzy,
                BlockState::Free => Use::Free,
                BlockState::Fastbin => Use::Fastbin,
                BlockState::Tcache => Use::Tcache,
                BlockState::Top => Use::Top,
                BlockState::Overhead => Use::Overhead,
            };
            self.fill(block.end(), used);
        }
        self.fill(extent.range.end, Use::Overhead);
    }

    fn draw_heap_page(&mut self, page: &HeapPage) {
        if page.slot_bytes == 0 {
            return self.fill(page.range.end, Use::FreeSlot);
        }
        self.fill(page.first_slot, Use::Overhead);
        for index in page.slots.clone() {
            let Some(slot) = self.space.slots.get(index) else { break };
            let end = self.at.offset(u64::from(page.slot_bytes));
            let used = match slot.state() {
                SlotState::Free => Use::FreeSlot,
                SlotState::Marked => Use::OldSlot,
                SlotState::Unmarked => Use::YoungSlot,
                SlotState::Unread => Use::UnreadSlot,
            };
            let is_drawn = self.push(end, used, self.index.of_slot(*slot));
            if let Some(by) = self.roots.get(index).filter(|_| is_drawn && used.is_object()) {
                self.memory_map.roots.push(*by);
            }
        }
        self.fill(page.range.end, Use::Overhead);
    }

    /// Adds a block without an owner that ends at `end`, unless the blocks drawn so far reach further.
    fn fill(&mut self, end: Address, used: Use) {
        self.push(end, used, None);
    }

    /// Returns false if the blocks drawn so far reach to `end`.
    fn push(&mut self, end: Address, used: Use, owner: Option<u32>) -> bool {
        let end = end.min(self.end).align_down(UNIT);
        if end <= self.at {
            return false;
        }
        let columns = &mut self.memory_map.columns;
        column::push(&mut columns.sizes, (end - self.at) / UNIT);
        columns.uses.push(used as u8);
        if used.has_owner() {
            column::push(&mut columns.owners, owner.map_or(0, |owner| u64::from(owner) + 1));
        }
        self.at = end;
        true
    }

    fn draw_pages(&mut self, range: &Range<Address>) {
        let mut at = range.start;
        let page_size = self.memory_map.page_size;
        let column = &mut self.memory_map.columns.pages;
        let mut push = |range: Range<Address>, used: PageUse| {
            for (end, used) in [(range.start, PageUse::Returned), (range.end, used)] {
                if end > at {
                    column::push(column, (end - at) / page_size * PAGE_USES + used as u64);
                    at = end;
                }
            }
        };
        let trimmable = &self.heap.trimmable;
        let mut next = trimmable.partition_point(|it| it.end <= range.start);
        for run in pages_of(self.state).runs_in(range) {
            let run_range = intersection(&run.range, range);
            let unread = match run.state {
                PageState::Swapped => Some(PageUse::Swapped),
                PageState::Lost => Some(PageUse::Lost),
                PageState::Anonymous | PageState::File => None,
                PageState::Guard | PageState::Hugetlb => continue,
            };
            if let Some(unread) = unread {
                push(run_range, unread);
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
