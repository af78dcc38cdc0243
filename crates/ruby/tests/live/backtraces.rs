//! Backtraces, compared with the threads' own reports.

use image::{Image, Memory, ProcessState, Source, freeze, look};
use linux::{Address, PATIENCE, Thread};
use ruby::{Backtrace, Frame, RunningStacks};
use testkit::Target;

/// Threads that wait in methods of every kind. The code claims to be from two files.
const PROGRAM: &str = r##"
  SOURCE = <<~'RUBY'
    module Billing
      module Report
        def included
          1.upto(1) do
            { a: 1 }.each { |_, _| sleep }
          end
        end
      end
      class Export
        include Report
        def wait(*)
          yield
        end
        def run
          text = "text"

          wait(text, 1) { sleep }
        end
        def self.all
          new.instance_exec { [self].each_slice(1) { |it|
            sleep } }
        end
        class << self
          def nested; sleep; end
        end
        define_method(:defined) do
          wait { sleep }
        end
        def rescued
          raise "no"
        rescue RuntimeError
          sleep
        end
        def matched
          sleep if "text" =~ /(e)/ && $1
        end
        alias other run
        alias doze sleep
        def aliased
          doze
        end
        def <=>(_)
          sleep
        end
        def fiber
          Fiber.new do |it|
            deep(7)
          end.resume(1)
        end
        def deep(levels)
          levels > 0 ? deep(levels - 1) : sleep
        end
        def evaluated
          eval("\n\nsleep", binding, "/srv/app/evaluated.rb", 7)
        end
        LONG
      end
      WAIT = -> { sleep }
    end
    def free
      sleep
    end
  RUBY
  # Many more instructions than the first part of the table of lines has room for, and sleeps in the middle.
  line = ->(it) { "  it = [it, #{it}].flatten.first || it.to_s\n" }
  long = "def long(it)\n" + (0...150).map(&line).join + "  sleep\n" + (0...150).map(&line).join + "end\n"
  eval(SOURCE.sub("LONG", long), TOPLEVEL_BINDING, "/srv/app/models/export.rb", 40)
  export = Billing::Export.new
  anonymous = Class.new { def run; sleep; end }.new
  singleton = Object.new
  def singleton.run; sleep; end
  threads = [
    Thread.new { export.run }, Thread.new { export.included }, Thread.new { Billing::Export.all },
    Thread.new { Billing::Export.nested }, Thread.new { export.defined }, Thread.new { export.rescued },
    Thread.new { export.matched }, Thread.new { export.other }, Thread.new { export.aliased },
    Thread.new { export <=> 1 }, Thread.new { export.fiber }, Thread.new { export.evaluated },
    Thread.new { export.long(1) }, Thread.new(&Billing::WAIT), Thread.new { free }, Thread.new { anonymous.run },
    Thread.new { singleton.run }, Thread.new { export.deep(2000) }, Thread.new { Queue.new.pop },
  ]
  ended = Thread.new { export.wait {} }.join
  Thread.pass until threads.all?(&:stop?)
  require "json"; require "objspace"
  truth = threads.to_h do |thread|
    frames = thread.backtrace_locations.map { |it| [it.label, it.absolute_path || it.path, it.lineno] }
    [JSON.parse(ObjectSpace.dump(thread))["address"], frames]
  end
  def report(truth)
    puts "ready #{JSON.generate(frames: truth, version: RUBY_VERSION)}"
    $stdout.flush
    $stdin.read
  end
  report(truth)
"##;

/// The frames as this Ruby shows them: functions in C with the place of their caller, from 4.0 on Ruby's own methods
/// too, and up to 3.3 names without their owners.
fn as_ruby_shows(frames: &[Frame], version: &[u32]) -> Vec<(String, String, u64)> {
    let shown = frames.iter().enumerate().map(|(index, frame)| {
        let is_place = |it: &&Frame| {
            it.path.as_ref().is_some_and(|it| version < &[4] || !it.starts_with("<internal:"))
        };
        let place = frames[index..].iter().find(is_place).expect("a frame of Ruby code");
        let label = match version >= &[3, 4] {
            true => frame.label.clone(),
            false => without_owner(&frame.label),
        };
        (label, place.path.clone().unwrap(), place.line.expect("its line").into())
    });
    shown.collect()
}

