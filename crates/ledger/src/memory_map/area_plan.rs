//! Plans the areas of a map: finds their ranges and their contents.

use std::ops::Range;
use std::path::Path;

use allocator::HeapMap;
use image::ProcessState;
use linux::{Address, Backing, Mapping, intersection, length};
use ruby::ObjectSpace;

use crate::Facts;
use crate::memory_map::AreaKind;
use crate::pages::pages_of;

/// The number of bytes that are not resident that divides memory into two areas, unless it is malloc's or Ruby's.
const MIN_GAP: u64 = 256 << 10;

/// An area that is to be drawn.
pub(crate) struct AreaPlan {
    /// Whole pages.
    pub(crate) range: Range<Address>,
    pub(crate) kind: AreaKind,
    pub(crate) name: String,
    pub(crate) content: Content,
}

/// The content of an area.
pub(crate) enum Content {
    /// Extents of malloc's, by index.
    Extents(Range<usize>),
    /// Heap pages of Ruby's, by index.
    HeapPages(Range<usize>),
    /// No blocks.
    Whole,
}

/// All areas, ascending and disjoint.
pub(crate) fn plans(state: &ProcessState, facts: &Facts) -> Vec<AreaPlan> {
    let (heap, space) = (facts.heap(), facts.objects());
    let page_size = state.machine.page_size;
    let mut claimed = extents(heap, page_size);
    claimed.extend(heap_pages(heap, space, page_size));
    let mut whole = |ranges: &[Range<Address>], kind| {
        claimed.extend(
            ranges.iter().map(|range| AreaPlan::new(range, kind, Content::Whole, page_size)),
        );
    };
    whole(&facts.stacks, AreaKind::ThreadStack);
    whole(&space.fiber_stacks, AreaKind::FiberStack);
    whole(&space.jit_code, AreaKind::Jit);
    whole(space.transient_heap.as_slice(), AreaKind::TransientHeap);
    whole(&space.free_pages, AreaKind::HeapPages);
    claimed.sort_by_key(|plan| plan.range.start);
    // The ledger reports memory that is claimed twice.
    claimed.dedup_by(|next, last| next.range.start < last.range.end);

    let mut plans = Vec::with_capacity(claimed.len());
    let mut claimed = claimed.into_iter().peekable();
    let mut at = Address(0);
    for mapping in &state.mappings {
        at = at.max(mapping.range.start);
        while let Some(plan) = claimed.peek()
            && plan.range.start < mapping.range.end
        {
            unclaimed(state, mapping, at..plan.range.start, &mut plans);
            let is_whole = matches!(plan.content, Content::Whole);
            at = at.max(if is_whole {
                resident(state, mapping, plan, &mut plans);
                plan.range.end.min(mapping.range.end)
            } else {
                plan.range.end
            });
            if is_whole && plan.range.end > mapping.range.end {
                // The rest of it lies in the mappings that follow.
                break;
            }
            plans.extend(claimed.next().filter(|_| !is_whole));
        }
        unclaimed(state, mapping, at..mapping.range.end, &mut plans);
    }
    plans
}

impl AreaPlan {
    fn new(range: &Range<Address>, kind: AreaKind, content: Content, page_size: u64) -> Self {
        let range = range.start.align_down(page_size)..range.end.align_up(page_size);
        Self { range, kind, name: String::new(), content }
    }
}

/// The areas of malloc's extents. Extents of one arena that touch are one area, as are others that share a page.
fn extents(heap: &HeapMap, page_size: u64) -> Vec<AreaPlan> {
    let mut plans: Vec<AreaPlan> = Vec::new();
    for (index, extent) in heap.extents.iter().enumerate() {
        let kind = extent.arena.map_or(AreaKind::Mmapped, AreaKind::Arena);
        let content = Content::Extents(index..index + 1);
        let plan = AreaPlan::new(&extent.range, kind, content, page_size);
        match plans.last_mut() {
            Some(AreaPlan { range, kind: last, content: Content::Extents(extents), .. })
                if *last == kind
                    && (plan.range.start < range.end
                        || extent.arena.is_some() && plan.range.start == range.end) =>
            {
                range.end = range.end.max(plan.range.end);
                extents.end = index + 1;
            }
            _ => plans.push(plan),
        }
    }
    plans
}

