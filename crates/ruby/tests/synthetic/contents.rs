//! Words of earlier owners behind the words in use, in each type of object.

use ruby::{Content, Finding, Form};
use testkit::{RubyHeap, RubyRelease, Word};

const ARRAY: u8 = 7;
const HASH: u8 = 8;
const STRUCT: u8 = 9;
const BIGNUM: u8 = 0xa;
const EMBEDDED_ARRAY: u64 = 1 << 13;

/// The references of one object with their contents, and its links.
fn found(heap: &RubyHeap, object: u64) -> (Vec<(u64, Content)>, Vec<u64>) {
    let space = ruby::read(&heap.image().0).unwrap();
    let is_layout = |it: &Finding| {
        matches!(it, Finding::ObjectLayoutsUnknown { .. } | Finding::ClassLayoutUnknown)
    };
    assert!(!space.findings.iter().any(is_layout), "{:?}", space.findings);
    let slot = space.slot_at(linux::Address(object)).unwrap();
    let own = space.references.of(slot).map(|(at, it)| (at.0, it));
    let address = |to: &u32| space.slot_address(*to as usize).unwrap().0;
    (own.collect(), space.links.of(slot).iter().map(address).collect())
}

fn for_each_release(check: impl Fn(&mut RubyHeap, u64, u64, u64, RubyRelease)) {
    for release in RubyRelease::ALL {
        let mut heap = RubyHeap::new(release);
        let class = heap.object_class();
        let (victim, element, memory) =
            (heap.string("victim"), heap.string("element"), heap.malloc(800));
        // Other objects that agree with the layout.
        for _ in 0..20 {
            heap.slot(ARRAY, EMBEDDED_ARRAY, class, &[]);
            heap.slot(BIGNUM, 1 << 14, class, &[]);
        }
        check(&mut heap, victim, element, memory, release);
    }
}

#[test]
fn elements_of_an_array_are_as_many_as_its_length() {
    for_each_release(|heap, victim, element, memory, release| {
        let class = heap.object_class();
        let words = [Word::Value(element), Word::Value(victim), Word::Pointer(memory)];
        let embedded = heap.slot(ARRAY, EMBEDDED_ARRAY | 1 << 15, class, &words);
        assert_eq!(found(heap, embedded), (vec![], vec![element]), "{release:?}");
        let words = [Word::Value(3), Word::Value(100), Word::Pointer(memory)];
        let elsewhere = heap.slot(ARRAY, 0, class, &words);
        let content = Content::new(Form::Values, 3);
        assert_eq!(found(heap, elsewhere), (vec![(memory, content)], vec![]), "{release:?}");
    });
}

/// With Nokogiri on 3.3, so many slices of short arrays were misfits that the layout of arrays was not used.
#[test]
fn a_slice_may_have_its_elements_in_the_slot_of_another_array() {
    for_each_release(|heap, _, element, _, release| {
        let class = heap.object_class();
        let words = [Word::Value(element), Word::Value(element)];
        let owner = heap.slot(ARRAY, EMBEDDED_ARRAY | 2 << 15, 0, &words);
        let words = [Word::Value(1), Word::Value(owner), Word::Value(owner + 24)];
        let slices: Vec<u64> = (0..40).map(|_| heap.slot(ARRAY, 0, class, &words)).collect();
        // They are alike, and each look reads the whole heap.
        for slice in [slices[0], slices[39]] {
            assert_eq!(found(heap, slice), (vec![], vec![owner]), "{release:?}");
        }
    });
}

/// The GC marks the value only, and the place of the code may be gone.
#[test]
fn a_constant_cache_refers_to_its_value_only() {
    for_each_release(|heap, victim, element, _, release| {
        if release.version() >= "3" {
            let cache = heap.constant_cache(element, victim);
            assert_eq!(found(heap, cache), (vec![], vec![element]), "{release:?}");
        }
    });
}

/// 9.5 MiB of images to which a dead Fiddle::Pointer had led were "call sites, and caches" on 4.0.
#[test]
fn a_method_cache_refers_to_its_class_and_method_only() {
    for_each_release(|heap, victim, element, memory, release| {
        if release.version() >= "3" {
            let cache = heap.method_cache(element, victim, memory);
            assert_eq!(found(heap, cache), (vec![], vec![element, victim]), "{release:?}");
        }
    });
}

