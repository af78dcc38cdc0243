//! The object spaces of real Ruby processes, compared with the processes' own reports.

#[path = "live/allocation.rs"]
mod allocation;
#[path = "live/backtraces.rs"]
mod backtraces;
#[path = "live/named_roots.rs"]
mod named_roots;
#[path = "live/owners.rs"]
mod owners;

use std::collections::{BTreeMap, BTreeSet};

use image::freeze;
use linux::{Address, PATIENCE};
use ruby::{Class, Error, ObjectSpace, Slot, SlotState, SlotType};
use serde_json::Value;
use testkit::Target;

/// Counts into existing hashes, then stops itself. The first rounds run the same code without a stop,
/// so that the caches of all call sites exist already.
const STAND_STILL: &str = r##"
  $counts, $stat = {}, {}
  def stand_still
    GC.disable
    ObjectSpace.count_objects($counts); GC.stat($stat)
    pid = $$
    [0, 0, 19].each { |signal| GC.stat($stat); ObjectSpace.count_objects($counts); Process.kill(signal, pid) }
    truth = $counts.merge($stat).select { |_, it| it.is_a?(Integer) }
    puts "ready {" + truth.map { |key, it| "\"#{key}\": #{it}" }.join(", ") + "}"
    $stdout.flush
    GC.enable
  end
  puts "ready {}"; $stdout.flush
"##;

/// Keeps a target alive after it has reported its counts.
const WAIT: &str = "\n$stdin.read";

/// A target that stops itself at the end of `body`, and its object space.
fn standing(body: &str) -> (Target, ObjectSpace) {
    let target = Target::ruby(&format!("{STAND_STILL}\n{body}\nstand_still{WAIT}"));
    target.wait_until_stopped();
    let space = space_of(&target).unwrap_or_else(|error| panic!("{error}"));
    (target, space)
}

fn space_of(target: &Target) -> Result<ObjectSpace, Error> {
    let frozen = freeze(target.pid(), PATIENCE).expect("it can be stopped");
    let space = ruby::read(frozen.image());
    frozen.thaw().expect("it lived on");
    space
}

/// Compares counts by type with the counts that the target took before it stopped.
#[track_caller]
fn assert_counts(mut target: Target, space: &ObjectSpace) -> Value {
    target.go_on();
    let truth = target.next_truth();
    let own = truth.as_object().unwrap().iter();
    let own: BTreeMap<&str, u64> = own
        .filter(|(name, count)| {
            // The hash keeps types that no longer occur.
            let is_left = name.starts_with("T_") && count.as_u64() != Some(0);
            is_left || ["TOTAL", "FREE"].contains(&name.as_str())
        })
        .map(|(name, count)| (name.as_str(), count.as_u64().unwrap()))
        .collect();
    assert_eq!(space.counts(), own);
    assert!(target.finish());
    truth
}

fn objects_of(space: &ObjectSpace, name: &str) -> u64 {
    let class_of = |slot: &Slot| space.classes.get(slot.class() as usize);
    let is_it = |class: &&Class| class.name.as_deref() == Some(name);
    space.slots.iter().filter_map(class_of).filter(is_it).count() as u64
}

#[test]
fn counts_are_those_of_count_objects_and_of_gc_stat() {
    let (target, space) = standing(
        "$kept = Array.new(60_000) { |it| it % 3 == 0 ? Object.new : it % 3 == 1 ? 'x' * rand(200) : [it] * 5 }
         GC.start; Array.new(20_000) { |it| it.to_s * 20 }; nil",
    );
    let truth = assert_counts(target, &space);
    let number = |name: &str| truth[name].as_u64().unwrap();
    let zombies = space.counts().get("T_ZOMBIE").copied().unwrap_or(0);
    let live = space.slots.iter().filter(|slot| slot.is_live()).count() as u64;
    let free = space.counts()["FREE"];
    assert_eq!(live - zombies, number("heap_live_slots"));
    assert_eq!(free, number("heap_free_slots"));
    let with_slots = space.pages.iter().filter(|page| page.slot_bytes > 0).count() as u64;
    let empty = truth["heap_empty_pages"].as_u64().unwrap_or(0);
    assert_eq!(space.pages.len() as u64, number("heap_allocated_pages"));
    assert_eq!(with_slots + empty, number("heap_allocated_pages"));
}

