//! Retained sizes: the memory that would be free if a constant, a thread, an object or all objects of a class went
//! away. The target releases it, and rbloat compares the memory before and after.

use crate::{bytes, complaint, document, rbloat, report_of, run};
use assert_cmd::assert::OutputAssertExt;
use formats::{Action, Diff, DominatorRow, Report, Why, WhyKind};
use testkit::Target;

/// The size of released memory may differ by this much from the retained size, in percent.
const TOLERANCE: u64 = 2;

/// A program that releases the object that its standard input names.
const PROGRAM: &str = r#"
    require "json"
    class Entry; def initialize(text); @text = text; end; end
    class Pool
      @index = {}
      class << self; attr_reader :index; end
    end
    module Store; end
    Node = Struct.new(:following, :text)
    # Ruby retains what old words on the stack point to. The stack of a fiber ends with it, so all is done in fibers.
    # Constants are set and read by methods: an inline cache would retain the value until the code runs again.
    Fiber.new do
      Store.const_set(:CACHE, {})
      6_000.times { |i| Store.const_get(:CACHE)["key #{i}"] = Entry.new("x" * (1_000 + i % 7)) }
      4_000.times { |i| Pool.index[i] = Store.const_get(:CACHE)["key #{i}"] }
      Pool.class_variable_set(:@@all, Array.new(3_000) { |i| "p#{i}" * 300 })
      $shared = Array.new(2_000) { |i| "s#{i}" * 200 }
      Object.const_set(:ALSO_SHARED, $shared)
      # An old word that points to any node of a list retains the rest of it, so there are few nodes with long texts.
      $list = nil
      200.times { |i| $list = Node.new($list, "n#{i}" * 3_500) }
    end.resume
    go_on = Queue.new
    worker = Thread.new { mine = Array.new(2_500) { |i| "t#{i}" * 250 }; go_on.pop; mine.size }
    worker.name = "worker"
    Thread.pass until worker.status == "sleep"
    require "objspace"
    node = -> { $list && JSON.parse(ObjectSpace.dump($list.following.following))["address"] }
    said = lambda do
      # Marking leaves old words on the stack of the thread that collects.
      Thread.new { 4.times { GC.start } }.join
      puts "ready #{JSON.generate(node: node.call)}"
      $stdout.flush
    end
    said.call
    while (line = $stdin.gets)
      Fiber.new do |name|
        case name
        when "Store::CACHE" then Store.send(:remove_const, :CACHE)
        when "Pool.@index" then Pool.instance_variable_set(:@index, nil)
        when "Pool@@all" then Pool.class_variable_set(:@@all, nil)
        when "$shared" then $shared = nil
        when "ALSO_SHARED" then Object.send(:remove_const, :ALSO_SHARED)
        when "$list" then $list = nil
        when "worker"
          go_on << 1
          worker.join
          worker = nil
        end
        nil
      end.resume(line.chomp)
      said.call
    end
"#;

fn report(pid: i32) -> Report {
    report_of(&run(pid, &["--retained", "--json"]))
}

/// All memory in use by live objects and malloc. On Ruby 2.7, heap pages are blocks of malloc, and some become free.
fn bytes_in_use(report: &Report) -> u64 {
    let (ruby, malloc) = (report.ruby.as_ref().unwrap(), report.malloc.as_ref().unwrap());
    let pages = if is_2_7(report) { ruby.heap_pages << 14 } else { 0 };
    ruby.slot_bytes_live + malloc.in_use_bytes + malloc.mmapped_bytes - pages
}

fn all(rows: &[DominatorRow]) -> Vec<&DominatorRow> {
    rows.iter().flat_map(|row| [vec![row], all(&row.parts)].concat()).collect()
}

const OLD_WORDS: &str = "on Ruby 2.7 a Proc may have an old word that refers to a list or thread";

fn is_2_7(report: &Report) -> bool {
    report.process.ruby_version.as_deref().is_some_and(|version| version < "3")
}

/// The dominator with this name.
fn dominator<'a>(report: &'a Report, name: &str) -> &'a DominatorRow {
    let rows = all(report.dominators.as_deref().unwrap());
    let found = rows.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {:#?}", report.dominators))
}

