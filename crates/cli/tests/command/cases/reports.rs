//! Public reports that were searched for after the first ones.

use formats::{Action, Advice, DiffKind, Report};

use testkit::Target;

use super::{advice, assert_path, case, garbage, lacks, path_to, verdict, why};
use crate::diffs::{diff, looks_at};
use crate::owners::retained;
use crate::{bytes, report};

/// The list of threads retained all threads that had ended, and the methods of threads were unknown, because the first threads had no
/// stack.
#[test]
fn ended_threads_are_retained_by_their_fibers() {
    let (target, report) = case("ended_fibers", "1");
    assert_path(&target, "Probe", "LOG → LevelLogger → Hash → Fiber → Probe");
    assert_path(&target, "Thread", "LOG → LevelLogger → Hash → Fiber → Thread");
    let rows = report.threads.as_ref().unwrap();
    assert!(rows.iter().any(|row| row.method == "Scenario.answer"), "{rows:?}");
    let (_, roots) = retained(&report, "String");
    let path = "LOG → LevelLogger → Hash → Fiber → Probe → Array → String";
    assert!(roots[0].0.as_deref() == Some(path), "{roots:?}");
    assert!(target.finish());
}

/// Each variable or constant of a class without a constant was a root: "begins with ….@rules", while the list that keeps the classes
/// was said to keep a hundredth of it.
#[test]
fn variables_of_classes_without_a_constant_are_retained_by_what_keeps_these() {
    let (target, report) = case("class_registries", "1");
    assert_path(&target, "Rule", "Validators::ALL → Array → Class → @rules → Array → Rule");
    assert_path(
        &target,
        "Column",
        "Hooks.@loaded → Array → Class → Reloaded::TABLE → Array → Column",
    );
    assert_path(&target, "Option", "Target → Class → Module → @options → Array → Option");
    let (_, roots) = retained(&report, "Rule");
    assert!(roots[0].0.as_deref().is_some_and(|it| it.starts_with("Validators::ALL")), "{roots:?}");
    assert!(target.finish());
}

/// What lies behind the first block of an object counted for no root, so the root with most objects was named.
#[test]
fn few_large_objects_retain_more_than_many_small_ones() {
    let (mut target, report) = case("large_and_small", "1");
    let (_, roots) = retained(&report, "Regexp");
    assert!(roots[0].0.as_deref() == Some("Spam::WORDS → Array → Regexp"), "{roots:?}");
    let mut fell = |name: &str| {
        target.tell(name);
        target.next_truth()["fell_bytes"].as_i64().unwrap()
    };
    let (small, large) = (fell("clear_small"), fell("clear_large"));
    assert!(large > 2 * small, "{large} {small}");
    assert!(target.finish());
}

/// The step was to release the objects that one root retains, which frees none of them.
#[test]
fn a_step_names_both_roots_that_retain_the_same_objects() {
    let (mut target, report) = case("two_holders", "1");
    let owner = report.owners.iter().flatten().find(|owner| owner.owner == "Column").unwrap();
    let kept = &owner.kept_by[0];
    let others = [
        Some("Column.@registry → Hash → Column"),
        Some("Pools::CACHES → Array → Hash → Array → Column"),
    ];
    let found = [kept.path.as_deref(), kept.other_path.as_deref()];
    assert_eq!(found, others, "{:?}", owner.kept_by);
    let class =
        |it: &Action| matches!(it, Action::ReleaseObjects { class, .. } if class == "String");
    let step = advice(&report, class);
    let both = "retained by Column.@registry → Hash → Column → String, and also by Pools::CACHES → Array → Hash → Array → Column → String (letting go";
    assert!(step.action.contains(both), "{step:?}");
    let created = target.number("created");
    let mut left = |name: &str| {
        target.tell(name);
        target.next_truth()["columns"].as_u64().unwrap()
    };
    assert!(left("clear_registry") == created && left("clear_both") < created / 100);
    assert!(target.finish());
}