#[test]
fn a_process_that_never_collected_garbage_is_read() {
    let mut command = testkit::ruby();
    let source = format!("{STAND_STILL}\n$none = GC.count == 0\nstand_still{WAIT}");
    let target = Target::start(command.args(["--disable-gems", "-e", &source]));
    target.wait_until_stopped();
    let space = space_of(&target).unwrap();
    assert_counts(target, &space);
}

#[test]
fn half_a_million_objects_and_the_holes_between_them_are_counted() {
    let (target, space) = standing(
        // Cleared, since a stale word on the stack may retain the array itself.
        "all = Array.new(500_000) { |it| it % 2 == 0 ? Object.new : 'x' * (it % 90) }
         $kept = all.each_slice(50).map(&:first); all.clear; GC.start",
    );
    assert!(space.slots.len() > 300_000 && space.counts()["FREE"] > 200_000);
    assert_counts(target, &space);
}

#[test]
fn a_heap_that_was_compacted_is_read() {
    let (target, space) = standing(
        "$kept = Array.new(100_000) { |it| it % 2 == 0 ? Object.new : 'x' * (it % 90) }
         $kept = $kept.each_slice(7).map(&:first); GC.start; GC.compact if GC.respond_to?(:compact)",
    );
    assert_counts(target, &space);
}

#[test]
fn emptied_pages_are_no_slots() {
    let (target, space) =
        standing("$kept = Array.new(400_000) { Object.new }; $kept = nil; 4.times { GC.start }");
    assert_counts(target, &space);
}

#[test]
fn objects_are_put_down_to_the_class_that_they_say_they_are_of() {
    let (target, space) = standing(
        "class Plain; end
         module Deep; module Er; class Nested; def initialize; @a, @b, @c, @d = 1, 2, 3, 4; end; end; end; end
         class Reopened; end; class Reopened; def more; end; end
         class Child < Plain; include Comparable; prepend Enumerable; end
         Pair = Struct.new(:left, :right)
         class TextOfMine < String; end
         anonymous = Class.new
         named_late = Class.new; Late = named_late
         $kept = Array.new(100) { Plain.new } + Array.new(200) { Deep::Er::Nested.new } +
           Array.new(300) { Reopened.new } + Array.new(400) { Child.new } + Array.new(500) { Pair.new(1, 2) } +
           Array.new(600) { TextOfMine.new('t') } + Array.new(700) { anonymous.new } + Array.new(800) { Late.new }
         # Objects with a singleton class, objects extended by a module, and classes with methods.
         $kept += Array.new(50) { it = Plain.new; def it.own; end; it }
         $kept += Array.new(60) { Plain.new.extend(Comparable) }
         def Plain.of_class; end
         GC.start",
    );
    let expected = [
        ("Plain", 100 + 50 + 60),
        ("Deep::Er::Nested", 200),
        ("Reopened", 300),
        ("Child", 400),
        ("Pair", 500),
        ("TextOfMine", 600),
        ("Late", 800),
    ];
    for (name, count) in expected {
        assert_eq!(objects_of(&space, name), count, "{name}");
    }
    let anonymous = (0..).zip(&space.classes).filter(|(_, class)| class.name.is_none());
    let objects = |class| space.slots.iter().filter(|slot| slot.class() == class).count();
    let mut counts = anonymous.map(|(class, _)| objects(class));
    assert!(counts.any(|count| count == 700), "the anonymous class has its 700 objects");
    assert_eq!(
        objects_of(&space, "Class"),
        space.counts()["T_CLASS"] - hidden(&space, SlotType::CLASS)
    );
    assert!(objects_of(&space, "(imemo_iseq)") > 50);
    assert!(space.findings.is_empty(), "{:?}", space.findings);
    assert_counts(target, &space);
}

