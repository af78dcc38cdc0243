//! The files of bytecode.

use std::collections::BTreeMap;

use linux::Address;
use ruby::{CodePaths, Finding};
use testkit::{RubyHeap, RubyRelease};

use super::lively;

/// The path of each iseq by its address; `Err` for a finding.
fn read(heap: &RubyHeap) -> Result<BTreeMap<u64, String>, Finding> {
    let (image, _) = heap.image();
    let space = ruby::read(&image).unwrap();
    let code: CodePaths = ruby::code_paths(&image, &space)?;
    let path = |slot: u32| Some(code.paths[code.of(slot)? as usize].clone());
    let slots = 0..space.slots.len();
    Ok(slots.filter_map(|slot| Some((space.slot_address(slot)?.0, path(slot as u32)?))).collect())
}

/// A heap with a method entry, without which the types of internal objects are not trusted.
fn heap_of(release: RubyRelease) -> RubyHeap {
    let mut heap = RubyHeap::new(release);
    heap.imemo("ment");
    heap
}

/// Adds iseqs whose location is at `offset`, and returns the path of each.
fn compile(heap: &mut RubyHeap, paths: &[u64], offset: u64) -> Vec<u64> {
    let iseqs = (0..20).flat_map(|_| paths).map(|&path| {
        let memory = heap.malloc(400);
        let iseq = heap.iseq(path, memory, offset);
        heap.mark(iseq, false);
        iseq
    });
    iseqs.collect()
}

#[test]
fn the_file_of_each_iseq_is_read_wherever_its_body_names_it() {
    for release in RubyRelease::ALL {
        for offset in [RubyHeap::ISEQ_LOCATION, 16, 120] {
            let mut heap = heap_of(release);
            let long = format!("/srv/{}/long.rb", "x".repeat(300));
            let paths = [
                heap.path("<internal:kernel>"),
                heap.path("/usr/lib/ruby/3.1.0/set.rb"),
                heap.path_pair("app.rb", Some("/srv/app.rb")),
                heap.path_pair("/srv/current/x.rb", Some("/srv/1/x.rb")),
                heap.path_pair("(eval)", None),
                heap.path(&long),
            ];
            let expected = [
                "<internal:kernel>",
                "/usr/lib/ruby/3.1.0/set.rb",
                "/srv/app.rb",
                "/srv/current/x.rb",
                "(eval)",
                long.as_str(),
            ];
            let iseqs = compile(&mut heap, &paths, offset);
            let read = read(&heap).unwrap();
            let expected = expected.into_iter().cycle();
            let expected: BTreeMap<u64, String> =
                iseqs.into_iter().zip(expected.map(str::to_owned)).collect();
            assert_eq!(read, expected, "{release:?} at {offset}");
        }
    }
}

#[test]
fn a_heap_without_bytecode_has_no_files() {
    assert_eq!(read(&RubyHeap::new(RubyRelease::V3_3)), Ok(BTreeMap::new()));
}

#[test]
fn what_may_be_another_word_than_the_path_is_a_finding() {
    let internal = "<internal:kernel>";
    type Change = fn(&mut RubyHeap, u64);
    let changes: [(&str, Change); 4] = [
        // No place looks like a location.
        ("none", |heap, _| {
            lively_iseqs(heap);
        }),
        // Two places look like a location.
        ("two", |heap, path| {
            for iseq in 0..20 {
                let memory = heap.malloc(400);
                let own = heap.iseq(path, memory, 64);
                heap.mark(own, iseq == 0);
                heap.write_location(path, memory, 120);
            }
        }),
        // No path occurs in every Ruby.
        ("no known path", |heap, _| {
            let other = heap.path("/srv/app.rb");
            compile(heap, &[other], 64);
        }),
        // Strings that a program could change are not paths.
        ("unfrozen", |heap, path| {
            let text = heap.string("app.rb");
            compile(heap, &[path, text], 64);
        }),
    ];
    for (name, change) in changes {
        let mut heap = heap_of(RubyRelease::V3_1);
        let path = heap.path(internal);
        change(&mut heap, path);
        assert_eq!(read(&heap), Err(Finding::CodeFilesUnknown), "{name}");
    }
}

/// Adds iseqs without a location.
fn lively_iseqs(heap: &mut RubyHeap) {
    for _ in 0..20 {
        let iseq = heap.imemo("iseq");
        heap.mark(iseq, false);
    }
}

#[test]
fn garbage_may_have_lost_its_file() {
    let mut heap = lively(RubyRelease::V3_1);
    let path = heap.path("<internal:kernel>");
    let iseqs = compile(&mut heap, &[path], 64);
    for _ in 0..60 {
        let memory = heap.malloc(400);
        heap.iseq(0x7fff_0000, memory, 64);
    }
    let read = read(&heap).unwrap();
    assert_eq!(read.len(), iseqs.len());
    assert!(iseqs.iter().all(|iseq| read[iseq] == "<internal:kernel>"));
    assert!(heap.addresses().any(|at| !read.contains_key(&Address(at).0)));
}

/// In a Rails process that had just booted, the first method entries were garbage, and rbloat used to doubt the types
/// of all internal objects.
#[test]
fn garbage_before_live_objects_casts_no_doubt_on_their_types() {
    const METHOD_ENTRY: u8 = 6;
    let mut heap = RubyHeap::new(RubyRelease::V3_1);
    for _ in 0..100 {
        heap.imemo_as("ment", METHOD_ENTRY, 0x7fff_0000);
    }
    for _ in 0..30 {
        let method = heap.imemo("ment");
        heap.mark(method, false);
    }
    let path = heap.path("<internal:kernel>");
    let iseqs = compile(&mut heap, &[path], 64);
    assert_eq!(read(&heap).unwrap().len(), iseqs.len());
}

/// Before its first collection Ruby 4.1 has nearly as many dummies as bytecode, and the types of all internal objects were in doubt.
#[test]
fn bytecode_without_instructions_casts_no_doubt_on_its_type() {
    let mut heap = heap_of(RubyRelease::V4_1);
    let path = heap.path("<internal:kernel>");
    (0..40).for_each(|_| _ = heap.dummy_iseq(path));
    let iseqs = compile(&mut heap, &[path], 64);
    let (image, _) = heap.image();
    let space = ruby::read(&image).unwrap();
    assert!(!space.findings.contains(&Finding::InternalTypesUnknown), "{:?}", space.findings);
    assert!(read(&heap).unwrap().len() >= iseqs.len());
}

/// Twelve marked method entries without a definition (cached failures to find a method) used to make rbloat doubt the
/// types of all internal objects.
#[test]
fn method_entries_without_a_definition_cast_no_doubt_on_their_types() {
    let mut heap = RubyHeap::new(RubyRelease::V3_1);
    for _ in 0..12 {
        let method = heap.missing_method();
        heap.mark(method, false);
    }
    (0..30).for_each(|_| _ = heap.imemo("ment"));
    let path = heap.path("<internal:kernel>");
    let iseqs = compile(&mut heap, &[path], 64);
    assert_eq!(read(&heap).unwrap().len(), iseqs.len());
}
