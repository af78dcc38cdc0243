//! Native memory of libraries: arenas, calls, mapped files, and a leak of Ruby's own.

use formats::{Action, DiffKind, Doubt};
use ledger::Cause;
use testkit::Target;

use super::{advice, assert_path, case, lacks, verdict};
use crate::diffs::{diff, looks_at, set_time};
use crate::report;

/// Asserts that a report and a diff name the class whose objects in a constant hold native memory.
#[track_caller]
fn assert_holder(name: &str, class: &str, path: &str) {
    let (target, report) = case(name, "1");
    assert_eq!(report.verdict.cause, Some(Cause::NativeHeld), "{:#?}", report.causes);
    let summary = verdict(&report);
    let is_named =
        summary.contains(", most of them by ") && summary.contains(&format!(" {class}. "));
    assert!(is_named, "{summary}");
    assert_path(&target, class, path);
    let words = advice(&report, |it| matches!(it, Action::FreeNative { .. }));
    assert!(words.action.contains(&format!("which are retained by {path}")), "{words:?}");
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let root = path.split(" → ").next().unwrap();
    let leak = format!("Managed leak: {class} retained by {root} grows ");
    assert!(words.starts_with(&leak), "{words}");
    assert!(diff.verdict.bytes <= diff.rss_bytes.change + (1 << 20), "{:?}", diff.verdict);
}

/// The growth was that of the allocated bytes, which exceeded that of RSS. One message of each list keeps the arena of all of them.
#[test]
fn parts_of_messages_hold_arenas() {
    if lacks("google/protobuf") {
        return;
    }
    assert_holder("protobuf_arenas", "Item", "Catalog::NAMES → Array → Item");
}

#[test]
fn calls_hold_arenas() {
    if lacks("grpc") {
        return;
    }
    assert_holder("grpc_calls", "GRPC::Core::Call", "Rpc::CALLS → Array → GRPC::Core::Call");
}

/// A thread seemed to retain the arguments, or they were called garbage.
#[test]
fn registered_addresses_have_a_name() {
    if lacks("fiddle") {
        return;
    }
    let (target, report) = case("registered_arguments", "1");
    let path = "(rb_gc_register_address) → Argument";
    assert_path(&target, "Argument", path);
    let words = advice(&report, |it| matches!(it, Action::ReleaseObjects { .. }));
    let step =
        format!("retained by {path} → String. C code registered them, and has to unregister them");
    assert!(words.action.contains(&step), "{words:?}");
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Managed leak: Argument retained by (rb_gc_register_address) → Argument grows ";
    assert!(words.starts_with(leak), "{words}");
}

/// "GC.start frees garbage at once" was said of statements that are garbage, but whose memory their database has
/// (sparklemotion/sqlite3-ruby#392).
#[test]
fn no_collection_is_said_to_free_what_others_hold() {
    if lacks("sqlite3") {
        return;
    }
    let (target, report) = case("lost_statements", "1");
    let version = target.truth["sqlite_version"].as_str().unwrap();
    if !version.starts_with("0.") && !version.starts_with("1.") {
        return testkit::skip("statements of this gem are closed when they are collected");
    }
    let words = advice(&report, |it| matches!(it, Action::FreeNative { .. }));
    let owner = "Release the object of class SQLite3::Database, which is retained by ";
    assert!(words.action.starts_with(owner), "{words:?}");
    assert_eq!(words.costs, "a change of the program.");
    let is_pressure = |it: &formats::Advice| matches!(it.action, Action::NativePressure { .. });
    assert!(!report.advice.iter().any(is_pressure), "{:#?}", report.advice);
    assert!(target.finish());
}

/// 150,000 elements were to be released, but only the end of their document frees their nodes (sparklemotion/nokogiri#1703).
#[test]
fn nodes_that_never_joined_a_document_belong_to_it() {
    if lacks("nokogiri") {
        return;
    }
    let (target, report) = case("unlinked_nodes", "0.5");
    let words = advice(&report, |it| matches!(it, Action::FreeNative { .. }));
    let class = if target.truth["ruby_version"].as_str() < Some("3") { "HTML" } else { "HTML4" };
    let expected = format!(
        "Release the object of class Nokogiri::{class}::Document, which is retained by Feed::DOCUMENT → "
    );
    assert!(words.action.starts_with(&expected), "{words:?}");
    assert!(target.finish());
}

