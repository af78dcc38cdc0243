//! Mechanisms of public reports on Ruby's memory, in programs that know the truth: `scenarios/cases`.

use formats::{Action, Diff, DiffKind, Doubt, Report, Why};
use ledger::{Cause, InterpreterKind};
use testkit::Target;

use crate::diffs::{diff, looks_at};
use crate::owners::retained;
use crate::{bytes, document, rbloat, report};

/// Starts a case and reports on it. The layouts of all objects must be known.
fn case(name: &str, scale: &str) -> (Target, Report) {
    let target = Target::scenario(&format!("cases/{name}"), &["--scale", scale]);
    let report = report(target.pid());
    assert_eq!(report.findings, [], "{name}");
    (target, report)
}

/// The verdict in words.
fn verdict(report: &Report) -> String {
    render::words::verdict(report).summary
}

/// Returns true if the layout of the garbage collector's state was verified for this release.
fn is_layout_known(target: &Target) -> bool {
    let version = target.truth.get("ruby_version").or_else(|| target.truth.get("version"));
    version.and_then(|it| it.as_str()).is_some_and(|version| version < "3.5")
}

/// The number of objects of a class, and of those that are called garbage.
fn garbage(report: &Report, class: &str) -> (u64, u64) {
    let (objects, roots) = retained(report, class);
    let garbage = roots.iter().filter(|(path, _)| path.is_none()).map(|(_, objects)| objects).sum();
    (objects, garbage)
}

/// The path that retains most objects of a class, and the numbers of its objects and of all objects.
fn path_to(target: &Target, class: &str) -> (String, u64, u64) {
    let arguments = ["why", "--json", "--max-pause", "10s", &target.pid().to_string(), class];
    let output = rbloat().args(arguments).output().unwrap();
    let why: Why = document(&output.stdout);
    let first = why.paths.first().unwrap();
    (first.path.clone().unwrap_or_else(|| "(garbage)".into()), first.objects, why.subject.objects)
}

/// Asserts that a path retains nearly all objects of a class: an old word may seem to retain one. `PLACE` in it is that of the class's line.
#[track_caller]
fn assert_path(target: &Target, class: &str, expected: &str) {
    let name = class.split("::").last().unwrap();
    let (path, objects, all) = path_to(target, class);
    let line = target.truth["lines"][name].as_u64().unwrap_or_default();
    // In 2.7 the array of a finalizer is one of the program's.
    let path = path.replace("(finalizers) → Array", "(finalizers)");
    let (before, after) = expected.split_once("PLACE").unwrap_or((expected, ""));
    let place = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    let is_right = place.is_some_and(|it| it.is_empty() || it.ends_with(&format!(".rb:{line}")));
    let are_most = objects * 10 >= all * 9;
    assert!(is_right && are_most, "{class}: {path} ({objects} of {all}), line {line}");
}