/// "333.3 MiB belong to the interpreter, most of them of no kind of their own", and no step: nodes keep their whole syntax trees.
#[test]
fn syntax_trees_are_released_by_their_nodes() {
    let mut target = Target::bare_ruby(
        "module Lint; ASTS = {}; end
         SRC = (0...2500).map { |i| %(def method_#{i}(a, b)\n  x = a + b * #{i}\n  [x, a, b].map { |v| v.to_s + 'a#{i}' }\nend\n) }.join
         12.times { |i| Lint::ASTS[i] = RubyVM::AbstractSyntaxTree.parse(SRC) }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.gets
         Lint::ASTS.clear; 3.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let trees = report.owners.iter().flatten().find(|it| it.owner == "(imemo_ast)");
    let Some(trees) = trees.filter(|it| it.bytes() >= 16 << 20) else {
        return testkit::skip("the syntax trees of this Ruby have little memory");
    };
    let path = trees.kept_by[0].path.as_deref().unwrap();
    assert!(path.starts_with("Lint::ASTS → Hash → RubyVM::AbstractSyntaxTree::Node"), "{path}");
    let step = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(step.action.contains("objects of class RubyVM::AbstractSyntaxTree::Node"), "{step:?}");
    target.tell("clear");
    target.next_truth();
    let [before, after] = [&report, &crate::report(target.pid())].map(|it| bytes(it, "ruby.vm"));
    assert!(after + trees.bytes() / 2 < before, "{before} {after} {trees:?}");
    assert!(target.finish());
}

/// "rbloat knows no setting or command that lowers this", of bytecode that a Hash of scripts retains. Blocks of a router are the program's.
#[test]
fn bytecode_is_released_if_it_is_a_list_of_scripts() {
    let code = |keep: &str| {
        format!(
            "module Rules; ALL = {{}}; end
             class Router; def initialize; @routes = []; end; def get(block); @routes << block; end; end
             APP = Router.new
             text = (0..40).map {{ |k| %(v#{{k}} = 'order #{{k}}'.size + #{{k}}; [v#{{k}}, 'abc'.size].max if v#{{k}} > #{{k}}) }}.join(%(\n))
             3000.times {{ |i| {keep} }}
             GC.start; puts 'ready {{}}'; $stdout.flush; $stdin.gets
             Rules::ALL.clear; 3.times {{ GC.start }}; puts 'ready {{}}'; $stdout.flush; $stdin.read"
        )
    };
    let compiled = "Rules::ALL[i] = RubyVM::InstructionSequence.compile(text, 'rule')";
    let mut target = Target::bare_ruby(&code(compiled));
    let report = report(target.pid());
    let Action::ReleaseObjects { class, bytes: saved, path, .. } = &report.advice[0].action else {
        panic!("{:?}", report.advice)
    };
    assert_eq!(class, "RubyVM::InstructionSequence");
    assert!(path.as_ref().unwrap().starts_with("Rules::ALL → Hash → "), "{path:?}");
    target.tell("clear");
    target.next_truth();
    let [before, after] = [&report, &crate::report(target.pid())].map(|it| bytes(it, "ruby.vm"));
    assert!(after + saved / 2 < before, "{before} {after} {saved}");
    assert!(target.finish());

    let routes = "APP.get(eval(%(proc { #{text} }), TOPLEVEL_BINDING, %(/srv/app/routes_#{i}.rb)))";
    let target = Target::bare_ruby(&code(routes));
    let report = crate::report(target.pid());
    let is_release = |it: &Advice| matches!(it.action, Action::ReleaseObjects { .. });
    assert!(!report.advice.iter().any(is_release), "{:?}", report.advice);
}

/// "And also by MailJob → … (letting go of one root is not enough)": both led to one Array, the default of a class_attribute, which need only be
/// emptied.
#[test]
fn what_two_roots_have_in_common_need_only_be_emptied() {
    let mut target = Target::bare_ruby(
        "class Entry; def initialize(n); @text = \"entry #{n} \" * 80; end; end
         AUDIT = []
         class Job; @audit = { log: AUDIT }; class << self; attr_reader :audit; end; end
         Job::PARTS = { audit: { log: AUDIT } }
         Object.send(:remove_const, :AUDIT)
         20_000.times { |n| Job.audit[:log] << Entry.new(n) }
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.gets
         Job.audit[:log].clear; GC.start
         puts %(ready {\"entries\": #{ObjectSpace.each_object(Entry).count}}); $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let owner = report.owners.iter().flatten().find(|owner| owner.owner == "Entry").unwrap();
    let kept = &owner.kept_by[0];
    assert!(kept.other_path.is_some(), "{kept:?}");
    assert_eq!(kept.shared.as_deref(), Some("Array"), "{kept:?}");
    let class =
        |it: &Action| matches!(it, Action::ReleaseObjects { class, .. } if class == "String");
    let step = advice(&report, class);
    assert!(step.action.contains(" through the same Array (empty it: letting go"), "{step:?}");
    target.tell("clear");
    assert!(target.next_truth()["entries"].as_u64().unwrap() < 200);
    assert!(target.finish());
}

/// "And also by (threads)": the last thread of a Ractor stays in the list of its Ractor when that has ended (ruby/ruby#4613).
#[test]
fn ractors_that_have_ended_run_no_thread() {
    let target = Target::bare_ruby(
        "if defined?(Ractor)
           Warning[:experimental] = false
           module Crunch; RUNNING = []; end
           class Row; def initialize(n); @text = 'row' * n; end; end
           20.times { |n| Crunch::RUNNING << Ractor.new { Array.new(100) { |i| Row.new(i + 1000) } } }
           sleep 0.01 until Crunch::RUNNING.all? { |it| it.inspect.include?('terminated') }
           3.times { GC.start }
         end
         puts %(ready {\"has_ractors\": #{!!defined?(Ractor)}, \"slots\": #{ObjectSpace.count_objects[:TOTAL]}})
         $stdout.flush; $stdin.read",
    );
    if target.truth["has_ractors"] != true {
        return testkit::skip("Ruby 2.7 has no Ractors");
    }
    let report = report(target.pid());
    let (all, roots) = retained(&report, "Row");
    let of_root = |(path, _): &&(Option<String>, u64)| {
        path.as_deref().is_some_and(|it| it.starts_with("Crunch::RUNNING → Array → Ractor → "))
    };
    let objects: u64 = roots.iter().filter(of_root).map(|(_, objects)| objects).sum();
    assert!(all >= 2000 && objects * 10 >= all * 9, "{roots:?}");
    let row = report.owners.as_ref().unwrap().iter().find(|it| it.owner == "Row").unwrap();
    assert_eq!(row.kept_by[0].other_path, None, "{row:?}");
    assert!(target.finish());
}

/// "And also by (finalizers) …": emptying the list alone freed all, since finalizers go with their object. The list of threads was one
/// more root of what a thread holds.
#[test]
fn neither_finalizers_nor_a_list_of_threads_have_to_let_go() {
    let mut target = Target::bare_ruby(
        "class Blob < String; end; class Row < String; end; class Loop < String; end; class Scope < String; end
         class Holder; def initialize(held); @held = held; end; end
         class Releaser; def initialize(held); @held = held; end; def call(_); end; end
         def held(held, finalizer)
           holder = Holder.new(held)
           ObjectSpace.define_finalizer(holder, finalizer ? Releaser.new(held) : Releaser.new([held, holder]))
           holder
         end
         LIST = Array.new(300) { held(Blob.new('x' * 20_000), true) }
         LOOPS = Array.new(300) { held(Loop.new('x' * 20_000), false) }
         def scoped(held)
           holder = Holder.new(held)
           ObjectSpace.define_finalizer(holder, proc { holder })
           holder
         end
         SCOPES = Array.new(300) { scoped(Scope.new('x' * 20_000)) }
         class Item < String; end; class Unit < String; end
         def work
           Thread.current.thread_variable_set(:units, Array.new(300) { Unit.new('x' * 20_000) })
           Thread.current[:items] = Array.new(300) { Item.new('x' * 20_000) }
           rows = Array.new(300) { Row.new('x' * 20_000) }
           Thread.current[:ready] = true; sleep; rows
         end
         THREADS = Array.new(2) { Thread.new { work } }
         sleep 0.01 until THREADS.all? { |thread| thread[:ready] }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.gets
         LIST.clear; LOOPS.clear; SCOPES.clear; THREADS.each(&:kill).each(&:join); GC.start; GC.start
         count = ->(type) { ObjectSpace.each_object(type).count }
         puts %(ready {\"blobs\":#{count[Blob]},\"loops\":#{count[Loop]},\"scopes\":#{count[Scope]},\"rows\":#{count[Row]}})
         $stdout.flush; $stdin.read",
    );
    let report = crate::report(target.pid());
    let paths = |name: &str| {
        let owner = report.owners.iter().flatten().find(|owner| owner.owner == name).unwrap();
        let kept = &owner.kept_by[0];
        (kept.path.clone().unwrap_or_default(), kept.other_path.clone())
    };
    assert_eq!(paths("Blob"), ("LIST → Array → Holder → Blob".into(), None));
    let (path, other) = paths("Row");
    assert!(
        path.starts_with("(threads) → Thread in Object#work") && other.is_none(),
        "{path}, {other:?}"
    );
    let (path, other) = paths("Item");
    assert!(path.ends_with(" → [:items] → Array → Item") && other.is_none(), "{path}, {other:?}");
    let (path, other) = paths("Unit");
    assert!(path.starts_with("(threads) → ") && other.is_none(), "{path}, {other:?}");
    // The truth, and that of finalizers that refer to their own objects.
    for (class, list) in [("Loop", "LOOPS → "), ("Scope", "SCOPES → ")] {
        let (path, other) = paths(class);
        let other = other.unwrap_or_default();
        assert!(path.starts_with(list) && other.starts_with("(finalizers) → "), "{path}, {other}");
    }
    target.tell("");
    let left = target.next_truth();
    let left = |name: &str| left[name].as_u64().unwrap();
    assert!(left("blobs") < 10 && left("rows") < 10);
    assert_eq!((left("loops"), left("scopes")), (300, 300));
    assert!(target.finish());
}

/// "Nothing points to them: a leak in a C extension": their addresses were Integers.
#[test]
fn memory_whose_address_is_an_integer_is_no_leak() {
    if lacks("fiddle") {
        return;
    }
    let target = Target::bare_ruby(
        "require 'fiddle'
         ALL = []
         allocate = lambda { ALL << 1; address = Fiddle.malloc(20_000); Fiddle::Pointer.new(address)[0, 20_000] = 'x' * 20_000; address }
         class Holder; def initialize(address); @address = address; end; end
         Pair = Struct.new(:address, :size)
         IVARS = Array.new(200) { Holder.new(allocate.call) }
         LIST = Array.new(200) { allocate.call }
         SMALL = Array.new(200) { [allocate.call] }
         MAP = Array.new(200) { |i| [i, allocate.call] }.to_h
         PAIRS = Array.new(200) { Pair.new(allocate.call, 1) }
         GC.start; puts %(ready {\"bytes\":#{ALL.size * 20_000}}); $stdout.flush; $stdin.read",
    );
    let all = target.number("bytes");
    let report = crate::report(target.pid());
    let unreachable = bytes(&report, "native.unreachable");
    assert!(unreachable < all / 20, "{unreachable} of {all}");
    assert!(target.finish());
}

/// "80.6 MiB belong to the interpreter, most of them call sites, and caches": an inline cache had a copy of the Integer beside the pointer of an
/// object.
#[test]
fn an_integer_counts_less_than_a_pointer() {
    if lacks("fiddle") {
        return;
    }
    let target = Target::bare_ruby(
        "require 'fiddle'
         module Pool; TABLE = Fiddle.malloc(160_000); POINTER = Fiddle::Pointer.new(TABLE, 160_000); end
         2_000.times { |i|
           address = Fiddle.malloc(10_000)
           Fiddle::Pointer.new(address)[0, 10_000] = 'x' * 10_000
           Pool::POINTER[8 * i, 8] = [address].pack('Q') if Pool::TABLE }
         GC.start; puts %(ready {\"bytes\":#{2_000 * 10_000}}); $stdout.flush; $stdin.read",
    );
    let report = crate::report(target.pid());
    let owner = report.owners.iter().flatten().find(|it| it.owner == "Fiddle::Pointer");
    let (bytes, all) = (owner.map_or(0, |it| it.bytes()), target.number("bytes"));
    // A stale word in a stack may refer to some of them.
    assert!(bytes >= all / 10 * 9, "{bytes} of {all}: {:?}", report.owners);
    assert!(target.finish());
}

/// Of one process, `why` had 2,688 objects with 193 KiB, and the report 1,149 with 224 MiB.
#[test]
fn why_and_report_have_the_same_paths() {
    for (name, scale) in [("closures", "0.5"), ("ostruct", "0.1"), ("lists", "0.5")] {
        if name == "ostruct" && lacks("ostruct") {
            continue;
        }
        let (target, report) = case(name, scale);
        let rows = report.owners.iter().flatten();
        let rows = rows.filter(|row| !row.kept_by.is_empty() && !row.owner.starts_with('('));
        let mut compared = 0;
        for row in rows.take(4) {
            let first = &row.kept_by[0];
            let path = first.path.clone().unwrap_or_else(|| "(garbage)".into());
            let why = why(&target, &row.owner);
            let most = &why.paths[0];
            let found = most.path.clone().unwrap_or_else(|| "(garbage)".into());
            let found = (found, most.objects, most.bytes);
            assert_eq!(found, (path, first.objects, first.bytes), "{name}: {}", row.owner);
            // Slots and resident memory.
            assert_eq!(why.subject.bytes, row.bytes(), "{name}: {}", row.owner);
            compared += 1;
        }
        assert!(compared > 1, "{name}");
        assert!(target.finish());
    }
}

/// Each constant retained one object, so that the growth was "String retained by (symbols)", and the step to find the path.
#[test]
fn constants_of_one_module_retain_together() {
    let (target, report) = case("generated_constants", "1");
    let line = target.number("line");
    let path = format!("Loaded::… → Class → method (PLACE:{line}) → Collection");
    let place = |path: &str| {
        let file = path.split_once('(').and_then(|(_, rest)| rest.split_once(".rb:"));
        file.map_or_else(
            || path.to_owned(),
            |(file, _)| path.replace(&format!("{file}.rb"), "PLACE"),
        )
    };
    let (found, objects, all) = path_to(&target, "Collection");
    assert!(place(&found) == path && objects * 10 >= all * 9, "{found} ({objects} of {all})");
    let of_class = |report: &Report, class: &str| retained(report, class).1[0].clone();
    let (root, strings) = of_class(&report, "String");
    assert!(root.is_some_and(|root| root.starts_with("Loaded::… → ")), "{strings}");
    assert!(strings >= 100 * objects, "{strings}");
    let looks = looks_at(target, 3, |_| false);
    let diff = diff(&looks);
    let words = render::words::diff_verdict(&diff).summary;
    assert!(
        words.starts_with("Managed leak: ") && words.contains(" retained by Loaded::…"),
        "{words}"
    );
}

/// The root kept more objects "about 0.8 MiB" large, which had 40 MiB: the size was that of their slots.
#[test]
fn a_line_of_a_backtrace_retains_all_of_it() {
    let (target, _) = case("caller_locations", "1");
    let do_backtraces_age = target.truth["ruby_version"].as_str().unwrap() >= "3";
    let path = "Registry::DECLARATIONS → Array → Declaration → Thread::Backtrace::Location";
    assert_path(&target, "Thread::Backtrace::Location", path);
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: Declaration retained by Registry::DECLARATIONS grows";
    assert!(words.starts_with(leak), "{words}");
    let kept = diff.kept.iter().flatten().find(|it| it.root == "Registry::DECLARATIONS").unwrap();
    if !do_backtraces_age {
        return testkit::skip("backtraces have no write barrier, so they do not become old");
    }
    // Only the last but one interval counts.
    assert!(kept.bytes * 3 > diff.verdict.bytes, "{kept:?} {:?}", diff.verdict);
}

/// The path was "CLIENT → Client → Proc → Segment", as if one callback had all segments.
#[test]
fn a_chain_of_callbacks_has_its_length_in_the_path() {
    let (target, report) = case("callback_chain", "0.5");
    if target.truth["ruby_version"].as_str().is_some_and(|version| version < "3") {
        return testkit::skip("on Ruby 2.7 a Proc may have an old word that refers to the chain");
    }
    let (all, line) = (target.number("objects"), target.number("line"));
    // The path without the length of the chain, and this length.
    let parts = |path: &str| {
        let (before, rest) = path.split_once(" → Proc (").unwrap();
        let (place, rest) = rest.split_once(") × ").unwrap();
        let (length, after) = rest.split_once(" → ").unwrap();
        assert!(place.ends_with(&format!("callback_chain.rb:{line}")), "{path}");
        let length: u64 = length.replace(',', "").parse().unwrap();
        (format!("{before} → Proc × … → {after}"), length)
    };
    let (path, objects, of_class) = path_to(&target, "Segment");
    let (path, length) = parts(&path);
    assert_eq!((path.as_str(), of_class), ("CLIENT → Client → Proc × … → Segment", all));
    assert!(objects * 10 >= all * 9, "{objects} of {all}");
    // One object of the chain, if those of a sample are too far away, but hardly one at an end.
    assert!(length > all / 100 && length <= all, "{length} of {all}");
    let (_, roots) = retained(&report, "String");
    let (path, length) = parts(roots[0].0.as_deref().unwrap());
    assert_eq!(path, "CLIENT → Client → Proc × … → Segment → String");
    assert!(length > all / 100 && length <= all, "{length} of {all}");
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.starts_with("Managed leak: Segment retained by CLIENT grows "), "{words}");
}

/// The growth of events was that of their strings, without their hashes and arrays, and what a queue keeps had no path.
#[test]
fn events_in_a_queue_grow_with_all_their_objects() {
    let (target, _) = case("queued_events", "0.5");
    assert_path(&target, "Event", "LOGGER → Processor → Thread::Queue → Event");
    let diff = diff(&looks_at(target, 3, |_| false));
    let verdict = &diff.verdict;
    assert_eq!(verdict.kind, DiffKind::ManagedLeak, "{verdict:?}");
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.starts_with("Managed leak: Event retained by LOGGER grows "), "{words}");
    let of_class =
        |name: &str| diff.classes.iter().find(|it| it.name == name).unwrap().bytes.change;
    let parts = ["Event", "String", "Hash", "Array"].map(of_class);
    assert!(parts.iter().all(|&bytes| bytes >= 40_000 * 40), "{parts:?}");
    let sum: i64 = parts.iter().sum();
    assert!((verdict.bytes - sum).abs() * 20 <= sum, "{verdict:?} {parts:?}");
    let kept = diff.kept.iter().flatten().find(|it| it.root == "LOGGER").unwrap();
    assert_eq!(kept.class, None, "{kept:?}");
    assert_eq!(kept.path.as_deref(), Some("LOGGER → Processor → Thread::Queue → Event"));
}

/// The Hash retains the Mutexes and their names. Neither those of libraries and threads nor the interpreter's table of strings, which
/// grows with the names, hide that.
#[test]
fn mutexes_are_retained_by_the_table_of_their_names() {
    let (target, report) = case("mutexes", "0.5");
    let all = target.number("objects");
    for class in ["Thread::Mutex", "String"] {
        let (_, roots) = retained(&report, class);
        let path = format!("MANAGER → PoolManager → Hash → {class}");
        assert!(roots[0].0.as_ref() == Some(&path) && roots[0].1 * 10 >= all * 9, "{roots:?}");
    }
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: Thread::Mutex retained by MANAGER grows ";
    assert!(words.starts_with(leak), "{words}");
}

/// Objects with singleton methods were called garbage, with high confidence. The GC of Ruby 3.0 to 3.2 does not free them, as each call
/// retains the method that it found last.
#[test]
fn calls_retain_the_methods_that_they_found() {
    let (target, report) = case("method_caches", "0.5");
    let version = target.truth["ruby_version"].as_str().unwrap();
    if !("3.0".."3.3").contains(&version) {
        return testkit::skip("method caches of this Ruby retain nothing");
    }
    let live = target.number("objects");
    let (objects, of_garbage) = garbage(&report, "Context");
    assert!(objects >= live && (objects - of_garbage) * 10 >= live * 9, "{of_garbage}");
    let path = "Pages → Module → Class → (method cache) → method title (PLACE) → Context";
    assert_path(&target, "Context", path);
    assert!(!verdict(&report).contains("garbage"));
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    // Other roots have the names of the methods.
    let leak = "Managed leak: String, most of it retained by Pages, grows ";
    assert!(words.starts_with(leak), "{words}");
}

/// Of memory in hidden Strings the verdict named nobody, and a leak of it was "memory of objects of many classes".
#[test]
fn readers_are_named_and_not_their_hidden_strings() {
    let (target, report) = case("gzip_readers", "1");
    let words = verdict(&report);
    assert!(words.contains(", most of them by objects of Zlib::GzipReader."), "{words}");
    let (_, roots) = retained(&report, "Zlib::GzipReader");
    assert_eq!(roots[0].0.as_deref(), Some("Uploads::OPEN → Array → Zlib::GzipReader"));
    let Action::ReleaseObjects { class, .. } = &report.advice[0].action else {
        panic!("{:?}", report.advice)
    };
    assert_eq!(class, "Zlib::GzipReader");
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: Zlib::GzipReader retained by Uploads::OPEN grows ";
    assert!(words.starts_with(leak), "{words}");
}

/// Garbage in hidden Arrays was live memory, "a managed leak, or simply its data", with high confidence.
#[test]
fn what_a_queue_had_is_garbage_before_the_next_collection() {
    let (mut target, report) = case("drained_queues", "1");
    let garbage = target.number("bytes");
    if bytes(&report, "ruby.malloc") < garbage / 2 {
        return testkit::skip("the garbage was collected at once, as Ruby 2.7 does");
    }
    let words = verdict(&report);
    assert!(words.contains("held by Ruby objects, most of which are garbage"), "{words}");
    target.tell("collect");
    target.next_truth();
    let after = crate::report(target.pid());
    let freed = bytes(&report, "ruby.malloc").saturating_sub(bytes(&after, "ruby.malloc"));
    assert!(freed * 10 >= garbage * 9, "{freed} of {garbage}");
    assert!(!verdict(&after).contains("garbage"));
    assert!(target.finish());
}

/// The C library's tree of all values that variables of the environment ever had was a leak to which nothing points.
#[test]
fn old_values_of_the_environment_are_kept_by_the_c_library() {
    let (target, report) = case("environment", "1");
    let kept = target.number("values") * 20_000;
    let owner = |report: &Report| {
        let owners = report.owners.iter().flatten();
        owners.filter(|it| it.owner.starts_with("libc")).map(|it| it.bytes()).sum::<u64>()
    };
    assert!(owner(&report) * 10 >= kept * 9, "{} of {kept}", owner(&report));
    assert!(bytes(&report, "native.unreachable") < kept / 100);
    let words = verdict(&report);
    assert!(words.contains("keeps every value that ENV has had"), "{words}");
    assert_eq!(report.advice[0].action, formats::Action::FindNativeUse);
    let step = render::words::advice(&report.advice[0], &report).action;
    assert!(
        step.ends_with("Old values of ENV are freed by a restart only: assign to it less often."),
        "{step}"
    );
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    assert!(words.contains("libc"), "{words}");
}

/// The failed examples of RSpec were retained by 250 variables, each of which "(1 of 250)", and the verdict had no path
/// (rspec/rspec-core#312).
#[test]
fn variables_of_many_classes_are_one_root() {
    let target = Target::bare_ruby(
        "class Item; def initialize; @text = rand.to_s.ljust(9000, 'x'); end; end
         100.times do |number|
           group = Object.const_set(:\"Group#{number}\", Class.new)
           group.instance_variable_set(:@examples, [Item.new])
         end
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (path, objects, all) = path_to(&target, "Item");
    assert_eq!((path.as_str(), objects, all), ("….@examples → Array → Item", 100, 100));
    assert!(target.finish());
}
