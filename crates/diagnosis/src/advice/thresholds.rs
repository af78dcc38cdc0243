//! Steps against variables that let glibc keep free memory.

use formats::{Action, Advice};
use ledger::{Cause, Ledger};

use super::worth::{is_worth, step};

/// glibc gives larger blocks mappings of their own, unless a setting raises this bound (`DEFAULT_MMAP_THRESHOLD_MAX` of malloc.c).
const MAX_MMAP_THRESHOLD: u64 = 32 << 20;

/// The end of the main heap that two settings let glibc keep: free memory below the threshold, or of the padding.
pub(super) fn return_top(ledger: &Ledger) -> [Option<Advice>; 2] {
    let of = |setting: fn(&ledger::Thresholds) -> u64, names| {
        let malloc = ledger.malloc.as_ref()?;
        let threshold_bytes = setting(&malloc.tuning?.thresholds?);
        let top_bytes = malloc.top_bytes;
        let keeps_it = threshold_bytes >= top_bytes && is_worth(ledger, top_bytes);
        let variable = variable(ledger, names).filter(|_| keeps_it)?;
        Some(step(Action::ReturnTop { variable, threshold_bytes, bytes: top_bytes }))
    };
    [
        of(|it| it.trim_bytes, ("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold")),
        of(|it| it.top_pad_bytes, ("MALLOC_TOP_PAD_", "glibc.malloc.top_pad")),
    ]
}

/// Large blocks in the heap: free memory inside of it returns only by a trim.
pub(super) fn map_large_blocks(ledger: &Ledger) -> Option<Advice> {
    let malloc = ledger.malloc.as_ref()?;
    let threshold_bytes = malloc.tuning?.thresholds?.mmap_bytes;
    let inside = ledger.causes[Cause::MallocUnreturned].saturating_sub(malloc.top_bytes);
    let names = ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold");
    let is_raised = threshold_bytes > MAX_MMAP_THRESHOLD && is_worth(ledger, inside);
    let variable = variable(ledger, names).filter(|_| is_raised)?;
    Some(step(Action::MapLargeBlocks { variable, threshold_bytes }))
}

/// The variable that has a setting, which has two names: one of its own, and one among glibc's tunables.
fn variable(ledger: &Ledger, (name, tunable): (&str, &str)) -> Option<String> {
    let tunables = ledger.process.variable("GLIBC_TUNABLES").unwrap_or_default();
    let is_tuned = tunables.split(':').any(|it| it.split('=').next() == Some(tunable));
    match ledger.process.variable(name) {
        Some(_) => Some(name.into()),
        None => is_tuned.then(|| format!("{tunable} in GLIBC_TUNABLES")),
    }
}
