//! Synthetic heaps of every release with a layout of its own, read back.

#[path = "synthetic/classes.rs"]
mod classes;
#[path = "synthetic/code.rs"]
mod code;
#[path = "synthetic/contents.rs"]
mod contents;
#[path = "synthetic/data.rs"]
mod data;
#[path = "synthetic/named_roots.rs"]
mod named_roots;
#[path = "synthetic/pages.rs"]
mod pages;
#[path = "synthetic/random.rs"]
mod random;

use std::collections::{BTreeMap, BTreeSet};

use linux::Address;
use ruby::{Error, Finding, ObjectSpace, SlotState};
use testkit::{RubyHeap, RubyRelease, RubyTruth, Shift, SyntheticMemory, Word};

/// The result of a read, in the form of the truth.
fn as_truth(space: &ObjectSpace) -> RubyTruth {
    let mut classes = BTreeMap::new();
    for slot in space.slots.iter().filter(|slot| slot.is_live()) {
        let class = &space.classes[slot.class() as usize];
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
            .map(|(slot, to, _)| (address(slot as usize), to.0))
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
            .filter(|(_, slot)| slot.state() == SlotState::Marked)
            .map(|(index, _)| address(index))
            .collect(),
        pages: space.pages.iter().map(|page| page.range.start.0).collect(),
        page_arrays: page_arrays(space),
    }
}

fn page_arrays(space: &ObjectSpace) -> Vec<(u64, u64)> {
    let known = space.contents.iter().filter_map(|&(at, content)| Some((at, content.known()?.1)));
    let mut arrays: Vec<_> = known.map(|(at, words)| (at.0, words * 8)).collect();
    arrays.sort_unstable();
    arrays
}

#[track_caller]
fn assert_read(heap: &RubyHeap, release: RubyRelease) -> ObjectSpace {
    let (image, truth) = heap.image();
    let space = ruby::read(&image).unwrap_or_else(|error| panic!("{release:?}: {error}"));
    assert_eq!(space.interpreter.version, release.version());
    assert_eq!(as_truth(&space), truth, "{release:?}");
    space
}

/// Without owners, links and contents are left out, and everything else is the same.
#[test]
fn a_space_without_its_graph_has_the_same_slots_and_references() {
    for release in RubyRelease::ALL {
        let (image, truth) = lively(release).image();
        let interpreter = ruby::find(&image).unwrap();
        let space = ruby::read_with(&image, &interpreter, ruby::Depth::Memory).unwrap();
        let expected = RubyTruth { links: Default::default(), ..truth };
        assert_eq!(as_truth(&space), expected, "{release:?}");
        let is_unknown = |content| content == ruby::Content::UNKNOWN;
        assert!(space.references.iter().all(|(.., content)| is_unknown(content)), "{release:?}");
        let whole = ruby::read_with(&image, &interpreter, ruby::Depth::Graph).unwrap();
        assert_eq!(whole.slots, space.slots);
        assert!(!whole.references.iter().all(|(.., content)| is_unknown(content)), "{release:?}");
    }
}

/// Types of internal objects that all releases have.
const INTERNAL: [&str; 11] = [
    "iseq",
    "ment",
    "env",
    "cref",
    "svar",
    "throw_data",
    "ifunc",
    "memo",
    "tmpbuf",
    "callinfo",
    "callcache",
];

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
            1 => heap.object(anonymous, &[Word::Value(5), Word::Value(pointer + 4)]),
            2 => heap.string("short"),
            3 => heap.string_at(pointer, 99),
            4 => heap.imemo(INTERNAL[number as usize % INTERNAL.len()]),
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

/// A wrong table of numbers used to attribute the memory of one type to another. Types that it has right keep their names.
#[test]
fn internal_objects_that_are_not_what_their_numbers_say_are_shown_by_number() {
    for release in RubyRelease::ALL {
        let is_late = release.version() >= "4";
        for (name, number) in [("iseq", 6), ("ment", 7), ("env", 6), ("iseq", 12), ("fields", 14)] {
            if name == "fields" && !is_late {
                continue;
            }
            let mut heap = RubyHeap::new(release);
            for _ in 0..8 {
                heap.imemo("iseq");
                heap.imemo("ment");
                heap.imemo("callcache");
                // Another type has the former number of `fields`, so the table is wrong.
                if name == "fields" {
                    let memory = heap.malloc(400);
                    heap.imemo_as("iseq", 13, memory);
                }
            }
            for _ in 0..40 {
                let memory = heap.malloc(400);
                heap.imemo_as(name, number, memory);
            }
            let (image, _) = heap.image();
            let space = ruby::read(&image).unwrap();
            assert!(
                space.findings.contains(&Finding::InternalTypesUnknown),
                "{release:?}: {name} as {number}"
            );
            let names = space.classes.iter().filter_map(|class| class.name.as_deref());
            let is_word = |name: &&str| {
                let rest = name.strip_prefix("(imemo_").and_then(|rest| rest.strip_suffix(')'));
                rest.is_some_and(|rest| rest.parse::<u8>().is_err())
            };
            let names: BTreeSet<&str> = names.filter(is_word).collect();
            let wrong = match number {
                6 => "(imemo_ment)",
                7 => "(imemo_iseq)",
                12 if !is_late => "(imemo_callcache)",
                _ => "",
            };
            let mut expected =
                BTreeSet::from(["(imemo_iseq)", "(imemo_ment)", "(imemo_callcache)"]);
            expected.remove(wrong);
            expected.extend((name == "fields").then_some("(imemo_fields)"));
            assert_eq!(names, expected, "{release:?}: {name} as {number}");
        }
    }
}

