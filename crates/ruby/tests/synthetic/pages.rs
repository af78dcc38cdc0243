//! Heap pages and their slots, in all states in which a process may be stopped.

use image::Image;
use linux::{Address, PageRun, PageState, Pages};
use ruby::{Error, Finding, HeapPages, SlotState};
use testkit::{RubyHeap, RubyRelease, SyntheticMemory};

use super::{assert_read, lively};

#[test]
fn slots_are_found_by_their_addresses() {
    for release in RubyRelease::ALL {
        let (image, truth) = lively(release).image();
        let space = ruby::read(&image).unwrap();
        for slot in 0..space.slots.len() {
            let at = space.slot_address(slot).unwrap();
            assert_eq!(space.slot_at(at), Some(slot as u32));
            assert_eq!([1, 8, 16].map(|by| space.slot_at(at.offset(by))), [None; 3]);
        }
        for page in truth.pages {
            assert_eq!([0, 4].map(|by| space.slot_at(Address(page + by))), [None; 2]);
        }
    }
}

/// A group of musl's malloc begins with the address of its meta, and that has the address of the group. `rbloat who` called
/// malloc'ed memory heap pages.
#[test]
fn heap_pages_are_told_from_groups_of_malloc() {
    const META: u64 = 0x7000_0000_0000;
    const GROUP: u64 = 0x7100_0000_0000;
    for release in RubyRelease::ALL {
        let mut memory = SyntheticMemory::default();
        lively(release).write(&mut memory);
        memory.map(META, 4096);
        memory.map(GROUP, 1 << 18);
        for page in 0..2 {
            let (meta, group) = (META + page * 80, GROUP + (page << 17));
            memory.write_u64(group, meta);
            memory.write_u64(meta + 16, group);
            memory.write_u64(meta + 56, group + 0x400);
        }
        let image = memory.image();
        let space = ruby::read(&image).unwrap();
        let pages = HeapPages::derive(&image, &space).unwrap();
        for page in space.pages.iter().filter(|page| !page.slots.is_empty()) {
            for at in [page.range.start.offset(64), page.range.end.before(1)] {
                assert!(pages.has(&image, at), "{release:?} {at:?}");
            }
        }
        for at in (GROUP..GROUP + (1 << 18)).step_by(4096) {
            assert!(!pages.has(&image, Address(at)), "{release:?} {at:#x}");
        }
    }
}

#[test]
fn a_heap_that_was_never_collected_has_no_marks_and_is_read() {
    for release in RubyRelease::ALL {
        let mut heap = RubyHeap::new(release);
        for _ in 0..100 {
            let object = heap.string("unmarked");
            heap.unprotect(object);
        }
        let space = assert_read(&heap, release);
        assert!(space.findings.contains(&Finding::NoMarks), "{release:?}");
    }
}

#[test]
fn emptied_pages_are_kept_without_slots_from_3_4_on() {
    for release in [RubyRelease::V3_4, RubyRelease::V4_0, RubyRelease::V4_1] {
        let mut heap = lively(release);
        heap.keep_emptied(40);
        let space = assert_read(&heap, release);
        let empty = space.pages.iter().filter(|page| page.slot_bytes == 0);
        assert!(
            empty.clone().all(|page| page.slots.is_empty() && page.first_slot == page.range.start)
        );
        assert_eq!(empty.count(), 40);
    }
}

#[test]
fn the_object_spaces_of_all_ractors_are_read_from_4_1_on() {
    let mut heap = lively(RubyRelease::V4_1);
    heap.share_among(4);
    assert_read(&heap, RubyRelease::V4_1);
}

/// Up to 3.0 freed pages stay mapped, and pointers to them remain behind the end of the array.
#[test]
fn freed_pages_behind_the_array_are_no_pages() {
    let mut heap = lively(RubyRelease::V2_7);
    heap.leave_freed(3);
    assert_read(&heap, RubyRelease::V2_7);
}

