use std::cell::OnceCell;

use image::{Image, Memory};
use linux::Address;

use crate::heap_pages::HeapPages;
use crate::layout::bitmaps::{self, Bitmaps, PROMOTED};
use crate::model::heap_page::HeapPage;
use crate::object_space::ObjectSpace;
use crate::word::word;

/// The age of old objects (`RVALUE_OLD_AGE` in gc.c).
pub const OLD_AGE: u64 = 3;
/// The bits of the flags that have the age up to 3.2 (`FL_PROMOTED0` and `FL_PROMOTED1`).
const AGE_SHIFT: u32 = 5;
/// The bits of an age.
const AGE_BITS: u64 = 2;
/// The bitmaps of a descriptor among which that of ages is (`age_bits`, from 3.3 on), counted from the first.
const BITMAPS: std::ops::Range<usize> = 3..11;
/// The numbers of the bitmaps of objects without a write barrier (`wb_unprotected_bits`), of those that minor collections keep
/// (`uncollectible_bits`), of those that a collection has found and not searched yet (`marking_bits`), and from 3.3 on of old objects that
/// may refer to young ones (`remembered_bits`).
const UNPROTECTED: usize = 0;
const KEPT: usize = 2;
const MARKING: usize = 3;
const REMEMBERED: usize = 4;
/// The number of the bitmap of objects that must not move (`pinned_bits`) up to 3.2. Later it is the one before that of ages.
const PINNED: usize = 4;
/// The pages from which the place is derived.
const MAX_PAGES: usize = 256;
/// The objects that are needed: old ones, and others.
const MIN_OBJECTS: u64 = 100;
/// Of 1000 old objects and of 1000 others, so many must agree with the true place, and at most so many with any other.
const MIN_AGREEMENT: u64 = 990;
const MAX_AGREEMENT_OF_OTHERS: u64 = 900;

/// The place of the ages of objects: the number of collections that each has survived, up to [`OLD_AGE`]. One to which an old object
/// refers becomes old at once. Objects without a write barrier do not age: minor collections keep one to which an old object refers.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    place: Place,
    pages: HeapPages,
    /// The offset of the first bitmap.
    bitmaps_at: u64,
    bitmap_bytes: u64,
    /// The bytes of a page that a bit stands for; `None` if bits are numbered as slots are.
    unit: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the flags of the object (up to 3.2).
    Flags,
    /// In a bitmap of the page's descriptor, with two bits side by side for each slot (from 3.3 on).
    Pairs(u64),
    /// In such a bitmap, with one word for the low bits of 64 slots, and one for their high bits (from 4.1 on).
    Planes(u64),
}

/// The agreement of a place with what else is known of slots.
#[derive(Debug, Default)]
struct Agreement {
    old: Agreeing,
    young: Agreeing,
}

#[derive(Debug, Default)]
struct Agreeing {
    agreeing: u64,
    all: u64,
}

impl Ages {
    /// Derives the place: objects that the collector calls old have the highest age there, others have not, and free slots have
    /// none. `None` if there are too few objects, or no place or several fit.
    #[must_use]
    pub fn derive(image: &Image<'_>, space: &ObjectSpace) -> Option<Self> {
        let (bitmaps, pages) = (space.bitmaps?, HeapPages::derive(image, space)?);
        let with_slots = || space.pages.iter().filter(|page| !page.slots.is_empty());
        let step = with_slots().count().div_ceil(MAX_PAGES).max(1);
        let sampled = || with_slots().step_by(step);
        let with_place = |place| Self {
            place,
            pages,
            bitmaps_at: bitmaps.place(0),
            bitmap_bytes: bitmaps.words as u64 * 8,
            unit: bitmaps.offset_unit(),
        };
        let mut of_flags = Agreement::default();
        sampled().for_each(|page| of_flags.add_flags(image, bitmaps, page));
        if of_flags.is_sure() {
            return Some(with_place(Place::Flags));
        }
        // Since bits are numbered as slots are, they lie in planes. In another order old objects side by side have the same bits.
        let of_bitmap = match bitmaps.offset_unit() {
            Some(_) => Place::Pairs,
            None => Place::Planes,
        };
        let mut scored = Vec::new();
        for ages in BITMAPS.map(|number| with_place(of_bitmap(bitmaps.place(number)))) {
            let mut agreement = Agreement::default();
            sampled().for_each(|page| agreement.add_bitmap(image, ages, page));
            scored.push((agreement.per_mille(), agreement.is_sure(), ages));
        }
        scored.sort_by_key(|it| it.0);
        let (_, is_sure, ages) = scored.pop()?;
        let other = scored.last().map_or(0, |it| it.0);
        (is_sure && other <= MAX_AGREEMENT_OF_OTHERS).then_some(ages)
    }

