//! Mechanisms of public reports on Ruby's memory, in programs that know the truth: `scenarios/cases`.

mod answers;
mod causes;
mod collector;
mod growth;
mod native;
mod reports;
mod steps;

use formats::{Action, Report, Why};
use ledger::InterpreterKind;
use testkit::Target;

use crate::owners::retained;
use crate::{document, rbloat, report};

/// Starts a case and reports on it. The layouts of all objects must be known.
fn case(name: &str, scale: &str) -> (Target, Report) {
    let target = Target::scenario(&format!("cases/{name}"), &["--scale", scale]);
    let report = report(target.pid());
    assert_eq!(report.findings, [], "{name}");
    (target, report)
}

/// Returns true if Ruby cannot load a library where targets run. The test is then reported as skipped.
pub(crate) fn lacks(library: &str) -> bool {
    let loaded = testkit::ruby().args(["-r", library, "-e", ""]).output();
    let is_there = loaded.is_ok_and(|output| output.status.success());
    if !is_there {
        testkit::skip(&format!("this Ruby has no library {library}"));
    }
    !is_there
}

/// The verdict in words.
fn verdict(report: &Report) -> String {
    render::words::verdict(report).summary
}

/// The number of objects of a class, and of those that are called garbage.
fn garbage(report: &Report, class: &str) -> (u64, u64) {
    let (objects, roots) = retained(report, class);
    let garbage = roots.iter().filter(|(path, _)| path.is_none()).map(|(_, objects)| objects).sum();
    (objects, garbage)
}

/// The reasons why the objects of a class exist.
fn why(target: &Target, class: &str) -> Why {
    let arguments = ["why", "--json", "--max-pause", "10s", &target.pid().to_string(), class];
    document(&rbloat().args(arguments).output().unwrap().stdout)
}

