//! Ages, collections and free lists, compared with what the process itself says.

use image::{Image, freeze};
use linux::{Address, PATIENCE};
use ruby::{Ages, CollectionCounts, CollectionsSearch, FreeListSearch, FreeLists, ObjectSpace};
use testkit::Target;

use super::{STAND_STILL, WAIT, standing};

/// Calls `check` with an image of the stopped target and its object space. A thread may just have been changing the list of heap pages. It
/// is stopped again then, as for a report.
fn examine<T>(target: &Target, check: impl FnOnce(&Image<'_>, &ObjectSpace) -> T) -> T {
    for _ in 0..10 {
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        if let Ok(space) = ruby::read(frozen.image()) {
            let found = check(frozen.image(), &space);
            frozen.thaw().unwrap();
            return found;
        }
        frozen.thaw().unwrap();
    }
    panic!("no object space was read");
}

#[test]
fn an_object_is_as_old_as_the_collections_that_it_survived() {
    let (target, _) = standing(
        // An object to which an old one refers would be old at once. A thread's stack is not old.
        "class Aged3; end; class Aged2; end; class Aged1; end; class Aged0; end
         def hold
           $times = Array.new(9) { Time.now }
           a = Aged3.new; 4.times { GC.start }
           b = Aged2.new; GC.start
           c = Aged1.new; GC.start(full_mark: false)
           d = Aged0.new
           stand_still
           [a, b, c, d]
         end
         hold; $stdin.read; exit",
    );
    let ages = examine(&target, |image, space| {
        let ages = Ages::derive(image, space).expect("ages are derived");
        let age = |name: &str| {
            let class = space.classes.iter().position(|it| it.name.as_deref() == Some(name));
            let class = class.unwrap() as u32;
            let mut slots =
                (0..).zip(&space.slots).filter(|it| it.1.class() == class && it.1.is_live());
            let at = space.slot_address(slots.next().expect(name).0).unwrap();
            let mut flags = [0; 8];
            image::Memory::read_exact(image, at, &mut flags).unwrap();
            ages.of_page(image, ages.page_of(at)).of(at, u64::from_le_bytes(flags))
        };
        ["Aged0", "Aged1", "Aged2", "Aged3", "Time"].map(age)
    });
    let [objects @ .., time] = ages.map(|it| it.expect("it is known"));
    let objects = objects.map(|it| (it.collections, it.is_kept, it.is_unprotected));
    assert_eq!(objects, [0, 1, 2, 3].map(|age| (age, age == 3, false)));
    // It has no write barrier up to 3.2. Minor collections keep it for an old object.
    assert!(time.is_kept && (time.is_unprotected || time.collections == 3), "{time:?}");
}

#[test]
fn collections_are_those_of_gc_stat() {
    let source = format!(
        "{STAND_STILL}
         GC.start; 3.times {{ GC.start(full_mark: false) }}
         stand_still
         while $stdin.gets
           4.times {{ GC.start(full_mark: false) }}; 2.times {{ GC.start }}
           stat = GC.stat; stat = GC.stat
           values = [:count, :major_gc_count, :compact_count].map {{ |it| stat[it] || 0 }}
           puts \"ready {{\\\"counts\\\": #{{values}}}}\"
           $stdout.flush
         end"
    );
    let mut target = Target::ruby(&source);
    target.wait_until_stopped();
    let mut search = examine(&target, |image, space| {
        let mut search = CollectionsSearch::begin(image, space).expect("there are such words");
        assert_eq!(search.look(image), None, "nothing has grown yet");
        search
    });
    target.go_on();
    target.next_truth();
    let image = image::look(target.pid()).unwrap();
    let mut found = None;
    // Numbers of pages may be such words, too, and have grown sometimes.
    for _ in 0..12 {
        target.tell("");
        let truth = target.next_truth();
        let numbers = [0, 1, 2].map(|index| truth["counts"][index].as_u64().unwrap());
        let [all, major, compacting] = numbers;
        found = search.look(&image);
        let read = found.map(|found| found.read(&image).unwrap());
        assert!(
            read.is_none_or(|read| read == CollectionCounts { all, major, compacting }),
            "{read:?} {numbers:?}"
        );
    }
    assert!(found.is_some(), "{search:?}");
    assert!(target.finish());
}

/// Stops itself, and then allocates: one object first, and then others. Returns the addresses in their order.
const ALLOCATE: &str = r##"
    require 'objspace'
    def address(object)
      ObjectSpace.dump(object)[/"address":"(0x\h+)"/, 1].to_i(16)
    end
    def stop_and_allocate
      pid = $$
      GC.disable
      # The first rounds run the same code, so that the caches of all call sites exist.
      made = nil
      # From 3.2 on each size of slots has a list.
      [16, 60, 140, 300, 620].each { |size| "x" * size }
      [0, 0, 19].each { |signal| Process.kill(signal, pid); made = [Object.new, Object.new, Object.new] }
      puts "ready {\"made\": #{made.map { |it| address(it) }}}"
      $stdout.flush
    end
"##;

/// The slots that the main thread allocates next, by what was derived, and the objects that it allocated next.
fn next_and_made(before: &str) -> (Vec<Address>, Vec<u64>) {
    let source = format!("{before}\nputs 'ready {{}}'; $stdout.flush; stop_and_allocate{WAIT}");
    let mut target = Target::ruby(&source);
    target.wait_until_stopped();
    let next = examine(&target, |image, space| {
        let lists = lists(image, space);
        let paths = ruby::code_paths(image, space).unwrap();
        let backtraces = ruby::backtraces(image, space, &paths);
        let is_main = |thread: u32| {
            let its = backtraces.iter().filter(|it| it.thread == thread);
            its.flat_map(|it| &it.frames).any(|it| it.label.ends_with("stop_and_allocate"))
        };
        let main = space.vm_stacks.iter().find(|it| is_main(it.thread)).unwrap();
        lists.next_slots(image, main.context).into_iter().map(|it| it.0).collect()
    });
    target.go_on();
    let truth = target.next_truth();
    assert!(target.finish());
    let made = truth["made"].as_array().unwrap().iter();
    (next, made.map(|it| it.as_u64().unwrap()).collect())
}

fn lists(image: &Image<'_>, space: &ObjectSpace) -> FreeLists {
    let mut search = FreeListSearch::begin(image, space).expect("there are threads");
    search.look(image);
    search.found(image).unwrap_or_else(|| panic!("{:?}", search))
}

#[test]
fn the_next_object_is_made_in_the_slot_that_is_next() {
    let (next, made) = next_and_made(ALLOCATE);
    assert!(made.iter().any(|&it| next.contains(&Address(it))), "{next:x?} {made:x?}");
}

#[test]
fn ractors_have_lists_of_their_own() {
    // Up to 2.7 there are none.
    let ractors = r##"
        $VERBOSE = nil
        if defined?(Ractor::Port)
          port = Ractor::Port.new
          $ractors = Array.new(3) do
            Ractor.new(port) { |port| kept = Array.new(2000) { |i| "item #{i}" }; port << 1; Ractor.receive; kept }
          end
          3.times { port.receive }
        elsif defined?(Ractor)
          $ractors = Array.new(3) do
            Ractor.new { kept = Array.new(2000) { |i| "item #{i}" }; Ractor.yield(1); Ractor.receive; kept }
          end
          $ractors.each(&:take)
        end
    "##;
    let (next, made) = next_and_made(&format!("{ALLOCATE}\n{ractors}"));
    assert!(made.iter().any(|&it| next.contains(&Address(it))), "{next:x?} {made:x?}");
}

/// "Its lists of free slots were not found", of a program on Ruby 3.4 that takes slots of one size only: the distance of two lists was
/// not known. A slot that it had taken since its list was read was no vote either, which such a program nearly always has.
#[test]
fn a_program_that_takes_slots_of_one_size_has_lists() {
    let target = Target::bare_ruby(
        r##"kept = Array.new(5000) { |i| "kept #{i}" }
            4.times { GC.start }
            Thread.new { loop { Array.new(500) { |i| "item #{i}" }.join } }
            puts "ready {}"
            $stdout.flush
            $stdin.read"##,
    );
    let mut search = examine(&target, FreeListSearch::begin).expect("there are threads");
    let image = image::look(target.pid()).unwrap();
    // Between two pages there is no list.
    let found = (0..5000).find_map(|_| {
        search.look(&image);
        std::thread::sleep(std::time::Duration::from_millis(5));
        search.found(&image)
    });
    assert!(found.is_some(), "{search:?}");
}
