//! Layouts that are wrong on purpose: each must lead to an error, never to other numbers.

use image::Image;
use linux::Address;
use testkit::{RubyHeap, RubyRelease, Word};

use crate::error::Failure;
use crate::interpreter::{self, Interpreter};
use crate::layout::bitmaps::Bitmaps;
use crate::layout::context::{Basics, Context};
use crate::layout::heap_layout::HeapLayout;
use crate::layout::page_descriptor::{DescriptorLayout, SlotMembers};
use crate::layout::page_finder;
use crate::model::depth::Depth;
use crate::model::heap_page::HeapPage;
use crate::model::slot::Slot;
use crate::read::{classes, slots};

/// A heap with objects of all sizes, enough that every wrong layout affects some of them.
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

fn right(image: &Image<'_>) -> (Interpreter, HeapLayout, Address) {
    let interpreter = interpreter::find(image).expect("it is a Ruby");
    let object = interpreter.object_class(image).expect("it has classes");
    let mut ways =
        (13..=17).flat_map(|log2| page_finder::find(image, object, log2).unwrap_or_default());
    let derived = ways.next().expect("its heap can be derived");
    assert!(ways.next().is_none(), "in one way only");
    (interpreter, derived, object)
}

fn read(
    image: &Image<'_>,
    interpreter: &Interpreter,
    heap: &HeapLayout,
    bitmaps: Bitmaps,
) -> Result<Vec<Slot>, Failure> {
    let basics = Basics::derive(image, interpreter);
    let context = Context::new(&basics, heap);
    let mut read = slots::read(&context, bitmaps, None, Depth::Graph)?;
    classes::resolve(&context, &mut read, Depth::Graph)?;
    Ok(read.slots)
}

/// Runs `check` on the right layout of each release.
fn for_each_release(check: impl Fn(RubyRelease, &Image<'_>, &Interpreter, &HeapLayout, Address)) {
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
        let right = heap.descriptor;
        let moved = |at: usize, by: isize| at.saturating_add_signed(by);
        let mut wrong = Vec::new();
        for by in [-16, -8, 8, 16] {
            wrong.push(DescriptorLayout { start: moved(right.start, by), ..right });
            wrong.push(DescriptorLayout { node: moved(right.node, by), ..right });
            if let Some(body) = right.body {
                wrong.push(DescriptorLayout { body: Some(moved(body, by)), ..right });
            }
        }
        for page_log2 in (13..=17).filter(|&log2| log2 != right.page_log2) {
            wrong.push(DescriptorLayout { page_log2, ..right });
        }
        for layout in wrong.into_iter().filter(|it| *it != right) {
            let base = object.align_down(1 << layout.page_log2);
            let ways = page_finder::find_with(image, base, layout);
            assert!(ways.is_err(), "{release:?}: {layout:?} is taken for {right:?}");
        }
    });
}

#[test]
fn a_wrong_place_of_the_slots_size_or_number_is_an_error() {
    for_each_release(|release, image, _, heap, object| {
        let base = object.align_down(1 << heap.page_log2());
        let ways = page_finder::find_with(image, base, heap.descriptor).expect("the right layout");
        assert!(ways.iter().all(|way| way.has_slots_of(heap)), "{release:?}");
        let places = (0..48).step_by(2);
        let sizes = places.clone().map(Some).chain([None]);
        for (slot_bytes, slot_count) in
            sizes.flat_map(|size| places.clone().map(move |it| (size, it)))
        {
            let members = SlotMembers { slot_bytes, slot_count };
            if let Some(other) = page_finder::read_with(image, base, heap.descriptor, members) {
                assert!(other.has_slots_of(heap), "{release:?}: {members:?}");
            }
        }
    });
}

#[test]
fn wrong_bitmaps_are_an_error() {
    for_each_release(|release, image, interpreter, heap, _| {
        let right = Bitmaps::find(image, heap).expect("it has bitmaps");
        for wrong in right.mutations() {
            // A mutation without effect on any page of this heap is not wrong.
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
        let mutate = |what: &str, change: &dyn Fn(&mut HeapPage, usize) -> usize| {
            let mut wrong = heap.clone();
            let mut before = 0;
            for page in wrong.pages.iter_mut() {
                let count = change(page, page.slots.len());
                page.slots = before..before + count;
                before += count;
            }
            if wrong != *heap {
                let read = read(image, interpreter, &wrong, bitmaps);
                assert!(read.is_err(), "{release:?}: {what} passed");
            }
        };
        let room = |page: &HeapPage| (page.range.end - page.first_slot) as usize;
        mutate("slots of 40 bytes", &|page, _| {
            page.slot_bytes = 40;
            room(page) / 40
        });
        mutate("slots of 8 bytes more", &|page, _| {
            page.slot_bytes += 8;
            room(page) / page.slot_bytes as usize
        });
        mutate("slots of half their size", &|page, count| {
            page.slot_bytes /= 2;
            count * 2
        });
        mutate("slots that begin a word later", &|page, count| {
            page.first_slot = page.first_slot.offset(8);
            count - 1
        });
        mutate("slots that begin a word earlier", &|page, count| {
            page.first_slot = page.first_slot.before(8);
            count
        });
        mutate("half of the slots", &|_, count| count / 2);
    });
}

#[test]
fn a_list_that_does_not_close_on_one_head_is_an_error() {
    for release in RubyRelease::ALL {
        let mut memory = testkit::SyntheticMemory::default();
        heap(release).write(&mut memory);
        let (_, derived, _) = right(&memory.image());
        let nodes: Vec<(u64, &HeapPage)> = derived
            .descriptors
            .iter()
            .map(|at| at.0 + derived.descriptor.node as u64)
            .zip(&derived.pages)
            .collect();
        let (anchor, _) =
            *nodes.iter().find(|(_, page)| page.slot_bytes >= 40).expect("there is one");
        for (what, at, word) in [
            ("a page that leads to itself", anchor, anchor),
            ("a page that leads nowhere", anchor, 0),
            ("a page that leads to no page", anchor, 0x7f30_0000_0200),
        ] {
            let mut broken = memory.clone();
            // All pages of the ring are broken, so the walk fails wherever it starts.
            for &(own, _) in &nodes {
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
        // The length is in the object space, and from 3.4 on before the array.
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
