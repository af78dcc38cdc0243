//! Heaps that the testbed wrote, of every release whose layout differs, read back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ruby::{Class, Error, ObjectSpace, Slot, SlotState};
use target::{Address, Image, PageRun, PageState, Pages};
use testbed::{RubyHeap, RubyRelease, RubyTruth, Shift, SyntheticMemory, Word};

/// What was read, in the words of the truth.
fn as_truth(space: &ObjectSpace) -> RubyTruth {
    let mut classes = BTreeMap::new();
    for slot in space.slots.iter().filter(|slot| slot.is_live()) {
        let class = &space.classes[slot.class as usize];
        let name = class.name.as_deref().unwrap_or("anonymous");
        *classes.entry(name.to_owned()).or_default() += 1;
    }
    let address = |slot: usize| space.slot_address(slot).expect("slots have addresses").0;
    let marked = space.slots.iter().enumerate();
    RubyTruth {
        counts: space.counts().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        classes,
        references: space
            .references
            .iter()
            .map(|(slot, to)| (address(slot as usize), to.0))
            .collect(),
        links: (0..space.slots.len())
            .flat_map(|from| space.links.of(from as u32).iter().map(move |&to| (from, to)))
            .map(|(from, to)| (address(from), address(to as usize)))
            .collect(),
        data: space
            .data_objects
            .iter()
            .map(|(slot, data_type)| {
                let data_type = data_type.map(|it| &space.data_types[it as usize]);
                (address(slot as usize), data_type.and_then(|it| it.name.clone()))
            })
            .collect(),
        marked: marked
            .filter(|(_, slot)| slot.state == SlotState::Marked)
            .map(|(index, _)| address(index))
            .collect(),
        pages: space.pages.iter().map(|page| page.range.start.0).collect(),
    }
}

/// The truth in the reader's words: internal objects have names that differ by release.
fn named(mut truth: RubyTruth, release: RubyRelease) -> RubyTruth {
    let older =
        ["env", "cref", "svar", "throw_data", "ifunc", "memo", "ment", "iseq", "tmpbuf", "ast"];
    let newer = [
        "env",
        "cref",
        "svar",
        "throw_data",
        "ifunc",
        "memo",
        "ment",
        "iseq",
        "tmpbuf",
        "cvar_entry",
    ];
    let names = if release.version() < "4" { older } else { newer };
    for (number, name) in names.iter().enumerate() {
        if let Some(count) = truth.classes.remove(&format!("imemo {number}")) {
            truth.classes.insert(format!("(imemo_{name})"), count);
        }
    }
    truth
}

#[track_caller]
fn assert_read(heap: &RubyHeap, release: RubyRelease) -> ObjectSpace {
    let (image, truth) = heap.image();
    let space = ruby::read(&image).unwrap_or_else(|error| panic!("{release:?}: {error}"));
    assert_eq!(space.version, release.version());
    assert_eq!(as_truth(&space), named(truth, release), "{release:?}");
    space
}

/// A heap with objects of all kinds.
fn lively(release: RubyRelease) -> RubyHeap {
    enlivened(RubyHeap::new(release))
}

fn enlivened(mut heap: RubyHeap) -> RubyHeap {
    let object = heap.object_class();
    let animal = heap.class("Zoo::Animal", object);
    let anonymous = heap.anonymous_class(animal);
    for number in 0..900 {
        let pointer = heap.malloc(100);
        let it = match number % 7 {
            0 => heap.object(animal, &[Word::Pointer(pointer), Word::Value(number)]),
            1 => heap.object(anonymous, &[Word::Value(5), Word::Value(pointer + 8)]),
            2 => heap.string("short"),
            3 => heap.string_at(pointer, 99),
            4 => heap.internal((number % 10) as u8, &[Word::Value(1), Word::Pointer(pointer)]),
            5 => {
                heap.slot(5, 1 << 13, 0, &[Word::Value(9), Word::Pointer(pointer), Word::Value(9)])
            }
            _ => heap.slot(0x1c, 0, animal, &[Word::Value(0); 10]),
        };
        if number % 3 == 0 {
            heap.mark(it, number % 2 == 0);
        }
        if number % 5 == 0 {
            heap.unprotect(it);
        }
        if number % 11 == 0 {
            heap.free(it);
        }
    }
    heap
}

