//! The effect of a trim: expected, and over time.

use std::cmp::Reverse;

use formats::{CauseRow, TrimConclusion, TrimExpectation, TrimWatch, WatchPoint};
use ledger::{Cause, Causes, Ledger, percent};

/// A trim lasts if less than this share of the returned memory comes back, in percent.
const LASTS_PERCENT: f64 = 10.0;
/// A part of the memory that came back explains it if it has at least this share, in percent.
const EXPLAINS_PERCENT: f64 = 50.0;
/// Memory can be spread only over more arenas than this.
const FEW_ARENAS: usize = 2;

/// The expected effect of a trim: from the heap if the ledger has one, otherwise `tried_bytes`, the memory that the same
/// call returned in a forked copy.
#[must_use]
pub fn trim_expectation(ledger: &Ledger, tried_bytes: Option<u64>) -> TrimExpectation {
    let malloc = ledger.malloc.as_ref();
    TrimExpectation {
        rss_bytes: ledger.rss_bytes,
        returned_bytes: malloc.map(|malloc| malloc.trim_yield_bytes).or(tried_bytes),
        deferred_bytes: malloc.map_or(0, |malloc| malloc.trim_deferred_bytes),
    }
}

/// Compares the ledgers before and after a trim that returned `returned_bytes`, and the samples of RSS taken for
/// `seconds` in between.
#[must_use]
pub fn trim_watch(
    samples: Vec<WatchPoint>,
    seconds: f64,
    returned_bytes: u64,
    before: &Ledger,
    after: &Ledger,
) -> TrimWatch {
    let low = samples.iter().map(|sample| sample.rss_bytes).min();
    let came_back_bytes = after.rss_bytes.saturating_sub(low.unwrap_or(after.rss_bytes));
    let unreturned_bytes = after.causes[Cause::MallocUnreturned];
    let pinned_bytes = after.sum(&[Cause::MallocFragmented, Cause::MallocTop, Cause::MallocCached]);
    let arenas = after.malloc.as_ref().map_or(0, |malloc| malloc.arenas.len());
    let explains = |bytes| percent(bytes, came_back_bytes) >= EXPLAINS_PERCENT;
    let conclusion = if percent(came_back_bytes, returned_bytes) < LASTS_PERCENT {
        TrimConclusion::Lasts
    } else if explains(unreturned_bytes) {
        TrimConclusion::Burst
    } else if explains(pinned_bytes) && arenas > FEW_ARENAS {
        TrimConclusion::Spread
    } else {
        TrimConclusion::InUse
    };
    TrimWatch {
        samples,
        seconds,
        came_back_bytes,
        came_back_as: grown(&before.causes, &after.causes),
        unreturned_bytes,
        pinned_bytes,
        arenas: arenas as u64,
        conclusion,
    }
}

/// The growth of causes beyond the state that the trim left.
fn grown(before: &Causes, after: &Causes) -> Vec<CauseRow> {
    let grown_by = |cause: Cause| match cause {
        // The trim returned all of it.
        Cause::MallocUnreturned => after[cause],
        _ => after[cause].saturating_sub(before[cause]),
    };
    let rows = Cause::ALL.iter().map(|&cause| CauseRow { cause, bytes: grown_by(cause) });
    let mut rows: Vec<CauseRow> = rows.filter(|row| row.bytes > 0).collect();
    rows.sort_by_key(|row| Reverse(row.bytes));
    rows
}