fn without_owner(label: &str) -> String {
    let start = label.rfind(" in ").map_or(0, |at| at + " in ".len());
    let (before, method) = label.split_at(start);
    let is_owned = method.starts_with(char::is_uppercase);
    let name = method.split_once(['#', '.']).filter(|_| is_owned).map_or(method, |it| it.1);
    format!("{before}{name}")
}

fn labels(backtrace: &Backtrace) -> Vec<&str> {
    backtrace.frames.iter().map(|frame| frame.label.as_str()).collect()
}

#[test]
fn threads_are_where_they_say() {
    let target = Target::bare_ruby(PROGRAM);
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let space = ruby::read(frozen.image()).unwrap();
    let paths = ruby::code_paths(frozen.image(), &space).unwrap();
    let backtraces = ruby::backtraces(frozen.image(), &space, &paths);
    frozen.thaw().unwrap();
    let truth = target.truth["frames"].as_object().unwrap().clone();
    let version = target.truth["version"].as_str().unwrap().to_owned();
    assert!(target.finish());
    let number = |part: &str| part.parse::<u32>().unwrap();
    let numbers: Vec<u32> = version.split('.').map(number).collect();
    let is_qualified = numbers >= vec![3, 4];
    let mut own: Vec<&Backtrace> = Vec::new();
    for (address, frames) in &truth {
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
        let slot = space.slot_at(Address(address)).unwrap();
        let backtrace = backtraces.iter().find(|it| it.thread == slot);
        let backtrace = backtrace.unwrap_or_else(|| panic!("no backtrace for {frames}"));
        let mut expected: Vec<(String, String, u64)> =
            serde_json::from_value(frames.clone()).unwrap();
        let mut shown = as_ruby_shows(&backtrace.frames, &numbers);
        if is_qualified {
            // These Rubies show a method and its rescue clause as one frame.
            let index = shown.iter().position(|(label, ..)| label.starts_with("rescue in "));
            if let Some(index) = index {
                shown.remove(index + 1);
                shown[index].0 = shown[index].0.replace("rescue in ", "");
            }
        }
        // The outermost of very many frames are left out.
        if shown.len() < expected.len() {
            assert!(shown.len() >= 1000, "{shown:#?} {expected:#?}");
            expected.truncate(shown.len());
        }
        assert_eq!(shown, expected);
        own.push(backtrace);
    }
    assert_eq!(own.len(), 19);
    // The names of owners, on all Rubies.
    for expected in [
        vec![
            "Kernel#sleep",
            "block in Billing::Export#run",
            "Billing::Export#wait",
            "Billing::Export#run",
        ],
        vec!["Kernel#sleep", "block (2 levels) in Billing::Report#included", "Hash#each"],
        vec!["Kernel#sleep", "block (2 levels) in Billing::Export.all"],
        vec!["Kernel#sleep", "Billing::Export.nested", "block in <main>"],
        vec!["Kernel#sleep", "block (2 levels) in <class:Export>", "Billing::Export#wait"],
        vec!["Kernel#sleep", "Billing::Export#aliased"],
        vec!["Kernel#sleep", "Billing::Export#<=>"],
        vec!["Kernel#sleep", "Object#free"],
        vec!["Kernel#sleep", "run", "block in <main>"],
    ] {
        let is_it = |backtrace: &&&Backtrace| labels(backtrace).starts_with(&expected);
        assert!(
            own.iter().any(|it| is_it(&it)),
            "{expected:?}: {:#?}",
            own.iter().map(|it| labels(it)).collect::<Vec<_>>()
        );
    }
    // The main thread runs on. The ended thread has no backtrace.
    let others: Vec<_> = backtraces.iter().filter(|it| !own.contains(it)).collect();
    assert_eq!(others.len(), 1, "{others:#?}");
    assert!(labels(others[0]).ends_with(&["Object#report", "<main>"]), "{others:#?}");
}

