//! Reads the slots of all heap pages: one pass, one read for each page.

use std::ops::Range;

use target::{Address, Image, Memory, PAGE_SIZE, PageState};

use crate::bitmaps::{self, Bitmaps, MOST_WORDS};
use crate::classes::Ancestry;
use crate::error::{Check, Failure};
use crate::object_space::{References, Slot, SlotState, SlotType};
use crate::pages::{Derived, Page};
use crate::references;
use crate::territory::{Place, Territory};

/// In heaps with more objects than this some are without a write barrier, in every Ruby.
const ENOUGH_OBJECTS: u64 = 2_000;
/// Objects whose classes are looked up again and again: a power of two.
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
    pub(crate) tally: Tally,
}

/// Reads the slots of all pages, and fails where they do not look like slots.
pub(crate) fn read(
    image: &Image<'_>,
    heap: &Derived,
    bitmaps: Bitmaps,
    ancestry: Ancestry,
    territory: &Territory<'_>,
) -> Result<Slots, Failure> {
    let reader = Reader { image, heap, bitmaps, ancestry, territory };
    let mut all =
        Slots { slots: vec![Slot::UNREAD; heap.slot_count() as usize], ..Slots::default() };
    let mut scratch = Scratch {
        body: vec![0; 1 << heap.linkage.page_log2],
        holes: Vec::new(),
        classes: vec![(0, NO_CLASS); REMEMBERED_CLASSES],
    };
    for page in &heap.pages {
        reader.read_page(page, &mut scratch, &mut all)?;
    }
    let first = heap.pages.first().map_or(Address(0), |page| page.base);
    if all.tally.live > ENOUGH_OBJECTS && all.tally.unprotected == 0 {
        return Err(reader.failure(Check::Bitmaps, first));
    }
    Ok(all)
}

/// The types of objects, by address.
#[derive(Clone, Copy)]
pub(crate) struct Kinds<'a> {
    territory: &'a Territory<'a>,
    slots: &'a [Slot],
}

impl<'a> Kinds<'a> {
    pub(crate) fn new(territory: &'a Territory<'a>, slots: &'a [Slot]) -> Self {
        Self { territory, slots }
    }

    /// The type of the object whose slot begins at `at`, and the bytes of its slot.
    pub(crate) fn at(&self, at: Address) -> Option<(SlotType, u32)> {
        let slot = self.slots.get(self.territory.slot_at(at.0)? as usize)?;
        let Place::HeapPage(page) = self.territory.at(at.0) else { return None };
        Some((slot.kind, self.territory.pages()[page as usize].slot_bytes))
    }
}

struct Reader<'a> {
    image: &'a Image<'a>,
    heap: &'a Derived,
    bitmaps: Bitmaps,
    ancestry: Ancestry,
    territory: &'a Territory<'a>,
}

/// What is used again for each page.
struct Scratch {
    body: Vec<u8>,
    /// The parts of the body that could not be read, as offsets; nearly always none.
    holes: Vec<Range<usize>>,
    /// Classes that were looked up last, and the slots that they are in.
    classes: Vec<(u64, u32)>,
}

