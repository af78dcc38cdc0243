//! Steps that release memory, each carried out.

use formats::{Action, Report};
use ledger::Cause;
use testkit::Target;

use super::{advice, case, lacks, words};
use crate::diffs::{diff, looks_at};
use crate::{bytes, report, report_of, run};

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

/// "Healthy: 69.9 MiB resident", of 57 MiB that a Hash retained: the objects had little, and their singleton classes are the interpreter's.
#[test]
fn objects_with_singleton_classes_are_no_healthy_process() {
    let (mut target, report) = case("extended_objects", "1");
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    let path = "objects of class Account";
    assert!(
        words.action.contains(path) && words.action.contains("Bank::ACTIVE → Hash"),
        "{words:?}"
    );
    let summary = render::words::verdict(&report).summary;
    let is_named = ["Account", "Bank::ACTIVE"].iter().any(|name| summary.contains(name));
    assert!(is_named, "{summary}");
    let Some(Action::ReleaseObjects { bytes: freed, .. }) =
        report.advice.first().map(|it| &it.action)
    else {
        panic!("{:?}", report.advice)
    };
    // The classes were to be released, too.
    let is_of_classes = |it: &formats::Advice| matches!(&it.action, Action::ReleaseObjects { class, .. } if class == "Class");
    let larger = case("extended_objects", "2").1;
    for report in [&report, &larger] {
        assert!(!report.advice.iter().any(is_of_classes), "{:?}", report.advice);
    }
    target.tell("clear");
    assert!(target.next_truth()["accounts"].as_u64().unwrap() < 10);
    let [before, after] = [&report, &crate::report(target.pid())]
        .map(|it| bytes(it, "ruby.vm") + bytes(it, "ruby.live_slots") + bytes(it, "ruby.malloc"));
    assert!(after + freed / 10 * 8 < before, "{before} {after} {freed}");
    assert!(target.finish());
}

