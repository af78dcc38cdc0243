//! Compares walks of tcmalloc's heap with tcmalloc's own statistics, and with a program's list of its live pointers.

mod churn;

use std::sync::LazyLock;

use allocator::{Allocator, ExtentState, Finding, HeapMap};
use linux::length;

use crate::churn::{Churn, Still, assert_consistent, assert_live, compile};

static TCMALLOC: Churn = Churn {
    allocator: Allocator::Tcmalloc,
    program: LazyLock::new(|| compile("tcmalloc")),
    library: testkit::tcmalloc,
};

fn bytes_of(heap: &HeapMap, state: ExtentState) -> u64 {
    let extents = heap.extents.iter().filter(|extent| extent.state == state);
    extents.map(|extent| length(&extent.range)).sum()
}

/// The bytes of spans that no object has.
fn rests(heap: &HeapMap) -> u64 {
    let slabs = heap.extents.iter().filter(|extent| extent.region_bytes.is_some());
    slabs
        .map(|extent| {
            length(&extent.range) - heap.blocks_of(extent).map(|it| it.1.bytes()).sum::<u64>()
        })
        .sum()
}

fn assert_statistics(still: &Still) {
    let Still { heap, .. } = still;
    assert_consistent(heap);
    assert_live(still);
    assert_eq!(heap.totals.in_use_bytes, still.truth("in_use"));
    assert_eq!(heap.totals.system_bytes, still.truth("system"));
    let cached = still.truth("caches") + still.truth("transfer");
    assert_eq!(heap.totals.tcache_bytes, cached);
    assert_eq!(bytes_of(heap, ExtentState::Dirty), still.truth("normal"));
    assert_eq!(bytes_of(heap, ExtentState::Retained), still.truth("returned"));
    let free = bytes_of(heap, ExtentState::Dirty) + bytes_of(heap, ExtentState::Retained);
    let central = heap.totals.free_bytes - free + rests(heap);
    assert_eq!(central, still.truth("central"));
    assert!(bytes_of(heap, ExtentState::Metadata) >= still.truth("metadata"));
    assert!(still.truth("metadata") > 0);
}

#[test]
fn the_blocks_of_a_thread_are_those_that_tcmalloc_counts() {
    let Some(still) = TCMALLOC.still("still", 1, 100_000) else { return };
    assert_statistics(&still);
}

#[test]
fn many_threads_of_which_some_ended() {
    let Some(still) = TCMALLOC.still("still", 9, 30_000) else { return };
    assert_statistics(&still);
}

/// fork(2) leaves the caches of threads that the child does not have.
#[test]
fn a_forked_process_has_caches_that_nothing_uses() {
    let Some(still) = TCMALLOC.still("forked", 9, 10_000) else { return };
    assert_eq!(still.heap.abandoned_bytes, 0);
    let heap = TCMALLOC.walk(still.truth("pid") as i32);
    assert_consistent(&heap);
    let expected = still.truth("caches") - still.truth("own_cache");
    assert!(expected > 100_000);
    assert_eq!(heap.abandoned_bytes, expected);
}

#[test]
fn a_process_that_never_stands_still() {
    let Some(target) = TCMALLOC.start(&["busy", "4"]) else { return };
    let mut failed = 0;
    for _ in 0..testkit::captures() {
        // A thread may change the counts and the spans at that moment. Then there is an error, and no wrong report.
        let Ok(heap) = TCMALLOC.try_walk(target.pid()) else {
            failed += 1;
            continue;
        };
        assert_consistent(&heap);
        let is_known = |it: &Finding| {
            matches!(
                it,
                Finding::ExtentsChanging { extents: 1..=4, .. }
                    | Finding::ListsChanging { lists: 1..=4 }
            )
        };
        assert!(heap.findings.iter().all(is_known), "{:?}", heap.findings);
    }
    assert!(failed * 2 <= testkit::captures(), "{failed} failed");
}