#[test]
fn a_heap_of_every_release_reads_as_it_was_written() {
    for release in RubyRelease::ALL {
        let space = assert_read(&lively(release), release);
        assert!(space.findings.is_empty(), "{release:?}: {:?}", space.findings);
    }
}

/// A heap with objects that wrap C structs.
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
        assert_eq!(space.data_types.len(), 4);
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
            let said = space.findings.iter().filter(|it| it.what.contains("could not be derived"));
            assert_eq!(said.count(), 1, "{release:?}");
        }
    }
}

/// A heap with constants and variables, the truth of them, and what they hold.
fn holding(release: RubyRelease) -> (RubyHeap, Vec<(String, u64)>) {
    let mut heap = lively(release);
    let object = heap.object_class();
    let (cache, deep) = (heap.class("Cache", object), heap.class("Cache::Deep", object));
    let values: Vec<u64> = (0..40).map(|_| heap.object(object, &[])).collect();
    let generated: Vec<String> = (0..20).map(|number| format!("GENERATED_{number}")).collect();
    let mut constants = vec![
        (object, "Cache", cache),
        (cache, "Deep", deep),
        (cache, "STORE", values[0]),
        (cache, "NUMBER", 11),
        (deep, "STORE", values[1]),
    ];
    constants.extend(generated.iter().zip(&values).map(|(name, &it)| (deep, name.as_str(), it)));
    let variables = [
        (cache, "@items", values[30]),
        (cache, "@number", 15),
        (cache, "@@all", values[31]),
        (deep, "@items", values[32]),
        (deep, "internal", values[33]),
    ];
    let globals = [
        (0, "$items", values[34]),
        (0, "$of_c", values[35]),
        (0, "$nothing", 0),
        (0, "$zero_of_c", 0),
        (0, "$last", values[36]),
    ];
    let truth = heap.hold(&constants, &variables, &globals);
    (heap, truth)
}

fn up_to_3_4() -> impl Iterator<Item = RubyRelease> {
    RubyRelease::ALL.into_iter().filter(|release| release.version() < "4")
}

#[test]
fn constants_and_variables_are_read_as_they_were_written() {
    for release in up_to_3_4() {
        let (heap, truth) = holding(release);
        assert_read(&heap, release);
        let (image, _) = heap.image();
        let space = ruby::read(&image).unwrap();
        let (holders, findings) = ruby::holders(&image, &space);
        let address = |it: &ruby::Holder| space.slot_address(it.value as usize).unwrap().0;
        let own: Vec<_> = holders.iter().map(|it| (it.name.clone(), address(it))).collect();
        assert_eq!(own, truth, "{release:?}");
        // Where classes of 3.2 have their variables is not known.
        let unknown = findings.iter().filter(|it| it.what.contains("variables of classes"));
        let expected = usize::from(release == RubyRelease::V3_2);
        assert_eq!((findings.len(), unknown.count()), (expected, expected), "{release:?}");
    }
}

#[test]
fn holders_that_cannot_be_told_are_left_out_and_said_to_be() {
    for release in [RubyRelease::V4_0, RubyRelease::V4_1] {
        let (image, _) = lively(release).image();
        let space = ruby::read(&image).unwrap();
        let (holders, findings) = ruby::holders(&image, &space);
        assert!(holders.is_empty() && findings.len() == 1, "{release:?}: {findings:?}");
    }
}

/// No wrong name: a known constant that has another one puts all in doubt.
#[test]
fn names_are_not_told_where_a_known_one_is_wrong() {
    for release in up_to_3_4() {
        let (heap, truth) = holding(release);
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        let image = memory.image();
        let space = ruby::read(&image).unwrap();
        let texts = space.slots.iter().enumerate().filter(|(_, slot)| slot.kind.0 == 5);
        let mut damaged = 0;
        for (slot, _) in texts {
            let at = space.slot_address(slot).unwrap().0;
            let from = if release.version() < "3.2" { 16 } else { 24 };
            // The last one is the name of a number, the others those of classes.
            if memory.word(at + from) & 0xff_ffff_ffff_ffff == u64::from_le_bytes(*b"Integer\0") {
                let mut broken = memory.clone();
                broken.write(at + from, b"X");
                let image = broken.image();
                let Ok(space) = ruby::read(&image) else { continue };
                let (holders, findings) = ruby::holders(&image, &space);
                assert!(holders.is_empty(), "{release:?}: {} of {}", holders.len(), truth.len());
                assert_eq!(findings.len(), 1);
                damaged += 1;
            }
        }
        assert_eq!(damaged, 2, "{release:?}");
    }
}

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

