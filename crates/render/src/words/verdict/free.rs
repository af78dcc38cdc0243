//! The verdict on free memory, in words.

use formats::{Action, Arena, Report};
use ledger::{Cause, Count, Size, percent};

use super::figures::{MIN_PART_BYTES, by_cause, bytes};
use crate::words::{counted, keeps_pages_forever, process, total, trim_call};

/// The least share of the fragmented memory that an owner must keep to be named, in percent.
const MIN_PIN_SHARE: f64 = 10.0;

/// The sentence, the evidence and the check for free memory of several kinds, none of which explains the process.
pub(super) fn free(report: &Report) -> (String, Vec<String>, String) {
    let parts = by_cause(report, &report.verdict.rows);
    let mut evidence = arena_evidence(report);
    evidence.extend(slot_evidence(report));
    let check = match trim_call(report) {
        Some(_) => format!(
            "`rbloat trim {}` should free about {}.",
            process(report),
            Size(trim_yield(report))
        ),
        None => "the next work in the process should use this memory first.".into(),
    };
    let size = Size(report.verdict.bytes);
    (format!("{size} are free, but still resident: {parts}. This is not a leak."), evidence, check)
}

/// The setting that lets the allocator keep free pages, as the end of a clause; empty without it.
pub(super) fn kept_on_purpose(report: &Report) -> String {
    match keeps_pages_forever(report) {
        true => " forever, because its setting dirty_decay_ms is -1".into(),
        false if is_locked(report) => ", which are locked in memory (mlock or mlockall)".into(),
        false => kept_top(report).unwrap_or_default(),
    }
}

/// The variable that lets glibc keep the free end of its heap, if that has most of the free pages.
fn kept_top(report: &Report) -> Option<String> {
    let most = bytes(report, Cause::MallocUnreturned) / 2;
    report.advice.iter().find_map(|step| match &step.action {
        Action::ReturnTop { variable, bytes, .. } if *bytes > most => {
            Some(format!(", most of them at the end of its heap because of {variable}"))
        }
        _ => None,
    })
}

/// Returns true if most free pages cannot be returned because they are locked.
fn is_locked(report: &Report) -> bool {
    let free = bytes(report, Cause::MallocUnreturned);
    report.process.locked_bytes > 0 && trim_yield(report) < free / 2
}

pub(super) fn trim_yield(report: &Report) -> u64 {
    report.malloc.as_ref().map_or(0, |malloc| malloc.trim_yield_bytes)
}

pub(super) fn arena_evidence(report: &Report) -> Vec<String> {
    let (Some(malloc), Some(arenas)) = (&report.malloc, &report.arenas) else { return vec![] };
    let mut evidence = vec![
        format!(
            "malloc has allocated {} in {}, and has {} free in {}, resident or not",
            Size(total([malloc.in_use_bytes, malloc.mmapped_bytes])),
            counted(total([malloc.in_use_chunks, malloc.mmapped_chunks]), "chunk"),
            Size(total([malloc.free_bytes, malloc.fastbin_bytes])),
            counted(arenas.len() as u64, "arena")
        ),
        match (trim_call(report), Size(bytes(report, Cause::MallocFragmented))) {
            (Some(call), pinned) => format!(
                "{call} would return {}; another {pinned} share pages with memory in use",
                Size(malloc.trim_yield_bytes)
            ),
            (None, pinned) => {
                format!(
                    "rbloat knows no function of {} that returns memory, and {pinned} are pinned",
                    report.process.allocator
                )
            }
        },
    ];
    if malloc.trim_deferred_bytes > 0 {
        evidence.push(format!(
            "{} of that are in huge pages that are also in use: RSS falls at once, but the kernel frees them only when \
             it splits the huge pages",
            Size(malloc.trim_deferred_bytes)
        ));
    }
    evidence.extend(pin_evidence(report));
    let free = |arena: &&Arena| {
        let Arena { unreturned_bytes, muzzy_bytes, fragmented_bytes, top_bytes, .. } = **arena;
        total([unreturned_bytes, muzzy_bytes, fragmented_bytes, top_bytes])
    };
    if let Some(largest) = arenas.iter().max_by_key(free)
        && arenas.len() > 1
    {
        let name = if largest.main { "the main arena" } else { "an arena of threads" };
        evidence.push(format!(
            "the most free memory of one arena is {} ({name})",
            Size(free(&largest))
        ));
    }
    evidence
}

/// What keeps most of the fragmented memory, if that is worth a line.
fn pin_evidence(report: &Report) -> Option<String> {
    let fragmented = bytes(report, Cause::MallocFragmented);
    let pin = report.malloc.as_ref()?.pinned_by.first()?;
    let is_large = pin.bytes >= MIN_PART_BYTES && percent(pin.bytes, fragmented) >= MIN_PIN_SHARE;
    is_large.then(|| {
        format!(
            "{} of these are kept by {} of {}",
            Size(pin.bytes),
            counted(pin.blocks, "block"),
            pin.owner
        )
    })
}

pub(super) fn slot_evidence(report: &Report) -> Vec<String> {
    let Some(ruby) = &report.ruby else { return vec![] };
    vec![format!(
        "{} of {} are free, on {}",
        Count(ruby.slots_free),
        counted(total([ruby.slots_free, ruby.slots_live]), "slot"),
        counted(ruby.heap_pages, "heap page")
    )]
}
