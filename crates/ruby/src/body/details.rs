//! The fields of objects that a dump has: what `ObjectSpace.dump_all` prints besides addresses, classes and references.

use image::{Image, Memory};
use linux::{Address, each};

use crate::allocation::{Ages, Notes};
use crate::body::{Body, BodyReader, Contents, Head, TextHome};
use crate::layout::bitmaps::{PROMOTED, bit};
use crate::layout::class_names::ObjectReader;
use crate::layout::object_layouts::{
    ARRAY_EMBEDDED, BIGNUM_EMBEDDED, HASH_HAS_TABLE, OBJECT_EMBEDDED, STRING_NOT_EMBEDDED,
    STRUCT_LENGTH_MASK, STRUCT_LENGTH_SHIFT, StructFields,
};
use crate::layout::room::Unit;
use crate::layout::shape_tree::{ShapeHome, ShapeTree};
use crate::model::class::ClassKind;
use crate::model::details::{Detail, Details, DetailsPart, Fact};
use crate::model::heap_page::HeapPage;
use crate::model::imemo::ImemoType;
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::word::word;

/// The parts of a heap that are read at the same time.
const PORTIONS: usize = 8;
/// `FL_FREEZE`.
const FROZEN: u64 = 1 << 11;
/// `RUBY_FL_SHAREABLE` (from 3.0 on).
const SHAREABLE: u64 = 1 << 8;
/// `STR_CHILLED`: a literal, or the string of a symbol (from 3.4 on). Before, the bits mean something else.
const CHILLED: u64 = 3 << 14;
/// `RHASH_PROC_DEFAULT`, and `RHASH_TRANSIENT_FLAG` (up to 3.2).
const HASH_HAS_PROC: u64 = 1 << 14;
const HASH_IS_TRANSIENT: u64 = 1 << 26;
/// The bytes of an `ar_table` outside a slot (up to 3.2).
const PAIRS_BYTES: u64 = 8 * 16;
/// The bytes of a digit of a large number (`SIZEOF_BDIGIT`).
const DIGIT_BYTES: u64 = 4;
/// `RSTRING_FSTR`: a string that is deduplicated; and `STR_NOFREE`: one whose bytes are a constant of C code.
const IS_FSTRING: u64 = 1 << 29;
const IS_CONSTANT: u64 = 1 << 30;
/// `ENC_CODERANGE_7BIT` and `ENC_CODERANGE_VALID`; both stand for broken text.
const CODE_RANGE_SHIFT: u32 = 20;
/// The transient heap has the elements of an array, or the members of a struct (up to 3.2).
const IS_TRANSIENT: u64 = 1 << 25;
const STRUCT_IS_TRANSIENT: u64 = 1 << 15;
/// The texts that are read, all together, are at most this many times the resident memory: absent pages are zeros without end.
const MAX_TIMES: u64 = 2;
/// The bytes of a text that are read at a time.
const TEXT_BLOCK: u64 = 1 << 20;

/// Reads the fields of all live objects, with the texts of strings if `values` is true. `image` is the one that the objects were
/// read from.
#[must_use]
pub fn details(image: &Image<'_>, space: &ObjectSpace, values: bool) -> Details {
    let count = space.pages.len();
    let ages = Ages::derive(image, space);
    let budget = MAX_TIMES.saturating_mul(image.state.process.rss_bytes) / PORTIONS as u64;
    let parts = each(PORTIONS, |number| {
        let pages = count * number / PORTIONS..count * (number + 1) / PORTIONS;
        let bodies = BodyReader::new(image, space);
        let mut reader = DetailsReader { bodies, ages, values, text_budget: budget };
        let mut part = DetailsPart::default();
        for page in &space.pages[pages] {
            reader.read_page(page, &mut part);
        }
        part
    });
    Details::new(parts, ages.is_some())
}

struct DetailsReader<'a> {
    bodies: BodyReader<'a>,
    /// Where the collector notes ages; `None` if that could not be derived.
    ages: Option<Ages>,
    /// True if the texts of strings are wanted.
    values: bool,
    /// The bytes of text that may still be read.
    text_budget: u64,
}