#[test]
fn an_interpreter_is_found_without_page_states() {
    let mut memory = SyntheticMemory::default();
    lively(RubyRelease::V3_1).write(&mut memory);
    let mut image = memory.image();
    image.outline.pages = None;
    let interpreter = ruby::find(&image).expect("it is a Ruby");
    assert_eq!(
        (interpreter.module.as_str(), interpreter.version.as_str()),
        ("libruby.so.0", "3.1.2")
    );
    assert!(ruby::read(&image).is_ok(), "page states are not needed to read a heap either");
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
        assert!(
            space.findings.iter().any(|finding| finding.what.contains("no object")),
            "{release:?}"
        );
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

/// Up to 3.0 freed pages stay mapped, and the array of pages keeps pointers to them behind its end.
#[test]
fn freed_pages_behind_the_array_are_no_pages() {
    let mut heap = lively(RubyRelease::V2_7);
    heap.leave_freed(3);
    assert_read(&heap, RubyRelease::V2_7);
}

/// What a later release may change: what is derived is still right, and the rest an error.
#[test]
fn a_layout_that_is_no_releases_is_read_right_or_not_at_all() {
    for release in RubyRelease::ALL {
        let (mut right, mut refused) = (0, 0);
        for shift in Shift::all(release) {
            let (image, truth) = enlivened(RubyHeap::shifted(release, shift)).image();
            let Ok(space) = ruby::read(&image) else {
                refused += 1;
                continue;
            };
            let (mut read, mut truth) = (as_truth(&space), named(truth, release));
            // Where a class's members were not found, that is said.
            if !space.findings.is_empty() {
                (read.classes, truth.classes) = Default::default();
            }
            assert_eq!(read, truth, "{release:?}: {shift:?}");
            right += 1;
        }
        assert!(right > 5 && refused > 5, "{release:?}: {right} were read, {refused} refused");
    }
}

/// A third of the stops of a busy process hit one that sweeps a page.
#[test]
fn marks_around_the_slots_of_a_page_that_is_swept_are_no_objects() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        heap.sweep();
        assert_read(&heap, release);
    }
}

/// Making a singleton class may collect garbage, while it has no superclass yet.
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
fn slots_on_swapped_pages_are_left_out_and_said_to_be() {
    for release in RubyRelease::ALL {
        let (image, truth) = lively(release).image();
        let space = ruby::read(&image).unwrap();
        let largest = space.pages.iter().max_by_key(|page| page.slots.len()).unwrap();
        // The first page holds the header, by which the heap page is known.
        let swapped = largest.range.start.offset(4096)..largest.range.start.offset(3 * 4096);
        let mut memory = SyntheticMemory::default();
        lively(release).write(&mut memory);
        let mut outline = memory.outline();
        let states = outline.pages.take().unwrap();
        let state = |run: &PageRun, at: Address| {
            if swapped.contains(&at) { PageState::Swapped } else { run.state }
        };
        let runs =
            states.iter().flat_map(|run| {
                (run.range.start.0..run.range.end.0).step_by(4096).map(Address).map(move |at| {
                    PageRun { range: at..at.offset(4096), state: state(run, at), huge: false }
                })
            });
        outline.pages = Some(Pages::new(runs.collect()));
        let space = ruby::read(&Image::new(outline, memory)).unwrap();
        let unread =
            space.slots.iter().filter(|slot| slot.state == SlotState::Unread).count() as u64;
        let bytes = u64::from(largest.slot_bytes);
        assert!((8192 / bytes..=8192 / bytes + 2).contains(&unread), "{release:?}: {unread}");
        assert_eq!(space.counts()["TOTAL"], truth.counts["TOTAL"]);
        assert!(space.findings.iter().any(|finding| finding.what.contains("swapped out")));
    }
}

