//! Compares walks of mimalloc's heap with mimalloc's own count of blocks, and with a program's list of its live pointers.

mod churn;

use std::sync::LazyLock;

use allocator::{Allocator, Finding};

use crate::churn::{Churn, Still, assert_consistent, assert_live, compile};

static MIMALLOC: Churn = Churn {
    allocator: Allocator::Mimalloc,
    program: LazyLock::new(|| compile("mimalloc")),
    library: testkit::mimalloc,
};

fn still(threads: u32, rounds: u32) -> Option<Still> {
    let library = testkit::outside(&testkit::mimalloc()?).canonicalize().unwrap();
    let mode = if library.ends_with("libmimalloc.so.3.0") { "unaligned" } else { "still" };
    MIMALLOC.still(mode, threads, rounds)
}

#[test]
fn the_blocks_of_a_thread_are_those_that_mimalloc_visits() {
    let Some(still) = still(1, 100_000) else { return };
    assert_consistent(&still.heap);
    assert_live(&still);
    // 3.0 and 3.1 do not visit all pages. (Their versions have three digits, later ones five.)
    if !(300..400).contains(&still.truth("version")) {
        let totals = still.heap.totals;
        assert_eq!(totals.in_use_chunks, still.truth("visited"));
        assert_eq!(totals.in_use_bytes, still.truth("visited_bytes"));
    }
}

/// Blocks that a thread frees for another one are on other lists.
#[test]
fn many_threads_of_which_some_ended() {
    let Some(still) = still(9, 30_000) else { return };
    assert_consistent(&still.heap);
    assert_live(&still);
}

#[test]
fn a_process_that_never_stands_still() {
    let Some(target) = MIMALLOC.start(&["busy", "4"]) else { return };
    for _ in 0..testkit::captures() {
        let heap = MIMALLOC.walk(target.pid());
        assert_consistent(&heap);
        let is_known = |it: &Finding| matches!(it, Finding::ExtentsChanging { extents: 1..=4, .. });
        assert!(heap.findings.iter().all(is_known), "{:?}", heap.findings);
    }
}
