//! Objects that wrap C structures, and their types.

use linux::Address;
use testkit::{RubyHeap, RubyRelease, SyntheticMemory};

use ruby::Finding;

use super::{assert_read, lively};

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