#[test]
fn a_page_that_ruby_protects_while_it_compacts_is_an_error_that_says_so() {
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
            let error = ruby::read(&locked.image()).unwrap_err();
            assert!(matches!(error, Error::Layout { .. }), "{release:?}: {error}");
        }
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
        let class_of = |slot: &Slot| space.classes.get(slot.class as usize);
        let is_it = |class: &&Class| class.name.as_deref() == Some("Extended");
        let own = space.slots.iter().filter_map(class_of).filter(is_it).count();
        assert_eq!(own, 20, "{release:?}");
    }
}

/// Ruby 3.2 has the name of a class among its variables, of which those of Struct's have others first.
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
fn bytes_of_strings_belong_to_the_one_that_owns_them() {
    for release in RubyRelease::ALL {
        let mut heap = lively(release);
        let pointer = heap.malloc(4096);
        let owner = heap.string_at(pointer, 4000);
        for _ in 0..5 {
            heap.shared_string(owner, pointer, 4000);
        }
        let space = assert_read(&heap, release);
        let named: Vec<_> = space.references.iter().filter(|(_, to)| to.0 == pointer).collect();
        let slot = named.first().map(|(slot, _)| space.slot_address(*slot as usize));
        assert_eq!((named.len(), slot), (1, Some(Some(Address(owner)))), "{release:?}");
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

#[test]
fn another_garbage_collector_and_no_ruby_are_errors_of_their_own() {
    let mut memory = SyntheticMemory::default();
    let nothing = ruby::read(&memory.image());
    assert_eq!(nothing.unwrap_err(), Error::NotRuby);
    lively(RubyRelease::V3_4).write(&mut memory);
    let mut library =
        target::Mapping::anonymous(Address(0x7f40_0000_0000)..Address(0x7f40_0000_1000));
    library.backing = target::Backing::File("/usr/lib/ruby/gc/librubygc.mmtk.so".into());
    memory.mappings.push(library);
    let error = ruby::read(&memory.image()).unwrap_err();
    assert!(
        matches!(&error, Error::OtherCollector { collector, .. } if collector == "mmtk"),
        "{error}"
    );
}

#[test]
fn a_ruby_that_is_only_starting_is_an_error_of_its_own() {
    let mut memory = SyntheticMemory::default();
    let heap = lively(RubyRelease::V3_3);
    heap.write(&mut memory);
    let object = heap.object_class();
    let library = 0x7f10_0000_0000..0x7f10_0001_0000_u64;
    let variable = library.step_by(8).find(|&at| memory.word(at) == object).expect("it is there");
    memory.write_u64(variable, 0);
    let error = ruby::read(&memory.image()).unwrap_err();
    assert!(matches!(error, Error::NotStarted { .. }), "{error}");
}

/// What a random heap is made of.
#[derive(Debug, Clone)]
enum Step {
    Object { class: usize, pointer: bool, words: usize },
    Class { named: bool, of: usize },
    Text(String),
    TextElsewhere,
    Internal(u8),
    Extend(usize),
    Mark(usize, bool),
    Unprotect(usize),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), any::<bool>(), 0..40_usize)
            .prop_map(|(class, pointer, words)| Step::Object { class, pointer, words }),
        1 => (any::<bool>(), any::<usize>()).prop_map(|(named, of)| Step::Class { named, of }),
        2 => "[a-z]{0,20}".prop_map(Step::Text),
        2 => Just(Step::TextElsewhere),
        1 => (0..10_u8).prop_map(Step::Internal),
        1 => any::<usize>().prop_map(Step::Extend),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(it, old)| Step::Mark(it, old)),
        1 => any::<usize>().prop_map(Step::Unprotect),
        2 => any::<usize>().prop_map(Step::Free),
    ]
}

