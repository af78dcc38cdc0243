//! Reads the slots of all heap pages in one pass, with two reads per page.

use std::collections::HashMap;
use std::ops::Range;

use image::{Image, Memory, Window};
use linux::{Address, MIN_PAGE_SIZE, each};

use crate::address_classifier::AddressClassifier;
use crate::areas::transient_heap::TransientHeap;
use crate::error::{Check, Failure};
use crate::finding::Finding;
use crate::layout::bitmaps::{self, Bitmaps, MAX_WORDS};
use crate::layout::class_layout::Ancestor;
use crate::layout::context::Context;
use crate::layout::object::Object;
use crate::layout::object_layouts::ObjectLayouts;
use crate::layout::st_table::{StTable, TableLayout};
use crate::layout::{imemo, io_buffers};
use crate::model::class::ClassReference;
use crate::model::content::Content;
use crate::model::depth::Depth;
use crate::model::heap_page::HeapPage;
use crate::model::links::Links;
use crate::model::references::References;
use crate::model::slot::{Slot, SlotState, SlotType};
use crate::read::data_types::Signatures;
use crate::read::references::{self, Reference};

/// In every Ruby, heaps with more objects than this have some without a write barrier.
const ENOUGH_OBJECTS: u64 = 2_000;
/// At most one mark in this many may be on a free slot whose object the program freed itself.
const MARKS_PER_RECYCLED: u64 = 8;
/// The size of the cache of classes, a power of two.
const CACHED_CLASSES: usize = 1024;
/// The key of a place of this cache that is empty.
const NOTHING_CACHED: u64 = u64::MAX;
/// No address of a process has this bit.
const NO_ADDRESS: u64 = 1 << 63;
/// The maximum number of portions of a heap. Threads that take small portions end at about the same time.
const MAX_PORTIONS: usize = 16;
/// The minimum size of a portion, except that a heap has at least two. Every portion meets all classes again.
const MIN_SLOTS: usize = 1 << 16;
/// The bytes of tables that are read at a time.
const TABLES_BLOCK: usize = 64 << 10;

/// Counts of slots, by which the layout that they were read with is judged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) live: u64,
    /// Unmarked objects whose class is in no slot: they may be garbage whose class was swept first.
    pub(crate) astray: u64,
    pub(crate) marked: u64,
    /// Slots that could not be read because they are swapped out.
    pub(crate) unread: u64,
    unprotected: u64,
    /// Objects that minor collections leave alone.
    pub(crate) old: u64,
    /// Marks of free slots, in releases that may have any.
    recycled: u64,
}

impl Counts {
    fn add(&mut self, more: &Self) {
        self.live += more.live;
        self.astray += more.astray;
        self.marked += more.marked;
        self.unread += more.unread;
        self.unprotected += more.unprotected;
        self.old += more.old;
        self.recycled += more.recycled;
    }
}

/// The classes that slots name, each once.
#[derive(Debug)]
pub(crate) struct ClassReferences {
    numbers: HashMap<ClassReference, u32>,
    /// In the order of the first slots that name them.
    pub(crate) list: Vec<ClassReference>,
    /// Addresses of classes, or the types of objects without one, and their numbers.
    cache: Vec<(u64, u32)>,
}

impl Default for ClassReferences {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            list: Vec::new(),
            cache: vec![(NOTHING_CACHED, Slot::NO_CLASS); CACHED_CLASSES],
        }
    }
}

impl ClassReferences {
    /// The number of an object's class; [`Slot::NO_CLASS`] if it is in no slot.
    fn of(&mut self, object: &Object<'_>, classifier: &AddressClassifier<'_>) -> u32 {
        let class = object.word(1);
        let is_classless = object.kind.has_no_class() || class == 0;
        if !is_classless && class >= NO_ADDRESS {
            return Slot::NO_CLASS;
        }
        let key = if is_classless {
            NO_ADDRESS | u64::from(object.imemo_number()) << 5 | u64::from(object.kind.0)
        } else {
            class
        };
        let place = (key >> 3 ^ key) as usize % CACHED_CLASSES;
        let (cached, number) = self.cache[place];
        if cached == key {
            return number;
        }
        let number = if is_classless {
            let is_imemo = object.kind == SlotType::IMEMO;
            let number = if is_imemo { object.imemo_number() } else { 0 };
            self.number(ClassReference::Classless(object.kind, number))
        } else {
            let slot = classifier.slot_at(class);
            slot.map_or(Slot::NO_CLASS, |slot| self.number(ClassReference::Slot(slot)))
        };
        self.cache[place] = (key, number);
        number
    }

