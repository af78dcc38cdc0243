use std::collections::BTreeMap;
use std::ops::Range;

use image::Image;
use linux::Address;

use crate::areas::mn_stacks::MnStack;
use crate::backtrace::StackLayout;
use crate::code_paths::Iseq;
use crate::finding::Finding;
use crate::interpreter::Interpreter;
use crate::layout::bitmaps::Bitmaps;
use crate::layout::class_layout::ClassLayout;
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::layout::imemo::ImemoTypes;
use crate::layout::shape_tree::ShapeTree;
use crate::model::class::{Class, ClassKind};
use crate::model::content::Content;
use crate::model::data_type::{DataObjects, DataType};
use crate::model::heap_page::{self, HeapPage};
use crate::model::imemo::ImemoType;
use crate::model::links::Links;
use crate::model::ractor::Ractor;
use crate::model::references::References;
use crate::model::slot::{Slot, SlotState, SlotType};
use crate::model::slot_index::SlotIndex;
use crate::model::vm_stack::VmStack;
use crate::old_objects::OldObjects;

/// CRuby's object space of one process at one instant, as plain data.
#[derive(Debug, Clone, Default)]
pub struct ObjectSpace {
    /// The interpreter.
    pub interpreter: Interpreter,
    /// Its heap pages, ascending by address.
    pub pages: Vec<HeapPage>,
    /// The slots of all pages, in the order of the pages.
    pub slots: Vec<Slot>,
    /// The classes that live slots name, and one for each kind of objects without a class.
    pub classes: Vec<Class>,
    /// The words of live slots that may point to malloc'ed memory.
    pub references: References,
    /// The words of live slots that refer to other live slots; empty unless everything was read.
    pub links: Links,
    /// Live objects other than classes that have a singleton class, and its slot, ascending; empty unless everything was read.
    pub singletons: Vec<(u32, u32)>,
    /// The C structures that objects of C extensions, and of Ruby's own C classes, wrap.
    pub data_types: Vec<DataType>,
    /// The slots of such objects (T_DATA), and the type of each.
    pub data_objects: DataObjects,
    /// The machine stacks of fibers, without their guard pages, in use or kept for the next fiber.
    pub fiber_stacks: Vec<Range<Address>>,
    /// The stacks of threads that share native threads, ascending.
    pub mn_stacks: Vec<MnStack>,
    /// The code of a JIT compiler, and the room that it has left.
    pub jit_code: Vec<Range<Address>>,
    /// The transient heap, where small arrays, hashes and structs live for a short while (2.6 to
    /// 3.2), outside malloc.
    pub transient_heap: Option<Range<Address>>,
    /// The slots of the objects with memory there, ascending, and its resident bytes; empty unless everything was read.
    pub transient: Vec<(u32, u32)>,
    /// The parts of it that no object has, ascending.
    pub transient_free: Vec<Range<Address>>,
    /// The memory of heap pages that Ruby has freed and keeps, or has mapped and not used yet, ascending (from 4.1 on).
    pub free_pages: Vec<Range<Address>>,
    /// Malloc'ed memory of which only a part is in use: the collector's array of pages and stack of objects to mark, and the tables
    /// of Sets (from 4.0 on; empty unless everything was read). For each its address and content.
    pub contents: Vec<(Address, Content)>,
    /// The collector's number of old objects; `None` if it could not be derived.
    pub old_objects: Option<OldObjects>,
    /// An address inside the collector's structure (`rb_objspace_t`), the head of a list of its pages. Of several Ractors with a
    /// collector of their own (from 4.1 on) it is the main one's.
    pub collector_address: Option<Address>,
    /// The Ractors that have an object space of their own; empty if there is one for all.
    pub ractors: Vec<Ractor>,
    /// The VM stacks of threads; empty if their layout could not be derived.
    pub vm_stacks: Vec<VmStack>,
    /// The slots of the Thread objects whose threads have ended: they are in no list of threads.
    pub ended_threads: Vec<u32>,
    /// The slots of the Thread objects without a VM stack that are in a list of threads, and the address of the next one or of the list's
    /// head. Their threads have not begun, or are the last ones of Ractors that have ended: those stay in the list of their Ractor, which
    /// `rb_ractor_living_threads_remove` in ractor.c takes out of the list of Ractors instead.
    pub stackless_threads: Vec<(u32, Address)>,
    /// Remarks, mostly on parts that could not be read.
    pub findings: Vec<Finding>,
    pub(crate) slot_index: SlotIndex,
    /// Derived while the slots were read, and needed once more for [`named_roots`](crate::named_roots) and
    /// [`backtraces`](crate::backtraces).
    pub(crate) class_names: Option<ClassNames>,
    pub(crate) imemo_types: Option<ImemoTypes>,
    pub(crate) class_layout: Option<ClassLayout>,
    pub(crate) shape_tree: Option<ShapeTree>,
    /// True after `GC.stress = true`, where that is no flag of an object space (from 4.1 on).
    pub(crate) is_stressed: Option<bool>,
    /// The bitmaps of page descriptors.
    pub(crate) bitmaps: Option<Bitmaps>,
    /// The offsets of buffers in the structures of IOs.
    pub(crate) io_buffers: Vec<usize>,
    /// All iseqs with a body, by its address.
    pub(crate) iseqs: Vec<Iseq>,
    pub(crate) stack_layout: Option<StackLayout>,
}

