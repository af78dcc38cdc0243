//! Constants and variables that refer to objects.

use testkit::{RubyHeap, RubyRelease, SyntheticMemory};

use ruby::Finding;

use super::{assert_read, lively};

/// A heap with constants and variables, and their names and values.
pub(crate) fn holding(release: RubyRelease) -> (RubyHeap, Vec<(String, u64)>) {
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

fn up_to_4_0() -> impl Iterator<Item = RubyRelease> {
    RubyRelease::ALL.into_iter().filter(|release| release.version() < "4.1")
}

#[test]
fn constants_and_variables_are_read_as_they_were_written() {
    for release in up_to_4_0() {
        let (heap, truth) = holding(release);
        assert_read(&heap, release);
        let (image, _) = heap.image();
        let space = ruby::read(&image).unwrap();
        let (named_roots, findings) = ruby::named_roots(&image, &space);
        let address = |it: &ruby::NamedRoot| space.slot_address(it.value as usize).unwrap().0;
        let (tables, variables): (Vec<_>, Vec<_>) =
            named_roots.iter().partition(|it| it.kind == ruby::RootKind::Table);
        let own: Vec<_> = variables.iter().map(|it| (it.name.clone(), address(it))).collect();
        assert_eq!(own, truth, "{release:?}");
        assert!(tables.iter().all(|it| it.name == "(symbols)"), "{tables:?}");
        // The only variables of these classes of 3.2 are their names.
        let unknown = (release == RubyRelease::V3_2).then_some(Finding::ClassVariablesUnknown);
        assert_eq!(findings, Vec::from_iter(unknown), "{release:?}");
    }
}

#[test]
fn roots_that_cannot_be_derived_are_left_out_and_reported() {
    for release in [RubyRelease::V4_0, RubyRelease::V4_1] {
        let (image, _) = lively(release).image();
        let space = ruby::read(&image).unwrap();
        let (named_roots, findings) = ruby::named_roots(&image, &space);
        assert_eq!(
            (named_roots, findings),
            (vec![], vec![Finding::RootNamesUnknown]),
            "{release:?}"
        );
    }
}

/// If a known constant has another name, no names are trusted.
#[test]
fn no_names_are_reported_if_a_known_one_is_wrong() {
    for release in up_to_4_0() {
        let (heap, truth) = holding(release);
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        let image = memory.image();
        let space = ruby::read(&image).unwrap();
        let texts = space.slots.iter().enumerate().filter(|(_, slot)| slot.kind().0 == 5);
        let mut damaged = 0;
        for (slot, _) in texts {
            let at = space.slot_address(slot).unwrap().0;
            let from = if release.version() < "3.2" { 16 } else { 24 };
            // The last name is a number's, the others are names of classes.
            if memory.word(at + from) & 0xff_ffff_ffff_ffff == u64::from_le_bytes(*b"Integer\0") {
                let mut broken = memory.clone();
                broken.write(at + from, b"X");
                let image = broken.image();
                let Ok(space) = ruby::read(&image) else { continue };
                let (named_roots, findings) = ruby::named_roots(&image, &space);
                assert!(
                    named_roots.is_empty(),
                    "{release:?}: {} of {}",
                    named_roots.len(),
                    truth.len()
                );
                assert_eq!(findings, [Finding::RootNamesUnknown]);
                damaged += 1;
            }
        }
        assert_eq!(damaged, 2, "{release:?}");
    }
}
