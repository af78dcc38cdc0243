//! The references of all objects of a live process, compared with those that its GC follows.

use std::collections::{BTreeMap, HashMap, HashSet};

use image::freeze;
use linux::{Address, PATIENCE};
use ruby::SlotType;
use testkit::{GlibcRelease, MallocHeap, RubyHeap, RubyRelease, SyntheticMemory, Target, Word};

use super::paths::Level;
use super::{Node, ObjectGraph, Paths, Reach, class_name};
use crate::ledger::owners_of;
use crate::{Facts, ReadDepth};

/// Creates objects of each kind, and prints for every object its address, its kind, and the addresses that
/// `ObjectSpace.reachable_objects_from` returns.
const PROGRAM: &str = r##"
    require "objspace"; require "json"; require "stringio"; require "set"; require "tempfile"; require "monitor"
    module Refined; refine(String) { def refined; 1; end }; end
    using Refined
    class Base; @@variable = [1]; @variable = [2]; def call(value); value; end; alias other call; attr_accessor :a; end
    class Derived < Base; include Comparable; prepend Enumerable; def call(value); super; end; end
    Pair = Struct.new(:left, :right)
    Wide = Struct.new(*(1..90).map { |number| :"m#{number}" })
    def closures(text = "x" * 100)
      [1].each do |outer|
        [2].each do |inner|
          $kept << proc { outer + inner } << binding << ->(it) { it } << Fiber.new { outer } << Enumerator.new { inner }
          $kept << Thread.new { Thread.current[:local] = [3]; Thread.current.thread_variable_set(:own, [4]); sleep }
          Derived.define_method(:"m#{inner}") { text }
          $kept << (1..).lazy.map { |number| number + outer }.select(&:even?)
        end
      end
    end
    def matched; "some text" =~ /(t)e/; $kept << $~ << proc { $~ }; end
    $kept = []
    closures; matched
    $kept << Derived.new.method(:call) << Derived.instance_method(:call) << Derived.new.method(:other).unbind
    $kept << Derived.new.method(:call).to_proc << :upcase.to_proc << method(:puts).to_proc << (method(:p) >> method(:p))
    $kept << Pair.new([1], "a" * 99) << Wide.new(*(1..90).map(&:to_s)) << Set[[1], "b"] << { a: [1] } << (1..50).to_h { |it| [it.to_s, [it]] }
    $kept << {}.compare_by_identity.merge!("a".dup => [1]) << Hash.new { |hash, key| hash[key] = [key] } << ([1]..[2])
    $kept << "text".dup.tap { |it| it.instance_variable_set(:@generic, [5]) } << ("y" * 5000)[10..] << (2**900) << Rational(2**70, 3)
    $kept << Object.new.tap { |it| def it.singleton; 1; end } << Base.new.tap { |it| 20.times { |n| it.instance_variable_set("@v#{n}", [n]) } }
    $kept << Mutex.new << Monitor.new << ConditionVariable.new << Queue.new.tap { |it| it << [6] } << SizedQueue.new(3).tap { |it| it << [7] }
    $kept << StringIO.new("z" * 300) << Tempfile.new << Random.new << Time.now << Exception.new("e") << (raise("kept") rescue $!)
    $kept << ObjectSpace::WeakMap.new.tap { |it| it[$kept[0]] = $kept[1] } << TracePoint.new(:raise) { $kept } << Class.new(Base) << Module.new
    $kept << [1, 2].each << [1, 2].each_with_index.tap(&:next) << "abc".each_char.tap(&:next) << /(a)#{"b"}/
    $kept << Complex(1, 2.5) << Data.define(:a).new(a: [1]) if defined?(Data) && Data.respond_to?(:define)
    class Memo; def initialize(names); names.each { |name| instance_variable_set("@#{name}", [name]) }; end; end
    $kept << Array.new(40) { |it| Memo.new(("a".."f").to_a.shuffle(random: Random.new(it))) }
    40.times { |it| Object.new.instance_eval("proc { String; [Struct] }").call }
    $kept << Array.new(400) { |it| [it].freeze }
    at_exit { $kept }; ObjectSpace.define_finalizer($kept[0], proc { $kept }); autoload :Missing, "/nowhere"
    Thread.pass until $kept.grep(Thread).all? { |it| it.status == "sleep" }
    4.times { GC.start }
    GC.disable
    dump = File.open("#{PATH}.dump", "w+")
    ObjectSpace.dump_all(output: dump); dump.flush
    # In a child, since `$~` and the like would change.
    Process.wait(fork do
      File.open(PATH, "w") do |file|
        File.foreach(dump.path) do |line|
          object = JSON.parse(line.scrub) rescue next
          next unless object["address"]
          kind = object["imemo_type"] || object["struct"] || object["type"]
          file.puts [object["address"], kind.tr(" ", "_"), *object["references"]].join(" ")
        end
      end
      File.delete(dump.path)
      exit!
    end)
    puts "ready {}"; $stdout.flush; $stdin.read
