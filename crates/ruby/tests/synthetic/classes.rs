//! Classes and their names.

use ruby::{Class, Slot};
use testkit::RubyRelease;

use super::{as_truth, assert_read, lively};

/// Garbage collection can run while a singleton class is being made and has no superclass yet.
#[test]
fn a_class_whose_singleton_class_is_being_made_is_read() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        let object = heap.object_class();
        let class = heap.class("Unfinished", object);
        heap.mark(class, true);
        heap.unmake_singleton(class);
        let (image, truth) = heap.image();
        let space = ruby::read(&image).unwrap_or_else(|error| panic!("{release:?}: {error}"));
        assert_eq!(as_truth(&space).counts, truth.counts);
    }
}

#[test]
fn objects_with_singleton_classes_count_for_their_class() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        let object = heap.object_class();
        let class = heap.class("Extended", object);
        for _ in 0..20 {
            let it = heap.object(class, &[]);
            heap.extend(it);
        }
        let space = assert_read(&heap, release);
        let class_of = |slot: &Slot| space.classes.get(slot.class() as usize);
        let is_it = |class: &&Class| class.name.as_deref() == Some("Extended");
        let own = space.slots.iter().filter_map(class_of).filter(is_it).count();
        assert_eq!(own, 20, "{release:?}");
    }
}

/// Ruby 3.2 keeps the name of a class among its variables. For classes that Struct creates, it is not the first one.
#[test]
fn classes_that_have_variables_before_they_have_a_name_are_named() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        let object = heap.object_class();
        let class = heap.class_named_late("Pair", object);
        for _ in 0..20 {
            heap.object(class, &[]);
        }
        let space = assert_read(&heap, release);
        let names = space.classes.iter().filter_map(|class| class.name.as_deref());
        assert_eq!(names.filter(|name| *name == "Pair").count(), 1, "{release:?}");
    }
}

#[test]
fn names_of_classes_are_printable_and_bounded() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        let object = heap.object_class();
        let bell = heap.class("A\u{7}\u{1b}[31m", object);
        let made_up = heap.class("#<Class:0x01>", object);
        heap.object(bell, &[]);
        heap.object(made_up, &[]);
        let (image, _) = heap.image();
        let space = ruby::read(&image).unwrap();
        let names: Vec<_> =
            space.classes.iter().filter_map(|class| class.name.as_deref()).collect();
        assert!(names.contains(&"A\u{fffd}\u{fffd}[31m"), "{release:?}: {names:?}");
        assert!(!names.iter().any(|name| name.starts_with("#<")), "{release:?}");
    }
}