/// Counts internal objects into an existing hash, then stops itself.
const COUNT_INTERNAL: &str = r##"
  require 'objspace'
  puts "ready {}"; $stdout.flush
  class Zoo; @keeper = 'Ann'; @food = 'hay'; def feed(&block) block end end
  $kept = Array.new(500) { |number| [proc { number }, Zoo.new.feed { number }] }
  $named = Array.new(100) { 'text'.dup.tap { |text| text.instance_variable_set(:@name, 1) } }
  $counts, pid = {}, $$
  GC.start; GC.disable
  [0, 0, 19].each { |signal| ObjectSpace.count_imemo_objects($counts); Process.kill(signal, pid) }
  puts "ready {" + $counts.map { |key, it| "\"(#{key})\": #{it}" }.join(", ") + "}"
  $stdout.flush; $stdin.read
"##;

#[test]
fn internal_objects_have_the_names_that_ruby_gives_them() {
    let mut target = Target::ruby(COUNT_INTERNAL);
    target.wait_until_stopped();
    let space = space_of(&target).unwrap();
    assert!(space.findings.is_empty(), "{:?}", space.findings);
    target.go_on();
    let truth = target.next_truth();
    let truth = truth.as_object().unwrap().iter().filter(|(_, count)| count.as_u64() != Some(0));
    for (name, count) in truth.clone() {
        assert_eq!(objects_of(&space, name), count.as_u64().unwrap(), "{name}");
    }
    let counted: u64 = truth.map(|(_, count)| count.as_u64().unwrap()).sum();
    assert_eq!(space.counts()["T_IMEMO"], counted);
    assert!(target.finish());
}

/// The number of objects of a type that have no class.
fn hidden(space: &ObjectSpace, kind: SlotType) -> u64 {
    objects_of(space, &format!("({kind})"))
}

#[test]
fn all_live_objects_have_a_class_and_most_a_name() {
    let (target, space) = standing("require 'json'; require 'set'; GC.start");
    let nameless = space.classes.iter().filter(|class| class.name.is_none()).count();
    assert!(nameless <= 5 + space.classes.len() / 20, "{nameless} of {}", space.classes.len());
    let classless = |slot: &&ruby::Slot| slot.is_live() && slot.class() == ruby::Slot::NO_CLASS;
    assert_eq!(space.slots.iter().filter(classless).count(), 0);
    assert_counts(target, &space);
}

#[test]
fn strings_name_the_memory_of_their_bytes_and_only_of_their_own() {
    let mut target = Target::ruby(
        "$long = Array.new(500) { |it| ('y' * (1500 + it)) + it.to_s }
         $short = Array.new(500) { |it| it.to_s }
         $shared = $long.map { |it| it[10..-1] }
         at = ->(text) { [text].pack('p').unpack1('J') }
         own = $long.map(&at); inner = $shared.map(&at)
         GC.start
         puts 'ready {\"own\": [' + own.join(',') + '], \"inner\": [' + inner.join(',') + ']}'
         $stdout.flush; $stdin.read",
    );
    let addresses = |name: &str, target: &Target| -> BTreeSet<u64> {
        let list = target.truth[name].as_array().unwrap().iter();
        list.map(|it| it.as_u64().unwrap()).collect()
    };
    let (own, inner) = (addresses("own", &target), addresses("inner", &target));
    let space = space_of(&target).unwrap();
    let named: BTreeMap<u64, u64> = space
        .references
        .iter()
        .filter(|(slot, ..)| space.slots[*slot as usize].kind() == SlotType::STRING)
        .fold(BTreeMap::new(), |mut named, (_, to, _)| {
            *named.entry(to.0).or_default() += 1;
            named
        });
    for address in &own {
        assert_eq!(named.get(address), Some(&1), "{address:#x} belongs to one string");
    }
    assert!(inner.iter().all(|address| own.contains(address) || !named.contains_key(address)));
    target.truth = Value::Null;
    assert!(target.finish());
}

#[test]
fn references_lead_into_private_memory_outside_the_heap_pages() {
    let (target, space) =
        standing("$kept = Array.new(5000) { |it| { it => 'z' * 1500, it.to_s => [it] * 299 } }");
    assert!(space.references.iter().count() > 10_000);
    let mut last = 0;
    for (slot, to, _) in space.references.iter() {
        assert!(to.is_aligned(16) && slot >= last && space.slots[slot as usize].is_live());
        let page = space.pages.partition_point(|page| page.range.end <= to);
        assert!(space.pages.get(page).is_none_or(|page| !page.range.contains(&to)));
        last = slot;
    }
    assert_counts(target, &space);
}