impl DetailsReader<'_> {
    fn read_page(&mut self, page: &HeapPage, part: &mut DetailsPart) {
        let (image, space) = (self.bodies.image, self.bodies.space);
        let bitmaps = space.bitmaps.as_ref();
        let own = bitmaps.and_then(|it| it.read(image, page, page.descriptor(image)?));
        let ages = self.ages.map(|it| it.of_page(image, page.range.start));
        for (number, slot) in page.slots.clone().enumerate() {
            if !space.slots.get(slot).is_some_and(|it| it.is_live()) {
                continue;
            }
            let mut detail = self.detail(slot as u32);
            if let (Some(own), Some(bitmaps)) = (&own, bitmaps) {
                let at = bitmaps.index(page, number as u32);
                let is_uncollectible = bit(&own.old, at);
                detail.set(Fact::WriteBarrier, !bit(&own.unprotected, at));
                detail.set(Fact::Uncollectible, is_uncollectible);
                let is_promoted = self.bodies.head.flags() & PROMOTED != 0;
                detail.set(Fact::Old, is_uncollectible && is_promoted);
            }
            if let Some(ages) = &ages {
                let at = page.first_slot.offset(number as u64 * u64::from(page.slot_bytes));
                let age = ages.of(at, self.bodies.head.flags()).map_or(0, |age| age.collections);
                detail.set_age(age as u8);
                let notes = ages.notes(at);
                let is = |note: fn(Notes) -> bool| notes.is_some_and(note);
                detail.set(Fact::Marking, is(|it| it.is_marking));
                detail.set(Fact::Pinned, is(|it| it.is_pinned));
                detail.set(Fact::Remembered, is(|it| it.is_remembered));
            }
            part.push(slot as u32, &detail);
        }
    }

    fn detail(&mut self, slot: u32) -> Detail {
        let mut detail = Detail::default();
        let Some(head) = self.bodies.head(slot) else { return detail };
        let (flags, space) = (head.flags(), self.bodies.space);
        detail.set(Fact::Frozen, flags & FROZEN != 0);
        // A program that dumps itself has these only from 4.0 and 3.4 on. Before 3.0 the bits mean something else.
        detail.set(Fact::Shareable, space.has_shapes() && flags & SHAREABLE != 0);
        if has_class(&head, space) {
            let named = space.slots.get(slot as usize).map(|it| it.class() as usize);
            let named = named.and_then(|class| space.classes.get(class)?.address());
            let class = Address(head.word(1));
            // Of most objects it is the one that its slot names already.
            detail.set(Fact::NamedClass, named == Some(class));
            detail.class = space.slot_at(class).filter(|_| named != Some(class));
        }
        detail.shape = space.shape_tree.and_then(|tree| shape_number(tree, &head, space));
        match head.kind {
            SlotType::STRING => self.string(slot, &head, &mut detail),
            SlotType::ARRAY => self.array(slot, &head, &mut detail),
            SlotType::HASH => self.hash(&head, &mut detail),
            SlotType::OBJECT => self.object(&head, &mut detail),
            SlotType::STRUCT => detail.outside = Some(self.outside_of_struct(&head)),
            SlotType::BIGNUM => {
                let is_embedded = flags & BIGNUM_EMBEDDED != 0;
                detail.outside =
                    Some(if is_embedded { 0 } else { head.word(2).saturating_mul(DIGIT_BYTES) });
            }
            SlotType::IMEMO => detail.outside = self.outside_of_internal(&head),
            SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS => {
                detail.text = self.class_name(&head).filter(|_| head.kind != SlotType::ICLASS);
                if let Some(layout) = space.class_layout {
                    let superclass = layout.superclass_of(|it| head.word(it));
                    detail.related = superclass.and_then(|at| space.slot_at(at));
                    detail.set(Fact::Singleton, layout.is_singleton(head.kind, flags));
                }
            }
            SlotType::FILE => detail.count = self.descriptor(&head),
            SlotType::SYMBOL => self.symbol(slot, &mut detail),
            SlotType::FLOAT => {
                let value = match f64::from_bits(head.word(2)) {
                    value if value.is_infinite() && value > 0.0 => "Inf".to_owned(),
                    value if value.is_infinite() => "-Inf".to_owned(),
                    value => format!("{value:?}"),
                };
                detail.text = self.values.then(|| value.into_bytes());
                detail.outside = Some(0);
            }
            SlotType(0x0e | 0x0f) => detail.outside = Some(0),
            _ => {}
        }
        // `self.bodies.head` is the head of another object if one was read meanwhile.
        self.bodies.head = head;
        detail
    }

    fn string(&mut self, slot: u32, head: &Head, detail: &mut Detail) {
        let flags = head.flags();
        let Some(Contents::Text { at, bytes, encoding, home }) = self.bodies.contents_of(head)
        else {
            return;
        };
        let is_shared = matches!(home, TextHome::Shared(_));
        let can_be_chilled = self.bodies.space.interpreter.has_chilled_strings();
        detail.set(Fact::Embedded, flags & STRING_NOT_EMBEDDED == 0);
        detail.set(Fact::Shared, is_shared);
        detail.set(Fact::Fstring, flags & IS_FSTRING != 0);
        detail.set(Fact::Chilled, can_be_chilled && flags & CHILLED != 0);
        detail.encoding = Some(encoding);
        detail.code_range = (flags >> CODE_RANGE_SHIFT & 3) as u8;
        detail.count = Some(bytes);
        let is_own = home == TextHome::Own && flags & IS_CONSTANT == 0;
        detail.outside = Some(match self.bodies.body(slot) {
            Some(Body::Own(room)) if is_own && room.unit == Unit::Byte => {
                room.capacity.saturating_add(detail.terminator_bytes())
            }
            _ => 0,
        });
        detail.text = self.text(at, bytes);
    }

    /// The bytes of a text; `None` if they are not wanted or cannot be read.
    fn text(&mut self, at: Address, bytes: u64) -> Option<Vec<u8>> {
        if !self.values {
            return None;
        }
        self.text_budget = self.text_budget.checked_sub(bytes)?;
        let mut text = Vec::new();
        // The length may be wrong, so no more is allocated than there is.
        while (text.len() as u64) < bytes {
            let read = text.len();
            let more = (bytes - read as u64).min(TEXT_BLOCK);
            text.resize(read + more as usize, 0);
            self.bodies.image.read_exact(at.offset(read as u64), &mut text[read..]).ok()?;
        }
        Some(text)
    }

    fn class_name(&mut self, head: &Head) -> Option<Vec<u8>> {
        let BodyReader { image, space, .. } = self.bodies;
        let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
        let name = space.class_names?.name(reader, head.at)?.into_bytes();
        self.text_budget = self.text_budget.checked_sub(name.len() as u64)?;
        Some(name)
    }

    fn symbol(&mut self, slot: u32, detail: &mut Detail) {
        detail.outside = Some(0);
        let space = self.bodies.space;
        let is_string = |it: &&u32| space.slots[**it as usize].kind() == SlotType::STRING;
        let Some(&name) = space.links.of(slot).iter().find(is_string) else { return };
        let Some(head) = self.bodies.head(name) else { return };
        if let Some(Contents::Text { at, bytes, .. }) = self.bodies.contents_of(&head) {
            detail.count = Some(bytes);
            detail.text = self.text(at, bytes);
        }
    }

    fn array(&mut self, slot: u32, head: &Head, detail: &mut Detail) {
        let flags = head.flags();
        let Some(Contents::Values { words, .. }) = self.bodies.contents_of(head) else { return };
        let body = self.bodies.body(slot);
        detail.set(Fact::Embedded, flags & ARRAY_EMBEDDED != 0);
        detail.set(Fact::Shared, matches!(body, Some(Body::Slice(_))));
        detail.count = Some(words);
        let transient = self.bodies.space.transient_heap.as_ref();
        detail.outside = Some(match body {
            Some(Body::Own(room)) if room.unit == Unit::Element => {
                let is_transient = flags & IS_TRANSIENT != 0
                    && transient.is_some_and(|heap| heap.contains(&room.start));
                if is_transient { 0 } else { room.bytes() }
            }
            _ => 0,
        });
    }

    fn hash(&mut self, head: &Head, detail: &mut Detail) {
        let flags = head.flags();
        let Some(contents) = self.bodies.contents_of(head) else { return };
        detail.count = Some(contents.count());
        let has_pointer = head.has_table_pointer();
        let default = Address(head.word(if has_pointer { 3 } else { 2 }));
        let space = self.bodies.space;
        detail.related = (flags & HASH_HAS_PROC != 0).then(|| space.slot_at(default)).flatten();
        detail.outside = if flags & HASH_HAS_TABLE != 0 {
            let head_bytes = if has_pointer { self.bodies.layout.bytes() } else { 0 };
            self.bodies.table_of(head).map(|it| it.bytes().saturating_add(head_bytes))
        } else {
            let is_outside = has_pointer && head.word(2) != 0 && flags & HASH_IS_TRANSIENT == 0;
            Some(if is_outside { PAIRS_BYTES } else { 0 })
        };
    }

    fn object(&mut self, head: &Head, detail: &mut Detail) {
        let flags = head.flags();
        let Some(tree) = self.bodies.space.shape_tree else {
            // The number of variables that there is room for.
            let is_embedded = flags & OBJECT_EMBEDDED != 0;
            let room = if is_embedded { head.room_from(2) } else { head.word(2) & 0xffff_ffff };
            detail.count = Some(room);
            detail.outside = Some(if is_embedded { 0 } else { 8 * room });
            return;
        };
        let Some((room, used)) = self.bodies.variables(head) else {
            if let Some(table) = self.bodies.table_of_variables(head) {
                // In 3.3 and 3.4 its flags still say so.
                let is_embedded = tree.home == ShapeHome::Tree && flags & OBJECT_EMBEDDED != 0;
                detail.set(Fact::Embedded, is_embedded);
                detail.set(Fact::TooComplex, true);
                detail.count = Some(table.count);
                let bytes = table.bytes().saturating_add(self.bodies.layout.bytes());
                detail.outside = Some(if tree.home == ShapeHome::Short { 0 } else { bytes });
                return;
            }
            // In an internal object.
            let variables = self.bodies.shape(tree, flags);
            detail.count = variables.map(|[used, _]| used);
            detail.outside = variables.map(|_| 0);
            return;
        };
        let is_embedded = room.start == head.address(2);
        detail.set(Fact::Embedded, is_embedded);
        detail.count = Some(used);
        detail.outside = Some(if is_embedded { 0 } else { room.bytes() });
    }

    /// The memory of an internal object, as Ruby counts it; `None` if that is unknown.
    fn outside_of_internal(&mut self, head: &Head) -> Option<u64> {
        const ENV_SIZE: usize = 4;
        let space = self.bodies.space;
        let slot = space.slots.get(head.slot as usize)?;
        match space.classes.get(slot.class() as usize)?.kind {
            // `rb_env_t`
            ClassKind::Imemo(ImemoType::Env) => Some(8 * u64::from(head.word(ENV_SIZE) as u32)),
            ClassKind::Imemo(ImemoType::Fields) => {
                Some(self.bodies.table_of_variables(head).map_or(0, |it| it.bytes()))
            }
            _ => None,
        }
    }

    fn outside_of_struct(&self, head: &Head) -> u64 {
        let fields = self.bodies.space.interpreter.fields_of_structs();
        let first = if fields == StructFields::BeforeMembers { 3 } else { 2 };
        let inside = head.flags() >> STRUCT_LENGTH_SHIFT & STRUCT_LENGTH_MASK;
        let has_transient_heap = self.bodies.space.transient_heap.is_some();
        let is_transient = has_transient_heap && head.flags() & STRUCT_IS_TRANSIENT != 0;
        match inside {
            0 if !is_transient => head.word(first).saturating_mul(8),
            _ => 0,
        }
    }

    /// The number of the file that an IO has open, 32 bits with a sign: in 2.7 the second word of its `rb_io_t`, and the third one later, which begins with
    /// a reference to the IO.
    fn descriptor(&self, head: &Head) -> Option<u64> {
        let mut bytes = [0; 24];
        self.bodies.image.read_exact(Address(head.word(2)), &mut bytes).ok()?;
        let at = if word(&bytes, 0) == head.at.0 { 16 } else { 8 };
        Some(word(&bytes, at) & 0xffff_ffff)
    }
}

/// Returns true if the second word of an object is its class in a dump, too.
fn has_class(head: &Head, space: &ObjectSpace) -> bool {
    match head.kind {
        SlotType::IMEMO => has_fields(head, space),
        SlotType::MOVED => false,
        _ => head.word(1) != 0,
    }
}

/// Returns true for internal objects with the variables of an object, which has their class and shape.
fn has_fields(head: &Head, space: &ObjectSpace) -> bool {
    let slot = space.slots.get(head.slot as usize);
    let class = slot.and_then(|slot| space.classes.get(slot.class() as usize));
    class.is_some_and(|class| class.kind == ClassKind::Imemo(ImemoType::Fields))
}

/// The number of the shape of an object. From 4.0 on it is only the place in the list, and most internal objects have none.
fn shape_number(tree: ShapeTree, head: &Head, space: &ObjectSpace) -> Option<u32> {
    let is_short = matches!(tree.home, ShapeHome::Variable | ShapeHome::Short);
    let has_shape = !is_short || head.kind != SlotType::IMEMO || has_fields(head, space);
    has_shape.then(|| tree.number((head.flags() >> 32) as u32))
}
