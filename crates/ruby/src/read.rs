use capture::{Address, Finding, Image, Severity};

use crate::bitmaps::Bitmaps;
use crate::context::Context;
use crate::error::{Check, Error, Failure};
use crate::interpreter::{self, Interpreter};
use crate::object_space::{Class, HeapPage, ObjectSpace};
use crate::page::Page;
use crate::page_index::PageIndex;
use crate::pages::{self, Derived};
use crate::slots::{self, Slots};
use crate::{classes, fibers, jit, transient};

/// The sizes of heap pages that are tried, as powers of two: 16 KiB up to 3.1, 64 KiB since.
const PAGE_SIZES_LOG2: std::ops::RangeInclusive<u32> = 13..=17;

/// Reads the object space of a process that stands still.
///
/// # Errors
/// Where the process is no Ruby, or its heap could not be derived without doubt. Nothing is known
/// of its Ruby side then; the other sides of the image are not touched by it.
pub fn read(image: &Image<'_>) -> Result<ObjectSpace, Error> {
    let interpreter = interpreter::find(image).ok_or(Error::NotRuby)?;
    interpreter.check_collector(image)?;
    let object = interpreter.object_class(image)?;
    read_heap(image, &interpreter, object)
        .map_err(|failure| Error::Layout { version: interpreter.version.clone(), failure })
}

/// Tries all sizes of pages, and accepts exactly one way to read the heap.
fn read_heap(
    image: &Image<'_>,
    interpreter: &Interpreter,
    object: Address,
) -> Result<ObjectSpace, Failure> {
    let mut furthest: Option<Failure> = None;
    let mut accepted: Option<ObjectSpace> = None;
    let mut note = |failure: Failure| {
        if furthest.is_none_or(|known| failure.check > known.check) {
            furthest = Some(failure);
        }
    };
    for page_log2 in PAGE_SIZES_LOG2 {
        let ways = pages::derive(image, object, page_log2).unwrap_or_else(|failure| {
            note(failure);
            Vec::new()
        });
        for heap in ways {
            match read_pages(image, interpreter, &heap) {
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

/// Reads the slots of these pages, checks them, and finds what else is Ruby's.
fn read_pages(
    image: &Image<'_>,
    interpreter: &Interpreter,
    heap: &Derived,
) -> Result<ObjectSpace, Failure> {
    let context = Context::new(image, interpreter, heap);
    let bitmaps = Bitmaps::find(image, heap)?;
    let mut read = slots::read(&context, bitmaps)?;
    let (mut classes, mut findings) = classes::resolve(&context, &mut read)?;
    let signatures = std::mem::take(&mut read.data);
    let (data_types, data_objects, shortcoming) =
        signatures.resolve(image, &read.slots, &mut classes);
    findings.extend(shortcoming);
    findings.extend(read.unknown_layouts.take());
    findings.extend(remarks(&read, image));
    Ok(ObjectSpace {
        version: interpreter.version.clone(),
        interpreter: interpreter.range.clone(),
        fiber_stacks: fibers::find_stacks(image, interpreter, &context.territory),
        jit_code: jit::find_code(image, interpreter),
        transient_heap: transient::find(image, interpreter),
        data_types,
        data_objects,
        findings,
        ..assemble(heap, read, classes)
    })
}

fn assemble(heap: &Derived, read: Slots, classes: Vec<Class>) -> ObjectSpace {
    let page = |page: &Page| HeapPage {
        range: page.base..page.base.offset(heap.page_span()),
        first_slot: if page.slot_count == 0 { page.base } else { page.first_slot },
        slot_bytes: page.slot_bytes,
        slots: page.slots_before as usize..(page.slots_before + page.slot_count) as usize,
    };
    let pages: Vec<HeapPage> = heap.pages.iter().map(page).collect();
    ObjectSpace {
        page_index: PageIndex::new(heap.linkage.page_log2, &pages),
        pages,
        slots: read.slots,
        references: read.references,
        links: read.links,
        classes,
        ..ObjectSpace::default()
    }
}

fn remarks(read: &Slots, image: &Image<'_>) -> Vec<Finding> {
    let tally = &read.tally;
    let mut findings = Vec::new();
    if tally.unread > 0 {
        let what = format!(
            "{} slots of Ruby's heap are swapped out and were not read: counts of objects leave them out",
            tally.unread
        );
        findings.push(Finding::general(Severity::Warning, what));
    }
    if tally.marked == 0 {
        let what = "no object of Ruby's has a mark: it has collected no garbage yet, or is just \
                    beginning to";
        findings.push(Finding::general(Severity::Note, what));
    }
    if image.state.pages.is_none() {
        let what = "page states are unknown, so memory was not searched for further heap pages";
        findings.push(Finding::general(Severity::Note, what));
    }
    findings
}