/// Finds the bytes of slots: neighbours are on one page.
#[derive(Debug, Clone)]
pub struct SlotSizes<'a> {
    pages: &'a [HeapPage],
    /// The page of the last slot.
    page: usize,
    transient: &'a [(u32, u32)],
    /// The first one of these that is not before the last slot.
    next: usize,
}

impl SlotSizes<'_> {
    /// The bytes that the object in a slot has on the transient heap.
    pub fn transient_of(&mut self, slot: u32) -> u64 {
        let is_before = |it: &(u32, u32)| it.0 < slot;
        let last = self.next.checked_sub(1).and_then(|last| self.transient.get(last));
        if last.is_some_and(|last| !is_before(last)) {
            self.next = 0;
        }
        // Slots are mostly neighbours.
        if self.transient[self.next..].first().is_some_and(is_before) {
            self.next += 1;
            self.next += self.transient[self.next..].partition_point(is_before);
        }
        let its = self.transient[self.next..].iter().take_while(|it| it.0 == slot);
        its.map(|it| u64::from(it.1)).sum()
    }

    /// The bytes of a slot; 0 if there is no such slot.
    pub fn of(&mut self, slot: u32) -> u64 {
        let is_on = |page: &&HeapPage| page.slots.contains(&(slot as usize));
        if self.pages.get(self.page).filter(is_on).is_none() {
            self.page = self.pages.partition_point(|page| page.slots.end <= slot as usize);
        }
        self.pages.get(self.page).map_or(0, |page| page.slot_bytes.into())
    }
}

impl ObjectSpace {
    /// Returns true if a thread has the stack, or if no VM stacks are known, so that one may have it.
    #[must_use]
    pub fn is_in_use(&self, stack: &MnStack) -> bool {
        stack.thread.is_some() || self.vm_stacks.is_empty()
    }

    /// Returns true if a slot has an Array of the interpreter's own, which has no class.
    #[must_use]
    pub fn is_hidden_array(&self, slot: u32) -> bool {
        let class =
            self.slots.get(slot as usize).and_then(|it| self.classes.get(it.class() as usize));
        class.is_some_and(|class| class.kind == ClassKind::Hidden(SlotType::ARRAY))
    }

    /// The slots of the live internal objects of this type.
    pub(crate) fn live_imemos(&self, kind: ImemoType) -> impl Iterator<Item = u32> {
        let is_it: Vec<bool> =
            self.classes.iter().map(|class| class.kind == ClassKind::Imemo(kind)).collect();
        let slots = (0..).zip(&self.slots).filter(move |(_, slot)| {
            slot.is_live() && is_it.get(slot.class() as usize) == Some(&true)
        });
        slots.map(|(slot, _)| slot)
    }

