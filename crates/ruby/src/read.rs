pub(crate) mod classes;
mod data_types;
pub(crate) mod references;
pub(crate) mod slots;

use image::{Image, Window};
use linux::Address;

use crate::areas::page_pool::PagePool;
use crate::areas::transient_heap::TransientHeap;
use crate::areas::{fiber_stacks, jit_code, mark_stack, mn_stacks};
use crate::error::{Check, Error, Failure};
use crate::finding::Finding;
use crate::interpreter::{self, Interpreter};
use crate::layout::bitmaps::Bitmaps;
use crate::layout::context::{Basics, Context};
use crate::layout::heap_layout::{HeapLayout, SpaceMembers};
use crate::layout::{embedded, page_finder, set_table};
use crate::model::content::{Content, Form};
use crate::model::data_type::DataType;
use crate::model::depth::Depth;
use crate::object_space::ObjectSpace;
use crate::old_objects::OldObjects;
use crate::read::classes::Classes;
use crate::read::slots::Counts;
use crate::{backtrace, code_paths, ractors};

/// The sizes of heap pages that are tried, as powers of two: 16 KiB up to 3.1, 64 KiB since.
pub(crate) const PAGE_SIZES_LOG2: std::ops::RangeInclusive<u32> = 13..=17;
/// Bytes of slots with Sets that are read at a time.
const SETS_BLOCK: usize = 64 << 10;

/// Reads the object space of a stopped process.
///
/// # Errors
/// If the process is not a Ruby, or the layout of its heap could not be derived beyond doubt. Then
/// nothing is known of its Ruby side; other sides of the image are not affected.
pub fn read(image: &Image<'_>) -> Result<ObjectSpace, Error> {
    let interpreter = interpreter::find(image).ok_or(Error::NotRuby)?;
    read_with(image, &interpreter, Depth::Graph)
}

/// Reads the object space of a stopped process, for callers that have found its interpreter already
/// (see [`find_in`](crate::find_in)).
///
/// # Errors
/// As [`read`].
pub fn read_with(
    image: &Image<'_>,
    interpreter: &Interpreter,
    depth: Depth,
) -> Result<ObjectSpace, Error> {
    interpreter.check_collector(image)?;
    let object = interpreter.object_class(image)?;
    read_heap(&Basics::derive(image, interpreter), object, depth)
        .map_err(|failure| Error::Layout { version: interpreter.version.clone(), failure })
}

/// Tries all page sizes, and accepts the heap if exactly one layout passes all checks.
fn read_heap(basics: &Basics<'_>, object: Address, depth: Depth) -> Result<ObjectSpace, Failure> {
    let mut furthest: Option<Failure> = None;
    let mut accepted: Option<ObjectSpace> = None;
    let mut note = |failure: Failure| {
        if furthest.is_none_or(|known| failure.check > known.check) {
            furthest = Some(failure);
        }
    };
    for page_log2 in PAGE_SIZES_LOG2 {
        let layouts =
            page_finder::find(basics.image, object, page_log2).unwrap_or_else(|failure| {
                note(failure);
                Vec::new()
            });
        for heap in layouts {
            match read_pages(basics, heap, depth) {
                Ok(_) if accepted.is_some() => {
                    let page_bytes = 1 << page_log2;
                    return Err(Failure { check: Check::Unique, at: object, page_bytes });
                }
                Ok(space) => accepted = Some(space),
                Err(failure) => note(failure),
            }
        }
    }
    accepted.ok_or_else(|| {
        furthest.unwrap_or(Failure { check: Check::Descriptor, at: object, page_bytes: 0 })
    })
}