#[test]
fn a_busy_process_is_read_exactly_or_not_at_all() {
    let target = Target::ruby(
        "3.times { Thread.new { kept = []; loop {
           kept << Array.new(500) { |it|
             case it % 5
             when 0 then 'y' * rand(200)
             when 1 then Object.new
             when 2 then { it => it }
             when 3 then it == 3 ? Class.new.new : [it, it]
             else own = Object.new; def own.x; end; own
             end }
           kept.shift if kept.size > 100 } } }
         Thread.new { loop { sleep 0.03; GC.start } }
         Thread.new { loop { sleep 0.1; GC.compact } } if GC.respond_to?(:compact)
         sleep 0.01 until GC.count > 20; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let mut read = 0;
    let rounds = 2 * testkit::captures();
    // On a slow machine, it collects garbage most of the time.
    for round in 0..4 * rounds {
        if read * 3 >= rounds * 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(u64::from(1 + round * 7 % 20)));
        match space_of(&target) {
            Ok(space) => {
                read += 1;
                // Garbage may refer to a class that is gone, whose slot another class has now.
                let strangers = space.slots.iter().filter(|slot| {
                    let class = space.classes.get(slot.class() as usize);
                    let is_module = class.is_some_and(|it| it.name.as_deref() == Some("Module"));
                    slot.state() == SlotState::Marked
                        && is_module
                        && slot.kind() != SlotType::MODULE
                });
                assert_eq!(strangers.count(), 0);
                assert!(objects_of(&space, "Object") > 500);
                let classless = |slot: &&ruby::Slot| {
                    slot.class() == ruby::Slot::NO_CLASS && slot.state() == SlotState::Marked
                };
                assert_eq!(space.slots.iter().filter(classless).count(), 0);
            }
            Err(Error::Layout { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(read * 3 >= rounds * 2, "{read} of {rounds}");
    assert!(target.finish());
}

/// The stacks of threads that share native threads, as soon as the number of those in use is right: Ractors begin, and end, some time after
/// they say so.
fn mn_stacks_when(target: &Target, is_right: impl Fn(usize) -> bool) -> Vec<ruby::MnStack> {
    let mut stacks = Vec::new();
    for _ in 0..1000 {
        stacks = space_of(target).unwrap().mn_stacks;
        if is_right(stacks.iter().filter(|stack| stack.thread.is_some()).count()) {
            return stacks;
        }
    }
    panic!("{stacks:?}");
}

/// Threads of Ractors share native threads from 3.3 on. Their stacks were memory that belongs neither to malloc nor to Ruby.
#[test]
fn threads_of_ractors_have_stacks_of_their_own() {
    for count in [1, 40] {
        let mut target = Target::bare_ruby(&format!(
            "$VERBOSE = nil
             ractors = Array.new(defined?(Ractor) ? {count} : 0) {{ Ractor.new {{ Ractor.receive }} }}
             puts 'ready {{\"version\":\"' + RUBY_VERSION + '\"}}'; $stdout.flush; $stdin.gets
             ractors.each {{ |it| it.send(1) }}
             ractors.each {{ |it| it.respond_to?(:value) ? it.value : it.take }}
             puts 'ready {{}}'; $stdout.flush; $stdin.read"
        ));
        let version = target.truth["version"].as_str().unwrap().to_owned();
        if version.as_str() < "3.3" {
            return testkit::skip("each thread of this Ruby has a native thread");
        }
        let stacks = mn_stacks_when(&target, |in_use| in_use >= count);
        assert!(stacks.windows(2).all(|two| two[0].machine.end <= two[1].vm.start), "{stacks:?}");
        let sizes = stacks.iter().map(|it| (linux::length(&it.vm), linux::length(&it.machine)));
        assert_eq!(sizes.collect::<BTreeSet<_>>().len(), 1, "{stacks:?}");
        // Ruby keeps the stacks of those that have ended.
        target.tell("");
        target.next_truth();
        let kept = mn_stacks_when(&target, |in_use| in_use == 0);
        assert!(kept.len() >= stacks.len(), "{kept:?}");
        assert!(target.finish());
    }
}

#[test]
fn fibers_have_stacks_of_their_own() {
    let mut target = Target::ruby(
        "$fibers = Array.new(100) { Fiber.new { Fiber.yield; 1 } }; $fibers.each(&:resume)
         Fiber.new { puts 'ready {}'; $stdout.flush; $stdin.gets }.resume
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let space = ruby::read(frozen.image()).unwrap();
    let stacks = &space.fiber_stacks;
    // The main thread waits for a line within a fiber.
    let threads = &frozen.image().state.threads;
    let main = threads.iter().find(|thread| thread.tid == target.pid()).unwrap().stack_pointer;
    assert!(stacks.iter().any(|stack| stack.contains(&main)), "{main} is in a fiber's stack");
    let others = threads.iter().filter(|thread| thread.tid != target.pid());
    for thread in others {
        assert!(!stacks.iter().any(|stack| stack.contains(&thread.stack_pointer)));
    }
    frozen.thaw().unwrap();
    assert!(stacks.len() >= 101, "{} stacks", stacks.len());
    assert!(stacks.windows(2).all(|two| two[0].end < two[1].start));
    let bytes: BTreeSet<u64> = stacks.iter().map(linux::length).collect();
    assert_eq!(bytes.len(), 1, "all are of one size: {bytes:?}");
    let in_page = |stack: &std::ops::Range<Address>| {
        space.pages.iter().any(|page| !linux::intersection(&page.range, stack).is_empty())
    };
    assert!(!stacks.iter().any(in_page));

    // Ruby keeps the stacks of fibers that have ended.
    target.tell("");
    target.next_truth();
    assert_eq!(space_of(&target).unwrap().fiber_stacks.len(), stacks.len());
    assert!(target.finish());
}

#[test]
fn threads_and_ractors_share_the_heap() {
    let (target, space) = standing(
        "class Shared; end
         $threads = Array.new(20) { Thread.new { own = Array.new(50) { Shared.new }; sleep; own } }
         if defined?(Ractor)
           $VERBOSE = nil
           $reader, $writer = IO.pipe
           $ractors = Array.new(2) { Ractor.new($writer.fileno) { |ready| own = Array.new(1000) { Shared.new }
             IO.for_fd(ready, autoclose: false).syswrite('.'); sleep; own } }
           $reader.read(2)
         end
         Thread.pass until $threads.all?(&:stop?)",
    );
    let ractors = if space.interpreter.version.as_str() < "3" { 0 } else { 2000 };
    assert_eq!(objects_of(&space, "Shared"), 1000 + ractors);
    // From 4.1 on a process counts the objects of the calling Ractor only.
    if space.interpreter.version.as_str() < "4.1" {
        assert_counts(target, &space);
    }
}

#[test]
fn the_transient_heap_is_found_where_there_is_one() {
    // The GC would move some of them to malloc'ed memory.
    const ARRAYS: &str = "GC.disable; $kept = []
        500.times { own = []; 6.times { own << +'own' }; $kept << own }";
    let (target, space) = standing(ARRAYS);
    let has_one = space.interpreter.version.as_str() < "3.3";
    assert_eq!(space.transient_heap.is_some(), has_one);
    if let Some(heap) = &space.transient_heap {
        assert_eq!(linux::length(heap), 32 << 20);
        assert!(space.references.iter().all(|(_, to, _)| !heap.contains(&to)), "they were read");
    }
    let kind = |slot: u32| space.slots[slot as usize].kind();
    let is_own = |&slot: &u32| {
        let links = space.links.of(slot);
        kind(slot) == SlotType::ARRAY
            && links.len() == 6
            && links.iter().all(|&to| kind(to) == SlotType::STRING)
    };
    // On 3.3 and newer, the elements may be in malloc'ed memory.
    if has_one {
        let count = space.links.slots().filter(is_own).count();
        assert!(count >= 500, "{count} arrays with six strings");
    }
    assert!(space.jit_code.is_empty(), "no JIT was asked for");
    assert_counts(target, &space);
}

/// Enough methods that a compiler writes to many pages, and calls that make it compile them.
const COMPILED: &str = r#"
  def define(from) = eval((from...from + 300).map { |it|
    "def m#{it}(a, b) = a * #{it} + b.to_s.size + [a, b].map { |x| x + #{it} }.sum\n" }.join)
  def call(from) = 100.times { (from...from + 300).each { |it| send("m#{it}", it, 2) } }
"#;

/// The options that enable this Ruby's compilers, and expressions for the bytes of their code.
///
/// Rubies without a compiler refuse its option, or have no such module. 3.1 does not report the size of its code, which takes
/// the whole reservation.
fn compilers() -> Vec<(&'static [&'static str], &'static str)> {
    const ALL: [(&[&str], &str); 3] = [
        (
            &["--yjit", "--yjit-exec-mem-size=4"],
            "RUBY_VERSION < '3.2' ? RubyVM::YJIT.enabled? && 4 << 20 : RubyVM::YJIT.runtime_stats[:code_region_size]",
        ),
        (
            &["--yjit", "--yjit-exec-mem-size=1"],
            "RUBY_VERSION < '3.2' ? RubyVM::YJIT.enabled? && 1 << 20 : RubyVM::YJIT.runtime_stats[:code_region_size]",
        ),
        (&["--zjit"], "RubyVM::ZJIT.stats[:code_region_bytes]"),
    ];
    let works = |options: &[&str], size: &str| {
        let print = format!("print Integer({size})");
        let output = testkit::ruby().args(options).args(["-e", &print]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let own: Vec<_> = ALL.into_iter().filter(|(options, size)| works(options, size)).collect();
    if own.is_empty() {
        testkit::skip("this Ruby has no JIT compiler");
    }
    own
}

#[test]
fn code_of_a_jit_compiler_is_as_large_as_it_says() {
    for (options, size) in compilers() {
        let source = format!(
            "{COMPILED}
             tell = -> {{ puts %(ready {{\"code\": #{{{size}}}}}); $stdout.flush }}
             tell.(); define(0); call(0); tell.(); tell.(); $stdin.read"
        );
        let mut target = Target::start(testkit::ruby().args(options).args(["-e", &source]));
        target.next_truth();
        // Once more, since the reporting code may have been compiled itself.
        let size = target.next_truth()["code"].as_u64().unwrap();
        let space = space_of(&target).unwrap();
        let found: Vec<u64> = space.jit_code.iter().map(linux::length).collect();
        assert_eq!(found, [size], "{options:?}");
        assert!(target.finish());
    }
}

#[test]
fn code_is_found_whatever_the_compiler_is_writing() {
    for (options, _) in compilers() {
        let source = format!(
            "{COMPILED}
             define(0); call(0)
             Thread.new {{ from = 0; loop {{ define(from += 300); call(from) }} }}
             puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(0)"
        );
        let target = Target::start(testkit::ruby().args(options).args(["-e", &source]));
        let mut starts = BTreeSet::new();
        for _ in 0..40 {
            // A heap that is in the middle of a change cannot be read.
            if let Ok(space) = space_of(&target) {
                assert_eq!(space.jit_code.len(), 1, "{options:?}: {:?}", space.jit_code);
                starts.insert(space.jit_code[0].start);
            }
        }
        assert_eq!(starts.len(), 1, "{options:?}: {starts:?}");
        assert!(target.finish());
    }
}

#[test]
fn an_interpreter_is_found_in_a_process_that_runs_on() {
    let target = Target::ruby(
        "puts \"ready {\\\"patch\\\": #{RUBY_VERSION.split('.')[2]}}\"; $stdout.flush; $stdin.read",
    );
    let interpreter = ruby::find(&image::look(target.pid()).unwrap()).expect("it is a Ruby");
    assert!(interpreter.version.ends_with(&format!(".{}", target.number("patch"))));
    let own = image::look(std::process::id().cast_signed()).unwrap();
    assert_eq!(ruby::find(&own), None, "this is no Ruby");
    assert_eq!(ruby::read(&own).unwrap_err(), Error::NotRuby);
    assert!(target.finish());
}
