//! The settings and the state of the garbage collector as reasons.

use formats::{Action, Confidence, Diff, DiffKind, Doubt, Report};
use ledger::Cause;
use testkit::Target;

use super::{advice, case, garbage, lacks, path_to, verdict, words};
use crate::owners::retained;
use crate::{bytes, document, rbloat, report};

fn version(target: &Target) -> &str {
    let version = target.truth.get("ruby_version").or_else(|| target.truth.get("version"));
    version.and_then(|it| it.as_str()).unwrap_or_default()
}

/// Returns true if the layout of the garbage collector's state was verified for this release.
fn is_layout_known(target: &Target) -> bool {
    let version = version(target);
    !("3.5".."4.0").contains(&version)
}

/// Returns true if there are variables for the initial number of slots.
fn has_initial_numbers(target: &Target) -> bool {
    version(target) < "4.1"
}

/// `(variables of libruby)` retained one object of each page, because the collector's descriptor of a page points to the first slot. One
/// of 72 long strings seemed to be used as a whole, now and then.
#[test]
fn descriptors_of_heap_pages_retain_no_object() {
    let target = Target::bare_ruby(
        r#"
        class Dropped
          def initialize(number)
            @number = number
          end
        end
        GC.start
        GC.disable
        Thread.new { 20_000.times { |number| Dropped.new(number) } }.join
        puts "ready {}"
        $stdout.flush
        $stdin.read
        "#,
    );
    let (objects, roots) = retained(&report(target.pid()), "Dropped");
    let is_interpreters = |path: &str| path.starts_with("(variables of ");
    let of_interpreter =
        roots.iter().filter(|(path, _)| path.as_deref().is_some_and(is_interpreters));
    // There are 49 pages. Old words may seem to retain some objects.
    let sum: u64 = of_interpreter.map(|(_, objects)| objects).sum();
    assert!(objects >= 20_000 && sum <= 5, "{roots:?}");
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
    assert!(matches!(report.advice[0].action, Action::EnableGc { .. }), "{:?}", report.advice);

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
    let grown = crate::report(target.pid());
    let Action::EnableGc { garbage_bytes } = grown.advice[0].action else { panic!() };
    target.tell("enable");
    target.next_truth();
    let after = crate::report(target.pid());
    assert_eq!(gc(&after).disabled, Some(false));
    let held = |report: &Report| bytes(report, "ruby.live_slots") + bytes(report, "ruby.malloc");
    assert!(held(&after) * 4 < held(&report), "{} {}", held(&after), held(&report));
    let freed = held(&grown).saturating_sub(held(&after));
    assert!(freed.abs_diff(garbage_bytes) * 10 <= garbage_bytes, "{freed} of {garbage_bytes}");
    assert!(target.finish());
}

/// The report said that live objects pin these pages, and advised to compact the heap, which frees nothing.
#[test]
fn initial_slots_are_the_reason_for_free_slots() {
    let (mut target, report) = case("init_slots", "1");
    if !has_initial_numbers(&target) {
        return testkit::skip("the settings of this Ruby's collector are unknown");
    }
    assert_eq!(report.verdict.cause, Some(Cause::RubyFreeSlots));
    let variable = target.truth["variable"].as_str().unwrap().to_owned();
    let verdict = verdict(&report);
    assert!(verdict.contains(&variable), "{verdict}");
    let name = variable.split('=').next().unwrap().to_owned();
    let step = &report.advice[0];
    assert_eq!(step.action, Action::UnsetInitialSlots { variables: vec![name.clone()] });
    // From 4.0 on, the step counts the pages without slots, too.
    let others = [Action::Compact, Action::FreePages];
    let is_other = |step: &formats::Advice| others.contains(&step.action);
    assert!(!report.advice.iter().any(is_other), "{:?}", report.advice);
    // "GC.compact does not change that"
    target.tell("compact");
    let rss = target.next_truth()["rss_bytes"].as_u64().unwrap();
    assert!(rss * 10 > report.process.rss_bytes * 9, "{rss} {}", report.process.rss_bytes);
    assert!(target.finish());
    // The same program with Ruby's default.
    let mut ruby = testkit::scenario("cases/init_slots");
    let unset = Target::start(ruby.args(["--scale", "1"]).env(name, "10000"));
    let saved = report.process.rss_bytes.saturating_sub(unset.rss_bytes());
    let claim = step.saves_bytes.unwrap();
    assert!(saved.abs_diff(claim) * 5 <= claim, "{saved} of {claim}");
    assert!(unset.finish());
}