    /// The number of a reference; [`Slot::NO_CLASS`] if there are too many.
    fn number(&mut self, class: ClassReference) -> u32 {
        *self.numbers.entry(class).or_insert_with(|| {
            let number = self.list.len() as u32;
            if number < Slot::NO_CLASS {
                self.list.push(class);
            }
            number.min(Slot::NO_CLASS)
        })
    }
}

/// All slots, with the numbers of [`ClassReference`]s as classes.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) slots: Vec<Slot>,
    pub(crate) class_references: ClassReferences,
    /// In slot order.
    pub(crate) ancestors: Vec<Ancestor>,
    pub(crate) references: References,
    pub(crate) links: Links,
    /// Objects with memory on the transient heap, and its bytes. In slot order.
    pub(crate) transient: Vec<(u32, u32)>,
    /// This memory, in slot order.
    pub(crate) transient_used: Vec<Range<Address>>,
    /// Hashes with the addresses of their `st_table`, and IOs with those of their `rb_io_t`.
    tables: Vec<(u32, Address)>,
    ios: Vec<(u32, Address)>,
    /// The offsets of buffers in the latter.
    pub(crate) io_buffers: Vec<usize>,
    pub(crate) data: Signatures,
    pub(crate) imemos: imemo::Samples,
    pub(crate) counts: Counts,
    /// Reports the types whose layout was given up.
    pub(crate) unknown_layouts: Option<Finding>,
}

impl Slots {
    /// Adds the slots of the next pages.
    fn append(&mut self, more: Self) {
        let references = more.class_references.list.iter();
        let classes: Vec<u32> = references.map(|&it| self.class_references.number(it)).collect();
        let with_class = |slot: Slot| match classes.get(slot.class() as usize) {
            Some(&class) if slot.is_live() => Slot::new(class, slot.kind(), slot.state()),
            _ => slot,
        };
        self.slots.extend(more.slots.into_iter().map(with_class));
        self.ancestors.extend(more.ancestors);
        self.references.append(more.references);
        self.links.append(more.links);
        self.transient.extend(more.transient);
        self.transient_used.extend(more.transient_used);
        self.data.append(more.data);
        self.imemos.append(&more.imemos);
        self.io_buffers.extend(more.io_buffers);
        self.io_buffers.sort_unstable();
        self.io_buffers.dedup();
        self.counts.add(&more.counts);
    }
}

/// Reads the slots of all pages, and fails if they do not look like slots.
pub(crate) fn read(
    context: &Context<'_>,
    bitmaps: Bitmaps,
    transient_heap: Option<&TransientHeap<'_>>,
    depth: Depth,
) -> Result<Slots, Failure> {
    let mut layouts = ObjectLayouts::new(context.basics);
    let mut all = read_with(context, bitmaps, transient_heap, depth, &mut layouts)?;
    if layouts.refute() {
        drop(all);
        all = read_with(context, bitmaps, transient_heap, depth, &mut layouts)?;
    }
    all.unknown_layouts = layouts.finding();
    Ok(all)
}

/// The memory of tables that are not in slots (up to 3.2): each is a Hash's slot, and the address of
/// its table. If there is no table, all words of that memory may be in use.
fn memory_of_tables(
    image: &Image<'_>,
    classifier: &AddressClassifier<'_>,
    mut tables: Vec<(u32, Address)>,
) -> Vec<(u32, Address, Content)> {
    tables.sort_unstable_by_key(|&(_, at)| at);
    let mut window = Window::new(image, TABLES_BLOCK);
    let mut memory = Vec::with_capacity(3 * tables.len());
    for (slot, at) in tables {
        let bytes = window.bytes(at, TableLayout::OwnBins.bytes() as usize).ok();
        let table = bytes.and_then(|bytes| TableLayout::OwnBins.table(bytes));
        let table = table.filter(|it| it.is_in_private_memory(classifier));
        let content = if table.is_some() { Content::BYTES } else { Content::UNKNOWN };
        memory.push((slot, at, content));
        let own = table.into_iter().flat_map(StTable::memory);
        memory.extend(own.map(|(at, content)| (slot, at, content)));
    }
    memory
}