#[test]
fn a_mapped_pack_is_named() {
    if lacks("rugged") {
        return;
    }
    let (target, report) = case("mapped_pack", "1");
    assert_eq!(report.verdict.cause, Some(Cause::FileShared), "{:#?}", report.causes);
    assert_eq!(report.advice[0].action, Action::WatchPss, "{:#?}", report.advice);
    let file = &report.files[0];
    let pages = target.number("pack_bytes").next_multiple_of(4096);
    assert_eq!((file.resident_bytes(), file.times), (pages, 1), "{file:?}");
    assert!(file.path.contains("/objects/pack/pack-"), "{file:?}");
    assert!(target.finish());
}

/// The advice was to fix "the extension", and the method is one of Ruby's own.
#[test]
fn a_leak_of_rubys_own_is_native_and_fixed_by_an_upgrade() {
    let (target, report) = case("graphemes", "1");
    let leaked = target.number("grown_bytes");
    if leaked < 8 << 20 {
        return testkit::skip("this Ruby does not leak");
    }
    assert_eq!(report.verdict.cause, Some(Cause::NativeUnreachable), "{:#?}", report.causes);
    let words = advice(&report, |it| matches!(it, Action::FindNativeLeak));
    assert!(words.action.contains("If the method is one of Ruby's own, upgrade Ruby"), "{words:?}");
    let diff = diff(&looks_at(target, 3, |_| false));
    let words = render::words::diff_verdict(&diff).summary;
    let leak = "Native leak: native memory that nothing points to grows ";
    assert!(words.starts_with(leak), "{words}");
    // jemalloc rounds the blocks up to its classes of sizes.
    assert!(diff.verdict.bytes * 10 >= 8 * 2 * leaked as i64, "{:?} {leaked}", diff.verdict);
}