impl Reader<'_> {
    fn failure(&self, check: Check, at: Address) -> Failure {
        Failure { check, at, page_bytes: 1 << self.heap.linkage.page_log2 }
    }

    fn read_page(
        &self,
        page: &Page,
        scratch: &mut Scratch,
        into: &mut Slots,
    ) -> Result<(), Failure> {
        let Slots { slots, ancestors, references, tally } = into;
        let slots = &mut slots[page.slots_before as usize..][..page.slot_count as usize];
        if slots.is_empty() {
            return Ok(());
        }
        let readable = self.failure(Check::Readable, page.base);
        let bytes = page.slot_bytes as usize * slots.len();
        self.read_body(page.first_slot, bytes, scratch).ok_or(readable)?;
        let marks = self.bitmaps.read(self.image, page).ok_or(readable)?;
        let mut live = [0; MOST_WORDS];
        let body = scratch.body[..bytes].chunks_exact(page.slot_bytes as usize);
        for (number, (slot, words)) in slots.iter_mut().zip(body).enumerate() {
            let number = number as u32;
            let bit = self.bitmaps.index(page, number);
            let offset = number as usize * page.slot_bytes as usize;
            if scratch
                .holes
                .iter()
                .any(|hole| offset < hole.end && hole.start < offset + words.len())
            {
                tally.unread += 1;
                bitmaps::set(&mut live, bit);
                continue;
            }
            let flags = word(words, 0);
            if flags == 0 {
                *slot = Slot { class: NO_CLASS, kind: SlotType::NONE, state: SlotState::Free };
                continue;
            }
            bitmaps::set(&mut live, bit);
            let kind = SlotType(flags as u8 & 31);
            let at = page.first_slot.offset(offset as u64);
            if !kind.may_be_in_a_slot() {
                return Err(self.failure(Check::Types, at));
            }
            let marked = bitmaps::bit(&marks.marked, bit);
            let state = if marked { SlotState::Marked } else { SlotState::Unmarked };
            let class = self.class_of(kind, flags, word(words, 1), &mut scratch.classes);
            if class == NO_CLASS {
                if marked {
                    return Err(self.failure(Check::Classes, at));
                }
                tally.astray += 1;
            }
            if let Some((is_real, next)) = self.ancestry.of(kind, flags, words) {
                let next = self.territory.slot_at(next).unwrap_or(NO_CLASS);
                ancestors.push(Ancestor { slot: page.slots_before + number, is_real, next });
            }
            tally.live += 1;
            *slot = Slot { class, kind, state };
            references::for_each(kind, flags, words, self.territory, |to| {
                references.push(page.slots_before + number, to);
            });
        }
        if marks.wrong(&live) > 0 {
            return Err(self.failure(Check::Bitmaps, page.base));
        }
        let count =
            |bits: &[u64]| bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        tally.marked += count(&marks.marked);
        tally.unprotected += count(&marks.unprotected);
        Ok(())
    }

    /// Reads a page's slots; what is swapped out stays a hole. `None` where it is unreadable for
    /// another reason: Ruby protects pages while it compacts its heap.
    fn read_body(&self, first: Address, bytes: usize, scratch: &mut Scratch) -> Option<()> {
        scratch.holes.clear();
        let body = &mut scratch.body[..bytes];
        if self.image.read(first, body) == bytes {
            return Some(());
        }
        let all = first..first.offset(bytes as u64);
        let states = self.image.outline.pages.as_ref()?;
        for run in states.runs_in(&all).filter(|run| run.state == PageState::Swapped) {
            let hole = target::intersection(&run.range, &all);
            scratch.holes.push((hole.start - first) as usize..(hole.end - first) as usize);
        }
        let mut at = first;
        while at < all.end {
            let end = at.offset(1).align_up(PAGE_SIZE).min(all.end);
            let part = (at - first) as usize..(end - first) as usize;
            let swapped =
                scratch.holes.iter().any(|hole| hole.start <= part.start && part.end <= hole.end);
            if !swapped {
                self.image.read_exact(at, &mut body[part]).ok()?;
            }
            at = end;
        }
        Some(())
    }

    /// The slot of an object's class, what stands for it, or [`NO_CLASS`] where it is in no slot.
    fn class_of(&self, kind: SlotType, flags: u64, class: u64, known: &mut [(u64, u32)]) -> u32 {
        if kind.has_no_class() || class == 0 {
            return internal(kind, references::imemo_type(flags));
        }
        let place = (class >> 3) as usize % known.len();
        let (remembered, slot) = known[place];
        if remembered == class {
            return slot;
        }
        let slot = self.territory.slot_at(class).unwrap_or(NO_CLASS);
        known[place] = (class, slot);
        slot
    }
}

fn word(bytes: &[u8], number: usize) -> u64 {
    let word = bytes.get(number * 8..number * 8 + 8);
    word.map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}