    /// The type of the structure that the T_DATA object in this slot wraps; `None` for other objects, and if it is unknown.
    #[must_use]
    pub fn data_type_of(&self, slot: u32) -> Option<&DataType> {
        self.data_types.get(self.data_objects.type_of(slot)? as usize)
    }

    /// The text of the string in this slot, cut off after 1 KiB and without control characters; `None` for other objects.
    /// `image` is the one that the object space was read from.
    #[must_use]
    pub fn text(&self, image: &Image<'_>, slot: u32) -> Option<String> {
        let reader = ObjectReader::new(image, &self.slot_index, &self.slots);
        self.class_names?.text(reader, self.slot_address(slot as usize)?.0)
    }

    /// The slots by type, as `ObjectSpace.count_objects` counts them: `TOTAL`, `FREE`, and each
    /// type that occurs.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut by_type = [0_u64; 32];
        let mut free = 0;
        for slot in &self.slots {
            match slot.state() {
                SlotState::Free => free += 1,
                SlotState::Unread => {}
                SlotState::Marked | SlotState::Unmarked => {
                    by_type[usize::from(slot.kind().0 % 32)] += 1;
                }
            }
        }
        let types = (0..32).filter(|&kind| by_type[kind] > 0);
        let mut counts: BTreeMap<_, _> =
            types.map(|kind| (SlotType(kind as u8).name(), by_type[kind])).collect();
        counts.insert("TOTAL", self.slots.len() as u64);
        counts.insert("FREE", free);
        counts
    }

    /// All slots, in their order, each with its size in bytes. There are millions: `for_each` takes a
    /// fifth less time than a loop over them.
    pub fn sized_slots(&self) -> impl Iterator<Item = (Slot, u64)> + '_ {
        self.pages.iter().flat_map(|page| {
            let slots = self.slots.get(page.slots.clone()).unwrap_or_default();
            let bytes = u64::from(page.slot_bytes);
            slots.iter().map(move |&slot| (slot, bytes))
        })
    }

    /// The bytes that the object in a slot has on the transient heap.
    #[must_use]
    pub fn transient_bytes(&self, slot: u32) -> u64 {
        let first = self.transient.partition_point(|it| it.0 < slot);
        let its = self.transient[first..].iter().take_while(|it| it.0 == slot);
        its.map(|it| u64::from(it.1)).sum()
    }

    /// Returns true if objects have shapes (from 3.2 on).
    #[must_use]
    pub fn has_shapes(&self) -> bool {
        self.shape_tree.is_some()
    }

    /// The word that stands for `nil` (`RUBY_Qnil`, changed with the shapes of 3.2).
    #[must_use]
    pub fn nil(&self) -> u64 {
        if self.shape_tree.is_some() { 0x04 } else { 0x08 }
    }

    /// The bytes of a slot; 0 if there is no such slot.
    #[must_use]
    pub fn slot_bytes(&self, slot: u32) -> u64 {
        self.slot_sizes().of(slot)
    }

    /// The bytes of slots, best in their order.
    #[must_use]
    pub fn slot_sizes(&self) -> SlotSizes<'_> {
        SlotSizes { pages: &self.pages, page: 0, transient: &self.transient, next: 0 }
    }

    /// The index of the slot that begins at `at`, in constant time. Ruby's own references always
    /// point to the beginning of a slot, so pointers into one are not references.
    #[inline]
    #[must_use]
    pub fn slot_at(&self, at: Address) -> Option<u32> {
        self.slot_index.slot_at(at)
    }

    /// The address of the slot with this index.
    #[must_use]
    pub fn slot_address(&self, slot: usize) -> Option<Address> {
        heap_page::slot_address(&self.pages, slot)
    }
}
