//! Reads the slots of all heap pages: one pass, two reads for each page.

use std::ops::Range;

use capture::{Address, Finding, Memory, PAGE_SIZE};

use crate::bitmaps::{self, Bitmaps, MOST_WORDS};
use crate::context::Context;
use crate::data_types::Signatures;
use crate::error::{Check, Failure};
use crate::imemo;
use crate::layouts::Layouts;
use crate::links::Links;
use crate::object::Object;
use crate::object_space::{ObjectSpace, References, Slot, SlotState, SlotType};
use crate::page::Page;
use crate::references::{self, Found};
use crate::territory::{Place, Territory};
use crate::{hash_tables, io_buffers};

/// In heaps with more objects than this some are without a write barrier, in every Ruby.
const ENOUGH_OBJECTS: u64 = 2_000;
/// Of the marks at most one in so many may be on a free slot that was an object of a program's.
const MOST_RECYCLED: u64 = 8;
/// Classes that are looked up again and again: a power of two.
const REMEMBERED_CLASSES: usize = 1024;

/// What a slot's class is, before classes are known: the index of the slot that its class is in,
/// or one of the kinds of objects without class, counted down from the end.
pub(crate) const NO_CLASS: u32 = Slot::NO_CLASS;

/// The class of objects of this type that have none of their own.
pub(crate) fn internal(kind: SlotType, imemo: u8) -> u32 {
    let imemo = if kind == SlotType::IMEMO { 1 + u32::from(imemo) } else { 0 };
    NO_CLASS - 1 - (imemo * 32 + u32::from(kind.0))
}

/// The type, and the number of internal objects' types, that [`internal`] was given.
pub(crate) fn as_internal(class: u32) -> Option<(SlotType, u8)> {
    let code = (NO_CLASS - 1).checked_sub(class).filter(|code| *code < 17 * 32)?;
    Some((SlotType((code % 32) as u8), (code / 32).saturating_sub(1) as u8))
}

/// What the slots say of the layout that they were read with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) live: u64,
    /// Objects of a class that is in no slot, without a mark: they may be garbage whose class was
    /// swept before them.
    pub(crate) astray: u64,
    pub(crate) marked: u64,
    /// Slots that could not be read because they are swapped out.
    pub(crate) unread: u64,
    unprotected: u64,
    /// Free slots with a mark, where there may be any.
    recycled: u64,
}

/// A class, or what stands among the ancestors of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ancestor {
    /// Its slot.
    pub(crate) slot: u32,
    /// Whether it is what `Object#class` returns: neither a singleton class nor an included module.
    pub(crate) is_real: bool,
    /// The slot of its superclass, or where it was moved to; [`NO_CLASS`] where there is none.
    pub(crate) next: u32,
}

/// All slots, with classes as [`NO_CLASS`] describes.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) slots: Vec<Slot>,
    /// In slot order.
    pub(crate) ancestors: Vec<Ancestor>,
    pub(crate) references: References,
    pub(crate) links: Links,
    /// Hashes and where their tables are, and IOs and where their structures are.
    tables: Vec<(u32, Address)>,
    ios: Vec<(u32, Address)>,
    pub(crate) data: Signatures,
    pub(crate) imemos: imemo::Samples,
    pub(crate) tally: Tally,
    /// Types whose unused words could not be told from those in use.
    pub(crate) unknown_layouts: Option<Finding>,
}

/// Reads the slots of all pages, and fails where they do not look like slots.
pub(crate) fn read(context: &Context<'_>, bitmaps: Bitmaps) -> Result<Slots, Failure> {
    let mut layouts = Layouts::new(context.image, context.interpreter);
    let mut all = read_with(context, bitmaps, &mut layouts)?;
    if layouts.refute() {
        all = read_with(context, bitmaps, &mut layouts)?;
    }
    let Slots { tables, ios, references, .. } = &mut all;
    let (image, territory) = (context.image, &context.territory);
    hash_tables::add_references(image, territory, std::mem::take(tables), references);
    io_buffers::add_references(image, territory, ios, references);
    all.unknown_layouts = layouts.findings();
    Ok(all)
}