/// Reads the slots of all pages, several portions of them at the same time.
fn read_with(
    context: &Context<'_>,
    bitmaps: Bitmaps,
    transient_heap: Option<&TransientHeap<'_>>,
    depth: Depth,
    layouts: &mut ObjectLayouts<'_>,
) -> Result<Slots, Failure> {
    let pages = &context.heap.pages;
    let slot_count = context.heap.slot_count();
    let count = (slot_count / MIN_SLOTS).clamp(2, MAX_PORTIONS);
    let page_at = |portion: usize| {
        let first = slot_count / count * portion;
        pages.partition_point(|page| page.slots.start < first)
    };
    let portions = each(count, |portion| {
        let end = if portion + 1 < count { page_at(portion + 1) } else { pages.len() };
        let mut layouts = layouts.for_others();
        let pages = page_at(portion)..end;
        let slots = read_pages(context, bitmaps, transient_heap, depth, &mut layouts, pages)?;
        Ok((slots, layouts))
    });
    let mut all = Slots::default();
    all.slots.reserve_exact(slot_count);
    for portion in portions {
        let (slots, of_portion) = portion?;
        all.append(slots);
        layouts.count(&of_portion);
    }
    if depth == Depth::Graph {
        all.links = all.links.finish(&all.slots);
    }
    let is_scattered = all.counts.recycled > all.counts.marked / MARKS_PER_RECYCLED;
    if is_scattered || all.counts.live > ENOUGH_OBJECTS && all.counts.unprotected == 0 {
        return Err(context.failure(Check::Bitmaps, context.heap.start()));
    }
    Ok(all)
}

/// Reads the slots of some pages, and the memory of their tables and IOs.
fn read_pages(
    context: &Context<'_>,
    bitmaps: Bitmaps,
    transient_heap: Option<&TransientHeap<'_>>,
    depth: Depth,
    layouts: &mut ObjectLayouts<'_>,
    pages: Range<usize>,
) -> Result<Slots, Failure> {
    let heap = context.heap;
    let body = vec![0; 1 << heap.page_log2()];
    let holes = Vec::new();
    let mut reader = Reader { context, bitmaps, transient_heap, depth, layouts, body, holes };
    let (own, descriptors) = (&heap.pages[pages.clone()], &heap.descriptors[pages]);
    let first = own.first().map_or(0, |page| page.slots.start as u32);
    let mut read = Slots {
        slots: Vec::with_capacity(own.iter().map(|page| page.slots.len()).sum()),
        links: Links::from_slot(first),
        references: References::from_slot(first, depth == Depth::Graph),
        ..Slots::default()
    };
    for (page, &descriptor) in own.iter().zip(descriptors) {
        reader.read_page(page, descriptor, &mut read)?;
    }
    let (image, classifier) = (context.basics.image, &context.classifier);
    let tables = std::mem::take(&mut read.tables);
    let mut more = memory_of_tables(image, classifier, tables);
    let (of_ios, offsets) = io_buffers::memory_of(image, classifier, &read.ios);
    more.extend(of_ios);
    read.io_buffers = offsets;
    read.references = read.references.merge(more);
    Ok(read)
}

struct Reader<'a, 'l> {
    context: &'a Context<'a>,
    bitmaps: Bitmaps,
    transient_heap: Option<&'a TransientHeap<'a>>,
    depth: Depth,
    layouts: &'a mut ObjectLayouts<'l>,
    /// The slots of the page that is being read.
    body: Vec<u8>,
    /// The parts of the body that could not be read, as offsets; nearly always empty.
    holes: Vec<Range<usize>>,
}

