//! Layouts that are wrong on purpose: each must end as an error, never as other numbers.

use capture::{Address, Image};
use testkit::{RubyHeap, RubyRelease, Word};

use crate::bitmaps::Bitmaps;
use crate::context::Context;
use crate::descriptor::{Extent, Linkage};
use crate::error::Failure;
use crate::interpreter::{self, Interpreter};
use crate::object_space::Slot;
use crate::page::Page;
use crate::pages::{self, Derived};
use crate::{classes, slots};

/// A heap with enough objects of all sizes that a wrong layout meets some.
fn heap(release: RubyRelease) -> RubyHeap {
    let mut heap = RubyHeap::new(release);
    let object = heap.object_class();
    let class = heap.class("Mutant", object);
    let words = if release.version() < "3.2" { [3, 3, 3] } else { [3, 12, 60] };
    for number in 0..1500 {
        let value = Word::Value(0x1_0000_0001 * number as u64);
        let it = heap.object(class, &vec![value; words[number % 3]]);
        if number % 4 != 0 {
            heap.mark(it, number % 3 == 0);
        }
        if number % 5 == 0 {
            heap.unprotect(it);
        }
        if number % 13 == 0 {
            heap.free(it);
        }
    }
    heap
}

fn right(image: &Image<'_>) -> (Interpreter, Derived, Address) {
    let interpreter = interpreter::find(image).expect("it is a Ruby");
    let object = interpreter.object_class(image).expect("it has classes");
    let mut ways =
        (13..=17).flat_map(|log2| pages::derive(image, object, log2).unwrap_or_default());
    let derived = ways.next().expect("its heap can be derived");
    assert!(ways.next().is_none(), "in one way only");
    (interpreter, derived, object)
}

fn read(
    image: &Image<'_>,
    interpreter: &Interpreter,
    heap: &Derived,
    bitmaps: Bitmaps,
) -> Result<Vec<Slot>, Failure> {
    let context = Context::new(image, interpreter, heap);
    let mut read = slots::read(&context, bitmaps)?;
    classes::resolve(&context, &mut read)?;
    Ok(read.slots)
}