/// The setting was printed, but no step was against it.
#[test]
fn a_part_of_free_slots_is_the_reason_for_free_slots() {
    let name = "RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO";
    let start = |ratio: &str| {
        let mut ruby = testkit::ruby();
        let program = "$kept = Array.new(3_000_000) { Object.new }
             $kept = nil
             Thread.new { 4.times { GC.start } }.join
             puts 'ready {}'; $stdout.flush; $stdin.read";
        Target::start(ruby.args(["--disable-gems", "-e", program]).env(name, ratio))
    };
    let (target, default) = (start("1.0"), start("0.65"));
    if target.rss_bytes() < default.rss_bytes() + (32 << 20) {
        return testkit::skip("this Ruby keeps no more free slots by the setting");
    }
    let report = crate::report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::RubyFreeSlots), "{:?}", report.verdict);
    let step = &report.advice[0];
    if step.action == Action::FreePages {
        return testkit::skip("from 4.0 on the pages have no slots, and Process.warmup frees them");
    }
    assert_eq!(step.action, Action::UnsetInitialSlots { variables: vec![name.into()] });
    let saved = report.process.rss_bytes.saturating_sub(default.rss_bytes());
    let claim = step.saves_bytes.unwrap();
    assert!(saved.abs_diff(claim) * 5 <= claim, "{saved} of {claim}");
    assert!(target.finish() && default.finish());
}