impl Reader<'_, '_> {
    fn read_page(
        &mut self,
        page: &HeapPage,
        descriptor: Address,
        into: &mut Slots,
    ) -> Result<(), Failure> {
        let context = self.context;
        if page.slots.is_empty() {
            return Ok(());
        }
        let first = into.slots.len();
        into.slots.resize(first + page.slots.len(), Slot::UNREAD);
        let slots = &mut into.slots[first..];
        let unreadable = context.failure(Check::Readable, page.range.start);
        let slot_bytes = page.slot_bytes as usize;
        self.read_body(page.first_slot, slot_bytes * slots.len()).ok_or(unreadable)?;
        let image = context.basics.image;
        let page_bitmaps = self.bitmaps.read(image, page, descriptor).ok_or(unreadable)?;
        let mut live = [0; MAX_WORDS];
        let bits = self.bitmaps.indices(page);
        for ((number, slot), bit) in slots.iter_mut().enumerate().zip(bits) {
            let (offset, number) = (number * slot_bytes, number as u32);
            if self.holes.iter().any(|it| offset < it.end && it.start < offset + slot_bytes) {
                into.counts.unread += 1;
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
            let is_marked = bitmaps::bit(&page_bitmaps.marked, bit);
            let class = into.class_references.of(&object, &context.classifier);
            if class == Slot::NO_CLASS {
                if is_marked {
                    return Err(context.failure(Check::Classes, at));
                }
                into.counts.astray += 1;
            }
            into.counts.live += 1;
            let state = if is_marked { SlotState::Marked } else { SlotState::Unmarked };
            *slot = Slot::new(class, object.kind, state);
            let (own, classifier) = (page.slots.start as u32 + number, &context.classifier);
            into.ancestors.extend(context.basics.class_layout.ancestor(own, &object, classifier));
            let (depth, layouts) = (self.depth, &mut *self.layouts);
            references::for_each(&object, is_marked, classifier, layouts, |found| match found {
                Reference::Memory(to, content) => {
                    match self.transient_heap.and_then(|heap| heap.of(at, to)) {
                        Some(allocation) => {
                            let Some(range) = allocation.range() else { return };
                            if depth == Depth::Graph {
                                into.transient.push((own, linux::length(&range) as u32));
                                let words = allocation.words(content);
                                let slots = words.filter_map(|word| classifier.slot_at(word));
                                slots.for_each(|to| into.links.push(own, to));
                            }
                            into.transient_used.push(range);
                        }
                        None => into.references.push(own, to, content),
                    }
                }
                Reference::Table(at) => into.tables.push((own, at)),
                Reference::Io(at) => into.ios.push((own, at)),
                Reference::Slot(to) if depth == Depth::Graph => into.links.push(own, to),
                Reference::Slot(_) => {}
            });
            if object.kind == SlotType::IMEMO {
                into.imemos.take(own, &object, is_marked);
            }
            if object.kind == SlotType::DATA {
                into.data.push(own, &object, classifier);
            }
        }
        let may_recycle = context.basics.interpreter.may_mark_recycled_slots();
        let recycled = if may_recycle { page_bitmaps.recycled(&live) } else { 0 };
        into.counts.recycled += u64::from(recycled);
        if page_bitmaps.wrong(&live) > recycled {
            return Err(context.failure(Check::Bitmaps, page.range.start));
        }
        into.counts.marked += count(&page_bitmaps.marked);
        into.counts.unprotected += count(&page_bitmaps.unprotected);
        into.counts.old += count(&page_bitmaps.old);
        Ok(())
    }

    /// Reads a page's slots; swapped-out parts become holes. `None` if it is unreadable for another
    /// reason: Ruby protects pages while it compacts its heap.
    fn read_body(&mut self, first: Address, bytes: usize) -> Option<()> {
        self.holes.clear();
        let image = self.context.basics.image;
        let body = &mut self.body[..bytes];
        if image.read(first, body) == bytes {
            return Some(());
        }
        let all = first..first.offset(bytes as u64);
        let states = image.state.pages.as_ref()?;
        for run in states.runs_in(&all).filter(|run| run.state.hides_contents()) {
            let hole = linux::intersection(&run.range, &all);
            self.holes.push((hole.start - first) as usize..(hole.end - first) as usize);
        }
        let mut at = first;
        while at < all.end {
            let end = at.offset(1).align_up(MIN_PAGE_SIZE).min(all.end);
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

fn count(bits: &[u64; MAX_WORDS]) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}