    /// The beginning of the heap page around a slot.
    #[must_use]
    pub fn page_of(self, slot: Address) -> Address {
        self.pages.page_of(slot)
    }

    /// The ages of the objects in the heap page at `page`, as they are when the first is asked for.
    #[must_use]
    pub fn of_page(self, memory: &dyn Memory, page: Address) -> PageAges<'_> {
        PageAges { ages: self, memory, page, descriptor: OnceCell::new() }
    }

    /// The bytes of a descriptor up to the end of what is read in it.
    fn descriptor_bytes(self) -> u64 {
        match self.place {
            Place::Flags => self.bitmap(PINNED) + self.bitmap_bytes,
            Place::Pairs(at) | Place::Planes(at) => at + AGE_BITS * self.bitmap_bytes,
        }
    }

    /// The offset of the bitmap with this number.
    fn bitmap(self, number: usize) -> u64 {
        self.bitmaps_at + number as u64 * self.bitmap_bytes
    }
}

/// What the collector notes of an object, besides its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notes {
    /// A collection has found it, and not searched it yet. Up to 3.2 also an old object that may refer to young ones.
    pub(crate) is_marking: bool,
    /// The last collection found that it must not move.
    pub(crate) is_pinned: bool,
    /// It is old and may refer to young objects (from 3.3 on).
    pub(crate) is_remembered: bool,
}

/// The age of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectAge {
    /// The collections that it has survived, up to [`OLD_AGE`].
    pub collections: u64,
    /// True if it is old or has no write barrier, and minor collections keep it. A major collection begins by keeping none, and then
    /// keeps each old object that it reaches.
    pub is_kept: bool,
    /// True if it has no write barrier.
    pub is_unprotected: bool,
}

/// The ages of the objects in a heap page.
pub struct PageAges<'m> {
    ages: Ages,
    memory: &'m dyn Memory,
    page: Address,
    /// The descriptor, which is read when it is needed; `None` if it cannot be read.
    descriptor: OnceCell<Option<Vec<u8>>>,
}

impl PageAges<'_> {
    /// The age of the object at `slot`, whose flags were just read; `None` if it cannot be read.
    #[must_use]
    pub fn of(&self, slot: Address, flags: u64) -> Option<ObjectAge> {
        let collections = self.collections(slot, flags)?;
        let is_unprotected = self.bit(slot, self.ages.bitmap(UNPROTECTED))?;
        let may_be_kept = is_unprotected || collections == OLD_AGE;
        let is_kept = may_be_kept && self.bit(slot, self.ages.bitmap(KEPT))?;
        Some(ObjectAge { collections, is_kept, is_unprotected })
    }

    /// The number of collections that the object has survived.
    fn collections(&self, slot: Address, flags: u64) -> Option<u64> {
        Some(match self.ages.place {
            Place::Flags => age_in_flags(flags),
            Place::Pairs(at) => self.bits(at, self.number(slot)? * AGE_BITS)? & OLD_AGE,
            Place::Planes(at) => {
                let number = self.number(slot)?;
                let plane =
                    |plane| self.bits(at, (number / 64 * AGE_BITS + plane) * 64 + number % 64);
                plane(0)? & 1 | (plane(1)? & 1) << 1
            }
        })
    }

    /// What else the collector notes of the object at `slot`; `None` if that cannot be read.
    pub(crate) fn notes(&self, slot: Address) -> Option<Notes> {
        let remembered = self.ages.bitmap(REMEMBERED);
        let (pinned, remembered) = match self.ages.place {
            Place::Flags => (self.ages.bitmap(PINNED), None),
            Place::Pairs(at) | Place::Planes(at) => {
                (at.checked_sub(self.ages.bitmap_bytes)?, Some(remembered))
            }
        };
        Some(Notes {
            is_marking: self.bit(slot, self.ages.bitmap(MARKING))?,
            is_pinned: self.bit(slot, pinned)?,
            is_remembered: remembered.is_some_and(|at| self.bit(slot, at) == Some(true)),
        })
    }

    /// The bit of a slot in the bitmap at `at`.
    fn bit(&self, slot: Address, at: u64) -> Option<bool> {
        Some(self.bits(at, self.number(slot)?)? & 1 == 1)
    }

    /// The number of a slot's bit.
    fn number(&self, slot: Address) -> Option<u64> {
        match self.ages.unit {
            Some(unit) => Some((slot - self.page) / u64::from(unit)),
            None => self.ages.pages.slot_number(self.descriptor()?, slot),
        }
    }

    /// The rest of a word of the bitmap at `at`, from this bit on.
    fn bits(&self, at: u64, bit: u64) -> Option<u64> {
        let words = self.descriptor()?.get((at + bit / 64 * 8) as usize..)?;
        Some(word(words.get(..8)?, 0) >> (bit % 64))
    }

    fn descriptor(&self) -> Option<&[u8]> {
        let read = || {
            let at = self.memory.read_address(self.page).ok().filter(|it| it.is_aligned(8))?;
            let mut bytes = vec![0; self.ages.descriptor_bytes() as usize];
            self.memory.read_exact(at, &mut bytes).ok()?;
            Some(bytes)
        };
        self.descriptor.get_or_init(read).as_deref()
    }
}