/// Variables of a block in a form that no release has cost the names of all types that cannot be confirmed.
#[test]
fn a_type_in_a_new_form_casts_no_doubt_on_others() {
    const ENV: u8 = 0;
    for release in RubyRelease::ALL {
        let mut heap = RubyHeap::new(release);
        for name in ["iseq", "ment", "callcache", "memo", "cref"] {
            (0..8).for_each(|_| _ = heap.imemo(name));
        }
        for _ in 0..40 {
            let memory = heap.malloc(400);
            heap.imemo_as("memo", ENV, memory);
        }
        let (image, _) = heap.image();
        let space = ruby::read(&image).unwrap();
        assert!(space.findings.contains(&Finding::InternalTypesUnknown), "{release:?}");
        let names: BTreeSet<&str> = space
            .classes
            .iter()
            .filter_map(|class| class.name.as_deref())
            .filter(|name| name.starts_with("(imemo_"))
            .collect();
        let others = ["iseq", "ment", "callcache", "memo", "cref"];
        let mut expected: BTreeSet<String> = others.map(|it| format!("(imemo_{it})")).into();
        expected.insert("(imemo_0)".into());
        assert!(names.iter().copied().eq(expected.iter().map(String::as_str)), "{names:?}");
    }
}

#[test]
fn an_interpreter_is_found_without_page_states() {
    let mut memory = SyntheticMemory::default();
    lively(RubyRelease::V3_1).write(&mut memory);
    let mut image = memory.image();
    image.state.pages = None;
    let interpreter = ruby::find(&image).expect("it is a Ruby");
    assert_eq!(
        (interpreter.module.as_str(), interpreter.version.as_str()),
        ("libruby.so.0", "3.1.2")
    );
    assert!(ruby::read(&image).is_ok(), "page states are not needed to read a heap either");
}

/// Changes that a later release may make. Either all results are still right, or there is an error.
#[test]
fn a_layout_that_is_no_releases_is_read_right_or_not_at_all() {
    let step = if testkit::is_nightly("two of three changes of a layout") { 1 } else { 3 };
    for (number, release) in RubyRelease::ALL.into_iter().enumerate() {
        let (mut right, mut refused) = (0, 0);
        for shift in Shift::all(release).into_iter().skip(number % step).step_by(step) {
            let (image, truth) = enlivened(RubyHeap::shifted(release, shift)).image();
            let Ok(space) = ruby::read(&image) else {
                refused += 1;
                continue;
            };
            let (mut read, mut truth) = (as_truth(&space), truth);
            // If the members of classes were not found, a finding reports it. Singleton classes are unknown then.
            if !space.findings.is_empty() {
                (read.classes, truth.classes) = Default::default();
                (read.links, truth.links) = Default::default();
            }
            assert_eq!(read, truth, "{release:?}: {shift:?}");
            right += 1;
        }
        let least = 6 / step;
        assert!(
            right >= least && refused >= least,
            "{release:?}: {right} were read, {refused} refused"
        );
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
        let named: Vec<_> = space.references.iter().filter(|(_, to, _)| to.0 == pointer).collect();
        let slot = named.first().map(|(slot, ..)| space.slot_address(*slot as usize));
        assert_eq!((named.len(), slot), (1, Some(Some(Address(owner)))), "{release:?}");
    }
}

#[test]
fn another_garbage_collector_and_no_ruby_are_errors_of_their_own() {
    let mut memory = SyntheticMemory::default();
    let nothing = ruby::read(&memory.image());
    assert_eq!(nothing.unwrap_err(), Error::NotRuby);
    lively(RubyRelease::V3_4).write(&mut memory);
    let mut library =
        linux::Mapping::anonymous(Address(0x7f40_0000_0000)..Address(0x7f40_0000_1000));
    library.backing = linux::Backing::File("/usr/lib/ruby/gc/librubygc.mmtk.so".into());
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
    let library = 0x7f10_0000_0000..0x7f10_0002_0000_u64;
    let variable = library.step_by(8).find(|&at| memory.word(at) == object).expect("it is there");
    memory.write_u64(variable, 0);
    let error = ruby::read(&memory.image()).unwrap_err();
    assert!(matches!(error, Error::NotStarted { .. }), "{error}");
}
