//! Objects that wrap C structures, and their types.

use linux::Address;
use ruby::{Content, Finding, Form};
use testkit::{RubyHeap, RubyRelease, SyntheticMemory, Word};

use super::{assert_read, lively};

/// `T_DATA` and `T_MODULE`.
const DATA: u8 = 12;
const MODULE: u8 = 3;

/// A heap with objects that wrap C structures.
fn with_data(release: RubyRelease) -> (RubyHeap, u64) {
    let mut heap = lively(release);
    let object = heap.object_class();
    let (thread, device, untyped) =
        (heap.class("Thread", object), heap.class("Device", object), heap.class("Untyped", object));
    let vm_thread = heap.data_type("VM/thread", true);
    let own = heap.data_type("device/own", false);
    let vm = heap.data_type("VM", true);
    for _ in 0..20 {
        let memory = heap.malloc(200);
        heap.data(thread, vm_thread, memory);
        heap.data(device, own, memory);
        heap.untyped_data(untyped, memory);
        if release.version() >= "3.3" {
            heap.data(device, own, 0);
        }
    }
    let memory = heap.malloc(200);
    heap.data(device, vm_thread, memory);
    heap.data(0, vm, memory);
    let view = heap.class("View", object);
    let borrowed = heap.borrowed_data_type("view");
    heap.data(view, borrowed, memory);
    (heap, vm_thread)
}

#[test]
fn types_of_c_structs_are_read_and_put_down_to_classes() {
    for release in RubyRelease::ALL {
        let (heap, vm_thread) = with_data(release);
        let space = assert_read(&heap, release);
        assert!(space.findings.is_empty(), "{release:?}: {:?}", space.findings);
        let of_class = |name: &str| {
            let class = space.classes.iter().find(|it| it.name.as_deref() == Some(name)).unwrap();
            class.data_type.map(|it| space.data_types[it as usize].clone())
        };
        let named = |it: ruby::DataType| (it.name, it.has_memsize);
        assert_eq!(of_class("View").map(|it| it.frees), Some(false), "{release:?}");
        assert_eq!(of_class("Device").map(|it| it.frees), Some(true), "{release:?}");
        assert_eq!(of_class("Thread").unwrap().address, Address(vm_thread), "{release:?}");
        assert_eq!(of_class("Device").map(named), Some((Some("device/own".into()), false)));
        assert_eq!(of_class("(T_DATA)").map(named), Some((Some("VM".into()), true)));
        let untyped = of_class("Untyped").unwrap();
        assert_eq!(
            (untyped.address, named(untyped)),
            (Address(RubyHeap::FUNCTION), (None, false)),
            "{release:?}"
        );
        assert_eq!(of_class("Zoo::Animal"), None);
        assert_eq!(space.data_types.len(), 5);
        assert_eq!(space.data_objects.type_of(u32::MAX), None);
    }
}

#[test]
fn types_that_contradict_what_is_known_are_left_out_and_said_to_be() {
    for release in RubyRelease::ALL {
        let (heap, vm_thread) = with_data(release);
        for damage in [0, 0x7f10_0000_3000, 1] {
            let mut memory = SyntheticMemory::default();
            heap.write(&mut memory);
            memory.write_u64(vm_thread, damage);
            let space = ruby::read(&memory.image()).unwrap();
            assert!(space.data_types.is_empty(), "{release:?}");
            assert!(space.data_objects.iter().all(|(_, data_type)| data_type.is_none()));
            assert!(space.classes.iter().all(|class| class.data_type.is_none()));
            assert!(space.findings.contains(&Finding::DataTypesUnknown), "{release:?}");
        }
    }
}

/// Behind the table in the slot of a Set, behind a table of method caches, and behind the structure of a class, words that earlier objects
/// had left retained others.
#[test]
fn words_behind_structures_in_slots_refer_to_nothing() {
    // In 4.0 a Set fills its slot.
    for (release, set_words, behind_set) in [(RubyRelease::V4_0, 6, 0), (RubyRelease::V4_1, 5, 1)] {
        let (mut heap, _) = with_data(release);
        let [kept, stale] = ["kept", "stale"].map(|text| heap.string(text));
        let object = heap.object_class();
        let refers = |heap: &mut RubyHeap, kind, head: &[Word], own: usize, behind: usize| {
            let zeros = std::iter::repeat_n(Word::Value(0), own - 1);
            let left = std::iter::repeat_n(Word::Value(stale), behind);
            let words = head.iter().copied().chain([Word::Value(kept)]).chain(zeros).chain(left);
            let words: Vec<Word> = words.collect();
            heap.slot(kind, 0, object, &words)
        };
        let typed = |heap: &mut RubyHeap, name| {
            let own = heap.data_type(name, true) | 1;
            [Word::Value(0), Word::Value(own)]
        };
        let (set, table) = (typed(&mut heap, "set"), typed(&mut heap, "VM/cc_table"));
        let other = typed(&mut heap, "other");
        let objects = [
            (refers(&mut heap, DATA, &set, set_words, behind_set), false),
            (refers(&mut heap, DATA, &table, 3, 3), false),
            (refers(&mut heap, DATA, &other, 3, 3), true),
            // The structure of a class fills its slot up to 4.0.
            (refers(&mut heap, MODULE, &[], 16, 2), release == RubyRelease::V4_0),
        ];
        let (image, _) = heap.image();
        let space = ruby::read(&image).unwrap();
        let slot = |at| space.slot_at(Address(at)).unwrap();
        for (at, refers_to_stale) in objects {
            let refers = |to| space.links.of(slot(at)).contains(&slot(to));
            assert_eq!(
                [refers(kept), refers(stale)],
                [true, refers_to_stale],
                "{release:?}, {at:#x}"
            );
        }
    }
}

/// A Set retained elements that had been deleted, and what its memory had had before.
#[test]
fn the_memory_of_a_set_is_in_use_up_to_its_bound() {
    for (release, table) in [
        (RubyRelease::V4_0, [0x0504, 0x10_0000, 5, 2, 9]),
        (RubyRelease::V4_1, [2 << 32 | 0x0504, 0x10_0000, 5, 9, 0]),
    ] {
        let (mut heap, _) = with_data(release);
        let (object, of_type) = (heap.object_class(), heap.data_type("set", true) | 1);
        let entries = heap.malloc(16 * 16);
        let numbers = if release == RubyRelease::V4_0 { 5 } else { 4 };
        let table = table[..numbers].iter().map(|it| Word::Value(*it));
        let words = [Word::Value(0), Word::Value(of_type)].into_iter().chain(table);
        let words: Vec<Word> = words.chain([Word::Pointer(entries)]).collect();
        heap.slot(DATA, 0, object, &words);
        let (image, _) = heap.image();
        let space = ruby::read(&image).unwrap();
        let content = Content::new(Form::Members, 18);
        assert!(space.contents.contains(&(Address(entries), content)), "{:?}", space.contents);
    }
}