"##;

/// One reference in this many may be missing: a stale word may make a table of methods or constants seem to belong to another
/// object.
const REFERENCES_PER_MISSING: u32 = 100;
/// Kinds of objects whose references are all found.
const COMPLETE: [&str; 11] = [
    "ARRAY",
    "HASH",
    "STRUCT",
    "OBJECT",
    "env",
    "proc",
    "binding",
    "method",
    "iseq",
    "enumerator",
    "callcache",
];

/// Kinds of objects that refer to nothing else for certain: a word of an earlier owner would name a false root of all that it leads to.
/// Behind the structures of procs and the like, slots have such words (from 3.3 on).
const EXACT: [&str; 6] = ["HASH", "STRUCT", "OBJECT", "ment", "cref", "constcache"];

/// Returns true for references that are left out on purpose. Those to values of constants and variables are, too, since
/// their names lead to these.
fn is_left_out(from: &str, to: &str) -> bool {
    let is_weak = ["weakmap", "weakkeymap", "subclasses"].contains(&from) || to == "callcache";
    // Pointers to threads retain nothing, and the stack of the running thread has changed since the dump.
    is_weak || ["fiber", "VM/thread", "ractor"].contains(&from)
}

fn address(text: &str) -> Option<Address> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Address)
}

/// The slots that the object in a slot refers to, by memory of its own, names and tables, by references up to `last`.
fn referents(graph: &ObjectGraph<'_>, slot: u32, last: Level) -> HashSet<u32> {
    let (mut found, mut visited) = (HashSet::new(), HashSet::new());
    let mut queue = vec![Node::Slot(slot)];
    while let Some(node) = queue.pop() {
        graph.of_node(node, |to, level| match graph.node(to) {
            _ if level > last => {}
            Node::Slot(to) => _ = found.insert(to),
            memory if visited.insert(memory) => queue.push(memory),
            _ => {}
        });
    }
    found
}

