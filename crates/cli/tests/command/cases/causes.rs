//! Memory that is neither of Ruby's objects nor of malloc: mapped memory, tables of the interpreter, files in memory.

use formats::{Action, Report};
use ledger::{AreaKind, Cause, InterpreterKind};
use testkit::Target;

use super::{advice, case, garbage, lacks, path_to, verdict, words};
use crate::owners::retained;
use crate::snapshots::Kept;
use crate::{bytes, report, run};

/// A report on an engine with its own heap had no step, and a check that could not be done.
#[test]
fn mapped_memory_has_its_mappings_and_a_next_step() {
    if lacks("fiddle") {
        return;
    }
    let target = Target::scenario("growth/mapped", &[]);
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::Unknown), "{:#?}", report.causes);
    assert_eq!(report.verdict.confidence, formats::Confidence::High);
    let resident: u64 = report.unknown.iter().map(|row| row.resident_bytes).sum();
    assert_eq!(resident, report.verdict.bytes);
    let row = &report.unknown[0];
    assert_eq!(row.permissions, "rw-");
    assert!(row.mapped_bytes >= row.resident_bytes && row.resident_bytes * 10 > resident * 9);
    assert_eq!(report.advice[0].action, Action::FindMapper);
    let evidence = render::words::verdict(&report).evidence;
    assert!(evidence.iter().any(|line| line.contains("with the permissions rw-")), "{evidence:?}");
    assert!(target.finish());
}

/// The step stood second, and in no sentence of the verdict.
#[test]
fn an_allocator_that_was_not_loaded_is_named_first() {
    if testkit::preload().is_some() {
        return testkit::skip("another allocator is loaded");
    }
    let mut ruby = testkit::scenario("burst");
    let missing = [("LD_PRELOAD", "/no/libjemalloc.so.2")];
    let target = Target::start(ruby.args(["--scale", "0.2"]).envs(missing));
    let report = report(target.pid());
    let (summary, words) = words(&report);
    let sentence = "LD_PRELOAD names jemalloc, but jemalloc was not loaded.";
    assert!(summary.ends_with(sentence), "{summary}");
    assert!(words.action.starts_with("Correct LD_PRELOAD"), "{words:?}");
    assert!(target.finish());
}

/// The VM stack of the main thread was memory of its Fiber, which the step was to release.
#[test]
fn the_vm_stack_of_the_main_thread_is_the_interpreters() {
    let (target, report) = case("deep_recursion", "1");
    assert_eq!(report.verdict.cause, Some(Cause::RubyVm), "{:#?}", report.causes);
    let kinds = &report.interpreter.as_ref().unwrap().kinds;
    let stack = kinds.iter().find(|part| part.kind == InterpreterKind::VmStacks).unwrap();
    assert!(stack.resident_bytes > 16 << 20, "{kinds:?}");
    assert!(stack.resident_bytes <= target.number("stack_bytes"), "{kinds:?}");
    let main = report.kept_stacks.unwrap().main_bytes;
    let actions: Vec<&Action> = report.advice.iter().map(|it| &it.action).collect();
    assert_eq!(actions, [&Action::RecurseLess { bytes: stack.resident_bytes + main }]);
    let words = verdict(&report);
    assert!(words.contains("the VM stack of the main thread"), "{words}");
    assert!(target.finish());
}

/// "360.1 MiB of 2 threads", and the step to run fewer: the stack of the main thread keeps what a recursion used.
#[test]
fn the_stack_of_a_deep_recursion_is_no_reason_for_fewer_threads() {
    let (target, report) = case("deep_calls", "1");
    assert_eq!(report.verdict.cause, Some(Cause::StackThreads), "{:#?}", report.causes);
    let main = report.kept_stacks.unwrap().main_bytes;
    assert!(main * 10 > report.verdict.bytes * 9, "{main} {:?}", report.verdict);
    let steps: Vec<&Action> = report.advice.iter().map(|it| &it.action).collect();
    let [Action::RecurseLess { bytes }] = steps[..] else { panic!("{steps:?}") };
    assert!(*bytes >= main, "{bytes} {main}");
    let (summary, _) = words(&report);
    assert!(
        summary.contains(" of the main thread's stack, which no call uses any more"),
        "{summary}"
    );
    assert!(target.finish());
}