/// The path that retains most objects of a class, and the numbers of its objects and of all objects.
fn path_to(target: &Target, class: &str) -> (String, u64, u64) {
    let why = why(target, class);
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

/// Ruby keeps classes that were defined in C, even without their constant, up to 3.3. They were called garbage (ruby/ruby#10144).
#[test]
fn classes_without_their_constant_are_retained_by_the_interpreter() {
    let target = Target::bare_ruby(
        "2000.times { Struct.new('Row', :a); Struct.send(:remove_const, :Row) }
         3.times { GC.start }
         puts %(ready {\"classes\": #{ObjectSpace.each_object(Class).count}}); $stdout.flush; $stdin.read",
    );
    let (all, garbage) = garbage(&report(target.pid()), "Class");
    assert!(all >= target.number("classes") && garbage * 20 < all, "{garbage} of {all}");
    assert!(target.finish());
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
    assert_path(&target, "Item::Hook", "(trace_var) → Proc (PLACE) → Item::Hook");
    let (path, objects, all) = path_to(&target, "Item::Local");
    let is_right = path.starts_with("(threads) → Thread in block ")
        && path.ends_with(" → [:last_request] → Hash → Item::Local");
    assert!(is_right && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    let (path, objects, all) = path_to(&target, "Item::Variable");
    assert!(path.ends_with(" → [thread variable :audit] → Array → Item::Variable"), "{path}");
    assert!(objects * 10 >= all * 9, "{path}: {objects} of {all}");
    if target.truth["has_storage"] == true {
        let stored = " → [fiber storage :tenant] → Array → Item::";
        let (path, objects, all) = path_to(&target, "Item::Stored");
        let is_right = path.starts_with("(threads) → Thread") && path.contains(stored);
        assert!(is_right && objects * 10 >= all * 9, "{path}: {objects} of {all}");
        let parked = format!("WAITING → Array → Fiber{stored}Parked");
        assert_path(&target, "Item::Parked", &parked);
    }
    assert_path(&target, "Item::Line", "$stderr → Lines → Array → Item::Line");
    // They belonged to "(variables of libruby)".
    assert_path(&target, "Item::Own", "(main object) → Object → Array → Item::Own");
    assert_path(&target, "Item::Folder", "$LOAD_PATH → Array → Item::Folder");
    // A thread retained them.
    if target.truth["has_ractors"] == true {
        let shared = "(main Ractor) → Ractor → [:shared] → Array → Item::Shared";
        assert_path(&target, "Item::Shared", shared);
        assert_path(
            &target,
            "Item::Private",
            "WORKER → Ractor → [:private] → Array → Item::Private",
        );
    }
    let version = target.truth["ruby_version"].as_str().unwrap_or_default();
    // Messages of 4.1 are no objects. They belonged to the interpreter, and to ports.
    if version >= "4.1" {
        let report = crate::report(target.pid());
        let owners = report.owners.as_ref().unwrap();
        let bytes = |name: &str| {
            owners
                .iter()
                .filter(|it| it.owner == name)
                .map(|it| it.exclusive_bytes + it.shared_bytes)
                .sum::<u64>()
        };
        let messages = 3 * target.number("objects") * 2000;
        assert!(bytes("Ractor") >= messages, "{} of {messages}", bytes("Ractor"));
        assert!(bytes("Ractor::Port") < messages / 10, "{}", bytes("Ractor::Port"));
    }
    if target.truth["has_ractors"] == true && version < "4.1" {
        assert_path(&target, "Item::Message", "SINK → Ractor → (queue) → Item::Message");
        if version >= "4.0" {
            assert_path(&target, "Item::Posted", "(main Ractor) → Ractor → (queue) → Item::Posted");
        }
        // A Ractor that refers to the main one retained them.
        assert_path(&target, "Item::Result", "(main Ractor) → Ractor → (queue) → Item::Result");
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
    // The block of every setting has the same line: the path names the setting.
    assert_path(&target, "Entry", "Site → Class × 2 → method Site.audit (PLACE) → Array → Entry");
    assert!(target.finish());
}

/// The path through all ended threads is long, so any word of an earlier owner in memory of classes, bytecode or regular expressions
/// made a shorter one: "Gem::GemNotInHomeException → Class × 2 → Thread → Worker".
#[test]
fn long_paths_do_not_give_way_to_words_of_earlier_owners() {
    let target = Target::scenario("cases/successors", &["--scale", "1"]);
    if target.truth["ruby_version"].as_str().is_some_and(|version| version < "3") {
        return testkit::skip(
            "call caches of Ruby 2.7 keep methods that were freed, whose slots may have other objects",
        );
    }
    let (path, objects, all) = path_to(&target, "Worker");
    assert!(path.starts_with("POOL → Pool → Array → Worker"), "{path}");
    assert_eq!([objects, all], [target.number("objects"); 2], "{path}");
    assert!(target.finish());
}

/// What lies behind the structure of an object in its slot, or behind the variables of a class, are words of earlier owners. Up to 2,500 of
/// 4,000 rows seemed to be retained by Enumerators, TracePoints, backtraces, classes, and threads that have ended (3.3 to 4.1).
#[test]
fn words_of_earlier_owners_retain_nothing() {
    let target = Target::scenario("cases/earlier_owners", &["--scale", "1"]);
    let why = why(&target, "Row");
    let (first, all) = (&why.paths[0], target.number("objects"));
    assert_eq!(first.path.as_deref(), Some("KEPT → Box × 5 → Array → Row"));
    assert!(why.subject.objects == all && first.objects * 100 >= all * 99, "{first:?}");
    // All of 60 threads that have ended referred to rows: the stacks for their signal handlers were never used. One may still end.
    if target.truth["ruby_version"].as_str().is_some_and(|version| version >= "3") {
        let threads = why.referrers.iter().filter(|it| it.name == "Thread");
        assert!(threads.map(|it| it.count).sum::<u64>() < 30, "{:?}", why.referrers);
    }
    assert!(target.finish());
}

/// From 3.2 to 3.4, the memory of a class's variables has more room than variables. Of 3,000 rows, 471 were retained by classes.
#[test]
fn classes_retain_nothing_behind_their_variables() {
    let target = Target::scenario("cases/class_variables", &["--scale", "1"]);
    let (path, objects, all) = path_to(&target, "Row");
    assert_eq!(path, "KEPT → Box × 4 → Array → Row");
    assert!(all == target.number("objects") && objects * 200 >= all * 199, "{objects} of {all}");
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
            "Text::InBinding" => "Kept::CLOSURES → Array → Binding (",
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
    if lacks("ostruct") {
        return;
    }
    let (target, report) = case("ostruct", "1.1");
    if target.truth["ruby_version"].as_str().is_some_and(|version| version < "3") {
        return testkit::skip("up to Ruby 2.7, an OpenStruct defines methods when they are called");
    }
    let path = "REPORT_ROWS → Array → OpenStruct";
    for class in ["OpenStruct", "Class", "Proc"] {
        let (objects, roots) = retained(&report, class);
        let root = roots[0].0.as_deref().unwrap_or("(garbage)");
        // The newest are on the stack, too.
        let is_right = root.starts_with(path) && roots[0].1 + 10 >= target.number("objects");
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

/// "Singleton → Module → Class → Event" on a Rails program: a constant cache refers to the place of its code, which the GC does not
/// mark, so that another object may have the slot.
#[test]
fn constant_caches_retain_only_their_values() {
    let target = Target::scenario("cases/constant_caches", &["--scale", "1"]);
    if target.truth["ruby_version"].as_str() < Some("3") {
        return testkit::skip(
            "constant caches of Ruby 2.7 are no objects, and all their words are read",
        );
    }
    let (path, objects, all) = path_to(&target, "Row");
    let is_right =
        path.starts_with("(threads) → Thread \"tailer\" in ") && path.ends_with(" → Array → Row");
    assert!(is_right && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    assert!(target.finish());
}

/// Behind 512 modules the class of an object was not found: "there is no live object of class Client".
#[test]
fn an_object_that_thousands_of_modules_extend_has_its_class() {
    let target = Target::bare_ruby(
        "class Client; end
         CLIENT = Client.new
         3000.times { CLIENT.extend(Module.new { def call; end }) }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (path, objects, all) = path_to(&target, "Client");
    assert_eq!((path.as_str(), objects, all), ("CLIENT → Client", 1, 1));
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

/// Threads, fibers and the memory of extensions retained all traced objects, so that none was garbage.
#[test]
fn traced_objects_are_not_retained_by_the_table_of_them() {
    if lacks("objspace") {
        return;
    }
    let target = Target::bare_ruby(
        "require 'objspace'; ObjectSpace.trace_object_allocations_start
         class Row < String; end; class Waste < String; end
         Fiber.new { Fiber.yield }.tap { |it| $fiber = it }.resume
         Thread.new { sleep }
         KEPT = Array.new(2_000) { Row.new('x' * 100) }; GC.start; GC.disable
         Array.new(2_000) { Waste.new('y' * 100) }.clear
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = crate::report(target.pid());
    let (rows, garbage_of_rows) = garbage(&report, "Row");
    assert_eq!((rows, garbage_of_rows), (2_000, 0));
    let (waste, garbage_of_waste) = garbage(&report, "Waste");
    assert!(
        waste >= 1_990 && garbage_of_waste * 100 >= waste * 98,
        "{garbage_of_waste} of {waste}"
    );
    assert!(target.finish());
}

/// The words of the advice that is of a kind.
fn advice(report: &Report, is_it: impl Fn(&Action) -> bool) -> render::words::AdviceWords {
    let advice = report.advice.iter().find(|advice| is_it(&advice.action));
    render::words::advice(advice.unwrap_or_else(|| panic!("{:#?}", report.advice)), report)
}

/// The sentence of the verdict, and the first step.
fn words(report: &Report) -> (String, render::words::AdviceWords) {
    let summary = render::words::verdict(report).summary;
    (summary, render::words::advice(&report.advice[0], report))
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
    // The step was to release Strings that the interpreter's table retains.
    let table = InterpreterKind::Symbols;
    let Action::LimitTable { table: found, bytes, .. } = &report.advice[0].action else {
        panic!("{:?}", report.advice)
    };
    assert!(
        *found == table && *bytes >= target.number("symbols") * (16 + 40),
        "{:?}",
        report.advice
    );
    let (_, words) = words(&report);
    assert!(words.action.starts_with("Make fewer symbols: "), "{words:?}");
    let is_release = |it: &formats::Advice| matches!(it.action, Action::ReleaseObjects { .. });
    assert!(!report.advice.iter().any(is_release), "{:?}", report.advice);
    assert!(target.finish());
}

/// Half of the results were retained by "(variables of libruby)", because words of a thread's methods came last.
#[test]
fn local_variables_of_threads_come_before_old_words() {
    let (target, _) = case("long_job", "1");
    let (path, objects, all) = path_to(&target, "Result");
    let is_right = path.starts_with("(threads) → Thread in ExportJob#perform (")
        && path.ends_with(" → Connection → Hash → Result");
    // The newest are on the stack, too.
    assert!(is_right && objects + 10 >= all, "{path}: {objects} of {all}");
    let (path, objects, all) = path_to(&target, "Array");
    let rows = target.number("results") * 52;
    let is_right = path.contains(" → Connection → Hash → Result → Array");
    assert!(is_right && objects * 10 >= rows * 9, "{path}: {objects} of {rows} and {all}");
    assert!(target.finish());
}

/// The path of 15,000 clients had the name of one variable.
#[test]
fn variables_with_different_names_are_not_named() {
    let (target, _) = case("client_variables", "1");
    let (path, objects, all) = path_to(&target, "Client");
    let is_right = path.starts_with("(threads) → Thread in ")
        && path.ends_with(" → [:connection_…] → Array → Client");
    assert!(is_right && objects * 10 >= all * 9, "{path}: {objects} of {all}");
    assert!(target.finish());
}

/// `$~` of a method that never returns is in no variable of the program.
#[test]
fn the_last_match_of_a_method_retains_its_text() {
    let (target, report) = case("last_match", "1");
    let summary = verdict(&report);
    let root = "(threads) → Thread \"tailer\" in Tailer#run (";
    assert!(summary.contains(root) && summary.contains(" of this memory"), "{summary}");
    let owner = report.owners.iter().flatten().find(|owner| owner.owner == "String").unwrap();
    let path = owner.kept_by[0].path.as_deref().unwrap();
    assert!(path.starts_with(root) && path.ends_with(" → MatchData → String"), "{path}");
    assert!(owner.resident_bytes >= Some(target.number("text_bytes")), "{owner:?}");
    assert!(target.finish());
}

/// The path ends at the block that is subscribed, with its line: that is what to unsubscribe.
#[test]
fn a_subscriber_for_each_request_is_named_by_its_block() {
    if lacks("active_support") {
        return;
    }
    let target = Target::scenario("cases/notifications", &["--scale", "0.3"]);
    let (path, objects, all) = path_to(&target, "Dashboard");
    let is_right = path.starts_with("ActiveSupport::Notifications")
        && path.contains(&format!("notifications.rb:{}) → Dashboard", target.number("line")));
    let requests = target.number("requests");
    assert!(is_right && objects * 10 >= requests * 9, "{path}: {objects} of {all}, {requests}");
    assert!(target.finish());
}
