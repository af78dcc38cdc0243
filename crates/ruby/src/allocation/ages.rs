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
const BITMAPS: std::ops::Range<usize> = 3..8;
/// The number of the bitmap of objects that minor collections keep (`uncollectible_bits`).
const KEPT: usize = 2;
/// The pages from which the place is derived.
const MAX_PAGES: usize = 256;
/// The objects that are needed: old ones, and others.
const MIN_OBJECTS: u64 = 100;
/// Of 1000 slots, so many must agree with the true place, and at most so many with any other.
const MIN_AGREEMENT: u64 = 990;
const MAX_AGREEMENT_OF_OTHERS: u64 = 900;

/// The place of the ages of objects: the number of collections that each has survived, up to [`OLD_AGE`]. One to which an old object
/// refers becomes old at once. Objects without a write barrier do not age.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    place: Place,
    pages: HeapPages,
    /// The offset of the bitmap of objects that minor collections keep, and the bytes that a bit stands for.
    kept_at: u64,
    unit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the flags of the object (up to 3.2).
    Flags,
    /// In a bitmap of the page's descriptor, with two bits for each unit (from 3.3 on).
    Bitmap(u64),
}

/// The agreement of a place with what else is known of slots.
#[derive(Debug, Default)]
struct Agreement {
    agreeing: u64,
    all: u64,
    old: u64,
    young: u64,
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
        let with_place = |place| {
            Some(Self {
                place,
                pages,
                kept_at: bitmaps.place(KEPT),
                unit: bitmaps.offset_unit()?.into(),
            })
        };
        let mut of_flags = Agreement::default();
        sampled().for_each(|page| of_flags.add_flags(image, bitmaps, page));
        if of_flags.is_sure() {
            return with_place(Place::Flags);
        }
        let mut scored = Vec::new();
        for number in BITMAPS {
            let ages = with_place(Place::Bitmap(bitmaps.place(number)))?;
            let mut agreement = Agreement::default();
            sampled().for_each(|page| agreement.add_bitmap(image, ages, page));
            scored.push((agreement.per_mille(), number, agreement.is_sure()));
        }
        scored.sort_unstable();
        let (_, number, is_sure) = scored.pop()?;
        let other = scored.last().map_or(0, |it| it.0);
        let is_alone = is_sure && other <= MAX_AGREEMENT_OF_OTHERS;
        with_place(Place::Bitmap(bitmaps.place(number))).filter(|_| is_alone)
    }

    /// The age of the object at `slot`, whose flags were just read, and whether it is old and minor collections keep it; `None` if that
    /// cannot be read. A major collection begins by keeping none, and then keeps each old object that it reaches.
    #[must_use]
    pub fn of(self, memory: &dyn Memory, slot: Address, flags: u64) -> Option<(u64, bool)> {
        let page = self.pages.page_of(slot);
        let number = (slot - page) / self.unit;
        let bits = |at: u64, bit: u64| {
            let descriptor = memory.read_address(page).ok().filter(|it| it.is_aligned(8))?;
            let place = descriptor.0.checked_add(at + bit / 64 * 8)?;
            Some(memory.read_u64(Address(place)).ok()? >> (bit % 64))
        };
        let age = match self.place {
            Place::Flags => age_in_flags(flags),
            Place::Bitmap(at) => bits(at, number * AGE_BITS)? & OLD_AGE,
        };
        // Most objects die young, and each read costs the reader.
        let is_kept = age == OLD_AGE && bits(self.kept_at, number)? & 1 == 1;
        Some((age, is_kept))
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
        for_each_slot(image, page, |_, at, flags| {
            let Some((age, _)) = ages.of(image, at, flags) else { return };
            let is_old = flags & PROMOTED != 0;
            self.add(if flags == 0 { age == 0 } else { is_old == (age == OLD_AGE) }, is_old);
        });
    }

    fn add(&mut self, agrees: bool, is_old: bool) {
        self.all += 1;
        self.agreeing += u64::from(agrees);
        *(if is_old { &mut self.old } else { &mut self.young }) += 1;
    }

    fn per_mille(&self) -> u64 {
        self.agreeing * 1000 / self.all.max(1)
    }

    fn is_sure(&self) -> bool {
        self.per_mille() >= MIN_AGREEMENT && self.old.min(self.young) >= MIN_OBJECTS
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