/// The state of the collector as the program itself sees it, each time after a change.
#[test]
fn the_state_of_the_gc_is_read() {
    let mut target = Target::bare_ruby(
        "require 'json'
         state = -> { { disabled: GC.enable.tap { |was| GC.disable if was }, stress: GC.stress, full: !GC.respond_to?(:config) || GC.config[:rgengc_allow_full_mark],
                        counts: GC.stat.values_at(:count, :major_gc_count) } }
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
        assert_eq!(gc.stress, truth["stress"].as_bool(), "{truth}");
        assert_eq!(gc.allow_full_mark.unwrap_or(true), truth["full"].as_bool().unwrap(), "{truth}");
        let version = truth["version"].as_str().unwrap();
        let is_known = !["3.0.", "3.2."].iter().any(|it| version.starts_with(it));
        let counts = gc.collections.zip(gc.major_collections);
        assert_eq!(counts.is_some(), is_known, "{truth}");
        // Each allocation collects under stress, also the next ones.
        if let Some((all, major)) = counts.filter(|_| truth["stress"] == false) {
            assert_eq!(truth["counts"], serde_json::json!([all, major]), "{truth}");
        }
    }
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

/// "RUBY_GC_OLDMALLOC_LIMIT=2000000000 delays the GC", although nothing of this garbage was malloc'ed.
#[test]
fn limits_of_malloc_are_no_reason_for_garbage_in_slots() {
    let (target, report) = case("slot_garbage", "1");
    let (objects, of_garbage) = garbage(&report, "Entry");
    assert_eq!(objects, target.number("objects"));
    assert!(of_garbage * 20 >= objects * 19, "{of_garbage} of {objects}");
    let summary = verdict(&report);
    assert!(
        summary.contains("most of which are garbage") && !summary.contains("RUBY_GC_"),
        "{summary}"
    );
    let is_unset = |it: &formats::Advice| matches!(it.action, Action::UnsetMallocLimits { .. });
    assert!(!report.advice.iter().any(is_unset), "{:?}", report.advice);
    assert!(target.finish());
}

/// Handlers that are Strings were retained by "(variables of libruby-3.1.so.3.1.2)", as the name of the program is.
#[test]
fn the_command_of_a_signal_is_named() {
    let target = Target::bare_ruby(
        "class Command < String; end
         $0 = 'name ' * 20
         trap('USR2', Command.new << 'puts 1;' * 1_000_000)
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let (_, roots) = retained(&report, "Command");
    assert_eq!(roots, [(Some("(signal handlers) → Command".into()), 1)]);
    let (_, roots) = retained(&report, "String");
    let is_signals = |path: &Option<String>| path.as_deref() == Some("(signal handlers) → String");
    assert!(!roots.iter().any(|(path, _)| is_signals(path)), "{roots:?}");
    assert!(target.finish());
}

/// A thread has an alternate signal stack of malloc's, which nothing writes to. Where arrays had been before, it "retained" their objects.
#[test]
fn alternate_signal_stacks_retain_nothing() {
    let target = Target::bare_ruby(
        r#"
        class Item
          def initialize
            @text = rand.to_s
          end

          def keep
            at_exit { @text.size }
          end
        end
        # In a fiber, because its stack disappears with all stale words.
        Fiber.new do
          items = Array.new(500) { Item.new.tap(&:keep) }
          [512, 1024, 2048].each { |size| Array.new(50) { Array.new(size) { |index| items[index % 500] } } }
        end.resume
        3.times { GC.start }
        POOL = Array.new(20) { Thread.new { sleep } }
        puts "ready {}"; $stdout.flush
        $stdin.read
        "#,
    );
    let (path, objects, all) = path_to(&target, "Item");
    assert!(path.starts_with("(at_exit) → Proc "), "{path}");
    // A word on a stack may retain one.
    assert!(all == 500 && objects >= 498, "{path}: {objects} of {all}");
    assert!(target.finish());
}

/// A table of objects as C extensions have them: the type has a function that marks them, or none, and one that frees the table.
const TABLE_OF_AN_EXTENSION: &str = "
    require 'fiddle'
    class Row; def initialize(at); @text = at.to_s.ljust(1000, 'x'); end; end
    class Table; end
    library = Fiddle::Handle::DEFAULT
    begin
      library['rb_data_object_wrap']
    rescue Fiddle::DLError
      puts 'ready {\"none\":true}'; $stdout.flush; $stdin.read; exit!(true)
    end
    call = ->(name, *types) { Fiddle::Function.new(library[name], types, Fiddle::TYPE_UINTPTR_T) }
    word = Fiddle::TYPE_UINTPTR_T
    table = call['rb_st_init_numtable'].call
    insert, wrap = call['rb_st_insert', word, word, word], call['rb_data_object_wrap', word, word, word, word]
    mark = ARGV[0] == 'marks' ? library['rb_mark_tbl'].to_i : 0
    TABLE = Fiddle.dlunwrap(wrap.call(Fiddle.dlwrap(Table), table, mark, library['free'].to_i))
    GC.disable
    Thread.new { 60_000.times { |at| insert.call(table, at, Fiddle.dlwrap(Row.new(at))) } }.join
    collect = -> { 3.times { GC.start }; puts 'ready {}'; $stdout.flush }
    if mark == 0
      puts 'ready {}'; $stdout.flush
    else
      GC.enable
      collect.call
    end
    $stdin.gets
    GC.enable
    collect.call
    $stdin.read; exit!(true)";

/// A program with such a table; `None` if this Ruby cannot have it.
fn table_of_an_extension(marks: &str) -> Option<Target> {
    if lacks("fiddle") {
        return None;
    }
    let mut ruby = testkit::ruby();
    let target = Target::start(ruby.args(["--disable-gems", "-e", TABLE_OF_AN_EXTENSION, marks]));
    if target.truth["none"] == true {
        testkit::skip("4.1 exports no function for objects without a type");
        return None;
    }
    Some(target)
}

/// "Held by live Ruby objects", with high confidence: memory of an extension refers to garbage, and marks nothing.
#[test]
fn objects_behind_memory_of_extensions_may_be_garbage() {
    let Some(mut target) = table_of_an_extension("none") else { return };
    let report = crate::report(target.pid());
    let words = render::words::verdict(&report);
    let doubt = "The GC may not follow memory of C extensions: if the extension does not mark the objects, they are garbage.";
    assert!(words.summary.ends_with(doubt) && !words.summary.contains("live"), "{words:?}");
    assert_eq!(report.verdict.confidence, Confidence::Medium);
    let step = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(step.action.starts_with("Run the GC: "), "{step:?}");
    target.tell("collect");
    target.next_truth();
    let after = crate::report(target.pid());
    let of_objects = |it| bytes(it, "ruby.live_slots") + bytes(it, "ruby.malloc");
    let [before, after] = [&report, &after].map(of_objects);
    assert!(after < before / 4, "{after} of {before}");
    assert!(target.finish());
}

/// "Run the GC: they may be garbage", of live objects in trees and arrays of C extensions: these mark them.
#[test]
fn objects_that_extensions_mark_are_no_garbage() {
    let Some(mut target) = table_of_an_extension("marks") else { return };
    let report = crate::report(target.pid());
    let words = render::words::verdict(&report);
    assert!(words.summary.contains(" begin with (memory of C extensions)"), "{words:?}");
    let alive = " A GC found most of them alive, so a C extension may retain them.";
    assert!(words.summary.ends_with(alive), "{words:?}");
    assert_eq!(report.verdict.confidence, Confidence::Medium);
    let step = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(step.action.starts_with("Find the objects of C extensions that hold "), "{step:?}");
    target.tell("collect");
    target.next_truth();
    let after = crate::report(target.pid());
    let of_objects = |it| bytes(it, "ruby.live_slots") + bytes(it, "ruby.malloc");
    let [before, after] = [&report, &after].map(of_objects);
    assert!(after * 10 > before * 9, "{after} of {before}");
    assert!(target.finish());
}

/// All fibers are in a list of contexts, through which one retained the others: "(threads) → Thread → Fiber".
#[test]
fn fibers_that_nothing_resumes_are_garbage() {
    let target = Target::bare_ruby(
        "class Row; end
         def read(count)
           count.times { Enumerator.new { |rows| row = Row.new; rows << 1; row.hash }.next }
         end
         GC.disable
         Fiber.new { read(200) }.resume
         KEPT = Enumerator.new { |rows| loop { rows << 1 } }
         KEPT.next
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    for class in ["Fiber", "Row", "Enumerator"] {
        let (objects, garbage) = garbage(&report(target.pid()), class);
        assert!(objects >= 200 && garbage * 20 >= objects * 19, "{class}: {garbage} of {objects}");
    }
    assert!(target.finish());
}

/// "Define fewer finalizers", of a program that defines none: up to Ruby 3.2, weak references have them. And the map was to be released.
#[test]
fn finalizers_of_weak_references_are_named() {
    let target = Target::bare_ruby(
        "module Identity; MAP = ObjectSpace::WeakMap.new; LIVE = []; end
         400_000.times do
           key, value = Object.new, Object.new
           Identity::LIVE << key << value
           Identity::MAP[key] = value
         end
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(words.action.contains(" retained by Identity::LIVE → Array → Object."), "{words:?}");
    let is_map = |it: &formats::Advice| matches!(&it.action, Action::ReleaseObjects { class, .. } if class.starts_with("ObjectSpace::"));
    assert!(!report.advice.iter().any(is_map), "{:?}", report.advice);
    if report.process.ruby_version.as_deref().is_some_and(|version| version < "3.3") {
        let words = advice(&report, |it| matches!(it, Action::LimitTable { .. }));
        assert!(
            words.action.contains(", or keep fewer WeakRefs and fewer entries of "),
            "{words:?}"
        );
    }
    assert!(target.finish());
}

/// "26.1 MiB of it are the table of finalizers", of which the table had 14.6 MiB.
#[test]
fn the_table_of_finalizers_is_told_from_its_entries() {
    let target = Target::bare_ruby(
        "require 'weakref'
         REFERENCES = Array.new(240_000) { WeakRef.new(Object.new) }
         4.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    if report.process.ruby_version.as_deref().is_none_or(|version| version >= "3.3") {
        return testkit::skip("weak references of this Ruby have no finalizers");
    }
    let words = verdict(&report);
    assert!(words.ends_with(" MiB of it are the table of finalizers with its entries."), "{words}");
    assert!(target.finish());
}

/// "Release the objects of class Integer": its size is what grows.
#[test]
fn one_large_object_of_few_is_named_by_itself() {
    let target = Target::bare_ruby(
        "module Primes; PRODUCT = 1 << 600_000_000; end
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    let start = "Release the large Integer that is retained by Primes::PRODUCT → Integer, or ";
    assert!(words.action.starts_with(start), "{words:?}");
    assert!(target.finish());
}