#[test]
fn members_of_a_struct_are_as_many_as_it_says() {
    for_each_release(|heap, victim, element, memory, release| {
        // From 4.0 on a word behind the members may refer to an object too.
        if release.version() >= "4" {
            return;
        }
        let class = heap.object_class();
        let words = [Word::Value(element), Word::Value(victim), Word::Value(victim)];
        let embedded = heap.slot(STRUCT, 1 << 13, class, &words);
        assert_eq!(found(heap, embedded), (vec![], vec![element]), "{release:?}");
        let words = [Word::Value(90), Word::Pointer(memory), Word::Value(victim)];
        let elsewhere = heap.slot(STRUCT, 0, class, &words);
        let content = Content::new(Form::Values, 90);
        assert_eq!(found(heap, elsewhere), (vec![(memory, content)], vec![]), "{release:?}");
    });
}

#[test]
fn digits_are_no_references() {
    for_each_release(|heap, victim, _, memory, release| {
        let class = heap.object_class();
        let words = [Word::Value(victim), Word::Value(memory), Word::Value(victim)];
        let embedded = heap.slot(BIGNUM, 1 << 14 | 3 << 15, class, &words);
        assert_eq!(found(heap, embedded), (vec![], vec![]), "{release:?}");
        let words = [Word::Value(100), Word::Pointer(memory), Word::Value(victim)];
        let elsewhere = heap.slot(BIGNUM, 0, class, &words);
        let expected = (vec![(memory, Content::BYTES)], vec![]);
        assert_eq!(found(heap, elsewhere), expected, "{release:?}");
    });
}

#[test]
fn pairs_of_a_small_hash_are_as_many_as_were_ever_used() {
    for_each_release(|heap, victim, element, memory, release| {
        let class = heap.object_class();
        let flags = 2 << 16 | 3 << 20;
        if release.version() < "3.3" {
            let words = [Word::Pointer(memory), Word::Value(8), Word::Value(victim)];
            let hash = heap.slot(HASH, flags, class, &words);
            let expected = vec![(memory, Content::of_pairs(3))];
            assert_eq!(found(heap, hash), (expected, vec![]), "{release:?}");
        } else {
            // The second pair was deleted: its value stays.
            let mut words = vec![Word::Value(8), Word::Value(victim)];
            words.extend([element, 1, 0x24, victim, 3, 5].map(Word::Value));
            words.extend([Word::Value(victim); 10]);
            let hash = heap.slot(HASH, flags, class, &words);
            assert_eq!(found(heap, hash), (vec![], vec![element]), "{release:?}");
        }
    });
}

/// A layout that objects contradict is not used: all of their words are read, and a finding reports it.
#[test]
fn of_objects_that_contradict_their_layout_all_words_are_read() {
    for release in RubyRelease::ALL {
        let mut heap = RubyHeap::new(release);
        let (class, victim) = (heap.object_class(), heap.string("victim"));
        // Words in the place of elements that are not values.
        let words = [Word::Value(0x1_0008), Word::Value(0x1_0010), Word::Value(victim)];
        let arrays: Vec<u64> =
            (0..40).map(|_| heap.slot(ARRAY, EMBEDDED_ARRAY | 2 << 15, class, &words)).collect();
        let space = ruby::read(&heap.image().0).unwrap();
        for array in arrays {
            let slot = space.slot_at(linux::Address(array)).unwrap();
            assert_eq!(space.links.of(slot).len(), 1, "{release:?}");
        }
        let finding = Finding::ObjectLayoutsUnknown { types: vec!["T_ARRAY"] };
        assert!(space.findings.contains(&finding), "{release:?}: {:?}", space.findings);
    }
}

/// Hashes that were garbage referred to strings whose page was free by then. So the layout of all Hashes was unknown, and entries that were
/// deleted counted as references: a full cache seemed to grow.
#[test]
fn garbage_contradicts_no_layout() {
    for release in RubyRelease::ALL {
        let mut heap = RubyHeap::new(release);
        let (class, victim) = (heap.object_class(), heap.string("victim"));
        let flags = EMBEDDED_ARRAY | 1 << 15;
        let garbage = [Word::Value(0x1_0008), Word::Value(0x1_0010), Word::Value(victim)];
        for _ in 0..40 {
            heap.slot(ARRAY, flags, class, &garbage);
        }
        let words = [Word::Value(3), Word::Value(victim), Word::Value(victim)];
        let arrays: Vec<u64> = (0..40).map(|_| heap.slot(ARRAY, flags, class, &words)).collect();
        arrays.iter().for_each(|&array| heap.mark(array, false));
        let space = ruby::read(&heap.image().0).unwrap();
        for array in arrays {
            let slot = space.slot_at(linux::Address(array)).unwrap();
            assert_eq!(space.links.of(slot).len(), 0, "{release:?}");
        }
        let is_unknown = |it: &Finding| matches!(it, Finding::ObjectLayoutsUnknown { .. });
        assert!(!space.findings.iter().any(is_unknown), "{release:?}: {:?}", space.findings);
    }
}