#[test]
fn what_is_let_go_is_as_much_as_it_retained() {
    let mut target = Target::bare_ruby(PROGRAM);
    let mut before = report(target.pid());
    let entries = before.owners.iter().flatten().find(|owner| owner.owner == "Entry").unwrap();
    // The index has 4,000 of the 6,000 entries, and their texts.
    let of_entries = entries.retained_bytes.unwrap();
    assert!((6_000 * 1_040..6_000 * 1_130).contains(&of_entries), "{of_entries}");
    // Two names lead to these entries, so neither of them retains them.
    let of_shared = |report: &Report| {
        let rows = all(report.dominators.as_deref().unwrap());
        rows.iter()
            .find(|row| ["$shared", "ALSO_SHARED"].contains(&&*row.name))
            .map(|row| row.retained_bytes)
    };
    assert!(of_shared(&before).is_none_or(|bytes| bytes < 1_000), "{:?}", of_shared(&before));
    // The thread comes last, since Ruby may keep its stack of 1 MiB for some time.
    let subjects = [
        ("Store::CACHE", "Store::CACHE"),
        ("Pool.@index", "Pool.@index"),
        ("Pool@@all", "Pool@@all"),
        ("$list", "$list"),
        ("$shared", "ALSO_SHARED"),
        ("ALSO_SHARED", "ALSO_SHARED"),
        ("worker", "Thread \"worker\""),
    ];
    for (subject, name) in subjects {
        if ["$list", "worker"].contains(&subject) && is_2_7(&before) {
            testkit::skip(OLD_WORDS);
            continue;
        }
        // Without this name, only the other name retains the entries.
        let is_shared = subject != name && name == "ALSO_SHARED";
        let claimed = if is_shared { 0 } else { dominator(&before, name).retained_bytes };
        target.tell(subject);
        target.next_truth();
        let after = report(target.pid());
        let freed = bytes_in_use(&before).saturating_sub(bytes_in_use(&after));
        // Other stacks may have old words that refer to strings of the thread.
        let near = match subject {
            "worker" => (claimed / 4).max(1_100 << 10),
            // Ruby keeps the stack of an ended fiber, of 128 KiB or more.
            _ => claimed * TOLERANCE / 100 + (200 << 10),
        };
        assert!(claimed > 1 << 20 || is_shared, "{subject}: {claimed}");
        assert!(claimed.abs_diff(freed) <= near, "{subject}: {claimed} claimed, {freed} freed");
        before = after;
    }
    assert!(target.finish());
}