/// 64 written bytes took 128 MiB, and nothing said why (jemalloc/jemalloc#1674).
#[test]
fn huge_pages_of_unknown_memory_are_named() {
    if lacks("fiddle") {
        return;
    }
    let target = Target::bare_ruby(
        "require 'fiddle'
         libc = Fiddle.dlopen(nil)
         int, long, pointer = Fiddle::TYPE_INT, Fiddle::TYPE_LONG, Fiddle::TYPE_VOIDP
         Fiddle::Function.new(libc['prctl'], [int, *[long] * 4], int).call(41, 0, 0, 0, 0)
         map = Fiddle::Function.new(libc['mmap'], [long, long, int, int, int, long], pointer)
         size, huge = 128 << 20, 2 << 20
         start = (map.call(0, size + huge, 3, 0x22, -1, 0).to_i + huge - 1) / huge * huge
         Fiddle::Function.new(libc['madvise'], [long, long, int], int).call(start, size, 14)
         BUFFER = Fiddle::Pointer.new(start, size)
         (size / huge).times { |index| BUFFER[index * huge, 1] = 'x' }
         kib = File.read('/proc/self/smaps_rollup')[/AnonHugePages: *([0-9]+)/, 1]
         puts %(ready {\"huge_kib\": #{kib}}); $stdout.flush; $stdin.read",
    );
    if target.number("huge_kib") < 120 << 10 {
        return testkit::skip("the kernel makes no huge pages, or does not report them");
    }
    let report = report(target.pid());
    assert_eq!(report.verdict.cause, Some(Cause::Unknown), "{:#?}", report.causes);
    let evidence = render::words::verdict(&report).evidence;
    assert!(evidence.iter().any(|it| it.contains(" are in huge pages, each of ")), "{evidence:?}");
    assert!(target.finish());
}

/// "151 of them are garbage that the GC has not collected yet": pointers of dead FFI::Pointers led to images that a live one kept.
#[test]
fn memory_to_which_a_live_object_leads_is_not_that_of_dead_ones() {
    if lacks("fiddle") {
        return;
    }
    let target = Target::bare_ruby(
        r##"
            require "fiddle"
            malloc = Fiddle::Function.new(Fiddle::Handle::DEFAULT["malloc"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_VOIDP)
            blocks = Array.new(200) { malloc.call(50_000).to_i }
            blocks.each { |it| Fiddle::Pointer.new(it)[0, 50_000] = "x" * 50_000 }
            node = malloc.call(8 * blocks.size).to_i
            Fiddle::Pointer.new(node)[0, 8 * blocks.size] = blocks.pack("Q*")
            blocks = nil
            GC.start
            GC.disable
            100.times { Fiddle::Pointer.new(node) }
            KEPT = [Fiddle::Pointer.new(node)]
            100.times { Fiddle::Pointer.new(node) }
            node = nil
            puts "ready {}"; $stdout.flush; $stdin.read
            "##,
    );
    let report = report(target.pid());
    let owner = report.owners.iter().flatten().find(|it| it.owner == "Fiddle::Pointer").unwrap();
    let kept = &owner.kept_by[0];
    assert_eq!(kept.path.as_deref(), Some("KEPT → Array → Fiddle::Pointer"), "{:?}", owner.kept_by);
    assert!(kept.bytes >= 9_900_000, "{:?}", owner.kept_by);
    assert!(target.finish());
}

/// "Nothing points to them: a leak", of cells to which an engine refers by the bits of NaNs.
#[test]
fn pointers_in_nans_are_pointers() {
    if lacks("fiddle") {
        return;
    }
    let (target, report) = case("boxed_pointers", "0.3");
    let unreachable = crate::bytes(&report, "native.unreachable");
    assert!(unreachable * 10 < target.number("cell_bytes"), "{:?}", report.causes);
    let owner = report.owners.iter().flatten().find(|it| it.owner == "Fiddle::Pointer");
    let path = owner.and_then(|it| it.kept_by[0].path.as_deref());
    assert_eq!(path, Some("Engine.@stack → Fiddle::Pointer"), "{:?}", report.owners);
    assert!(target.finish());
}

/// "3.6 MiB of stacks" in a process of one thread: libffi ends the memory of closures as glibc ends stacks.
#[test]
fn closures_of_libffi_are_no_stacks() {
    if lacks("fiddle") {
        return;
    }
    let target = Target::bare_ruby(
        "require 'fiddle'
         CALLS = Array.new(20_000) { Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_INT, []) { 1 } }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let kept = report.kept_stacks.as_ref().unwrap();
    assert!(kept.thread_bytes <= 8 << 10, "{kept:?}");
    assert!(target.finish());
}

/// "Release 3 objects of class Oj::Cache", which are in variables of the library.
#[test]
fn only_a_library_can_empty_its_cache() {
    if lacks("oj") {
        return;
    }
    let target = Target::bare_ruby(
        "require 'rubygems'
         require 'oj'
         200_000.times { |i| Oj.load(%({\"user_#{i}\":{\"attribute_name_#{i}\":1,\"other_attribute_#{i}\":2}}), mode: :strict, cache_keys: true) }
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let report = report(target.pid());
    let caches = report.owners.iter().flatten().find(|it| it.owner == "Oj::Cache");
    if caches.is_none_or(|it| it.bytes() < 16 << 20) {
        return testkit::skip("this release of Oj keeps less");
    }
    let words = advice(
        &report,
        |it| matches!(it, Action::FreeNative { class, .. } if class == "Oj::Cache"),
    );
    assert!(words.action.starts_with("Look for a setting or a method of the library"), "{words:?}");
    assert!(target.finish());
}

/// "Native leak … medium confidence", of the pages that a pool of connections had read for some minutes, as on Redmine. What a
/// library adds for hours is one.
#[test]
fn a_cache_that_may_still_fill_up_is_no_leak() {
    if lacks("sqlite3") {
        return;
    }
    let looks = looks_at(Target::scenario("growth/page_caches", &[]), 4, |_| false);
    let in_time = |minutes: u64| {
        for (kept, number) in looks.iter().zip(0..) {
            set_time(kept, number * minutes * 60_000);
        }
        diff(&looks)
    };
    let minutes = in_time(1);
    assert_eq!(
        minutes.verdict.kind,
        DiffKind::Growth,
        "{:?} {:?}",
        minutes.verdict,
        minutes.owners
    );
    assert_eq!(minutes.verdict.doubt, Some(Doubt::Unproven), "{:?}", minutes.verdict);
    let hours = in_time(60);
    let is_leak = matches!(hours.verdict.kind, DiffKind::NativeLeak | DiffKind::ManagedLeak);
    assert!(is_leak, "{:?} {:?}", hours.verdict, hours.owners);
}