/// Reads the slots of these pages, checks them, and finds Ruby's other memory.
fn read_pages(basics: &Basics<'_>, heap: HeapLayout, depth: Depth) -> Result<ObjectSpace, Failure> {
    let (image, interpreter) = (basics.image, basics.interpreter);
    let context = Context::new(basics, &heap);
    let bitmaps = Bitmaps::find(image, &heap)?;
    let transient_heap = TransientHeap::find(image, interpreter);
    let mut read = slots::read(&context, bitmaps, transient_heap.as_ref(), depth)?;
    let Classes { mut classes, names, imemo_types, mut findings, singletons } =
        classes::resolve(&context, &mut read, depth)?;
    let (data_types, data_objects, shortcoming) =
        read.data.resolve(image, &mut read.slots, &mut classes);
    findings.extend(shortcoming);
    findings.extend(read.unknown_layouts);
    findings.extend(remarks(&read.counts, image));
    findings.extend(transient_heap.as_ref().and_then(unread));
    let fiber_stacks = fiber_stacks::find(image, interpreter, &context.classifier);
    let mn_stacks = mn_stacks::find(image, interpreter, &context.classifier);
    let pool = PagePool::find(image, interpreter, &heap);
    let page_count = heap.pages.len() as u64;
    let index = pool.iter().map(|it| (it.index, Content::new(Form::Words, page_count)));
    let slot_index = context.classifier.into_index();
    let mut space = ObjectSpace {
        interpreter: interpreter.clone(),
        pages: heap.pages,
        slots: read.slots,
        classes,
        references: read.references,
        links: read.links,
        singletons,
        data_types,
        data_objects,
        fiber_stacks,
        mn_stacks,
        jit_code: jit_code::find(image, interpreter),
        contents: collector_memory(image, &heap.spaces, transient_heap.as_ref())
            .into_iter()
            .chain(index)
            .collect(),
        is_stressed: pool.as_ref().and_then(|it| it.is_stressed),
        free_pages: pool.map(|it| it.free).unwrap_or_default(),
        transient_free: transient_heap
            .as_ref()
            .map(|heap| heap.free(read.transient_used))
            .unwrap_or_default(),
        transient_heap: transient_heap.map(|heap| heap.range),
        transient: read.transient,
        collector_address: heap.spaces.first().map(|space| space.list_head),
        old_objects: OldObjects::find(image, &heap.spaces, read.counts.old),
        findings,
        slot_index,
        class_names: names,
        imemo_types: Some(imemo_types),
        class_layout: Some(basics.class_layout),
        shape_tree: basics.shape_tree,
        bitmaps: Some(bitmaps),
        io_buffers: read.io_buffers,
        iseqs: Vec::new(),
        stack_layout: None,
        ractors: Vec::new(),
        vm_stacks: Vec::new(),
        ended_threads: Vec::new(),
        stackless_threads: Vec::new(),
    };
    space.ractors = ractors::find(image, &space, &heap.spaces);
    (space.stack_layout, space.vm_stacks) = backtrace::vm_stacks(image, &space);
    mn_stacks::find_threads(image, &mut space.mn_stacks, &space.vm_stacks);
    (space.ended_threads, space.stackless_threads) =
        backtrace::threads_without_stack(image, &space);
    if depth == Depth::Graph {
        space.iseqs = code_paths::iseqs(&space);
        let of_sets = contents_of_sets(image, &space);
        space.contents.extend(of_sets);
    }
    Ok(space)
}

/// The malloc'ed memory of the garbage collector of which only a part is in use.
fn collector_memory(
    image: &Image<'_>,
    spaces: &[SpaceMembers],
    transient_heap: Option<&TransientHeap<'_>>,
) -> Vec<(Address, Content)> {
    let arrays = spaces.iter().map(|space| {
        let words = linux::length(&space.page_array) / 8;
        (space.page_array.start, Content::new(Form::Words, words))
    });
    let chunks = mark_stack::find(image, spaces).into_iter().map(|at| (at, Content::MARK_STACK));
    let promoted = transient_heap.map(|heap| (heap.promoted, Content::BYTES));
    arrays.chain(chunks).chain(promoted).collect()
}

/// The memory with the entries of each Set, and how much of it is in use.
fn contents_of_sets(image: &Image<'_>, space: &ObjectSpace) -> Vec<(Address, Content)> {
    let layout = space.interpreter.table_layout();
    let mut window = Window::new(image, SETS_BLOCK);
    let is_set = |slot: &u32| space.data_type_of(*slot).is_some_and(DataType::is_set);
    let sets = space.data_objects.iter().map(|(slot, _)| slot).filter(is_set);
    let entries = sets.filter_map(|slot| {
        let at = space.slot_address(slot as usize)?;
        let slot = window.bytes(at, embedded::STRUCTURE + 8 * set_table::words(layout)).ok()?;
        set_table::entries_of(layout, embedded::structure_of(slot)?)
    });
    entries.collect()
}

fn unread(transient_heap: &TransientHeap<'_>) -> Option<Finding> {
    let bytes = transient_heap.unread_bytes();
    (bytes >= 1 << 10).then_some(Finding::TransientHeapUnread { bytes })
}

fn remarks(counts: &Counts, image: &Image<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if counts.unread > 0 {
        findings.push(Finding::SlotsUnread { slots: counts.unread });
    }
    if counts.marked == 0 {
        findings.push(Finding::NoMarks);
    }
    if image.state.pages.is_none() {
        findings.push(Finding::NotSearched);
    }
    findings
}