/// Runs `mutate` on the right layout of each release.
fn for_each_release(check: impl Fn(RubyRelease, &Image<'_>, &Interpreter, &Derived, Address)) {
    for release in RubyRelease::ALL {
        let (image, _) = heap(release).image();
        let (interpreter, derived, object) = right(&image);
        let bitmaps = Bitmaps::find(&image, &derived).expect("it has bitmaps");
        read(&image, &interpreter, &derived, bitmaps).expect("the right layout reads");
        check(release, &image, &interpreter, &derived, object);
    }
}

#[test]
fn a_wrong_place_of_a_descriptors_member_is_an_error() {
    for_each_release(|release, image, _, heap, object| {
        let right = heap.linkage;
        let moved = |at: usize, by: isize| at.saturating_add_signed(by);
        let mut wrong = Vec::new();
        for by in [-16, -8, 8, 16] {
            wrong.push(Linkage { start: moved(right.start, by), ..right });
            wrong.push(Linkage { node: moved(right.node, by), ..right });
            if let Some(body) = right.body {
                wrong.push(Linkage { body: Some(moved(body, by)), ..right });
            }
        }
        for page_log2 in (13..=17).filter(|&log2| log2 != right.page_log2) {
            wrong.push(Linkage { page_log2, ..right });
        }
        for linkage in wrong.into_iter().filter(|it| *it != right) {
            let base = object.align_down(1 << linkage.page_log2);
            let ways = pages::derive_with(image, base, linkage);
            assert!(ways.is_err(), "{release:?}: {linkage:?} is taken for {right:?}");
        }
    });
}

#[test]
fn a_wrong_place_of_the_slots_size_or_number_is_an_error() {
    for_each_release(|release, image, _, heap, object| {
        let base = object.align_down(1 << heap.linkage.page_log2);
        let ways = pages::derive_with(image, base, heap.linkage).expect("the right linkage");
        assert!(ways.iter().all(|way| way.pages == heap.pages), "{release:?}");
        let places = (0..48).step_by(2);
        let sizes = places.clone().map(Some).chain([None]);
        for (slot_bytes, slot_count) in
            sizes.flat_map(|size| places.clone().map(move |it| (size, it)))
        {
            let extent = Extent { slot_bytes, slot_count };
            if let Some(other) = pages::read_with(image, base, heap.linkage, extent) {
                assert_eq!(other.pages, heap.pages, "{release:?}: {extent:?}");
            }
        }
    });
}

#[test]
fn wrong_bitmaps_are_an_error() {
    for_each_release(|release, image, interpreter, heap, _| {
        let right = Bitmaps::find(image, heap).expect("it has bitmaps");
        for wrong in right.mutations() {
            // What makes no difference on any page of this heap is not wrong.
            if let Ok(slots) = read(image, interpreter, heap, wrong) {
                let same = read(image, interpreter, heap, right) == Ok(slots);
                assert!(same, "{release:?}: {wrong:?} is taken for {right:?}");
            }
        }
    });
}

#[test]
fn wrong_slots_are_an_error() {
    for_each_release(|release, image, interpreter, heap, _| {
        let bitmaps = Bitmaps::find(image, heap).expect("it has bitmaps");
        let mutate = |what: &str, change: &dyn Fn(&mut Page)| {
            let mut wrong = heap.clone();
            let mut before = 0;
            for page in wrong.pages.iter_mut() {
                change(page);
                page.slots_before = before;
                before += page.slot_count;
            }
            if wrong != *heap {
                let read = read(image, interpreter, &wrong, bitmaps);
                assert!(read.is_err(), "{release:?}: {what} passed");
            }
        };
        let span = heap.page_span();
        mutate("slots of 40 bytes", &|page| {
            page.slot_bytes = 40;
            page.slot_count = ((span - (page.first_slot - page.base)) / 40) as u32;
        });
        mutate("slots of 8 bytes more", &|page| {
            page.slot_bytes += 8;
            page.slot_count =
                ((span - (page.first_slot - page.base)) / u64::from(page.slot_bytes)) as u32;
        });
        mutate("slots of half their size", &|page| {
            page.slot_bytes /= 2;
            page.slot_count *= 2;
        });
        mutate("slots that begin a word later", &|page| {
            page.first_slot = page.first_slot.offset(8);
            page.slot_count -= 1;
        });
        mutate("slots that begin a word earlier", &|page| {
            page.first_slot = page.first_slot.before(8);
        });
        mutate("half of the slots", &|page| page.slot_count /= 2);
    });
}

#[test]
fn a_list_that_does_not_close_on_one_head_is_an_error() {
    for release in RubyRelease::ALL {
        let mut memory = testkit::SyntheticMemory::default();
        heap(release).write(&mut memory);
        let (_, derived, _) = right(&memory.image());
        let node = |page: &Page| page.descriptor.0 + derived.linkage.node as u64;
        let anchor = derived.pages.iter().find(|page| page.slot_bytes >= 40).expect("there is one");
        for (what, at, word) in [
            ("a page that leads to itself", node(anchor), node(anchor)),
            ("a page that leads nowhere", node(anchor), 0),
            ("a page that leads to no page", node(anchor), 0x7f30_0000_0200),
        ] {
            let mut broken = memory.clone();
            // Every page of the ring is broken, so that it does not matter from which one it is
            // walked.
            for page in &derived.pages {
                let own = node(page);
                broken.write_u64(own, if at == word { own } else { word });
            }
            let read = crate::read(&broken.image());
            assert!(read.is_err(), "{release:?}: {what} passed");
        }
    }
}

#[test]
fn pages_that_the_array_leaves_out_are_an_error() {
    for release in RubyRelease::ALL {
        let mut memory = testkit::SyntheticMemory::default();
        heap(release).write(&mut memory);
        let (_, derived, _) = right(&memory.image());
        let count = derived.pages.len() as u64;
        let own = 0x7f30_0000_1000..0x7f30_0004_0000_u64;
        // The length stands in the object space, and from 3.4 on before the array.
        let lengths: Vec<u64> = own.step_by(8).filter(|&at| memory.word(at) == count).collect();
        assert!(!lengths.is_empty());
        for less in [1, 2, count / 2] {
            let mut broken = memory.clone();
            for &at in &lengths {
                broken.write_u64(at, count - less);
            }
            let read = crate::read(&broken.image());
            assert!(read.is_err(), "{release:?}: {less} pages of {count} were left out");
        }
    }
}