/// In a third of its stops, a busy process is sweeping a page.
#[test]
fn marks_around_the_slots_of_a_page_that_is_swept_are_no_objects() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        heap.sweep();
        assert_read(&heap, release);
    }
}

#[test]
fn slots_on_swapped_pages_are_left_out_and_said_to_be() {
    for release in RubyRelease::ALL {
        let (image, truth) = lively(release).image();
        let space = ruby::read(&image).unwrap();
        let largest = space.pages.iter().max_by_key(|page| page.slots.len()).unwrap();
        // The first page has the header, without which the heap page is not recognized.
        let swapped = largest.range.start.offset(4096)..largest.range.start.offset(3 * 4096);
        let mut memory = SyntheticMemory::default();
        lively(release).write(&mut memory);
        let mut state = memory.state();
        let states = state.pages.take().unwrap();
        let state_of = |run: &PageRun, at: Address| {
            if swapped.contains(&at) { PageState::Swapped } else { run.state }
        };
        let runs =
            states.iter().flat_map(|run| {
                (run.range.start.0..run.range.end.0).step_by(4096).map(Address).map(move |at| {
                    PageRun { range: at..at.offset(4096), state: state_of(run, at), huge: false }
                })
            });
        state.pages = Some(Pages::new(runs.collect()));
        let space = ruby::read(&Image::new(state, memory)).unwrap();
        let unread =
            space.slots.iter().filter(|slot| slot.state() == SlotState::Unread).count() as u64;
        let bytes = u64::from(largest.slot_bytes);
        assert!((8192 / bytes..=8192 / bytes + 2).contains(&unread), "{release:?}: {unread}");
        assert_eq!(space.counts()["TOTAL"], truth.counts["TOTAL"]);
        let is_unread = |it: &Finding| matches!(it, Finding::SlotsUnread { .. });
        assert!(space.findings.iter().any(is_unread));
    }
}

#[test]
fn a_page_that_ruby_protects_while_it_compacts_is_read_like_any_other() {
    for release in RubyRelease::ALL {
        let (image, _) = lively(release).image();
        let space = ruby::read(&image).unwrap();
        let mut memory = SyntheticMemory::default();
        lively(release).write(&mut memory);
        for page in &space.pages {
            let mut locked = memory.clone();
            let mapping = locked.mappings.iter_mut().find(|it| it.range.start == page.range.start);
            let mapping = mapping.expect("pages have mappings");
            (mapping.readable, mapping.writable) = (false, false);
            let read = ruby::read(&locked.image()).unwrap();
            assert_eq!(read.counts(), space.counts(), "{release:?}");
        }
    }
}

/// Up to Ruby 3.0, Puma's parser frees its objects itself. Such heaps used to be refused.
#[test]
fn a_slot_that_a_program_recycled_keeps_its_mark_up_to_3_0() {
    let read = |release: RubyRelease| {
        let mut heap = lively(release);
        let recycled = heap.object(heap.object_class(), &[]);
        heap.mark(recycled, false);
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        memory.write_u64(recycled, 0);
        ruby::read(&memory.image()).map(|space| {
            let slot = space.slot_at(Address(recycled)).unwrap();
            space.slots[slot as usize].state()
        })
    };
    assert_eq!(read(RubyRelease::V2_7).unwrap(), SlotState::Free);
    assert!(matches!(read(RubyRelease::V3_1), Err(Error::Layout { .. })));
}

/// The rule of bits and slots was chosen by a sample of the pages. If none of these had a bit, the wrong rule was chosen, and the heap
/// of a process that had not collected garbage yet could not be read.
#[test]
fn bits_on_pages_beyond_the_sample_are_read_right() {
    let mut heap = RubyHeap::new(RubyRelease::V4_1);
    let class = heap.object_class();
    let objects: Vec<u64> = (0..270_000).map(|_| heap.object(class, &[])).collect();
    heap.unprotect(objects[4000]);
    let (image, _) = heap.image();
    ruby::read(&image).unwrap_or_else(|error| panic!("{error}"));
}