#[test]
fn objects_refer_to_all_objects_that_the_collector_finds_behind_them() {
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let path = file.path().display();
    let target = Target::ruby(&PROGRAM.replace("PATH", &format!("'{path}'")));
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let facts = Facts::read(frozen.image(), ReadDepth::Owners);
    frozen.thaw().unwrap();
    let owners = owners_of(&facts);
    let graph = owners.object_graph().unwrap();
    let truth = std::fs::read_to_string(file.path()).unwrap();
    let slot_of = |text: &str| graph.space.slot_at(address(text)?);
    let mut kinds: HashMap<u32, &str> = HashMap::new();
    for line in truth.lines() {
        let mut words = line.split(' ');
        if let (Some(slot), Some(kind)) = (words.next().and_then(slot_of), words.next()) {
            kinds.insert(slot, kind);
        }
    }
    let of = |slot: u32| kinds.get(&slot).copied().unwrap_or_default();
    let (mut count, mut missing) = (0, BTreeMap::<_, u32>::new());
    for line in truth.lines() {
        let mut words = line.split(' ');
        let Some(slot) = words.next().and_then(slot_of) else { continue };
        let found = referents(&graph, slot, Level::Deep);
        for to in words.skip(1).filter_map(slot_of).filter(|&to| to != slot) {
            count += 1;
            let is_named = graph.named_slots.contains(to);
            if !found.contains(&to) && !is_named && !is_left_out(of(slot), of(to)) {
                *missing.entry((of(slot), of(to))).or_default() += 1;
            }
        }
    }
    assert!(count > 20_000, "{count}");
    let mut extra = BTreeMap::<_, u32>::new();
    for line in truth.lines() {
        let mut words = line.split(' ');
        let Some(slot) = words.next().and_then(slot_of) else { continue };
        let all: HashSet<u32> = words.skip(1).filter_map(slot_of).chain([slot]).collect();
        if EXACT.contains(&of(slot)) {
            let found = referents(&graph, slot, Level::Named);
            // The dump leaves out the first word behind the flags, as the class of an object. From 3.3 on, two methods of Ruby's own
            // refer to others.
            let may_be = |to| {
                let pair = (of(slot), of(to));
                matches!(pair, (_, "CLASS" | "ICLASS") | ("cref", "HASH") | ("ment", "ment"))
            };
            for to in found.difference(&all).filter(|to| !may_be(**to)) {
                let (from, address) =
                    (class_name(graph.space, slot), graph.space.slot_address(slot as usize));
                *extra.entry((of(slot), from, address, of(*to))).or_default() += 1;
            }
        }
    }
    assert!(extra.is_empty(), "not marked by the GC: {extra:?}");
    let sum: u32 = missing.values().sum();
    // All methods and constants used to be uncertain, and methods that blocks define retained the Ractor with all threads.
    let paths = Paths::find(&graph, Reach::Inner);
    let live = (0..graph.space.slots.len() as u32)
        .filter(|&slot| graph.space.slots[slot as usize].is_live());
    let uncertain =
        live.clone().filter(|&slot| paths.level(graph.slot(slot)) == Level::Uncertain).count();
    assert!(uncertain * 100 <= live.count(), "{uncertain}");
    let is_ractor = |slot: &u32| of(*slot) == "ractor";
    for (&method, _) in kinds.iter().filter(|(_, kind)| **kind == "ment") {
        assert!(!referents(&graph, method, Level::Deep).iter().any(is_ractor), "{method}");
    }
    let is_complete = missing.keys().all(|(from, _)| !COMPLETE.contains(from));
    assert!(is_complete && sum * REFERENCES_PER_MISSING <= count, "{sum} of {count}: {missing:?}");
    assert!(target.finish());
}

/// A word of an earlier owner in the memory of a regular expression retained a thread.
#[test]
fn regular_expressions_retain_no_objects_but_their_source() {
    const T_REGEXP: u8 = 0x06;
    let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
    let [program, behind] = [456, 40].map(|bytes| heap.malloc(0, bytes));
    let mut ruby = RubyHeap::new(RubyRelease::V3_1);
    let class = ruby.class("Regexp", ruby.object_class());
    let [source, other] = ["a+b", "other"].map(|text| ruby.string(text));
    let words = [Word::Pointer(program), Word::Value(source)];
    let regexp = ruby.slot(T_REGEXP, 0, class, &words);
    let mut memory = SyntheticMemory::default();
    let mut threads = heap.write(&mut memory).threads;
    ruby.write(&mut memory);
    memory.write_u64(program, behind);
    memory.write_u64(behind, other);
    threads[0].registers = vec![regexp];
    let mut state = memory.state();
    state.threads = threads;
    let image = image::Image::new(state, memory);
    let facts = Facts::read(&image, ReadDepth::Owners);
    let owners = owners_of(&facts);
    let graph = owners.object_graph().unwrap();
    let paths = Paths::find(&graph, Reach::All);
    let level = |at| paths.level(graph.slot(graph.space.slot_at(Address(at)).unwrap()));
    assert_eq!(graph.space.slots.iter().filter(|it| it.kind() == SlotType::REGEXP).count(), 1);
    assert_eq!(
        [regexp, source, other].map(level),
        [Level::Stacks, Level::Stacks, Level::Unreached]
    );
    let behind = graph.heap.block_of(Address(behind)).unwrap() as u32;
    assert_eq!(paths.level(graph.memory(behind)), Level::Stacks);
}