fn build(release: RubyRelease, steps: &[Step]) -> RubyHeap {
    let mut heap = RubyHeap::new(release);
    let mut classes = vec![heap.object_class()];
    let mut objects: Vec<u64> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let some = |of: &Vec<u64>, index: usize| of.get(index % of.len().max(1)).copied();
        match step {
            Step::Object { class, pointer, words } => {
                let most = if release.version() < "3.2" { 3 } else { 60 };
                let mut own = vec![Word::Value(number as u64); (*words).min(most)];
                let memory = heap.malloc(64);
                if let Some(first) = own.first_mut().filter(|_| *pointer) {
                    *first = Word::Pointer(memory);
                }
                let class = classes[class % classes.len()];
                objects.push(heap.object(class, &own));
            }
            Step::Class { named, of } => {
                let superclass = classes[of % classes.len()];
                let name = format!("Class{number}");
                let class = if *named {
                    heap.class(&name, superclass)
                } else {
                    heap.anonymous_class(superclass)
                };
                classes.push(class);
            }
            Step::Text(text) => objects.push(heap.string(text)),
            Step::TextElsewhere => {
                let memory = heap.malloc(200);
                objects.push(heap.string_at(memory, 150));
            }
            Step::Internal(kind) => objects.push(heap.internal(*kind, &[Word::Value(1)])),
            Step::Extend(it) => {
                if let Some(it) = some(&objects, *it).filter(|it| heap.is_of_own_class(*it)) {
                    heap.extend(it);
                }
            }
            Step::Mark(it, old) => {
                if let Some(it) = some(&objects, *it) {
                    heap.mark(it, *old);
                }
            }
            Step::Unprotect(it) => {
                if let Some(it) = some(&objects, *it) {
                    heap.unprotect(it);
                }
            }
            Step::Free(it) => {
                if !objects.is_empty() {
                    let it = objects.swap_remove(it % objects.len());
                    heap.free(it);
                }
            }
        }
    }
    heap
}

fn release() -> impl Strategy<Value = RubyRelease> {
    (0..RubyRelease::ALL.len()).prop_map(|index| RubyRelease::ALL[index])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_heaps_read_as_they_were_written(
        release in release(),
        steps in prop::collection::vec(step(), 200..800),
    ) {
        let heap = build(release, &steps);
        let (image, truth) = heap.image();
        let space = ruby::read(&image);
        let space = space.unwrap_or_else(|error| panic!("{release:?}: {error}"));
        prop_assert_eq!(as_truth(&space), named(truth, release));
    }

    #[test]
    fn corruption_ends_as_an_error_or_a_reading_and_never_panics(
        release in release(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..4096_u64, any::<u64>()), 1..60),
    ) {
        let mut memory = SyntheticMemory::default();
        let heap = if release.version() < "4" { holding(release).0 } else { lively(release) };
        heap.write(&mut memory);
        let outline = memory.outline();
        let pages: Vec<u64> = outline.pages.iter().flat_map(|pages| pages.iter())
            .flat_map(|run| (run.range.start.0..run.range.end.0).step_by(4096))
            .collect();
        for (page, offset, word) in damage {
            let at = pages[page.index(pages.len())] + offset / 8 * 8;
            // Words from elsewhere in the heap are more misleading than random ones.
            let word = if word % 2 == 0 { word } else { memory.word(at ^ (word & 0xff8)) };
            memory.write_u64(at, word);
        }
        let image = memory.image();
        if let Ok(space) = ruby::read(&image) {
            let (holders, _) = ruby::holders(&image, &space);
            prop_assert!(holders.iter().all(|it| space.slots[it.value as usize].is_live()));
            let counts = space.counts();
            prop_assert_eq!(counts["TOTAL"], space.slots.len() as u64);
            prop_assert!(space.sized_slots().map(|(slot, _)| slot).eq(space.slots.iter().copied()));
            let mut classes = space.slots.iter().map(|slot| slot.class);
            let count = space.classes.len() as u32;
            prop_assert!(classes.all(|class| class < count || class == Slot::NO_CLASS));
        }
    }
}

/// Puma's parser frees what it recycles by itself up to Ruby 3.0: such a heap was refused.
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
            space.slots[slot as usize].state
        })
    };
    assert_eq!(read(RubyRelease::V2_7).unwrap(), SlotState::Free);
    assert!(matches!(read(RubyRelease::V3_1), Err(Error::Layout { .. })));
}