/// The methods at the lowest addresses were taken for a sample of all. On aarch64 most of them were aliases.
#[test]
fn many_aliases_in_a_row_keep_their_original_names() {
    let target = Target::bare_ruby(
        "600.times { |number| Kernel.alias_method(\"doze#{number}\", :sleep) }
         thread = Thread.new { doze7 }
         Thread.pass until thread.stop?
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let space = ruby::read(frozen.image()).unwrap();
    let paths = ruby::code_paths(frozen.image(), &space).unwrap();
    let backtraces = ruby::backtraces(frozen.image(), &space, &paths);
    frozen.thaw().unwrap();
    let is_it = |it: &Backtrace| labels(it) == ["Kernel#sleep", "block in <main>"];
    assert!(backtraces.iter().any(is_it), "{backtraces:#?}");
    assert!(target.finish());
}

#[test]
fn stacks_of_a_running_process_equal_those_of_the_paused_one() {
    let target = Target::bare_ruby(PROGRAM);
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let image = frozen.image();
    let space = ruby::read(image).unwrap();
    let paths = ruby::code_paths(image, &space).unwrap();
    let paused = ruby::backtraces(image, &space, &paths);
    let mut stacks = RunningStacks::derive(image, &space, &paths).unwrap();
    let threads = image.state.threads.clone();
    frozen.thaw().unwrap();
    let running = look(target.pid()).unwrap();
    let mut found = Vec::new();
    for thread in threads {
        let Ok(stack) = stacks.read(&running, thread.descriptor_base()) else { continue };
        assert!(!stack.is_torn, "a thread that waits has a stack at rest");
        let frames = stack.frames.iter().map(|&frame| stacks.frame(frame).unwrap().clone());
        found.push(frames.collect::<Vec<Frame>>());
    }
    let paused: Vec<Vec<Frame>> = paused.into_iter().map(|it| it.frames).collect();
    assert_eq!(found.len(), paused.len());
    for frames in &paused {
        assert!(found.contains(frames), "{frames:#?}");
    }
    assert!(target.finish());
}

/// Methods that come and go, whose bytecode takes the slots of earlier ones on some releases.
#[test]
fn code_that_takes_the_slot_of_other_code_is_noticed() {
    let program = "
        thread = nil
        25.times do |number|
          Object.send(:undef_method, \"m#{number - 1}\") if number > 0
          thread&.kill&.join
          thread = nil
          3.times { GC.start }
          eval(\"def m#{number}#{\"\\n\" * number}; sleep; end\", TOPLEVEL_BINDING, '/srv/app/m.rb', 1)
          thread = Thread.new { send(\"m#{number}\") }
          Thread.pass until thread.stop?
          puts 'ready {}'; $stdout.flush; $stdin.gets
        end";
    let mut target = Target::bare_ruby(program);
    let mut stacks: Option<RunningStacks> = None;
    for number in 0..25 {
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        let image = frozen.image();
        let threads: Vec<Address> =
            image.state.threads.iter().map(Thread::descriptor_base).collect();
        let stacks = stacks.get_or_insert_with(|| {
            let space = ruby::read(image).unwrap();
            let paths = ruby::code_paths(image, &space).unwrap();
            RunningStacks::derive(image, &space, &paths).unwrap()
        });
        frozen.thaw().unwrap();
        let running = look(target.pid()).unwrap();
        let expected = Frame {
            label: format!("Object#m{number}"),
            path: Some("/srv/app/m.rb".to_owned()),
            line: Some(number + 1),
        };
        let found = threads.iter().filter_map(|&thread| stacks.read(&running, thread).ok());
        let found: Vec<_> = found.map(|stack| stack.frames.get(1).copied()).collect();
        let frames = found.iter().filter_map(|frame| stacks.frame((*frame)?));
        assert!(
            frames.clone().any(|frame| *frame == expected),
            "{number}: {:?}",
            frames.collect::<Vec<_>>()
        );
        target.tell("");
        if number < 24 {
            target.next_truth();
        }
    }
    assert!(target.finish());
}

/// Threads of which the program has one only, in a fiber and outside, and native threads that run no Ruby.
#[test]
fn one_thread_suffices_to_find_stacks() {
    let ready = "puts 'ready {}'; $stdout.flush; $stdin.read";
    for program in [
        ready.to_owned(),
        format!("Fiber.new {{ {ready} }}.resume"),
        format!("Thread.new {{}}.join; {ready}"),
    ] {
        // Of Ruby 3.4 with one thread and without RubyGems, no layout of stacks is derived.
        let target = Target::ruby(&program);
        let labels = loop {
            let frozen = freeze(target.pid(), PATIENCE).unwrap();
            let labels = running_methods(frozen.image());
            frozen.thaw().unwrap();
            // It has printed that it is ready, but may not have begun to read yet.
            if labels.iter().all(|stack| stack.first().is_none_or(|it| it != "IO#flush")) {
                break labels;
            }
        };
        assert_eq!(labels.len(), 1, "{labels:?}");
        assert_eq!(labels[0].first().map(String::as_str), Some("IO#read"), "{labels:?}");
        assert!(labels[0].last().is_some_and(|it| it.ends_with("<main>")), "{labels:?}");
        assert!(target.finish());
    }
}

/// The methods on the stack of each thread that runs Ruby, the innermost one first.
fn running_methods(image: &Image<'_>) -> Vec<Vec<String>> {
    let space = ruby::read(image).unwrap();
    let paths = ruby::code_paths(image, &space).unwrap();
    let mut stacks = RunningStacks::derive(image, &space, &paths).unwrap();
    let threads = image.state.threads.iter().map(Thread::descriptor_base);
    let found: Vec<_> = threads.filter_map(|thread| stacks.read(image, thread).ok()).collect();
    let label = |frame: u32| stacks.frame(frame).unwrap().label.clone();
    found.iter().map(|stack| stack.frames.iter().copied().map(label).collect()).collect()
}

/// An image in which some words differ, at places that depend on the seed.
struct Damaged<'a> {
    image: &'a Image<'a>,
    seed: u64,
}

impl Memory for Damaged<'_> {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let read = self.image.read(at, into);
        for (word, at) in into[..read / 8 * 8].chunks_exact_mut(8).zip((at.0..).step_by(8)) {
            let mut hash = (at ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
            if hash.is_multiple_of(8 << (self.seed % 8)) {
                let value = u64::from_le_bytes((&*word).try_into().unwrap());
                let other = match hash >> 32 & 7 {
                    0 => 0,
                    1 => u64::MAX - 7,
                    2 => value.rotate_left(32),
                    3 => value | 0xffff << 40,
                    4 => at,
                    // Other addresses nearby are more misleading.
                    _ => value.wrapping_add((hash >> 40 & 0xff8).wrapping_sub(0x800)),
                };
                word.copy_from_slice(&other.to_le_bytes());
            }
        }
        read
    }
}

impl Source for Damaged<'_> {}

#[test]
fn damaged_stacks_end_as_fewer_frames_and_never_in_a_panic() {
    let target = Target::bare_ruby(PROGRAM);
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let image = frozen.image();
    let space = ruby::read(image).unwrap();
    let paths = ruby::code_paths(image, &space).unwrap();
    let whole = ruby::backtraces(image, &space, &paths);
    let count = |all: &[Backtrace]| all.iter().map(|it| it.frames.len()).sum::<usize>();
    let mut partial = 0;
    for seed in 0..200 {
        let mappings = image.state.mappings.clone();
        let state = ProcessState { mappings, ..ProcessState::default() };
        let damaged = Image::new(state, Damaged { image, seed });
        let frames = count(&ruby::backtraces(&damaged, &space, &paths));
        assert!(frames <= 20 * 4096, "{frames}");
        partial += usize::from((1..count(&whole)).contains(&frames));
        // The data from which paths are derived may be damaged, too.
        if let Ok(paths) = ruby::code_paths(&damaged, &space) {
            let _ = ruby::backtraces(&damaged, &space, &paths);
        }
    }
    // Damage to a frame does not hide all other frames.
    assert!(partial > 10, "{partial}");
    frozen.thaw().unwrap();
    assert!(target.finish());
}