fn read_with(
    context: &Context<'_>,
    bitmaps: Bitmaps,
    layouts: &mut Layouts<'_>,
) -> Result<Slots, Failure> {
    let heap = context.heap;
    let mut reader = Reader {
        context,
        bitmaps,
        layouts,
        body: vec![0; 1 << heap.linkage.page_log2],
        holes: Vec::new(),
        known_classes: vec![(0, NO_CLASS); REMEMBERED_CLASSES],
    };
    let slot_count = heap.slot_count() as usize;
    let mut all = Slots {
        slots: vec![Slot::UNREAD; slot_count],
        links: Links::with_slots(slot_count),
        ..Slots::default()
    };
    for page in &heap.pages {
        reader.read_page(page, &mut all)?;
    }
    all.links.finish(&all.slots);
    let is_strewn = all.tally.recycled > all.tally.marked / MOST_RECYCLED;
    if is_strewn || all.tally.live > ENOUGH_OBJECTS && all.tally.unprotected == 0 {
        let first = heap.pages.first().map_or(Address(0), |page| page.base);
        return Err(context.failure(Check::Bitmaps, first));
    }
    Ok(all)
}

/// The types of objects, by address.
#[derive(Clone, Copy)]
pub(crate) enum Kinds<'a> {
    /// While the heap is read.
    Reading(&'a Territory<'a>, &'a [Slot]),
    /// Afterwards.
    Read(&'a ObjectSpace),
}

impl<'a> Kinds<'a> {
    pub(crate) fn new(territory: &'a Territory<'a>, slots: &'a [Slot]) -> Self {
        Self::Reading(territory, slots)
    }

    /// The type of the object whose slot begins at `at`, and the bytes of its slot.
    pub(crate) fn at(&self, at: Address) -> Option<(SlotType, u32)> {
        match self {
            Self::Reading(territory, slots) => {
                let slot = slots.get(territory.slot_at(at.0)? as usize)?;
                let Place::HeapPage(page) = territory.at(at.0) else { return None };
                Some((slot.kind, territory.pages()[page as usize].slot_bytes))
            }
            Self::Read(space) => {
                let (slot, slot_bytes) = space.page_index.slot_and_bytes_at(at)?;
                Some((space.slots.get(slot as usize)?.kind, slot_bytes))
            }
        }
    }
}

struct Reader<'a, 'l> {
    context: &'a Context<'a>,
    bitmaps: Bitmaps,
    layouts: &'a mut Layouts<'l>,
    /// The slots of the page that is read, used again for each.
    body: Vec<u8>,
    /// The parts of the body that could not be read, as offsets; nearly always none.
    holes: Vec<Range<usize>>,
    /// Classes that were looked up last, and the slots that they are in.
    known_classes: Vec<(u64, u32)>,
}

impl Reader<'_, '_> {
    fn read_page(&mut self, page: &Page, into: &mut Slots) -> Result<(), Failure> {
        let context = self.context;
        let slots = &mut into.slots[page.slots_before as usize..][..page.slot_count as usize];
        if slots.is_empty() {
            return Ok(());
        }
        let unreadable = context.failure(Check::Readable, page.base);
        let slot_bytes = page.slot_bytes as usize;
        self.read_body(page.first_slot, slot_bytes * slots.len()).ok_or(unreadable)?;
        let marks = self.bitmaps.read(context.image, page).ok_or(unreadable)?;
        let mut live = [0; MOST_WORDS];
        for (number, slot) in slots.iter_mut().enumerate() {
            let (offset, number) = (number * slot_bytes, number as u32);
            let bit = self.bitmaps.index(page, number);
            if self.holes.iter().any(|it| offset < it.end && it.start < offset + slot_bytes) {
                into.tally.unread += 1;
                bitmaps::set(&mut live, bit);
                continue;
            }
            let object = Object::new(&self.body[offset..offset + slot_bytes]);
            if object.flags == 0 {
                *slot = Slot::FREE;
                continue;
            }
            bitmaps::set(&mut live, bit);
            let at = page.first_slot.offset(offset as u64);
            if !object.kind.may_be_in_a_slot() {
                return Err(context.failure(Check::Types, at));
            }
            let is_marked = bitmaps::bit(&marks.marked, bit);
            let class = class_of(&object, &context.territory, &mut self.known_classes);
            if class == NO_CLASS {
                if is_marked {
                    return Err(context.failure(Check::Classes, at));
                }
                into.tally.astray += 1;
            }
            into.tally.live += 1;
            let state = if is_marked { SlotState::Marked } else { SlotState::Unmarked };
            *slot = Slot { class, kind: object.kind, state };
            let own = page.slots_before + number;
            if let Some((is_real, next)) = context.ancestry.of(&object, &context.territory) {
                into.ancestors.push(Ancestor { slot: own, is_real, next });
            }
            references::for_each(&object, &context.territory, self.layouts, |found| match found {
                Found::Memory(to, content) => into.references.push(own, to, content),
                Found::Table(at) => into.tables.push((own, at)),
                Found::Io(at) => into.ios.push((own, at)),
                Found::Slot(to) => into.links.push(own, to),
            });
            if object.kind == SlotType::IMEMO {
                into.imemos.take(own, &object);
            }
            if object.kind == SlotType::DATA {
                into.data.push(own, &object, &context.territory);
            }
        }
        let recycled =
            if context.interpreter.is_at_least(3, 1) { 0 } else { marks.recycled(&live) };
        into.tally.recycled += u64::from(recycled);
        if marks.wrong(&live) > recycled {
            return Err(context.failure(Check::Bitmaps, page.base));
        }
        into.tally.marked += count(&marks.marked);
        into.tally.unprotected += count(&marks.unprotected);
        Ok(())
    }

    /// Reads a page's slots; what is swapped out stays a hole. `None` where it is unreadable for
    /// another reason: Ruby protects pages while it compacts its heap.
    fn read_body(&mut self, first: Address, bytes: usize) -> Option<()> {
        self.holes.clear();
        let image = self.context.image;
        let body = &mut self.body[..bytes];
        if image.read(first, body) == bytes {
            return Some(());
        }
        let all = first..first.offset(bytes as u64);
        let states = image.state.pages.as_ref()?;
        for run in states.runs_in(&all).filter(|run| run.state.is_unreadable()) {
            let hole = capture::intersection(&run.range, &all);
            self.holes.push((hole.start - first) as usize..(hole.end - first) as usize);
        }
        let mut at = first;
        while at < all.end {
            let end = at.offset(1).align_up(PAGE_SIZE).min(all.end);
            let part = (at - first) as usize..(end - first) as usize;
            let is_hole = |hole: &Range<usize>| hole.start <= part.start && part.end <= hole.end;
            if !self.holes.iter().any(is_hole) {
                image.read_exact(at, &mut body[part]).ok()?;
            }
            at = end;
        }
        Some(())
    }
}

fn count(bits: &[u64; MOST_WORDS]) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// The slot of an object's class, what stands for it, or [`NO_CLASS`] where it is in no slot.
fn class_of(object: &Object<'_>, territory: &Territory<'_>, known: &mut [(u64, u32)]) -> u32 {
    let class = object.word(1);
    if object.kind.has_no_class() || class == 0 {
        return internal(object.kind, object.imemo_type());
    }
    let place = (class >> 3) as usize % known.len();
    let (remembered, slot) = known[place];
    if remembered == class {
        return slot;
    }
    let slot = territory.slot_at(class).unwrap_or(NO_CLASS);
    known[place] = (class, slot);
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_class_are_told_apart_from_slots() {
        for kind in 0..32 {
            for imemo in 0..16 {
                let kind = SlotType(kind);
                let stated = as_internal(internal(kind, imemo));
                let imemo = if kind == SlotType::IMEMO { imemo } else { 0 };
                assert_eq!(stated, Some((kind, imemo)));
            }
        }
        assert_eq!(as_internal(NO_CLASS), None);
        assert_eq!(as_internal(u32::MAX / 2), None);
    }
}