impl Agreement {
    fn add_flags(&mut self, image: &Image<'_>, bitmaps: Bitmaps, page: &HeapPage) {
        let own = page.descriptor(image).and_then(|it| bitmaps.read(image, page, it));
        let Some(own) = own else { return };
        for_each_slot(image, page, |number, _, flags| {
            let bit = bitmaps.index(page, number);
            let is_old = bitmaps::bit(&own.old, bit) && !bitmaps::bit(&own.unprotected, bit);
            // A major collection that runs has not found all old objects yet, so others may have this age, too.
            if is_old {
                self.add(age_in_flags(flags) == OLD_AGE, true);
            } else if flags != 0 && age_in_flags(flags) < OLD_AGE {
                self.add(true, false);
            }
        });
    }

    fn add_bitmap(&mut self, image: &Image<'_>, ages: Ages, page: &HeapPage) {
        let ages = ages.of_page(image, ages.page_of(page.first_slot));
        for_each_slot(image, page, |_, at, flags| {
            let Some(age) = ages.collections(at, flags) else { return };
            let is_old = flags & PROMOTED != 0;
            self.add(if flags == 0 { age == 0 } else { is_old == (age == OLD_AGE) }, is_old);
        });
    }

    fn add(&mut self, agrees: bool, is_old: bool) {
        let of_age = if is_old { &mut self.old } else { &mut self.young };
        of_age.all += 1;
        of_age.agreeing += u64::from(agrees);
    }

    /// The agreement of the age that agrees less: while a major collection marks, hardly any object is old.
    fn per_mille(&self) -> u64 {
        let per_mille = |it: &Agreeing| it.agreeing * 1000 / it.all.max(1);
        per_mille(&self.old).min(per_mille(&self.young))
    }

    fn is_sure(&self) -> bool {
        self.per_mille() >= MIN_AGREEMENT && self.old.all.min(self.young.all) >= MIN_OBJECTS
    }
}

fn age_in_flags(flags: u64) -> u64 {
    flags >> AGE_SHIFT & OLD_AGE
}

/// Calls `each` with the number, address and flags of each slot.
fn for_each_slot(image: &Image<'_>, page: &HeapPage, mut each: impl FnMut(u32, Address, u64)) {
    let mut body = vec![0; page.slots_bytes()];
    if image.read(page.first_slot, &mut body) < body.len() {
        return;
    }
    let slot_bytes = page.slot_bytes.max(8);
    for (number, slot) in (0..).zip(body.chunks_exact(slot_bytes as usize)) {
        let at = page.first_slot.offset(u64::from(number * slot_bytes));
        each(number, at, word(slot, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "1 of 19,761 new objects was kept", on Ruby 3.3. A major collection marked at the capture, so few objects were known to be old, and the
    /// flags were taken for ages, which they are up to 3.2.
    #[test]
    fn old_objects_must_agree_although_they_are_few() {
        let mut of_flags = Agreement::default();
        (0..50_000).for_each(|_| of_flags.add(true, false));
        (0..150).for_each(|_| of_flags.add(false, true));
        assert!(!of_flags.is_sure());
        (0..50_000).for_each(|_| of_flags.add(true, true));
        assert!(of_flags.is_sure());
    }
}