/// A word that is left over in the memory of an extension pointed to an entry of a list of subclasses, and so gave it the whole list: all
/// classes in it were retained by "(memory of C extensions)".
#[test]
fn lists_of_subclasses_in_memory_of_extensions_retain_no_class() {
    let mut heap = MallocHeap::new(GlibcRelease::V2_36, 1);
    let [store, first, second, plain] = [200, 24, 24, 24].map(|bytes| heap.malloc(0, bytes));
    let mut ruby = RubyHeap::new(RubyRelease::V3_1);
    let [class, one, other, kept] =
        ["Store", "One", "Other", "Kept"].map(|name| ruby.class(name, ruby.object_class()));
    let object = ruby.untyped_data(class, store);
    let mut memory = SyntheticMemory::default();
    let mut threads = heap.write(&mut memory).threads;
    ruby.write(&mut memory);
    let words = [
        (store, [first, plain, 0]),
        (first, [one, second, 0]),
        (second, [other, 0, first]),
        (plain, [kept, 0, 0]),
    ];
    for (block, words) in words {
        (0..).zip(words).for_each(|(index, word)| memory.write_u64(block + 8 * index, word));
    }
    threads[0].registers = vec![object];
    let mut state = memory.state();
    state.threads = threads;
    let image = image::Image::new(state, memory);
    let facts = Facts::read(&image, ReadDepth::Owners);
    let owners = owners_of(&facts);
    let graph = owners.object_graph().unwrap();
    let paths = Paths::find(&graph, Reach::All);
    let level = |at| paths.level(graph.slot(graph.space.slot_at(Address(at)).unwrap()));
    // The extension may mark a class to which its memory refers.
    assert_eq!(
        [object, one, other, kept].map(level),
        [Level::Stacks, Level::Unreached, Level::Unreached, Level::Deep]
    );
}