/// "Find out what retains the objects of class (T_ARRAY) (1.7 MiB). No other class holds as much": most slots are those of classes and methods.
#[test]
fn a_class_with_little_memory_has_no_step() {
    let target = Target::bare_ruby(
        "17_000.times { |i| Struct.new(%(Row#{i}), :id, :name, :price, :quantity) }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let is_small = |it: &formats::Advice| matches!(it.action, Action::ReleaseObjects { bytes, .. } if bytes < 4 << 20);
    assert!(!report.advice.iter().any(is_small), "{:?}", report.advice);
    assert!(target.finish());
}

/// "Healthy: nothing stands out", although one program defined nearly all of the process's classes: only objects counted for a root.
#[test]
fn classes_that_one_root_retains_are_no_healthy_process() {
    for name in ["Row#{i}", "Row"] {
        let target = Target::bare_ruby(&format!(
            "$VERBOSE = nil; 15_000.times {{ |i| Struct.new(\"{name}\", :id, :name, :\"c#{{i}}\") }}
             3.times {{ GC.start }}; puts 'ready {{}}'; $stdout.flush; $stdin.read"
        ));
        let report = report(target.pid());
        let summary = render::words::verdict(&report).summary;
        let is_named = summary.contains(" begin with Struct::…")
            || summary.contains(" begin with (variables of ");
        // Some releases of Ruby free a class whose constant is replaced.
        let is_small = name == "Row" && report.process.rss_bytes < 30 << 20;
        assert!(report.verdict.cause.is_some() || is_named || is_small, "{summary}");
        assert!(target.finish());
    }
}

/// "Healthy: nothing stands out", above the step against a table with a quarter of the process.
#[test]
fn a_table_with_much_of_a_process_is_no_healthy_process() {
    let target = Target::bare_ruby(
        "KEPT = Array.new(300_000) { |at| 'text'.dup.tap { |it| it.instance_variable_set(:@at, at) } }
         3.times { GC.start }; puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let is_it = |it: &formats::Advice| matches!(it.action, Action::LimitTable { .. });
    let summary = render::words::verdict(&report).summary;
    if report.advice.iter().any(is_it) {
        assert!(!summary.starts_with("Healthy"), "{summary}");
        let is_named = summary.contains(" of it are the table of instance variables ");
        assert!(
            report.verdict.cause.is_some() || is_named || summary.contains(" begin with KEPT"),
            "{summary}"
        );
    }
    assert!(target.finish());
}

/// "Let Strings with the same text share one", of Strings that the interpreter makes for each backtrace.
#[test]
fn strings_of_backtraces_cannot_be_shared() {
    let mut target = Target::scenario("cases/retried_errors", &["--scale", "0.4"]);
    let report: Report = report_of(&run(target.pid(), &["--json", "--waste"]));
    let is_share = |it: &formats::Advice| matches!(it.action, Action::ShareStrings { .. });
    assert!(!report.advice.iter().any(is_share), "{:?}", report.advice);
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(words.action.contains("retained by WORKER → Worker → IOError × "), "{words:?}");
    target.tell("clear");
    assert!(target.next_truth()["errors"].as_u64().unwrap() < 10);
    assert!(target.finish());
}

/// The step was to release the objects, whose buffers `close` frees at once.
#[test]
fn streams_are_to_be_closed() {
    let mut target = Target::bare_ruby(
        "class Import
           def initialize(path); @io = File.open(path, 'rb:UTF-16LE:UTF-8'); @io.gets; end
           def close; @io.close; end
         end
         path = %(/tmp/rbloat-streams-#{$$})
         File.binwrite(path, ([%(a line of text\n)] * 3_000).join.encode('UTF-16LE'))
         OPEN = Array.new(700) { Import.new(path) }
         File.unlink(path)
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.gets
         OPEN.each(&:close); puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    assert!(words.action.contains("objects of class File ("), "{words:?}");
    assert!(words.action.contains(" Closing them frees their buffers, too."), "{words:?}");
    target.tell("close");
    target.next_truth();
    let [before, after] =
        [&report, &crate::report(target.pid())].map(|it| bytes(it, "ruby.malloc"));
    assert!(after < before / 2, "{before} {after}");
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

/// "160.0 MiB of 1 thread … RSS should fall when threads end", and the advice to run fewer: there was one.
#[test]
fn stacks_of_the_parents_threads_are_freed_by_the_end_of_a_thread() {
    let mut parent = Target::scenario("cases/forked_threads", &["--scale", "1"]);
    let job = parent.number("pid") as i32;
    let before = report(job);
    assert_eq!(before.verdict.cause, Some(Cause::StackThreads));
    let words = render::words::verdict(&before);
    assert!(words.summary.contains(" of threads that do not run"), "{}", words.summary);
    assert!(!words.check.contains("RSS should fall"), "{}", words.check);
    let actions: Vec<_> = before.advice.iter().map(|it| &it.action).collect();
    assert!(!actions.iter().any(|it| matches!(it, Action::RunFewerThreads { .. })), "{actions:?}");
    // Newer releases of glibc keep the stacks.
    if actions.iter().any(|it| matches!(it, Action::EndThread { .. })) {
        let step = advice(&before, |it| matches!(it, Action::EndThread { .. }));
        assert_eq!(step.command, "Thread.new {}.join");
        parent.tell("step");
        let returned = parent.next_truth()["returned"].as_i64().unwrap();
        let kept = before.kept_stacks.unwrap().resident_thread_bytes as i64;
        assert!(returned > kept / 2, "{returned} of {kept}");
        assert!(bytes(&report(job), "stack.threads") < bytes(&before, "stack.threads") / 2);
    } else {
        let Some(minor) = before.process.libc.strip_prefix("glibc 2.") else { panic!("no step") };
        assert!(minor.parse::<u32>().unwrap() > 36, "{actions:?}");
    }
    assert!(parent.finish());
}

/// "69.3 MiB of native memory are in use, but nothing points to them: a leak": they are free, in the caches of threads that only the
/// parent has.
#[test]
fn thread_caches_of_the_parents_threads_are_no_leak() {
    if testkit::preload().is_some() {
        return testkit::skip("another allocator has no such caches");
    }
    if lacks("fiddle") {
        return;
    }
    let start = |tunables: &str| {
        let mut command = testkit::scenario("cases/forked_caches");
        Target::start(command.env("GLIBC_TUNABLES", tunables))
    };
    let parent = start("");
    let before = report(parent.number("pid") as i32);
    assert_eq!(before.verdict.cause, Some(Cause::MallocCached), "{:#?}", before.causes);
    let cached = parent.number("cached_bytes");
    let found = before.kept_stacks.unwrap().cached_bytes;
    assert!(found > cached / 10 * 9 && found < cached / 10 * 11, "{found} of {cached}");
    assert!(bytes(&before, "native.unreachable") < cached / 10, "{:#?}", before.causes);
    let words = render::words::verdict(&before);
    assert!(words.summary.contains("threads that this process does not have"), "{words:?}");
    let of_parent = bytes(&report(parent.pid()), "malloc.cached");
    assert!(of_parent > found / 10 * 9, "{of_parent} {found}");
    let step = advice(&before, |it| matches!(it, Action::DisableThreadCaches { .. }));
    let tunables = step.command.strip_prefix("GLIBC_TUNABLES=").unwrap();
    assert!(parent.finish());

    let without = start(tunables);
    let after = report(without.number("pid") as i32);
    let saved = before.process.rss_bytes.saturating_sub(after.process.rss_bytes);
    assert!(saved > found / 2, "{saved} of {found}");
    assert!(without.finish());
}

/// The advice was to release "1 Fiber", the root of the main thread's, which was said to keep the stacks.
#[test]
fn stacks_of_ended_fibers_have_no_fiber_to_be_released() {
    let (mut target, before) = case("fiber_burst", "1");
    assert_eq!(before.verdict.cause, Some(Cause::StackFibers));
    let kept = before.kept_stacks.unwrap();
    let all = bytes(&before, "stack.fibers");
    assert!(kept.resident_fiber_bytes.unwrap() * 10 > all * 9, "{kept:?} of {all}");
    assert!(!before.advice.iter().any(|it| matches!(it.action, Action::EndFibers { .. })));
    let step = advice(&before, |it| matches!(it, Action::RunFewerFibers { .. }));
    assert!(step.action.contains("stacks that no fiber has any more"), "{step:?}");
    target.tell("step");
    target.next_truth();
    let again = bytes(&report(target.pid()), "stack.fibers");
    assert!(again < all + all / 4, "{again} after {all}");
    assert!(target.finish());
}

/// Asserts that objects hold less by nearly this many bytes than in an earlier report, and that RSS fell by what `steps` of it predict.
/// Without a prediction malloc may keep the memory.
fn assert_saved(target: &Target, before: &Report, expected: u64, is_it: impl Fn(&Action) -> bool) {
    let after = report(target.pid());
    let saved_of = |cause| bytes(before, cause).saturating_sub(bytes(&after, cause));
    let saved = saved_of("ruby.malloc") + saved_of("ruby.live_slots");
    assert!(saved * 10 > expected * 9, "{saved} of {expected}");
    let fallen = before.process.rss_bytes.saturating_sub(after.process.rss_bytes);
    let steps = before.advice.iter().filter(|step| is_it(&step.action));
    let claims: Vec<_> = steps.map(|step| step.saves_bytes).collect();
    let claim: u64 = claims.iter().flatten().sum();
    assert!(fallen * 20 >= claim * 19, "{fallen} of {claims:?}");
    // Without a claim RSS may fall, too.
    let is_all = claims.iter().all(Option::is_some);
    assert!(!is_all || fallen <= claim / 20 * 21 + (1 << 20), "{fallen} of {claims:?}");
}

/// Nothing was said of the 7 KiB for which 120 MiB were kept.
#[test]
fn slices_that_keep_long_strings_are_named() {
    let (mut target, report) = case("sliced_strings", "0.6");
    if report.process.ruby_version.as_deref() >= Some("4.1") {
        return testkit::skip("from Ruby 4.1 on slices of 60 bytes are copies in their slots");
    }
    let slices = target.number("slices");
    let step = &report.advice[0].action;
    let Action::CopySlices { slices: found, used_bytes, strings, bytes, .. } = step else {
        panic!("{:#?}", report.advice)
    };
    assert_eq!((*found, *used_bytes, *strings), (slices, slices * 60, slices));
    let (summary, words) = words(&report);
    assert!(
        summary.contains(" The shortest paths to most of this memory begin with Sessions::TOKENS."),
        "{summary}"
    );
    assert!(summary.contains(&format!("in {slices} short slices of long Strings.")), "{summary}");
    assert!(words.action.contains("retained by Sessions::TOKENS → Array → String"), "{words:?}");
    target.tell("copy");
    target.next_truth();
    assert_saved(&target, &report, *bytes, |it| matches!(it, Action::CopySlices { .. }));
    assert!(target.finish());
}

/// Ten elements of each of 24 Arrays kept 50,000 Strings, and the step was to release the Strings.
#[test]
fn slices_that_keep_the_elements_of_long_arrays_are_named() {
    let (mut target, report) = case("sliced_arrays", "0.5");
    let slices = target.number("slices");
    let step = &report.advice[0].action;
    let Action::CopyBuffers {
        objects, used_bytes, room_bytes, elements_bytes, bytes: size, ..
    } = step
    else {
        panic!("{:#?}", report.advice)
    };
    assert_eq!((*objects, *used_bytes), (slices, slices * 80));
    // jemalloc rounds a block up by as much as a quarter.
    let least = slices * 400_000;
    assert!((least..least / 4 * 5).contains(room_bytes), "{room_bytes} of {least}");
    assert!(*elements_bytes > slices * 50_000 * 70, "{elements_bytes}");
    let (summary, words) = words(&report);
    let sentence = format!(
        " are kept by slices of Arrays: they use 960 B of {} of elements, but keep all of them.",
        ledger::Size(*room_bytes)
    );
    assert!(summary.contains(&sentence), "{summary}");
    let retained = "The largest is retained by Report::TOP → Array × 2. Report::TOP is set in ";
    let end = format!(
        "sliced_arrays.rb:9. That frees about {} for reuse, but RSS need not fall.",
        ledger::Size(*size)
    );
    assert!(words.action.contains(retained) && words.action.ends_with(&end), "{words:?}");
    target.tell("copy");
    target.next_truth();
    assert_saved(&target, &report, *size, |it| matches!(it, Action::CopyBuffers { .. }));
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
    // It raised FrozenError.
    assert!(
        words
            .costs
            .ends_with(" A frozen Hash cannot be rehashed: replace it with Hash[hash.to_a]."),
        "{words:?}"
    );
    target.tell("rehash");
    target.next_truth();
    assert_saved(&target, &report, bytes, |it| matches!(it, Action::Rehash { .. }));
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
    assert_eq!(words.command, "array + []");
    target.tell("copy");
    target.next_truth();
    let is_copy = |it: &Action| matches!(it, Action::CopyBuffers { .. });
    assert_saved(&target, &before, of_arrays.4 + of_strings.4, is_copy);
    assert!(target.finish());
}

/// The room of these Strings is many times RSS. The step and the growth count what is resident.
#[test]
fn room_that_is_not_resident_is_no_memory() {
    let (mut target, before) = case("read_buffers", "1");
    if target.number("each_bytes") < 1 << 16 {
        return testkit::skip("this Ruby makes the room smaller after a read");
    }
    let buffers = before.advice.iter().find_map(|step| match &step.action {
        Action::CopyBuffers { objects, room_bytes, bytes, path, .. } => {
            Some((*objects, *room_bytes, *bytes, path.as_str()))
        }
        _ => None,
    });
    let (objects, room, resident, path) = buffers.unwrap();
    assert_eq!((objects, path), (target.number("objects"), "Inbox::MESSAGES → Array → String"));
    let rss = before.process.rss_bytes;
    if resident > room / 2 {
        return testkit::skip("this Ruby writes to the room (4.0 and later)");
    }
    assert!(room > 4 * rss && resident < rss, "{room} {resident} {rss}");
    target.tell("copy");
    target.next_truth();
    assert_saved(&target, &before, resident, |it| matches!(it, Action::CopyBuffers { .. }));
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: String retained by Inbox::MESSAGES grows by ";
    assert!(words.starts_with(leak), "{words}");
    let of_objects = [Cause::RubyLiveSlots, Cause::RubyMalloc];
    let rows = diff.causes.iter().filter(|row| of_objects.contains(&row.cause));
    let (grown, held) = (diff.verdict.bytes, rows.map(|row| row.bytes.change).sum::<i64>());
    assert!(grown <= held + (1 << 20), "{grown} {held}");
}

/// Nothing was advised against 114 MiB of the JIT compiler.
#[test]
fn the_memory_of_a_jit_compiler_is_limited() {
    let has = "exit!(RubyVM.const_defined?(:YJIT) && RubyVM::YJIT.enabled?)";
    let enabled = testkit::ruby().args(["--yjit", "-e", has]).output();
    if !enabled.is_ok_and(|output| output.status.success()) {
        return testkit::skip("this Ruby has no YJIT");
    }
    let start = |options: &str| {
        let mut command = testkit::scenario("cases/jit_code");
        Target::start(command.args(["--scale", "0.8"]).env("RUBYOPT", options))
    };
    let target = start("--yjit");
    let before = report(target.pid());
    assert_eq!(before.verdict.cause, Some(Cause::RubyJit), "{:#?}", before.causes);
    let words = advice(&before, |it| matches!(it, Action::LimitJit { .. }));
    assert!(target.finish());
    let option = words.command.strip_prefix("RUBYOPT=").unwrap();
    let limited = start(&format!("--yjit {option}"));
    let (before, after) = (bytes(&before, "ruby.jit"), bytes(&report(limited.pid()), "ruby.jit"));
    assert!(after * 4 < before * 3, "{option}: {after} after {before}");
    assert!(limited.finish());
}

/// The only step was to run the GC, since the class with most memory was garbage: nothing named the root of the rest.
#[test]
fn live_objects_beside_garbage_have_a_step_too() {
    let target = Target::bare_ruby(
        "GC.start
         GC.disable
         KEPT = Array.new(150_000) { 'a' * 300 }
         260_000.times { |i| { i => i, a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8, i: 9 } }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = report(target.pid());
    let steps = report.advice.iter().filter_map(|step| match &step.action {
        Action::ReleaseObjects { class, are_garbage, path, .. } => {
            Some((class.as_str(), *are_garbage, path.as_deref()))
        }
        _ => None,
    });
    let expected = [("Hash", true, None), ("String", false, Some("KEPT → Array → String"))];
    assert_eq!(steps.collect::<Vec<_>>(), expected);
    assert!(target.finish());
}

/// "The program itself uses this memory": room was only found in objects of 64 KiB and more.
#[test]
fn room_in_many_objects_counts_as_that_in_few() {
    let target = Target::bare_ruby(
        "SLICES = Array.new(800) { |i| (format('%08d', i) * 4_000)[-60, 60] }
         HASHES = Array.new(450) { |i| h = {}; 2000.times { |at| h[at] = i }; 1_997.times { h.shift }; h }
         FIRST = Array.new(250) { |i| Array.new(1000) { |at| format('customer number %d of %d, with a long name', at, i) }.first(20) }
         # Each page of the room was written.
         ROOMS = Array.new(1_000) { room = String.new(capacity: 24_000) << 'x' * 23_000; room[5..] = ''; room }
         def clear(depth)
           depth.zero? ? 0 : clear(depth - 1) + 1
         end
         clear(100)
         GC.start
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = report(target.pid());
    let [mut slices, mut hashes, mut rooms, mut first] = [0; 4];
    // From Ruby 4.1 on slices of 60 bytes are copies in their slots.
    let all_slices = if report.process.ruby_version.as_deref() < Some("4.1") { 800 } else { 0 };
    for step in &report.advice {
        match &step.action {
            Action::CopySlices { slices: found, .. } => slices = *found,
            Action::Rehash { hashes: found, .. } => hashes = *found,
            Action::CopyBuffers { class, objects, .. } if class == "String" => rooms = *objects,
            // Slices keep the other elements.
            Action::CopyBuffers { objects, elements_bytes: 1.., .. } => first = *objects,
            _ => {}
        }
    }
    // Memory with stale words may seem to use some of the objects.
    for (found, all) in [(slices, all_slices), (hashes, 450), (rooms, 1_000), (first, 250)] {
        assert!(found <= all && found * 10 >= all * 9, "{found} of {all}: {:?}", report.advice);
    }
    assert!(target.finish());
}

/// "Release 553 large objects of class String": each was a variable of a thread that waited forever.
#[test]
fn many_threads_are_advised_against_by_what_they_retain() {
    let target = Target::bare_ruby(
        "class Job
           def run
             text = 'x' * 200_000
             Queue.new.pop
             text.size
           end
         end
         100.times { Thread.new { Job.new.run } }
         Thread.pass until (Thread.list - [Thread.main]).all?(&:stop?)
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(true)",
    );
    let report = report(target.pid());
    let step = advice(&report, |it| matches!(it, Action::RunFewerThreads { .. }));
    // From Ruby 3.3 on, the interpreter's timer is a thread, too.
    let started = " -e:8 started 100 of them. Most of them run Job#run (-e:4).";
    let is_right = step.action.starts_with("Run fewer threads: there are 10");
    assert!(is_right && step.action.ends_with(started), "{step:?}");
    assert!(target.finish());
}

/// "Release the largest of 906 objects of class String … Their sizes need a limit": each thread had one, and all had the same size.
#[test]
fn many_threads_of_c_code_are_advised_against_by_their_class() {
    let target = Target::bare_ruby(
        "reader, writer = IO.pipe
         child = spawn('cat', in: reader, out: File::NULL, err: File::NULL)
         waiters = Array.new(100) do |number|
           Process.detach(child).tap { |waiter| waiter[:job] = 'x' * (200_000 + number) }
         end
         Thread.pass until waiters.all?(&:stop?)
         puts %(ready {}); $stdout.flush
         $stdin.read
         writer.close",
    );
    let report = report(target.pid());
    let step = advice(&report, |it| matches!(it, Action::RunFewerThreads { .. }));
    let of_class = " 100 of them are Process::Waiter, which C code runs.";
    assert!(step.action.starts_with("Run fewer threads: there are 10"), "{step:?}");
    assert!(step.action.ends_with(of_class), "{step:?}");
    assert!(step.command.contains("Process.detach"), "{step:?}");
    assert!(target.finish());
}

/// "Load less code … `require: false`", of methods that a gem defines for each class that the program creates and keeps.
#[test]
fn classes_are_released_with_the_code_that_a_gem_defines_for_them() {
    let target = Target::bare_ruby(
        "module Tenants; MODELS = {}; end
         code = 'def m%d(a); [a, a.to_s, { k: a }].map { |it| it.inspect }; end'
         600.times do |tenant|
           Tenants::MODELS[tenant] = Class.new do
             80.times { |it| class_eval(code % it, %(/srv/gems/activemodel-6.1/lib/part_#{it}.rb)) }
           end
         end
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let Action::ReleaseObjects { class, path, bytes, .. } = &report.advice[0].action else {
        panic!("{:#?}", report.advice)
    };
    assert_eq!(class, "Class");
    assert!(path.as_deref().unwrap().starts_with("Tenants::MODELS → Hash → Class"), "{path:?}");
    assert!(2 * bytes > crate::bytes(&report, "ruby.vm"), "{bytes} {:#?}", report.causes);
    let is_less = |it: &formats::Advice| matches!(it.action, Action::LoadLessCode { .. });
    assert!(!report.advice.iter().any(is_less), "{:#?}", report.advice);
    assert!(target.finish());
}
