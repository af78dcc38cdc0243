//! Native memory of libraries: arenas, calls, mapped files, and a leak of Ruby's own.

use formats::Action;
use ledger::Cause;

use super::{advice, assert_path, case, verdict};
use crate::diffs::{diff, looks_at};

/// Returns true if Ruby can load a library where targets run.
fn has_library(name: &str) -> bool {
    let loaded = testkit::ruby().args(["-r", name, "-e", ""]).output();
    loaded.is_ok_and(|output| output.status.success())
}

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
    assert!(words.action.contains(&format!("most of which are retained by {path}")), "{words:?}");
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
    if !has_library("google/protobuf") {
        return testkit::skip("ruby-google-protobuf is not installed where targets run");
    }
    assert_holder("protobuf_arenas", "Item", "Catalog::NAMES → Array → Item");
}

#[test]
fn calls_hold_arenas() {
    if !has_library("grpc") {
        return testkit::skip("ruby-grpc is not installed where targets run");
    }
    assert_holder("grpc_calls", "GRPC::Core::Call", "Rpc::CALLS → Array → GRPC::Core::Call");
}

#[test]
fn a_mapped_pack_is_named() {
    if !has_library("rugged") {
        return testkit::skip("ruby-rugged is not installed where targets run");
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
    assert!(diff.verdict.bytes * 10 >= 9 * 2 * leaked as i64, "{:?} {leaked}", diff.verdict);
}
