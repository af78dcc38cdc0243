//! Mechanisms of public reports on Ruby's memory, in programs that know the truth: `scenarios/cases`.

use formats::{Action, Report};
use ledger::Cause;
use testkit::Target;

use crate::owners::retained;
use crate::{bytes, report};

/// Starts a case and reports on it. The layouts of all objects must be known.
fn case(name: &str, scale: &str) -> (Target, Report) {
    let target = Target::scenario(&format!("cases/{name}"), &["--scale", scale]);
    let report = report(target.pid());
    assert_eq!(report.findings, [], "{name}");
    (target, report)
}

/// The number of objects of a class, and of those that are called garbage.
fn garbage(report: &Report, class: &str) -> (u64, u64) {
    let (objects, roots) = retained(report, class);
    let garbage = roots.iter().filter(|(path, _)| path.is_none()).map(|(_, objects)| objects).sum();
    (objects, garbage)
}

/// Variables that a block inside a block captured were called garbage, with high confidence.
#[test]
fn closures_retain_the_variables_of_all_blocks_around_them() {
    let (target, report) = case("closures", "1");
    for class in target.truth["classes"].as_array().unwrap() {
        let class = class.as_str().unwrap();
        let (objects, roots) = retained(&report, class);
        assert_eq!(objects, target.number("objects"), "{class}");
        let closure = match class {
            "Text::InBinding" => "Kept::CLOSURES → Array → Binding → ",
            "Text::InFiber" => "Kept::CLOSURES → Array → Fiber → ",
            "Text::InEnumerator" => "Kept::CLOSURES → Array → Enumerator → ",
            "Text::InMethod" => "Kept::Settings → ",
            "Text::InThread" => "(threads) → Thread in block (2 levels) in ",
            _ => "Kept::CLOSURES → Array → Proc → ",
        };
        let path = roots[0].0.as_deref().unwrap_or("(garbage)");
        let is_right = path.starts_with(closure) && path.ends_with(class);
        let is_live = roots.iter().all(|(path, _)| path.is_some());
        // Stale words on the fiber's stack may seem to retain some of them.
        assert!(is_right && is_live && roots[0].1 * 5 >= objects * 4, "{class}: {roots:?}");
    }
    assert!(target.finish());
}

/// Frames of C functions have no bytecode. They cast doubt on the types of all internal objects, so that reports had
/// neither their names nor the methods of threads.
#[test]
fn variables_without_bytecode_cast_no_doubt_on_internal_objects() {
    let (target, report) = case("method_procs", "0.02");
    let names: Vec<&str> = report.owners.iter().flatten().map(|it| it.owner.as_str()).collect();
    for name in ["(imemo_env)", "(imemo_iseq)", "(imemo_ment)"] {
        assert!(names.contains(&name), "{name} of {names:?}");
    }
    assert!(target.finish());
}

/// Garbage was retained by "Rational → Class × 5".
#[test]
fn lists_of_subclasses_retain_no_classes() {
    let (target, report) = case("weak_subclasses", "0.5");
    let (instances, of_instances) = garbage(&report, "Base");
    assert_eq!(instances, target.number("objects"));
    assert!(of_instances * 20 >= instances * 19, "{of_instances} of {instances}");
    let (classes, of_classes) = garbage(&report, "Class");
    let truth = target.number("classes");
    assert!(classes > truth && of_classes * 20 >= truth * 19, "{of_classes} of {classes}");
    assert!(target.finish());
}

/// The classes, methods and blocks of OpenStructs were retained by the class OpenStruct, through its list of subclasses.
#[test]
fn singleton_classes_are_retained_by_their_objects() {
    let (target, report) = case("ostruct", "0.2");
    if target.truth["ruby_version"].as_str().is_some_and(|version| version < "3") {
        return testkit::skip("up to Ruby 2.7, an OpenStruct defines methods when they are called");
    }
    let path = "REPORT_ROWS → Array → OpenStruct";
    for class in ["OpenStruct", "Class", "Proc"] {
        let (objects, roots) = retained(&report, class);
        let root = roots[0].0.as_deref().unwrap_or("(garbage)");
        let is_right = root.starts_with(path) && roots[0].1 >= target.number("objects");
        assert!(is_right, "{class}: {objects}, {roots:?}");
    }
    assert!(target.finish());
}

/// The memory of objspace's tracing belonged to "2 Object", one of which was ENV.
#[test]
fn structures_behind_the_class_object_are_named_by_their_type() {
    let (target, report) = case("traced_allocations", "0.1");
    let version = target.truth["ruby_version"].as_str().unwrap();
    if version < "3.1" {
        return testkit::skip("this Ruby has no object for the tracing of allocations");
    }
    let owners = report.owners.as_ref().unwrap();
    let tracer = owners.iter().find(|owner| owner.owner == "ObjectTracing/allocation_info_tracer");
    let tracer = tracer.unwrap_or_else(|| panic!("{owners:#?}"));
    let bytes = tracer.exclusive_bytes + tracer.shared_bytes;
    assert_eq!((tracer.objects, tracer.kind.as_str()), (1, "class"));
    // From 3.4 on the object does not refer to the entries.
    assert!(version >= "3.4" || bytes >= target.number("objects") * 72, "{tracer:?}");
    assert!(target.finish());
}