/// "Make fewer symbols: 50.6 MiB": they were deduplicated strings, the keys of a Hash.
#[test]
fn deduplicated_strings_are_no_reason_for_fewer_symbols() {
    let target = Target::bare_ruby(
        "KEYS = {}; 900_000.times { |at| KEYS[%(/pages/#{at})] = at }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let kinds = &report.interpreter.as_ref().unwrap().kinds;
    let table = kinds.iter().find(|part| part.kind == InterpreterKind::Symbols).unwrap();
    assert!(table.resident_bytes > 16 << 20, "{kinds:?}");
    let is_table = |it: &formats::Advice| matches!(it.action, Action::LimitTable { .. });
    assert!(!report.advice.iter().any(is_table), "{:?}", report.advice);
    assert!(target.finish());
}

/// The step was GC.compact alone.
#[test]
fn room_of_the_table_of_deduplicated_strings_has_a_step() {
    let target = Target::bare_ruby(
        "Thread.new { Array.new(1_000_000) { |at| -%(/pages/#{at}) }.size }.join
         3.times { GC.start }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let kinds = &report.interpreter.as_ref().unwrap().kinds;
    let table = kinds.iter().find(|part| part.kind == InterpreterKind::Symbols).unwrap();
    if table.resident_bytes < 16 << 20 {
        return testkit::skip("this Ruby makes the table smaller");
    }
    let (table, bytes) = (InterpreterKind::Symbols, table.resident_bytes);
    let words = advice(&report, |it| *it == Action::LimitTable { table, bytes, is_room: true });
    let expected = "Have fewer symbols and deduplicated strings at the same time: ";
    assert!(words.action.starts_with(expected), "{words:?}");
    assert!(target.finish());
}

/// "the virtual machine, environments of blocks, and other tables", and then "of no kind of their own", were syntax trees.
#[test]
fn memory_of_no_kind_of_its_own_has_its_owner() {
    let target = Target::bare_ruby(
        "code = 'x = [' + (1..4_000).map { |at| %(foo(#{at})) }.join(',') + ']'
         KEPT = Array.new(60) { RubyVM::AbstractSyntaxTree.parse(code) }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let words = verdict(&report);
    let end = ") parts of objects of class RubyVM::AbstractSyntaxTree::Node, which KEPT retains.";
    assert!(words.ends_with(end), "{words}");
    // Since Ruby 3.4 they share the name of hidden objects of several types.
    let is_release = |it: &Action| matches!(it, Action::ReleaseObjects { .. });
    let step = render::words::advice(&report.advice[0], &report);
    assert!(
        is_release(&report.advice[0].action) && step.action.contains("KEPT → Array"),
        "{step:?}"
    );
    assert!(target.finish());
}

/// "(variables of libruby-3.1.so.3.1.2) → (T_ARRAY)", and the step was to release objects of class (T_ARRAY).
#[test]
fn counters_of_coverage_are_named() {
    let target = Target::bare_ruby(
        "require 'coverage'; require 'tempfile'
         Coverage.start(lines: true, branches: true)
         code = (1..4_000).map { |at| %(x = #{at} if x\n) }.join
         kept = Array.new(60) { Tempfile.new(%w[covered .rb]).tap { |it| it.write(code); it.close; load it.path } }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let words =
        advice(&report, |it| matches!(it, Action::StopCoverage { bytes } if *bytes > 32 << 20));
    assert_eq!(words.command, "Coverage.result(stop: true, clear: true)");
    let summary = verdict(&report);
    assert!(summary.contains(" of it are counters of code coverage, which"), "{summary}");
    let (arrays, roots) = retained(&report, "(T_ARRAY)");
    let of_coverage = roots.iter().filter(|it| it.0.as_deref() == Some("(coverage) → (T_ARRAY)"));
    let counters: u64 = of_coverage.map(|it| it.1).sum();
    assert!(counters * 10 > arrays * 9, "{roots:?}");
    assert!(target.finish());
}

/// 160,000 buffers were garbage, beside "referred to by (imemo_ast)".
#[test]
fn buffers_of_syntax_trees_are_no_garbage() {
    let target = Target::bare_ruby(
        "code = (1..2_000).map { |at| %(def m#{at}(a, b = 1); a; end\n) }.join
         KEPT = Array.new(5) { RubyVM::AbstractSyntaxTree.parse(code) }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let version = report.process.ruby_version.as_deref();
    if version.is_none_or(|version| version >= "3.3") {
        return testkit::skip("syntax trees of this Ruby have no such buffers");
    }
    let (objects, garbage) = garbage(&report, "(imemo_tmpbuf)");
    assert!(objects >= 10_000 && garbage * 100 < objects, "{garbage} of {objects}");
    assert!(target.finish());
}

/// A trim returns the top of the main arena only.
#[test]
fn tops_of_arenas_stay_after_a_trim() {
    if testkit::preload().is_some() {
        return testkit::skip("another allocator has no tops of arenas");
    }
    if lacks("fiddle") {
        return;
    }
    let (mut target, report) = case("arena_tops", "0.6");
    assert_eq!(report.verdict.cause, Some(Cause::MallocTop), "{:#?}", report.causes);
    let words = verdict(&report);
    assert!(words.contains(" are free at the top of arenas or in glibc's caches"), "{words}");
    target.tell("trim");
    let after = target.next_truth()["rss_after_bytes"].as_u64().unwrap();
    assert!(after * 10 > report.process.rss_bytes * 9, "{after} {}", report.process.rss_bytes);
    assert!(target.finish());
}

/// No kind of free memory exceeds the bounds by itself.
#[test]
fn free_memory_of_several_kinds_has_the_size_of_each() {
    let (target, report) = case("peak", "1");
    let words = verdict(&report);
    assert!(words.contains(" are free, but still resident: "), "{words}");
    let kinds = ["ruby.free_slots", "malloc.fragmented"];
    assert!(kinds.iter().all(|kind| words.contains(&format!(" MiB {kind}"))), "{words}");
    assert!(target.finish());
}

/// From Ruby 3.3 on, threads of Ractors share native threads. Their stacks were "neither malloc's nor Ruby's", and what only their variables
/// retain was garbage.
#[test]
fn stacks_of_ractors_are_those_of_threads() {
    let (mut target, report) = case("ractors", "1");
    let ractors = target.number("ractors");
    if ractors == 0 {
        return testkit::skip("this Ruby has no Ractors");
    }
    assert!(bytes(&report, "unknown") < 2 << 20, "{:?}", report.causes);
    assert!(bytes(&report, "stack.threads") > ractors << 17, "{:?}", report.causes);
    let threads = report.process.threads + report.kept_stacks.unwrap().mn_threads;
    assert!(threads > ractors, "{threads} {:?}", report.kept_stacks);
    let (path, objects, all) = path_to(&target, "Row");
    assert!(path.starts_with("(threads) → Thread in Worker#run ("), "{path}");
    // A word on a stack may be the nearer reference to a few.
    let rows = target.number("rows");
    assert!(objects * 10 >= all * 9 && all == rows, "{objects} of {all}, {rows}");
    let is_gc = |it: &Action| matches!(it, Action::ReleaseObjects { are_garbage: true, .. });
    assert!(!report.advice.iter().any(|it| is_gc(&it.action)), "{:?}", report.advice);
    target.tell("release");
    let left = target.next_truth()["rows"].as_u64().unwrap();
    assert!(left < all / 10, "{left}");
    assert!(target.finish());
}

/// Tables of constants that are not loaded yet were tables of object ids.
#[test]
fn autoloads_belong_to_the_modules() {
    let target = Target::bare_ruby(
        "20.times do |m|
           mod = Object.const_set(\"M#{m}\", Module.new)
           2000.times { |i| mod.autoload(:\"K#{i}\", \"/nowhere/m#{m}/k#{i}.rb\") }
         end
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = crate::report(target.pid());
    let kinds = &report.interpreter.as_ref().unwrap().kinds;
    let bytes = |kind| kinds.iter().find(|part| part.kind == kind).unwrap().resident_bytes;
    assert_eq!(bytes(InterpreterKind::ObjectIds), 0, "{kinds:?}");
    assert!(bytes(InterpreterKind::Classes) > 40_000 * 100, "{kinds:?}");
    let entries = report.owners.iter().flatten().find(|owner| owner.owner == "(autoload)").unwrap();
    assert!(entries.objects >= 40_000, "{entries:?}");
    assert!(target.finish());
}

/// The interpreter's tables were one row.
#[test]
fn tables_of_the_interpreter_are_told_apart() {
    let (target, report) = case("object_ids", "0.5");
    let kinds = |report: &Report| report.interpreter.as_ref().unwrap().kinds.clone();
    let kind = |report: &Report, wanted: InterpreterKind| {
        kinds(report).iter().find(|part| part.kind == wanted).unwrap().resident_bytes
    };
    if target.truth["ruby_version"].as_str().unwrap() >= "3.5" {
        return testkit::skip("this Ruby has object ids in the objects");
    }
    let ids = kind(&report, InterpreterKind::ObjectIds);
    assert!(ids >= target.number("ids") * 16, "{ids} {:?}", kinds(&report));
    let words = verdict(&report);
    assert!(words.contains("tables of object ids"), "{words}");
    let first = &report.advice[0].action;
    let table = InterpreterKind::ObjectIds;
    assert_eq!(
        first,
        &Action::LimitTable { table, bytes: ids, is_room: false },
        "{:?}",
        report.advice
    );
    assert!(target.finish());

    // The table of fewer is too small for a step.
    let variables =
        "Array.new(600_000) { |at| 'text'.dup.tap { |it| it.instance_variable_set(:@at, at) } }";
    let finalizers = "Array.new(600_000) { Object.new.tap { |it| ObjectSpace.define_finalizer(it, FINALIZER) } }";
    for (objects, table, words) in [
        (variables, InterpreterKind::GenericVariables, "Set fewer instance variables on strings"),
        (finalizers, InterpreterKind::Finalizers, "Define fewer finalizers"),
    ] {
        let target = Target::bare_ruby(&format!(
            "FINALIZER = proc {{}}; KEPT = {objects}; 3.times {{ GC.start }}
             puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(0)"
        ));
        let report = crate::report(target.pid());
        assert!(kind(&report, table) >= 600_000 * 16, "{:?} {:?}", kinds(&report), report.findings);
        assert_eq!(kind(&report, InterpreterKind::ObjectIds), 0, "{:?}", kinds(&report));
        // The report on finalizers counts their lists, too.
        let is_it = |it: &Action| matches!(it, Action::LimitTable { table: of, bytes, .. } if *of == table && *bytes >= kind(&report, table));
        // The block of each object with its variables was another part.
        let (found, other) = (kind(&report, table), kind(&report, InterpreterKind::Other));
        let is_other = table == InterpreterKind::GenericVariables && other >= found / 4;
        assert!(!is_other, "{:?}", kinds(&report));
        let step = advice(&report, is_it);
        assert!(step.action.starts_with(words), "{step:?}");
        assert!(target.finish());
    }
}

/// The report was "Healthy", and the account of the group called files in memory a cache.
#[test]
fn files_in_memory_are_no_cache() {
    let Some(group) = testkit::ControlGroup::make() else { return };
    if !std::path::Path::new("/dev/shm").is_dir() {
        return testkit::skip("there is no /dev/shm");
    }
    let mut target = Target::start(&mut group.command(&testkit::scenario("cases/tmpfs")));
    let report = report(target.pid());
    let account = report.group.as_ref().unwrap();
    let (count, each) = (target.number("files"), target.number("file_bytes"));
    let shmem = account.unmapped_shmem_bytes;
    // The kernel's counts of a group lag behind by some pages for each processor.
    assert!(shmem.abs_diff(count * each) <= 4 << 20, "{account:?}");
    assert!(account.unmapped_cache_bytes >= 16 << 20, "{account:?}");
    assert!(account.processes == 1 && account.processes_bytes <= report.process.rss_bytes);
    assert_eq!(account.files.len() as u64, count, "{account:?}");
    for file in &account.files {
        assert!(file.is_deleted && file.path.contains("/dev/shm/upload"), "{file:?}");
        assert_eq!((file.bytes, file.pid), (each, target.pid()), "{file:?}");
    }
    let words = verdict(&report);
    assert!(words.contains("The control group of this process uses"), "{words}");
    let Action::CloseFilesInMemory { bytes, path, path_bytes, is_deleted: true, pid } =
        &report.advice[0].action
    else {
        panic!("{:?}", report.advice)
    };
    assert_eq!((*bytes, *path_bytes, *pid), (shmem, each, target.pid()));
    assert_eq!(path, &account.files[0].path);
    let step = render::words::advice(&report.advice[0], &report).action;
    let end = format!("deleted but open in process {}.", target.pid());
    assert!(step.starts_with("Close files in memory that nobody needs: ") && step.ends_with(&end));
    target.tell("close");
    target.next_truth();
    let after = crate::report(target.pid());
    let is_close = |it: &formats::Advice| matches!(it.action, Action::CloseFilesInMemory { .. });
    assert!(!after.advice.iter().any(is_close), "{:?}", after.group);
    assert!(after.group.is_none_or(|group| group.unmapped_shmem_bytes < 4 << 20));
    assert!(target.finish());
}

/// "The kernel takes back pages of files on disk when memory is short", and the step was to change nothing: these files are in memory.
#[test]
fn mapped_files_in_memory_are_no_cache() {
    are_no_cache(Target::scenario("cases/mapped_metrics", &["--scale", "1"]));
}

/// Only /dev/shm was known, by its path.
#[test]
fn any_tmpfs_is_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs none \"$0\" && exec \"$@\"";
    let in_namespace = |program: &std::ffi::OsStr| {
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-c", mount]).arg(folder.path()).arg(program);
        command
    };
    let can_mount = in_namespace("true".as_ref()).output().is_ok_and(|it| it.status.success());
    if testkit::root().is_some() || !can_mount {
        return testkit::skip("no file system can be mounted for a process");
    }
    let scenario = testkit::scenario("cases/mapped_metrics");
    let mut command = in_namespace(scenario.get_program());
    command.args(scenario.get_args()).args(["--scale", "1"]);
    are_no_cache(Target::start(command.env("METRICS_FOLDER", folder.path())));
}

fn are_no_cache(mut target: Target) {
    let report = report(target.pid());
    let shmem = target.number("shmem_bytes");
    if shmem < 48 << 20 {
        return testkit::skip("this Ruby has no IO::Buffer, or there is no such folder");
    }
    let row = report.causes.iter().find(|row| row.cause == Cause::FileShmem).unwrap();
    assert!(row.bytes.abs_diff(shmem) < 1 << 20, "{row:?}, {shmem}");
    assert_eq!(report.verdict.cause, Some(Cause::FileShmem), "{:#?}", report.causes);
    let words = render::words::verdict(&report);
    assert!(words.summary.contains("The kernel can only swap these pages."), "{words:?}");
    let size = ledger::Size(row.bytes);
    assert!(words.check.contains(&format!("RssShmem in /proc/PID/status should be about {size}.")));
    let [file, ..] = &report.files[..] else { panic!("no file") };
    let Action::UseLessSharedMemory { bytes, path, path_bytes } = &report.advice[0].action else {
        panic!("{:?}", report.advice);
    };
    assert_eq!((*bytes, path, *path_bytes), (row.bytes, &file.path, file.shared_bytes));
    assert!(path.contains("/metric_counter_") && file.is_in_memory, "{file:?}");
    assert!(report.advice.iter().all(|step| step.action != Action::WatchPss), "{report:?}");
    let map = Kept::of(target.pid()).read().memory_map;
    let areas = map.areas.iter().filter(|area| area.kind == AreaKind::Shmem);
    let resident = areas.flat_map(|area| map.pages(area)).filter(|(_, used)| used.is_resident());
    let mapped: u64 = resident.map(|(pages, _)| linux::length(&pages)).sum();
    assert!(mapped.abs_diff(row.bytes) < 1 << 20, "{mapped}, {row:?}");
    // The files are deleted already. Their memory is free when they are not mapped any more.
    target.tell("unmap");
    assert!(target.next_truth()["shmem_bytes"].as_u64().unwrap() < 1 << 20);
    assert!(target.finish());
}

/// The report knew only that this memory is neither malloc's nor Ruby's.
#[test]
fn mapped_memory_is_named_by_the_objects_that_refer_to_it() {
    let target = Target::scenario("cases/mapped_buffers", &["--scale", "1"]);
    if target.number("buffers") == 0 {
        return testkit::skip("this Ruby has no IO::Buffer");
    }
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::Unknown), "{:#?}", report.causes);
    let row = &report.unknown[0];
    assert_eq!(row.owner.as_deref(), Some("IO::Buffer"), "{row:?}");
    let (summary, words) = words(&report);
    let said = " MiB are anonymous memory outside of malloc and of Ruby's heap. Objects of IO::Buffer refer to most of it.";
    assert!(summary.ends_with(said), "{summary}");
    let path = "are retained by Frames::RING → Array → IO::Buffer";
    let evidence = render::words::verdict(&report).evidence;
    assert!(evidence.iter().any(|it| it.ends_with(path)), "{evidence:?}");
    assert_eq!(words.command, format!("rbloat why {} IO::Buffer", target.pid()));
    // "The command shows what retains them" stood below the path.
    assert!(words.action.contains(&format!(" that {path} and are no longer ")), "{words:?}");
    // Its own objects have few bytes, so a short list of owners had no row of it.
    let text = String::from_utf8(run(target.pid(), &["--owners", "3"]).stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(path), "{text}");
    assert!(target.finish());
}

/// "144.4 MiB are held by live Ruby objects", by `Pricing.@rates`, for variables of classes that were loaded again.
#[test]
fn variables_of_classes_that_nothing_retains_are_garbage() {
    let target = Target::bare_ruby(
        "def reload
           Object.send(:remove_const, :Pricing) if Object.const_defined?(:Pricing)
           eval 'class Pricing; @rates = Array.new(12_000) { |it| \"rate #{it} \" + \"r\" * 90 }; end'
         end
         GC.disable
         30.times { Thread.new { reload }.join }
         puts 'ready {}'; $stdout.flush; $stdin.read; exit!(0)",
    );
    let report = report(target.pid());
    let strings = report.owners.iter().flatten().find(|owner| owner.owner == "String").unwrap();
    let garbage = strings.kept_by.iter().find(|it| it.path.is_none()).map_or(0, |it| it.objects);
    assert!(garbage >= 25 * 12_000, "{:?}", strings.kept_by);
    // The variables of the class that the constant names are its data.
    let live = strings.objects - garbage;
    assert!(live >= 12_000, "{:?}", strings.kept_by);
    assert!(target.finish());
}

/// GC::Profiler, left on, keeps a record of each collection. They were "of no kind of their own", and no step said how to free them.
#[test]
fn the_records_of_the_gc_profiler_have_a_kind() {
    let target = Target::bare_ruby(
        "GC::Profiler.enable
         60_000.times { GC.start(full_mark: false, immediate_sweep: false) }
         puts %(ready {\"version\": \"#{RUBY_VERSION}\"}); $stdout.flush; $stdin.read",
    );
    if target.truth["version"].as_str().unwrap() >= "4.1" {
        return testkit::skip("GC::Profiler keeps some thousand records from 4.1 on");
    }
    let report = report(target.pid());
    let kinds = &report.interpreter.as_ref().unwrap().kinds;
    let bytes = |kind| kinds.iter().find(|part| part.kind == kind).unwrap().resident_bytes;
    assert!(bytes(InterpreterKind::GcProfile) >= 60_000 * 48, "{kinds:?}");
    assert!(bytes(InterpreterKind::Other) < 1 << 20, "{kinds:?}");
    assert!(target.finish());
}

/// There was no step: room in any object, however small, counted as more than half of the memory of the one object.
#[test]
fn one_object_with_a_large_singleton_class_has_a_step() {
    let target = Target::bare_ruby(
        "class Client; end
         API = Client.new
         SLICE = ('a' * 9_000)[-2_000, 2_000]
         30_000.times do |number|
           data = format('resource %d', number).ljust(1_500)
           API.define_singleton_method(%(resource_#{number})) { data }
         end
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    let step =
        "Release the large Client that is retained by API → Client, or a part of its contents.";
    assert!(words.action.starts_with(step), "{words:?}");
    assert!(target.finish());
}