/// A word that is left over in the memory of another match gave the variables of a match to that one, and the memory of matches
/// retains no objects: 1 of 25 values was garbage.
#[test]
fn variables_of_matches_retain_their_values() {
    let target = Target::ruby(
        "class Own; def initialize; @text = 'z' * 3000; end; end
         MATCHES = Array.new(2000) { Own.new }.map { |own| 'abc'.dup.match(/b/).tap { |it| it.instance_variable_set(:@own, own) } }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (garbage, own) = garbage_of(&target, "Own");
    assert_eq!((garbage, own), (0, 2000));
    assert!(target.finish());
}

/// From 4.0 on, a weak map refers to its variables itself. Their values were garbage, like what is in the map.
#[test]
fn variables_of_weak_maps_retain_their_values() {
    let target = Target::ruby(
        "class Own; end
         MAPS = Array.new(500) { ObjectSpace::WeakMap.new.tap { |it| it.instance_variable_set(:@own, Own.new) } }
         4.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    assert_eq!(garbage_of(&target, "Own"), (0, 500));
    assert!(target.finish());
}

/// The tables of lines and variables have numbers. Behind them, a word of an earlier owner retained a thread.
#[test]
fn tables_of_bytecode_are_known_by_their_place() {
    let target = Target::ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let facts = Facts::read(frozen.image(), ReadDepth::Owners);
    let memory = ruby::memory_of_bytecode(frozen.image(), facts.objects());
    frozen.thaw().unwrap();
    let (heap, library) = (facts.heap(), &facts.objects().interpreter.range);
    // All code of `rescue` and `ensure` has one table of variables, which is a constant of the interpreter (`iseq_set_exception_local_table`).
    let in_library = memory.iter().map(|it| it.0).filter(|at| library.contains(at));
    let shared: HashSet<Address> = in_library.collect();
    assert_eq!(shared.len(), 1, "{shared:?}");
    let fits = |(at, content): &&(Address, ruby::Content)| match heap.block_of(*at) {
        _ if at.0 == 0 || shared.contains(at) => true,
        None => false,
        Some(number) => heap.block(number).is_some_and(|block| {
            let usable = linux::length(&heap.header.usable(block));
            content.used_words().is_some_and(|words| words * 8 <= usable)
        }),
    };
    // The instructions of a method and its tables.
    assert!(memory.len() > 4 * 500, "{}", memory.len());
    let count = memory.iter().filter(fits).count();
    assert_eq!(count, memory.len());
    assert!(target.finish());
}

/// Up to 3.2, the transient heap has a list of the objects that became old. It retained them, as "(variables of libruby)".
#[test]
fn promoted_objects_are_not_retained_by_the_list_of_them() {
    let target = Target::ruby(
        "class Own; end
         Thread.new { $kept = Array.new(2000) { Array.new(6) { Own.new } }; 4.times { GC.start } }.join
         GC.disable; $kept = nil
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (garbage, own) = garbage_of(&target, "Own");
    assert!(own == 12_000 && garbage * 10 >= own * 9, "{garbage} of {own}");
    assert!(target.finish());
}

/// A refinement is in the list of subclasses of the class that it refines: "String → Class → Refinement → Proc".
#[test]
fn refinements_are_not_retained_by_the_class_that_they_refine() {
    let target = Target::ruby(
        "class Own; end
         GC.start; GC.disable
         Thread.new do
           100.times { |number| own = Own.new; Module.new { refine(String) { define_method(:\"m#{number}\") { own } } } }
         end.join
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (garbage, own) = garbage_of(&target, "Own");
    assert!(own == 100 && garbage >= 90, "{garbage} of {own}");
    assert!(target.finish());
}

/// From 3.2 on, contexts are in a list, which a thread's own variable leads to: a live thread retained the variables of threads that ended.
#[test]
fn variables_of_ended_threads_are_not_retained_by_live_ones() {
    let target = Target::ruby(
        "class Own; end
         GC.start; GC.disable
         Array.new(8) { Thread.new { Thread.current[:own] = 1; sleep } }.each { |it| Thread.pass until it.stop? }
         40.times { own = Own.new; Thread.new { Thread.current[:own] = own }.join }
         1000.times { |it| Array.new(20) { it.to_s } }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (garbage, own) = garbage_of(&target, "Own");
    assert!(own == 40 && garbage >= 36, "{garbage} of {own}");
    assert!(target.finish());
}

/// Objects that are each held in another way, by holders that are kept, or dropped if DROPPED is set.
const HOLDERS: &str = r##"
    require "stringio"; require "set"; require "strscan"; require "monitor"; require "delegate"
    class Own; def call; end; def each; yield 1; end; end
    Wide = Struct.new(*(1..20).map { |number| :"m#{number}" })
    KEPT = []
    def hold
      holders = Array.new(60) { |number| yield Own.new, number }
      KEPT << holders unless DROPPED
      nil
    end
    def with_variable(object, own); object.tap { |it| it.instance_variable_set(:@own, own) }; end
    GC.start; GC.disable
    hold { |own| [1].to_enum(:each_slice, own) }
    hold { |own| own.to_enum(:each) }
    hold { |own| Enumerator.new { |it| it << own } }
    hold { |own| [1].each + [own].each }
    hold { |own| (1..).lazy.map { own }.reject { own } }
    hold { |own| [1].lazy.zip([own]) }
    hold { |own| own.instance_eval { proc { } } }
    hold { |own| own.method(:call).to_proc }
    hold { |own| own.method(:call) >> ->(it) { it } }
    hold { |own| ->(a, b, c) { }.curry[own] }
    hold { |own| own.instance_eval { binding } }
    hold { |own| Wide.new(*[1] * 15, own) }
    hold { |own| begin; own.missing; rescue NoMethodError => error; error; end }
    hold { |own| begin; { own => 1 }.fetch(:x); rescue KeyError => error; error; end }
    hold { |own| Hash.new(own) }
    hold { |own| {}.compare_by_identity.merge!(own => 1) }
    hold { |own| Set.new.compare_by_identity << own }
    hold { |own| Array.new(200, own)[50..] }
    hold { |own| SimpleDelegator.new(own) }
    hold { |own| Queue.new << own }
    hold { |own| Fiber.new { own } }
    hold { |own| TracePoint.new(:raise) { own } }
    hold { |own| StringIO.new(with_variable("text".dup, own)) }
    hold { |own| StringScanner.new(with_variable("text".dup, own)) }
    hold { |own, number| with_variable("text#{number}".match(/x(.)/), own) }
    hold { |own| with_variable(ObjectSpace::WeakMap.new, own) }
    hold { |own| with_variable(Random.new, own) }
    hold { |own| with_variable(Monitor.new, own) }
    hold { |own| with_variable(Object.new.singleton_class, own) }
    hold { |own| Object.new.tap { |it| it.define_singleton_method(:own) { own } } }
    hold { |own| Class.new.tap { |it| it.class_variable_set(:@@own, own) } }
    hold { |own| Class.new.tap { |it| it.const_set(:OWN, own) } }
    hold { |own| Class.new { define_method(:own) { own }; alias_method :other, :own; remove_method :own } }
    hold { |own| Class.new(Class.new { define_method(:own) { own } }) { private :own } }
    hold { |own| Class.new { include(Module.new { define_method(:own) { own } }) } }
    hold { |own| Class.new(with_variable(Class.new, own)) }
    hold { |own, number| Module.new { refine(String) { define_method(:"own#{number}") { own } } } }
    hold { |own| binding.tap { |it| it.local_variable_set(:fresh, own) } }
    Thread.new { 300.times { |it| Array.new(20) { it.to_s } } }.join
    puts "ready {}"; $stdout.flush; $stdin.read
"##;

/// The objects of [`HOLDERS`] that are garbage, and all of them.
fn held(dropped: bool) -> (usize, usize) {
    let target = Target::ruby(&format!("DROPPED = {dropped}\n{HOLDERS}"));
    let found = garbage_of(&target, "Own");
    assert!(target.finish());
    found
}

#[test]
fn whatever_refers_to_an_object_retains_it() {
    let (garbage, own) = held(false);
    assert!(garbage == 0 && own >= 38 * 60, "{garbage} of {own}");
}

/// Stale words may seem to retain a few.
#[test]
fn what_nothing_refers_to_is_garbage() {
    let (garbage, own) = held(true);
    assert!(own >= 38 * 60 && garbage * 100 >= own * 95, "{garbage} of {own}");
}

/// How many objects of a class have no path, and how many there are.
fn garbage_of(target: &Target, class: &str) -> (usize, usize) {
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let facts = Facts::read(frozen.image(), ReadDepth::Owners);
    frozen.thaw().unwrap();
    let owners = owners_of(&facts);
    let graph = owners.object_graph().unwrap();
    let paths = Paths::find(&graph, Reach::Inner);
    let slots = 0..graph.space.slots.len() as u32;
    let own: Vec<u32> = slots
        .filter(|&slot| {
            graph.space.slots[slot as usize].is_live() && graph.object_name(slot) == class
        })
        .collect();
    let is_garbage = |slot: &&u32| paths.level(graph.slot(**slot)) == Level::Unreached;
    (own.iter().filter(is_garbage).count(), own.len())
}