/// Entries of at_exit belonged to classes, because of old words, or to "(variables of libruby)", the name of a thread's
/// variable was missing, and one Ractor retained the TracePoints of all.
#[test]
fn lists_of_the_interpreter_have_names() {
    let target = Target::scenario("cases/lists", &["--scale", "1"]);
    assert_path(&target, "Item::AtExit", "(at_exit) → Proc (PLACE) → Item::AtExit");
    assert_path(&target, "Item::Finalized", "(finalizers) → Proc (PLACE) → Item::Finalized");
    assert_path(
        &target,
        "Item::Traced",
        "(TracePoints) → TracePoint → Proc (PLACE) → Item::Traced",
    );
    assert_path(&target, "Item::Handler", "(signal handlers) → Proc (PLACE) → Item::Handler");
    let (path, objects, all) = path_to(&target, "Item::Local");
    let is_right = path.starts_with("POOL → Array → Thread in block ")
        && path.ends_with(" → [:last_request] → Hash → Item::Local");
    assert!(is_right && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    if target.truth["has_ractors"] == true {
        assert_path(&target, "Item::Message", "SINK → Ractor → (queue) → Item::Message");
    }
    assert!(target.finish());
}

/// The line of a handler is the line to fix, and no path had it.
#[test]
fn closures_have_a_place_in_paths() {
    let target = Target::scenario("cases/methods", &["--scale", "1"]);
    assert_path(&target, "Dashboard", "Bus::HANDLERS → Array → Proc (PLACE) → Dashboard");
    assert_path(&target, "Audit", "Bus::HANDLERS → Array → Method Audit#note (PLACE) → Audit");
    assert_path(&target, "Report", "Bus::HANDLERS → Array → Method Report#note (PLACE) → Report");
    assert!(target.finish());
}

/// The path through all ended threads is long, so any word of an earlier owner in memory of classes, bytecode or regular expressions
/// made a shorter one: "Gem::GemNotInHomeException → Class × 2 → Thread → Worker".
#[test]
fn long_paths_do_not_give_way_to_words_of_earlier_owners() {
    let target = Target::scenario("cases/successors", &["--scale", "1"]);
    let (path, objects, all) = path_to(&target, "Worker");
    assert!(path.starts_with("POOL → Pool → Array → Worker"), "{path}");
    assert_eq!([objects, all], [target.number("objects"); 2], "{path}");
    assert!(target.finish());
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
            _ => "Kept::CLOSURES → Array → Proc (",
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
    let (target, report) = case("ostruct", "1");
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
    let owner = report.owners.iter().flatten().find(|owner| owner.owner == "OpenStruct").unwrap();
    assert_eq!(owner.singleton_objects, target.number("objects"));
    // A class with its method table, two methods for each of six fields, their blocks and variables.
    assert!(owner.singleton_bytes > 4096 * owner.singleton_objects, "{owner:?}");
    let summary = render::words::verdict(&report).summary;
    assert!(summary.contains(" OpenStruct have singleton classes, which take "), "{summary}");
    assert!(!summary.contains("imemo"), "{summary}");
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(words.action.contains("retained by REPORT_ROWS → Array → OpenStruct"), "{words:?}");
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
    // The step was to release the object by "their close, clear, free or destroy method".
    let is_free = |it: &&formats::Advice| matches!(it.action, Action::FreeNative { .. });
    if let Some(step) = report.advice.iter().find(is_free) {
        let words = render::words::advice(step, &report);
        assert!(words.action.starts_with("Stop the tracing of allocations"), "{words:?}");
        let call = "ObjectSpace.trace_object_allocations_stop, then ";
        assert!(words.command.starts_with(call), "{words:?}");
    }
    assert!(target.finish());
}

/// The report advised to run the GC, but not to enable it.
#[test]
fn a_disabled_gc_is_the_reason_for_garbage() {
    let (mut target, report) = case("gc_disabled", "1");
    let gc = |report: &Report| report.ruby.as_ref().unwrap().gc.clone();
    let state = (gc(&report).disabled, gc(&report).stress, gc(&report).variables.len());
    if is_layout_known(&target) {
        assert_eq!(state, (Some(true), Some(false), 0));
    } else {
        return testkit::skip("the layout of this Ruby's collector is unknown");
    }
    let verdict = verdict(&report);
    assert!(verdict.contains("most of which are garbage"), "{verdict}");
    assert!(verdict.contains("because it is disabled (GC.disable)"), "{verdict}");
    assert_eq!(report.advice[0].action, Action::EnableGc);

    let folder = tempfile::tempdir().unwrap();
    let snapshots: Vec<_> = (0..2)
        .map(|number| {
            let path = folder.path().join(format!("{number}.rbloat"));
            if number > 0 {
                target.tell("grow");
                target.next_truth();
            }
            let pid = target.pid().to_string();
            let saved = rbloat().args(["snapshot", &pid, "-o"]).arg(&path).output().unwrap();
            assert!(saved.status.success());
            path
        })
        .collect();
    let output = rbloat().arg("diff").args(&snapshots).arg("--json").output().unwrap();
    let diff: Diff = document(&output.stdout);
    let (kind, doubt) = (diff.verdict.kind, diff.verdict.doubt);
    assert_eq!((kind, doubt), (DiffKind::Growth, Some(Doubt::GcDisabled)), "{:?}", diff.verdict);

    // The advice works.
    target.tell("enable");
    target.next_truth();
    let after = crate::report(target.pid());
    assert_eq!(gc(&after).disabled, Some(false));
    // The transient heap keeps its pages.
    let held = |report: &Report| bytes(report, "ruby.live_slots");
    assert!(held(&after) * 4 < held(&report), "{} {}", held(&after), held(&report));
    assert!(target.finish());
}

/// The report said that live objects pin these pages, and advised to compact the heap, which frees nothing.
#[test]
fn initial_slots_are_the_reason_for_free_slots() {
    let (mut target, report) = case("init_slots", "1");
    if !is_layout_known(&target) {
        return testkit::skip("the settings of this Ruby's collector are unknown");
    }
    assert_eq!(report.verdict.cause, Some(Cause::RubyFreeSlots));
    let variable = target.truth["variable"].as_str().unwrap().to_owned();
    let verdict = verdict(&report);
    assert!(verdict.contains(&variable), "{verdict}");
    let name = variable.split('=').next().unwrap().to_owned();
    assert_eq!(report.advice[0].action, Action::UnsetInitialSlots { variables: vec![name] });
    assert!(report.advice.iter().all(|step| step.action != Action::Compact), "{:?}", report.advice);
    // "GC.compact does not change that"
    target.tell("compact");
    let rss = target.next_truth()["rss_bytes"].as_u64().unwrap();
    assert!(rss * 10 > report.process.rss_bytes * 9, "{rss} {}", report.process.rss_bytes);
    assert!(target.finish());
}

/// The state of the collector as the program itself sees it, each time after a change.
#[test]
fn the_state_of_the_gc_is_read() {
    let mut target = Target::ruby(
        "require 'json'
         state = -> { { disabled: GC.enable.tap { |was| GC.disable if was }, stress: GC.stress, full: !GC.respond_to?(:config) || GC.config[:rgengc_allow_full_mark] } }
         tell = -> { puts \"ready #{state.call.merge(version: RUBY_VERSION).to_json}\"; $stdout.flush }
         steps = [-> { GC.disable }, -> { GC.stress = true }, -> { GC.stress = false; GC.enable },
                  -> { GC.config(rgengc_allow_full_mark: false) if GC.respond_to?(:config) }]
         GC.start
         tell.call
         steps.each { |step| gets; step.call; tell.call }
         gets",
    );
    for state in 0..5 {
        if state > 0 {
            target.tell("next");
            target.truth = target.next_truth();
        }
        let truth = target.truth.clone();
        if !is_layout_known(&target) {
            return testkit::skip("the layout of this Ruby's collector is unknown");
        }
        let report = report(target.pid());
        let gc = &report.ruby.as_ref().unwrap().gc;
        assert_eq!(gc.disabled, truth["disabled"].as_bool(), "{truth}");
        assert_eq!(gc.stress.unwrap_or(false), truth["stress"].as_bool().unwrap(), "{truth}");
        assert_eq!(gc.allow_full_mark.unwrap_or(true), truth["full"].as_bool().unwrap(), "{truth}");
    }
}

/// Code that is defined again and again was called a warm-up.
#[test]
fn code_that_is_defined_again_and_again_is_a_leak() {
    let target = Target::scenario("cases/inline_templates", &[]);
    let has_cache = target.truth["ruby_version"].as_str().unwrap().starts_with("2.7");
    let diff = diff(&looks_at(target, 3, |_| false));
    assert_eq!(diff.verdict.kind, DiffKind::CodeLeak, "{:?} {:?}", diff.verdict, diff.code);
    assert_eq!(diff.code[0].path, "inline template");
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Code leak: the code of inline template is defined again and again";
    assert!(words.starts_with(leak), "{words}");
    // Ruby 2.7 has all methods in a cache as well, which may come first.
    assert!(has_cache || words.contains("again, retained by Views::Compiled."), "{words}");
}

#[test]
fn code_that_is_evaluated_and_not_retained_is_no_leak() {
    let target = Target::scenario("cases/eval_garbage", &[]);
    let diff = diff(&looks_at(target, 3, |_| false));
    assert_ne!(diff.verdict.kind, DiffKind::CodeLeak, "{:?} {:?}", diff.verdict, diff.code);
    assert_ne!(diff.verdict.kind, DiffKind::WarmUp, "{:?}", diff.verdict);
}

#[test]
fn anonymous_classes_are_a_leak_of_classes() {
    let target = Target::scenario("cases/anonymous_classes", &["--scale", "10"]);
    let report = report(target.pid());
    // Other releases have less memory for each class.
    if report.verdict.cause == Some(Cause::RubyVm) {
        let words = verdict(&report);
        assert!(words.contains("classes and modules, with their tables"), "{words}");
        let Action::ReleaseObjects { class, path: Some(path), .. } = &report.advice[0].action
        else {
            panic!("{:?}", report.advice)
        };
        assert!(class == "Class" && path.starts_with("Tracker::DESCENDANTS"), "{path}");
    }
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: Class retained by Tracker::DESCENDANTS grows";
    assert!(words.starts_with(leak), "{words}");
}

/// The words of the advice that is of a kind.
fn advice(report: &Report, is_it: impl Fn(&Action) -> bool) -> render::words::AdviceWords {
    let advice = report.advice.iter().find(|advice| is_it(&advice.action));
    render::words::advice(advice.unwrap_or_else(|| panic!("{:#?}", report.advice)), report)
}

/// The advice was RAILS_MAX_THREADS, Puma and Sidekiq, none of which started the threads.
#[test]
fn threads_are_advised_by_the_line_that_starts_them() {
    let (target, report) = case("thread_per_client", "0.5");
    let words = advice(&report, |it| matches!(it, Action::RunFewerThreads { .. }));
    let (count, line) = (target.number("objects"), target.number("started"));
    let started = format!("thread_per_client.rb:{line} started {count} of them.");
    let is_right = words.action.contains(&started) && words.action.contains("run Client#run (");
    assert!(is_right && !words.command.contains("Puma"), "{words:?}");
    let row = report.threads.as_ref().unwrap().iter().find(|row| row.threads == count).unwrap();
    assert_eq!(row.started_line, Some(line), "{row:?}");
    assert!(target.finish());
}

/// The advice was to find out what retains the backtraces, below the path that says so: they refer to most of their memory
/// indirectly.
#[test]
fn advice_has_the_path_that_retains_most_objects() {
    let (target, report) = case("backtraces", "0.5");
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    let path = "most of which are retained by Errors::RECENT → Array → RuntimeError → ";
    assert!(words.action.contains(path), "{words:?}");
    assert!(target.finish());
}

/// Stacks of fibers had no advice, and the check promised that RSS falls.
#[test]
fn fibers_are_advised_by_what_retains_them() {
    let (target, report) = case("enumerators", "0.6");
    let words = advice(&report, |it| matches!(it, Action::EndFibers { .. }));
    assert!(
        words.action.contains("retained by OPEN → Array → Feed → Enumerator → Fiber"),
        "{words:?}"
    );
    assert!(words.command.starts_with("Enumerator#rewind"), "{words:?}");
    assert!(!render::words::verdict(&report).check.contains("RSS should fall"));
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

/// The interpreter's tables were one row.
#[test]
fn tables_of_the_interpreter_are_told_apart() {
    let (target, report) = case("object_ids", "1");
    let kinds = |report: &Report| report.interpreter.as_ref().unwrap().kinds.clone();
    let kind = |report: &Report, wanted: InterpreterKind| {
        kinds(report).iter().find(|part| part.kind == wanted).unwrap().resident_bytes
    };
    if target.truth["ruby_version"].as_str().unwrap() >= "3.5" {
        return testkit::skip("this Ruby has object ids in the objects");
    }
    let ids = kind(&report, InterpreterKind::ObjectIds);
    assert!(ids >= target.number("ids") * 16, "{ids} {:?}", kinds(&report));
    let words = verdict(&report);
    assert!(words.contains("tables of object ids"), "{words}");
    assert!(target.finish());

    let mut target = Target::ruby(
        "KEPT = Array.new(100_000) { |at| 'text'.dup.tap { |it| it.instance_variable_set(:@at, at) } }
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; gets
         OTHERS = Array.new(100_000) { Object.new.tap { |it| ObjectSpace.define_finalizer(it, proc {}) } }
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let before = crate::report(target.pid());
    target.tell("finalizers");
    target.next_truth();
    let after = crate::report(target.pid());
    let variables = kind(&before, InterpreterKind::GenericVariables);
    assert!(variables >= 100_000 * 16, "{:?}", kinds(&before));
    assert_eq!(kind(&before, InterpreterKind::ObjectIds), 0, "{:?}", kinds(&before));
    let finalizers = kind(&after, InterpreterKind::Finalizers);
    assert!(finalizers >= 100_000 * 16, "{:?} {:?}", kinds(&after), after.findings);
}

/// The report was "Healthy", and the account of the group called files in memory a cache.
#[test]
fn files_in_memory_are_no_cache() {
    let Some(group) = testkit::ControlGroup::make() else { return };
    if !std::path::Path::new("/dev/shm").is_dir() {
        return testkit::skip("there is no /dev/shm");
    }
    let target = Target::start(&mut group.command(&testkit::scenario("cases/tmpfs")));
    let report = report(target.pid());
    let account = report.group.as_ref().unwrap();
    let (count, each) = (target.number("files"), target.number("file_bytes"));
    let shmem = account.unmapped_shmem_bytes;
    // The kernel's counts of a group lag behind by some pages for each processor.
    assert!(shmem.abs_diff(count * each) <= 4 << 20, "{account:?}");
    assert!(account.unmapped_cache_bytes >= 16 << 20, "{account:?}");
    assert!(account.processes == 1 && account.processes_bytes <= report.process.rss_bytes);
    assert_eq!(account.files.len() as u64, count, "{account:?}");
    for file in &account.files {
        assert!(file.is_deleted && file.path.contains("/dev/shm/upload"), "{file:?}");
        assert_eq!((file.bytes, file.pid), (each, target.pid()), "{file:?}");
    }
    let words = verdict(&report);
    assert!(words.contains("The control group of this process uses"), "{words}");
    assert!(target.finish());
}

/// Names of methods that are used once.
#[test]
fn symbols_that_stay_are_named_by_their_table() {
    let (target, report) = case("symbols", "0.5");
    for class in ["String", "Symbol"] {
        let (_, roots) = retained(&report, class);
        let of_table = roots
            .iter()
            .filter(|(path, _)| path.as_ref().is_some_and(|path| path.starts_with("(symbols) → ")));
        let objects: u64 = of_table.map(|(_, objects)| objects).sum();
        assert!(objects >= target.number("symbols"), "{class}: {roots:?}");
    }
    assert!(target.finish());
}

/// The verdict counted the allocated room of one Array, which doubles, so that it grew "at an uneven rate", and spoke of all 1,535
/// Arrays.
#[test]
fn one_object_that_grows_is_a_leak() {
    let (target, report) = case("growing_array", "1");
    let (summary, words) = words(&report);
    assert!(
        summary.contains(", most of them by 1 of ") && summary.contains(" Array."),
        "{summary}"
    );
    let step = "Release the large Array that is retained by Stats::LATENCIES → Array";
    assert!(words.action.starts_with(step), "{words:?}");
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: Array retained by Stats::LATENCIES grows by ";
    assert!(words.starts_with(leak), "{words}");
    // Each step adds three millions of numbers.
    assert!(diff.verdict.bytes.abs_diff(2 * 3_000_000 * 8) < 4 << 20, "{:?}", diff.verdict);
}

/// Half of the results were retained by "(variables of libruby)", because words of a thread's methods came last.
#[test]
fn local_variables_of_threads_come_before_old_words() {
    let (target, _) = case("long_job", "1");
    let (path, objects, all) = path_to(&target, "Result");
    let is_right = path.starts_with("(threads) → Thread in ExportJob#perform (")
        && path.ends_with(" → Connection → Hash → Result");
    assert!(is_right && objects == all, "{path}: {objects} of {all}");
    let (path, objects, all) = path_to(&target, "Array");
    let rows = target.number("results") * 52;
    let is_right = path.contains(" → Connection → Hash → Result → Array");
    assert!(is_right && objects * 10 >= rows * 9, "{path}: {objects} of {rows} and {all}");
    assert!(target.finish());
}

/// The leak was that of "RubyVM", whose one object has the tables of the interpreter.
#[test]
fn tables_of_the_interpreter_are_no_leak_of_their_own() {
    let target = Target::scenario("cases/weak_cache", &[]);
    let diff = diff(&looks_at(target, 3, |_| false));
    let class = diff.verdict.class.as_deref();
    let is_of_cache = [None, Some("Hash"), Some("String"), Some("WeakRef"), Some("Object")];
    assert!(is_of_cache.contains(&class), "{:?} {:?}", diff.verdict, diff.classes);
    // Old words in patterns had the addresses of these tables.
    let regexps = diff.classes.iter().find(|class| class.name == "Regexp");
    assert!(regexps.is_none_or(|class| class.bytes.change < 1 << 20), "{regexps:?}");
}

/// The advice was GC.start, and the settings that let garbage stay were in no sentence of the verdict.
#[test]
fn limits_of_malloc_are_the_reason_for_garbage() {
    let target = Target::scenario("cases/malloc_limits", &["--scale", "1"]);
    let report = report(target.pid());
    let variables: Vec<String> = serde_json::from_value(target.truth["variables"].clone()).unwrap();
    assert_eq!(report.advice[0].action, Action::UnsetMallocLimits { variables });
    let (summary, words) = words(&report);
    assert!(summary.contains("most of which are garbage"), "{summary}");
    let reason =
        "RUBY_GC_OLDMALLOC_LIMIT_MAX=2000000000 delay the GC until that much memory was allocated.";
    assert!(summary.ends_with(reason), "{summary}");
    assert!(words.command.starts_with("unset RUBY_GC_MALLOC_LIMIT "), "{words:?}");
    assert!(target.finish());
}

/// The headline was "59 (T_ARRAY)", and nothing was said of the room of Strings.
#[test]
fn buffers_that_were_large_once_are_copied() {
    let (mut target, before) = case("emptied_buffers", "1");
    let mut found = before.advice.iter().filter_map(|step| match &step.action {
        Action::CopyBuffers { class, objects, used_bytes, bytes, path, .. } => {
            Some((class.as_str(), *objects, *used_bytes, path.as_str(), *bytes))
        }
        _ => None,
    });
    let (jobs, buffers) = (target.number("jobs"), target.number("buffers"));
    let of_arrays = found.next().unwrap();
    let of_strings = found.next().unwrap();
    assert_eq!(
        (of_arrays.0, of_arrays.1, of_arrays.2, of_arrays.3),
        ("Array", 1, jobs * 8, "Backlog::JOBS → Array")
    );
    assert_eq!(
        (of_strings.0, of_strings.1, of_strings.2, of_strings.3),
        ("String", buffers, buffers * 100, "Pool::BUFFERS → Array → String")
    );
    let (summary, words) = words(&before);
    assert!(summary.contains("in Arrays that have 80 B in room for "), "{summary}");
    assert!(!summary.contains("T_ARRAY"), "{summary}");
    assert_eq!(words.command, "array.replace(array.map(&:itself))");
    target.tell("copy");
    target.next_truth();
    assert_saved(&target, &before, of_arrays.4 + of_strings.4);
    assert!(target.finish());
}

/// The path of 15,000 clients had the name of one variable.
#[test]
fn variables_with_different_names_are_not_named() {
    let (target, _) = case("client_variables", "1");
    let (path, objects, all) = path_to(&target, "Client");
    let is_right =
        path.starts_with("(threads) → Thread in ") && path.ends_with(" → […] → Array → Client");
    assert!(is_right && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    assert!(target.finish());
}

/// The report knew only that this memory is neither malloc's nor Ruby's.
#[test]
fn mapped_memory_is_named_by_the_objects_that_refer_to_it() {
    let target = Target::scenario("cases/mapped_buffers", &["--scale", "1"]);
    if target.number("buffers") == 0 {
        return testkit::skip("this Ruby has no IO::Buffer");
    }
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::Unknown), "{:#?}", report.causes);
    let row = &report.unknown[0];
    assert_eq!(row.owner.as_deref(), Some("IO::Buffer"), "{row:?}");
    let (summary, words) = words(&report);
    assert!(summary.ends_with(" Objects of IO::Buffer refer to most of it."), "{summary}");
    let step = format!("`rbloat why {} IO::Buffer` shows what retains them.", target.pid());
    assert!(words.action.ends_with(&step), "{words:?}");
    assert!(target.finish());
}
