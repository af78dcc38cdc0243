use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use image::elf::Module;
use image::{Image, Unreadable};
use linux::{Address, length};

use super::Error;
use super::layout::{
    AREA, AREA_METAS, ContextLayout, Group, HEADER, MAX_METAS, META, NO_CLASS, SIZE_CLASSES,
    SlotHeader, UNIT,
};
use crate::module_data::ModuleData;
use crate::structures::Structures;
use crate::{
    Arena, ArenaProblem, Block, BlockState, Extent, ExtentState, Finding, HeapMap, Totals,
};

/// More pages of metas than any heap has: they describe 13 million groups.
const MAX_AREAS: usize = 1 << 17;
/// Groups lie in slots of groups that lie in slots, and each has at least twice the size of those within.
const MAX_DEPTH: u32 = 16;

/// Walks the heap of the musl in `module`.
///
/// # Errors
/// If the context of the allocator is not found.
pub(crate) fn walk(image: &Image<'_>, module: &Module) -> Result<HeapMap, Error> {
    let data = ModuleData::read(image, module)?;
    let structures = &mut Structures::new(image);
    let context = Context::find(structures, &data)?.ok_or(Error::NoContext)?;
    let groups = context.groups(structures)?;
    let size_classes = SIZE_CLASSES.map(|units| UNIT * u64::from(units));
    let mut walk = Walk {
        context: context.at,
        groups: &groups,
        nested: nested(&groups),
        heap: HeapMap {
            walker: "musl's mallocng".into(),
            size_classes: size_classes.into(),
            ..HeapMap::default()
        },
    };
    let problem = context.contradiction(&groups);
    walk.add(structures, &context.areas, problem.is_none())?;
    let mut heap = walk.heap;
    if let Some(problem) = problem {
        heap.findings.push(unread(context.at, context.at, problem));
    }
    let is_walked = heap.findings.is_empty();
    if !is_walked {
        heap.blocks.truncate(0);
        heap.extents.iter_mut().for_each(|extent| extent.blocks = 0..0);
    }
    let mut totals = Totals::default();
    for (_, block) in heap.all_blocks() {
        totals.add(block);
        if block.state() == BlockState::Mmapped {
            totals.mmapped_chunks += 1;
            totals.mmapped_bytes += block.bytes();
        }
    }
    totals.system_bytes = heap.extents.iter().map(|it| length(&it.range)).sum();
    heap.arenas.push(Arena {
        address: context.at,
        is_main: true,
        heaps: heap.extents.iter().filter(|it| it.state == ExtentState::Active).count() as u32,
        system_bytes: totals.system_bytes,
        walked: is_walked,
        totals,
        ..Arena::default()
    });
    heap.totals = totals;
    Ok(heap)
}

/// The context of the allocator (`__malloc_context`).
struct Context {
    at: Address,
    /// The pages of metas, in the order of their list.
    areas: Vec<Address>,
    /// The number of slots by class, by its own count.
    usage: Vec<u64>,
}

impl Context {
    fn find(
        structures: &mut Structures<'_>,
        data: &ModuleData,
    ) -> Result<Option<Self>, Unreadable> {
        for layout in ContextLayout::ALL {
            for (at, words) in data.positions(layout.usage().end as u64) {
                let (secret, head) = (words[0], Address(words[layout.area_head()]));
                let is_area =
                    secret != 0 && head.is_aligned(AREA) && structures.is_structure(head, AREA);
                if !is_area || structures.word(head)? != secret {
                    continue;
                }
                let areas = areas(structures, head, secret)?;
                return Ok(Some(Self { at, areas, usage: words[layout.usage()].to_vec() }));
            }
        }
        Ok(None)
    }

    fn groups(&self, structures: &mut Structures<'_>) -> Result<Vec<Group>, Unreadable> {
        let mut groups = Vec::new();
        for area in &self.areas {
            let metas = u64::from(structures.half(area.offset(16))?).min(MAX_METAS);
            for number in 0..metas {
                let at = area.offset(AREA_METAS + number * META);
                groups.extend(Group::read(at, &structures.bytes(at)?));
            }
        }
        groups.sort_by_key(|group| group.start);
        Ok(groups)
    }

    /// Compares its own counts with those of the groups.
    fn contradiction(&self, groups: &[Group]) -> Option<String> {
        let mut slots = [0; SIZE_CLASSES.len()];
        for group in groups.iter().filter(|group| group.is_counted) {
            if let Some(count) = slots.get_mut(group.class as usize) {
                *count += u64::from(group.slots);
            }
        }
        let class = slots.iter().zip(&self.usage).position(|(found, own)| found != own)?;
        let size = UNIT * u64::from(SIZE_CLASSES[class]);
        Some(format!("it counts other slots of {size} bytes than its groups have"))
    }
}

/// The list of areas. Each repeats the secret.
fn areas(
    structures: &mut Structures<'_>,
    head: Address,
    secret: u64,
) -> Result<Vec<Address>, Unreadable> {
    let (mut areas, mut seen) = (Vec::new(), BTreeSet::new());
    let mut next = head;
    while areas.len() < MAX_AREAS
        && structures.is_structure(next, AREA)
        && structures.word(next)? == secret
        && seen.insert(next)
    {
        areas.push(next);
        next = structures.pointer(next.offset(8))?;
    }
    Ok(areas)
}

