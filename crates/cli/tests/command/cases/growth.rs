//! Growth between snapshots.

use formats::{Action, DiffKind};
use ledger::{Cause, InterpreterKind};
use testkit::Target;

use super::{case, verdict, words};
use crate::diffs::{diff, looks_at};
use crate::report;

/// Code that is defined again and again was called a warm-up.
#[test]
fn code_that_is_defined_again_and_again_is_a_leak() {
    let target = Target::scenario("cases/inline_templates", &["--scale", "13"]);
    let before = report(target.pid());
    assert_eq!(before.verdict.cause, Some(Cause::RubyVm), "{:?}", before.causes);
    let Action::DefineCodeOnce { path, iseqs, bytes } = &before.advice[0].action else {
        panic!("{:?}", before.advice)
    };
    assert!(path == "inline template" && *iseqs >= target.number("iseqs"), "{:?}", before.advice);
    assert!(*bytes > before.verdict.bytes / 2, "{:?}", before.advice);
    // The step was to load less code.
    let is_load = |it: &formats::Advice| matches!(it.action, Action::LoadLessCode { .. });
    assert!(!before.advice.iter().any(is_load), "{:?}", before.advice);
    let (_, words) = words(&before);
    assert!(
        words.action.contains("the code of inline template is defined again and again"),
        "{words:?}"
    );
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

/// "Healthy: nothing stands out", above a step against code that took more than half of the process.
#[test]
fn code_that_is_defined_again_is_no_healthy_process() {
    for (file, code) in [("inline template", "inline template"), ("view_#{i}.erb", "Views")] {
        let target = Target::bare_ruby(&format!(
            "module Views; end
             body = %(x = a.map {{ |v| v.to_s + 'text' }}\n) * 12
             3_000.times {{ |i| Views.module_eval(%(def render_#{{i}}(a)\n#{{body}}end), %({file}), 1) }}
             GC.start; puts 'ready {{}}'; $stdout.flush; $stdin.read"
        ));
        let report = report(target.pid());
        let is_it = |it: &formats::Advice| matches!(&it.action, Action::DefineCodeOnce { path, .. } if path == code);
        assert!(report.advice.iter().any(is_it), "{:?}", report.advice);
        let summary = render::words::verdict(&report).summary;
        let is_named = summary.contains(" begin with Views.");
        assert!(report.verdict.cause.is_some() || is_named, "{summary}");
        assert!(target.finish());
    }
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
    let target = Target::scenario("cases/anonymous_classes", &["--scale", "5"]);
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
    let leak = words.starts_with("Managed leak: Array retained by Stats::LATENCIES grows by ");
    // jemalloc may move the buffer to memory that was used before, and so is resident before it is filled.
    let growth = words.starts_with("Growth: Array retained by Stats::LATENCIES grew by ");
    assert!(leak || growth && report.process.allocator == "jemalloc", "{words}");
    // Each step adds three millions of numbers.
    assert!(diff.verdict.bytes.abs_diff(2 * 3_000_000 * 8) < 4 << 20, "{:?}", diff.verdict);
}

/// The leak was that of "RubyVM", whose one object has the tables of the interpreter, and then that of many classes without a root.
#[test]
fn tables_of_the_interpreter_are_no_leak_of_their_own() {
    let target = Target::scenario("cases/weak_cache", &[]);
    let diff = diff(&looks_at(target, 3, |_| false));
    let class = diff.verdict.class.as_deref();
    let is_of_cache = [None, Some("Hash"), Some("String"), Some("WeakRef"), Some("Object")];
    assert!(is_of_cache.contains(&class), "{:?} {:?}", diff.verdict, diff.classes);
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.contains("retained by Cache::ENTRIES"), "{words}");
    // Old words in patterns had the addresses of these tables.
    let regexps = diff.classes.iter().find(|class| class.name == "Regexp");
    assert!(regexps.is_none_or(|class| class.bytes.change < 1 << 20), "{regexps:?}");
}

/// "The program still loads code": object_id was called of objects that were there before.
#[test]
fn a_table_of_object_ids_that_grows_is_named() {
    let target = Target::bare_ruby(
        "KEPT = Array.new(1_000_000) { Object.new }
         GC.start
         puts %(ready {\"ruby_version\":\"#{RUBY_VERSION}\"}); $stdout.flush
         step = -1
         while $stdin.gets
           KEPT[250_000 * (step += 1), 250_000].each(&:object_id)
           puts 'ready {}'; $stdout.flush
         end",
    );
    if target.truth["ruby_version"].as_str().unwrap() >= "3.5" {
        return testkit::skip("this Ruby has object ids in the objects");
    }
    let diff = diff(&looks_at(target, 4, |_| false));
    let largest = &diff.interpreter[0];
    let entries = 2 * 16 * 750_000;
    assert!(
        largest.kind == InterpreterKind::ObjectIds && largest.bytes.change > entries,
        "{largest:?}"
    );
    let words = render::words::diff_verdict(&diff).summary;
    let wrong = words.contains("loads code");
    let part = "the interpreter's memory, most of it tables of object ids, grew by ";
    assert!(words.contains(part) && !wrong, "{words}");
}

/// The step was to return free pages: each file is loaded once, and its code belongs to blocks in a Hash.
#[test]
fn files_that_are_loaded_for_ever_are_a_leak() {
    let (target, report) = case("required_files", "1");
    assert_eq!(report.verdict.cause, Some(Cause::RubyVm), "{:?}", report.causes);
    let (_, words) = words(&report);
    let step = "Find out whether the code of Rules::ALL is defined again and again";
    assert!(words.action.starts_with(step), "{words:?}");
    let diff = diff(&looks_at(target, 4, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let is_leak = words.starts_with("Managed leak: ");
    assert!(is_leak && words.contains(" retained by Rules::ALL grows "), "{words}");
}