/// The areas of Ruby's heap pages outside malloc's extents. Adjacent pages are one area.
fn heap_pages(heap: &HeapMap, space: &ObjectSpace, page_size: u64) -> Vec<AreaPlan> {
    let mut plans: Vec<AreaPlan> = Vec::new();
    for (index, page) in space.pages.iter().enumerate() {
        if heap.extent_at(page.range.start).is_some() {
            continue;
        }
        match plans.last_mut() {
            Some(AreaPlan { range, content: Content::HeapPages(pages), .. })
                if page.range.start <= range.end && pages.end == index =>
            {
                range.end = page.range.end.align_up(page_size);
                pages.end = index + 1;
            }
            _ => plans.push(AreaPlan::new(
                &page.range,
                AreaKind::HeapPages,
                Content::HeapPages(index..index + 1),
                page_size,
            )),
        }
    }
    plans
}

/// Adds the part `range` of a mapping, which nothing claims.
fn unclaimed(
    state: &ProcessState,
    mapping: &Mapping,
    range: Range<Address>,
    plans: &mut Vec<AreaPlan>,
) {
    let (kind, name) = match &mapping.backing {
        Backing::File(path) => {
            let name = Path::new(path).file_name().unwrap_or_default();
            let kind = if mapping.is_in_memory { AreaKind::Shmem } else { AreaKind::File };
            (kind, name.to_string_lossy().into_owned())
        }
        Backing::Kernel(name) => (AreaKind::File, name.clone()),
        Backing::Stack => (AreaKind::ThreadStack, String::new()),
        Backing::Anonymous if mapping.shared => (AreaKind::Shmem, String::new()),
        Backing::Anonymous | Backing::Heap => (AreaKind::Anonymous, String::new()),
    };
    resident(state, mapping, &AreaPlan { range, kind, name, content: Content::Whole }, plans);
}

/// Adds the parts of a plan without blocks that have pages that are not absent.
fn resident(state: &ProcessState, mapping: &Mapping, plan: &AreaPlan, plans: &mut Vec<AreaPlan>) {
    let range = intersection(&plan.range, &mapping.range);
    if length(&range) == 0 {
        return;
    }
    let mut push = |range: Range<Address>| {
        plans.push(AreaPlan {
            range,
            kind: plan.kind,
            name: plan.name.clone(),
            content: Content::Whole,
        });
    };
    let mut part: Option<Range<Address>> = None;
    for run in pages_of(state).parts_in(&range) {
        match &mut part {
            Some(part) if run.start - part.end < MIN_GAP => part.end = run.end,
            _ => {
                if let Some(done) = part.replace(run) {
                    push(done);
                }
            }
        }
    }
    if let Some(done) = part {
        push(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruby::HeapPage;

    /// Damaged heap pages ended within a page of the kernel. The area ended there too, so its last page was in no area.
    #[test]
    fn an_area_of_heap_pages_has_whole_pages() {
        let page = |start: u64, end: u64| HeapPage {
            range: Address(start)..Address(end),
            first_slot: Address(start),
            slot_bytes: 40,
            slots: 0..0,
            space: 0,
        };
        let pages = vec![page(0x4000, 0x8000), page(0x8000, 0xbfd8), page(0xc000, 0xffd8)];
        let mut space = ObjectSpace::default();
        space.pages = pages;
        let plans = heap_pages(&HeapMap::default(), &space, linux::MIN_PAGE_SIZE);
        let ranges: Vec<_> = plans.iter().map(|plan| plan.range.clone()).collect();
        assert_eq!(ranges, [Address(0x4000)..Address(0x10000)]);
    }
}