/// The sentence of the verdict, and the first step.
fn words(report: &Report) -> (String, render::words::AdviceWords) {
    let summary = render::words::verdict(report).summary;
    (summary, render::words::advice(&report.advice[0], report))
}

/// Asserts that objects hold less by nearly this many bytes than in an earlier report. malloc may keep them.
fn assert_saved(target: &Target, before: &Report, expected: u64) {
    let held = |report: &Report| bytes(report, "ruby.malloc");
    let saved = held(before).saturating_sub(held(&report(target.pid())));
    assert!(saved * 10 > expected * 9, "{saved} of {expected}");
}

/// Nothing was said of the 7 KiB for which 120 MiB were kept.
#[test]
fn slices_that_keep_long_strings_are_named() {
    let (mut target, report) = case("sliced_strings", "0.6");
    let slices = target.number("slices");
    let step = &report.advice[0].action;
    let Action::CopySlices { slices: found, used_bytes, strings, bytes, .. } = step else {
        panic!("{:#?}", report.advice)
    };
    assert_eq!((*found, *used_bytes, *strings), (slices, slices * 60, slices));
    let (summary, words) = words(&report);
    assert!(summary.contains(" Sessions::TOKENS retains most of this memory."), "{summary}");
    assert!(summary.contains(&format!("in {slices} short slices of long Strings.")), "{summary}");
    assert!(words.action.contains("retained by Sessions::TOKENS → Array → String"), "{words:?}");
    target.tell("copy");
    target.next_truth();
    assert_saved(&target, &report, *bytes);
    assert!(target.finish());
}

/// "Release the objects of class Hash": nothing was said of a Hash with 10 entries and room for two millions.
#[test]
fn a_hash_that_was_large_once_is_rehashed() {
    let (mut target, report) = case("emptied_hash", "1");
    let version = target.truth["ruby_version"].as_str().unwrap();
    if version >= "3.3" {
        let is_rehash = |it: &formats::Advice| matches!(it.action, Action::Rehash { .. });
        assert!(!report.advice.iter().any(is_rehash), "its table is small: {:#?}", report.advice);
        assert!(target.finish());
        return testkit::skip("this Ruby makes the table of a hash smaller by itself");
    }
    let Action::Rehash { hashes, entries, capacity, bytes, .. } = report.advice[0].action else {
        panic!("{:#?}", report.advice)
    };
    assert_eq!((hashes, entries, capacity), (1, 10, 1 << 21));
    let (summary, words) = words(&report);
    assert!(
        summary.contains("are room for 2,097,152 entries in Hashes that have 10."),
        "{summary}"
    );
    assert_eq!(words.command, "Dedup::SEEN.rehash");
    target.tell("rehash");
    target.next_truth();
    assert_saved(&target, &report, bytes);
    assert!(target.finish());
}

/// A report on an engine with its own heap had no step, and a check that could not be done.
#[test]
fn mapped_memory_has_its_mappings_and_a_next_step() {
    let target = Target::scenario("growth/mapped", &[]);
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::Unknown), "{:#?}", report.causes);
    assert_eq!(report.verdict.confidence, formats::Confidence::High);
    let resident: u64 = report.unknown.iter().map(|row| row.resident_bytes).sum();
    assert_eq!(resident, report.verdict.bytes);
    let row = &report.unknown[0];
    assert_eq!(row.permissions, "rw-");
    assert!(row.mapped_bytes >= row.resident_bytes && row.resident_bytes * 10 > resident * 9);
    assert_eq!(report.advice[0].action, Action::FindMapper);
    let evidence = render::words::verdict(&report).evidence;
    assert!(evidence.iter().any(|line| line.contains("with the permissions rw-")), "{evidence:?}");
    assert!(target.finish());
}

/// The step stood second, and in no sentence of the verdict.
#[test]
fn an_allocator_that_was_not_loaded_is_named_first() {
    if testkit::preload().is_some() {
        return testkit::skip("another allocator is loaded");
    }
    let mut ruby = testkit::scenario("burst");
    let missing = [("LD_PRELOAD", "/no/libjemalloc.so.2")];
    let target = Target::start(ruby.args(["--scale", "0.2"]).envs(missing));
    let report = report(target.pid());
    let (summary, words) = words(&report);
    let sentence = "LD_PRELOAD names jemalloc, but jemalloc was not loaded.";
    assert!(summary.ends_with(sentence), "{summary}");
    assert!(words.action.starts_with("Correct LD_PRELOAD"), "{words:?}");
    assert!(target.finish());
}