/// Stacks of fibers counted for no root, and many fibers with little on theirs were named in place of a few with deep calls.
#[test]
fn stacks_of_fibers_belong_to_what_retains_the_fibers() {
    let target = Target::bare_ruby(
        "def deep(n) n > 0 ? deep(n - 1) : Fiber.yield end
         def started(count, calls) Array.new(count) { Fiber.new { deep(calls) }.tap(&:resume) } end
         FLAT = started(1_000, 0)
         DEEP = started(300, 500)
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let stacks = bytes(&report, "stack.fibers");
    let of = |name: &str| dominator(&report, name).retained_bytes;
    let [flat, deep] = ["FLAT", "DEEP"].map(of);
    assert!(deep > stacks / 2 && flat > stacks / 4, "{stacks}: {flat} and {deep}");
    let actions: Vec<_> = report.advice.iter().map(|it| &it.action).collect();
    let is_named = |it: &&&Action| matches!(it, Action::EndFibers { path: Some(path), .. } if path == "DEEP → Array → Fiber");
    assert!(actions.iter().any(|it| is_named(&it)), "{actions:?}");
    assert!(target.finish());
}

#[test]
fn why_names_the_paths_the_referrers_and_the_dominators_of_an_object() {
    let target = Target::bare_ruby(PROGRAM);
    let pid = target.pid().to_string();
    let why = |subject: &str| -> Why {
        let output = rbloat().args(["why", &pid, subject, "--json"]).output().unwrap();
        document(&output.stdout)
    };
    let entries = why("Entry");
    assert_eq!((entries.subject.kind, entries.subject.objects), (WhyKind::Class, 6_000));
    let paths: Vec<_> = entries.paths.iter().map(|it| (it.path.as_deref(), it.objects)).collect();
    let [cache, index] = ["Store::CACHE → Hash → Entry", "Pool.@index → Hash → Entry"].map(Some);
    // Stale words may seem to retain a few.
    assert_eq!((paths[0].0, paths[1].0), (index, cache));
    assert!(paths[0].1 >= 3_990 && paths[1].1 >= 1_990, "{paths:?}");
    // 6,000 references from one Hash, 4,000 from the other.
    let hashes = entries.referrers.iter().find(|it| it.name == "Hash").unwrap();
    assert_eq!(hashes.count, 2);

    let report = report(target.pid());
    if is_2_7(&report) {
        testkit::skip(OLD_WORDS);
        return;
    }
    let list = why("Node");
    let path = list.paths[0].path.as_deref().unwrap();
    assert!(path.starts_with("$list → Node") && list.paths[0].objects >= 190, "{path}");
    let node = list.referrers.iter().find(|it| it.name == "$list").unwrap();
    assert_eq!(node.count, 1);

    assert!(dominator(&report, "Thread \"worker\"").objects >= 1_800, "{:#?}", report.dominators);
    // A list is one row.
    assert!(dominator(&report, "$list").parts.iter().all(|part| part.name != "Node"));
    let node = why(target.truth["node"].as_str().unwrap());
    assert_eq!((node.subject.kind, &*node.subject.name), (WhyKind::Object, "Node"));
    assert!(node.subject.retained_objects.unwrap() >= 2 * 197, "{node:?}");
    let paths: Vec<_> = node.paths.iter().map(|it| it.path.as_deref().unwrap()).collect();
    assert_eq!(paths, ["$list → Node × 3"]);
    let dominators: Vec<_> = node.dominators.iter().map(|it| &*it.name).collect();
    assert_eq!(dominators, ["Node", "Node", "$list"]);
    let text = rbloat().args(["why", &pid, "Entry"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(" · Pool.@index → Hash → Entry  ("), "{text}");
}

/// Up to 3.2 small arrays, hashes, structs and lists of variables are on the transient heap until they are old. It was not
/// read, or read as memory of libruby: all that only they refer to seemed to be garbage, or to be kept by libruby.
#[test]
fn what_young_collections_refer_to_is_retained_by_them() {
    let target = Target::bare_ruby(
        "%w[InArray InHash InStruct InVariable].each { |it| Object.const_set(it, Class.new { def initialize; @a = 1; end }) }
         Pair = Struct.new(:a, :b, :c, :d)
         Holder = Class.new { def initialize; @a = @b = @c = 1; @d = InVariable.new; end }
         ARRAY = [Array.new(10) { InArray.new }]
         HASH = Array.new(7) { |it| [it, InHash.new] }.to_h
         STRUCT = Array.new(5) { Pair.new(1, 2, 3, InStruct.new) }
         OBJECT = Array.new(5) { Holder.new }
         Gone, DELETED = Class.new { def initialize; @a = 1; end }, []
         Thread.new { own = { 1 => Gone.new, 2 => 3 }; own.delete(1); DELETED << own }.join
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let pid = target.pid().to_string();
    // The value of a deleted pair stays in the memory of a small hash.
    let gone = rbloat().args(["why", &pid, "Gone", "--json"]).output().unwrap();
    let gone: Why = document(&gone.stdout);
    assert!(gone.paths.iter().flat_map(|it| &it.path).all(|path| !path.contains("DELETED")));
    for (class, path, objects) in [
        ("InArray", "ARRAY → Array × 2 → InArray", 10),
        ("InHash", "HASH → Hash → InHash", 7),
        ("InStruct", "STRUCT → Array → Pair → InStruct", 5),
        ("InVariable", "OBJECT → Array → Holder → InVariable", 5),
    ] {
        let output = rbloat().args(["why", &pid, class, "--json"]).output().unwrap();
        let why: Why = document(&output.stdout);
        let paths: Vec<_> = why.paths.iter().map(|it| (it.path.as_deref(), it.objects)).collect();
        assert_eq!(paths, [(Some(path), objects)]);
    }
    assert!(target.finish());
}

/// The transient heap was no object's memory: small arrays seemed to hold their slots only.
#[test]
fn young_collections_hold_their_memory() {
    let target = Target::bare_ruby(
        "GC.disable; ROWS = Array.new(30_000) { |at| [at, 1, 2, 3, 4, 5, 6, 7] }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = crate::report(target.pid());
    let arrays = report.owners.iter().flatten().find(|it| it.owner == "Array").unwrap();
    let least = 30_000 * 64;
    assert!(arrays.bytes() >= least, "{arrays:#?}");
    let kept = arrays.kept_by.first().unwrap();
    assert!(kept.path.as_deref().unwrap().starts_with("ROWS → Array"), "{kept:?}");
    assert!(kept.bytes >= least, "{kept:?}");
    assert!(target.finish());
}

/// 20 of 130 MiB were memory of live objects, but these had left it: their memory is malloc's once they are old.
#[test]
fn what_old_collections_have_left_is_free() {
    let target = Target::bare_ruby(
        "require 'objspace'
         ROWS = Array.new(200_000) { |at| [at, 1, 2, 3, 4, 5, 6, 7, 8, 9] }
         4.times { GC.start }
         bytes = ObjectSpace.memsize_of_all
         puts %(ready {\"bytes\": #{bytes}, \"version\": \"#{RUBY_VERSION}\"}); $stdout.flush; $stdin.read",
    );
    if target.truth["version"].as_str() >= Some("3.3") {
        return testkit::skip("this Ruby has no transient heap");
    }
    let whole = crate::report(target.pid());
    // Ruby counts bytecode and tables, too, and malloc rounds sizes up.
    let held = crate::bytes(&whole, "ruby.live_slots") + crate::bytes(&whole, "ruby.malloc");
    let truth = target.number("bytes");
    assert!(held * 10 <= truth * 11, "{held} of {truth}");
    let free = crate::bytes(&whole, "ruby.transient");
    assert!(free > 8 << 20, "{free} {:?}", whole.causes);
    // The same without owners.
    let pid = target.pid().to_string();
    let output = rbloat().args(["report", &pid, "--owners", "0", "--json"]).output().unwrap();
    let report: Report = document(&output.stdout);
    assert_eq!(crate::bytes(&report, "ruby.transient"), free);
    assert!(target.finish());
}

#[test]
fn why_refuses_what_it_cannot_explain() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("a.rbloat");
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let pid = target.pid().to_string();
    rbloat().args(["snapshot", &pid, "-o"]).arg(&snapshot).assert().success();
    let snapshot = snapshot.to_str().unwrap();
    for (source, subject, status, words) in [
        (&*pid, "Nothing::Here", 3, "no live object of class Nothing::Here"),
        (&*pid, "0x10", 3, "no live object and no malloc'ed memory in use at 0x"),
        (&*pid, "12ab", 2, "neither an address nor the name of a class"),
        (snapshot, "String", 2, "a snapshot does not have the references"),
    ] {
        let output = rbloat().args(["why", source, subject]).output().unwrap();
        let (code, complaint) = complaint(&output);
        assert!(code == status && complaint.contains(words), "{subject}: {code}, {complaint}");
    }
    let output = rbloat().args(["report", snapshot, "--retained"]).output().unwrap();
    assert!(complaint(&output).1.contains("the snapshot has no retained sizes"));
    let output = rbloat().args(["report", &pid, "--retained", "--owners", "0"]).output().unwrap();
    assert_eq!(complaint(&output).0, 2);
}

#[test]
fn snapshots_with_retained_sizes_show_them_and_their_growth() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = Target::bare_ruby(
        "STORE = []
         grow = -> { 2_000.times { STORE << 'x' * 1_000 }; GC.start; puts 'ready {}'; $stdout.flush }
         grow.call
         grow.call while $stdin.gets",
    );
    let pid = target.pid().to_string();
    let files = ["a", "b"].map(|name| folder.path().join(name));
    for file in &files {
        rbloat().args(["snapshot", &pid, "--retained", "-o"]).arg(file).assert().success();
        target.tell("grow");
        target.next_truth();
    }
    let text = rbloat().arg("report").arg(&files[0]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(" RETAINED, MiB ") && text.contains("  STORE; used in "), "{text}");
    let output = rbloat().arg("diff").args(&files).arg("--json").output().unwrap();
    let diff: Diff = document(&output.stdout);
    let dominators = diff.dominators.unwrap();
    let store = dominators.iter().find(|it| it.name == "STORE").unwrap();
    let grown = store.retained_bytes.change;
    assert!((2_000 * 1_040..2_000 * 1_100).contains(&grown), "{grown}");
    let strings = diff.classes.iter().find(|class| class.name == "String").unwrap();
    assert!(strings.retained_bytes.as_ref().unwrap().change >= grown - (64 << 10), "{strings:?}");
    let text = rbloat().arg("diff").args(&files).output().unwrap();
    assert!(String::from_utf8(text.stdout).unwrap().contains("RETAINED BY  "));
    let map = folder.path().join("map.html");
    rbloat().arg("map").arg(&files[0]).arg("--retained").arg("-o").arg(&map).assert().success();
    assert!(std::fs::read_to_string(&map).unwrap().contains("\"retained_bytes\""));
}

/// The first was "Integer → Class → Ruby::Box → Ruby::Box::Entry → Hash → Array", and there were two rows of Leak::STORE.
#[test]
fn what_each_box_retains_has_the_number_of_the_box() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("leak.rb");
    let source = "module Leak
           STORE = []
           class Inner; @kept = []; class << self; attr_reader :kept; end; end
         end
         TEXTS = []
         def fill(count)
           $leak ||= []
           lists = [Leak::STORE, Leak::Inner.kept, TEXTS, $leak]
           lists.each_with_index { |list, at| ((at + 1) * count).times { list << 'text' * 30 } }
         end";
    std::fs::write(&library, source).unwrap();
    let source = format!(
        "MINE = Array.new(2_000) {{ Object.new }}
         $mine = Array.new(3_000) {{ Object.new }}
         boxes = defined?(Ruby::Box) && Ruby::Box.enabled? ? [Ruby::Box.new, Ruby::Box.new] : []
         boxes.each_with_index {{ |it, at| it.require({library:?}); it.eval(\"fill(#{{500 * at + 300}})\") }}
         4.times {{ GC.start }}
         puts \"ready {{\\\"boxes\\\": #{{boxes.map {{ |it| it.inspect[/\\d+/].to_i }}}}}}\"
         $stdout.flush
         $stdin.read"
    );
    let mut command = testkit::ruby();
    command.args(["--disable-gems", "-e", &source]).env("RUBY_BOX", "1");
    let target = Target::start(command.stderr(std::process::Stdio::null()));
    let boxes: Vec<u64> = serde_json::from_value(target.truth["boxes"].clone()).unwrap();
    if boxes.is_empty() {
        return testkit::skip("this Ruby has no boxes");
    }
    let pid = target.pid().to_string();
    let objects = |class: &str, roots: &[&str]| -> Vec<u64> {
        let output = rbloat().args(["why", &pid, class, "--json"]).output().unwrap();
        let why: Why = document(&output.stdout);
        let of = |root: &&str| {
            let path = format!("{root} → Array → {class}");
            let paths = why.paths.iter().filter(|it| it.path.as_deref() == Some(&path));
            paths.map(|it| it.objects).sum()
        };
        roots.iter().map(of).collect()
    };
    for (number, count) in boxes.iter().zip([300, 800]) {
        let names = ["Leak::STORE", "Leak::Inner.@kept", "TEXTS", "$leak"]
            .map(|name| format!("{name} (box {number})"));
        let found = objects("String", &names.each_ref().map(String::as_str));
        assert_eq!(found, [1, 2, 3, 4].map(|times| times * count));
    }
    assert_eq!(objects("Object", &["MINE", "$mine"]), [2_000, 3_000]);
    assert!(target.finish());
}

/// "(symbols)", which are small: the roots with the large strings had a row for each, so none was listed.
#[test]
fn variables_and_constants_with_numbers_are_one_root() {
    let target = Target::bare_ruby(
        "1_000.times do |job|
           eval(\"$job_#{job} = 'j' * 9_000\")
           Object.const_set(\"Report_#{job}\", [job] * 2_000)
         end
         GC.start
         GC.disable
         500.times { 'garbage' * 1_000 }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let owners = report.owners.as_ref().unwrap();
    for (class, path) in [("String", "$job_… → String"), ("Array", "Report_… → Array")] {
        let most = &owners.iter().find(|it| it.owner == class).unwrap().kept_by[0];
        assert_eq!((most.path.as_deref(), most.objects), (Some(path), 1_000), "{most:?}");
    }
    assert!(target.finish());
}