/// The groups that have no mapping, by their addresses: they lie in slots of other groups, or the dynamic linker gave them.
fn nested(groups: &[Group]) -> BTreeMap<Address, usize> {
    let without = groups.iter().enumerate().filter(|(_, group)| !group.has_mapping());
    without.map(|(index, group)| (group.start, index)).collect()
}

/// The finding that the heap has no blocks. musl has one arena.
fn unread(context: Address, at: Address, error: String) -> Finding {
    Finding::ArenaUnread { arena: context, is_main: true, at, cause: ArenaProblem::Changing, error }
}

struct Walk<'g> {
    context: Address,
    groups: &'g [Group],
    nested: BTreeMap<Address, usize>,
    heap: HeapMap,
}

/// What a slot of a group is.
enum Slot {
    Free,
    /// A block from this address on.
    Block(Address),
    /// A group with this index.
    Group(usize),
}

impl Walk<'_> {
    /// Adds all groups and areas, ascending. Without blocks if they are not consistent.
    fn add(
        &mut self,
        structures: &mut Structures<'_>,
        areas: &[Address],
        with_blocks: bool,
    ) -> Result<(), Unreadable> {
        // Those in slots are added with the groups that they lie in.
        let mut outer: Vec<(Range<Address>, Option<usize>)> = Vec::new();
        let mut end = Address(0);
        for (index, group) in self.groups.iter().enumerate() {
            if group.start >= end {
                end = group.range().end;
                outer.push((group.range(), Some(index)));
            }
        }
        outer.extend(areas.iter().map(|at| (*at..at.offset(AREA), None)));
        outer.sort_by_key(|(range, _)| range.start);
        let mut end = Address(0);
        for (range, index) in outer {
            if range.start < end {
                self.contradiction(range.start, "two of its parts overlap");
                continue;
            }
            end = range.end;
            let first = self.heap.blocks.len();
            let mut extent = Extent::new(range.clone(), Some(0), first..first);
            match index {
                Some(index) => {
                    let group = self.groups[index];
                    if group.is_single() {
                        extent.arena = None;
                    }
                    let has_groups = with_blocks && self.add_group(structures, index, 0)?;
                    if !has_groups && group.slots > 1 {
                        extent.region_bytes = Some(group.stride());
                    }
                }
                None => {
                    extent.state = ExtentState::Metadata;
                    if with_blocks {
                        let block = Block::new(range.start, AREA, BlockState::Overhead);
                        self.heap.blocks.push(block);
                    }
                }
            }
            extent.blocks = first..self.heap.blocks.len();
            self.heap.extents.push(extent);
        }
        Ok(())
    }

    /// Adds the blocks of a group. Returns true if groups lie in its slots.
    fn add_group(
        &mut self,
        structures: &mut Structures<'_>,
        index: usize,
        depth: u32,
    ) -> Result<bool, Unreadable> {
        let group = self.groups[index];
        let back = structures.pointer(group.start)?;
        if back != group.meta || depth > MAX_DEPTH {
            self.contradiction(group.start, "a group does not point to its meta");
            return Ok(false);
        }
        let mut has_groups = false;
        for number in 0..group.slots {
            let (start, end) = (group.slot(number), group.slot(number).offset(group.stride()));
            match self.slot(structures, &group, number)? {
                Some(Slot::Free) => self.push(start, end, BlockState::Free),
                Some(Slot::Block(from)) if group.is_single() => {
                    self.push(from, end, BlockState::Mmapped);
                }
                Some(Slot::Block(from)) => self.push(from, end, BlockState::InUse),
                Some(Slot::Group(inner)) => {
                    has_groups = true;
                    self.add_group(structures, inner, depth + 1)?;
                }
                None => {
                    self.contradiction(start, "a slot in use does not have the header of its slot");
                }
            }
        }
        Ok(has_groups)
    }

    /// `None` if its header is not that of this slot.
    fn slot(
        &self,
        structures: &mut Structures<'_>,
        group: &Group,
        number: u32,
    ) -> Result<Option<Slot>, Unreadable> {
        if group.is_free(number) {
            return Ok(Some(Slot::Free));
        }
        let start = group.slot(number);
        let mut at = start;
        let mut header = SlotHeader::read(structures.bytes(at.before(HEADER))?);
        if let SlotHeader::Later(bytes) = header
            && bytes > 0
            && bytes + HEADER < group.stride()
        {
            at = at.offset(bytes);
            header = SlotHeader::read(structures.bytes(at.before(HEADER))?);
        }
        let is_group = match header {
            SlotHeader::Block { index, is_group } if index == number => is_group,
            // The distance has 16 bits, and a block that is aligned to more than 1 MiB begins later.
            _ if group.is_single() => return Ok(Some(Slot::Block(start))),
            _ => return Ok(None),
        };
        if !is_group {
            return Ok(Some(Slot::Block(at)));
        }
        let end = start.offset(group.stride());
        let inner = self.nested.get(&at).filter(|&&it| self.groups[it].range().end <= end);
        Ok(inner.map(|&inner| Slot::Group(inner)))
    }

    fn push(&mut self, start: Address, end: Address, state: BlockState) {
        self.heap.blocks.push(Block::new(start, end - start, state));
    }

    fn contradiction(&mut self, at: Address, error: &str) {
        if self.heap.findings.is_empty() {
            self.heap.findings.push(unread(self.context, at, error.into()));
        }
    }
}

const _: () = assert!(SIZE_CLASSES.len() < NO_CLASS as usize);
