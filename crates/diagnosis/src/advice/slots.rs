//! The steps against free slots on Ruby's heap pages.

use formats::{Action, Advice};
use ledger::{Cause, Ledger, RubyAccount};

use super::worth::{is_worth, step};

/// The variables for the least and the greatest part of all slots that the GC keeps free, with their defaults (gc.c, from 3.4 on
/// gc/default/default.c; the same from 2.7 to 3.4). The greatest one must be above the least one.
const MIN_FREE_SLOTS: (&str, f64) = ("RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO", 0.2);
const MAX_FREE_SLOTS: (&str, f64) = ("RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO", 0.65);

/// The steps against free slots.
pub(super) fn against_free_slots(ledger: &Ledger) -> Vec<Option<Advice>> {
    let unset = unset_initial_slots(ledger);
    // What the first step saves includes the pages.
    let pages = free_pages(ledger).filter(|_| unset.is_none());
    vec![unset, keep_fewer_free_slots(ledger), pages, compact(ledger)]
}

fn unset_initial_slots(ledger: &Ledger) -> Option<Advice> {
    let ruby = ledger.ruby.as_ref()?;
    let variables = ruby.initial_slots.iter().map(|(name, _)| name.clone()).collect();
    let action = Action::UnsetInitialSlots { variables };
    let freed = empty_slots_beyond(kept_free_slots(|name| ledger.process.variable(name)), ruby);
    // From 4.0 on many of the pages have no slots yet.
    let bytes = free_slot_bytes(ledger, freed).saturating_add(ruby.page_bytes_free);
    let bytes = bytes.min(ledger.causes[Cause::RubyFreeSlots]);
    let saves_bytes = Some(bytes).filter(|bytes| is_worth(ledger, *bytes));
    (is_worth(ledger, ledger.causes[Cause::RubyFreeSlots])
        && keeps_most_free_slots(ruby.initial_slot_count(), ruby.slots_free))
    .then_some(Advice { action, saves_bytes })
}

/// The GC frees empty pages as long as more than a part of all slots are free. A variable may raise that part.
fn keep_fewer_free_slots(ledger: &Ledger) -> Option<Advice> {
    let ruby = ledger.ruby.as_ref()?;
    let kept = kept_free_slots(|name| ledger.process.variable(name));
    let default = kept_free_slots(|_| None);
    let freed = empty_slots_beyond(default, ruby).saturating_sub(empty_slots_beyond(kept, ruby));
    let bytes = free_slot_bytes(ledger, freed);
    let is_reason = !keeps_most_free_slots(ruby.initial_slot_count(), ruby.slots_free);
    let variables = vec![MAX_FREE_SLOTS.0.into()];
    (kept > default && is_reason && is_worth(ledger, bytes)).then_some(Advice {
        action: Action::UnsetInitialSlots { variables },
        saves_bytes: Some(bytes),
    })
}

/// Returns true if variables make the collector keep most of the free slots.
#[must_use]
pub fn keeps_most_free_slots(initial_slots: u64, free_slots: u64) -> bool {
    initial_slots > free_slots / 2
}

/// Ruby keeps pages without slots for those to come, whatever part of its slots is free. `Process.warmup` frees them, and the next
/// full collection returns them, unless there are several Ractors (`gc_sweep_finish` of 4.1).
fn free_pages(ledger: &Ledger) -> Option<Advice> {
    let ruby = ledger.ruby.as_ref()?;
    let bytes = ruby.page_bytes_free.min(ledger.causes[Cause::RubyFreeSlots]);
    let step = Advice { action: Action::FreePages, saves_bytes: Some(bytes) };
    (ruby.ractors <= 1 && is_worth(ledger, bytes)).then_some(step)
}

/// Compaction only moves objects: the GC frees empty pages as long as more slots are free than it keeps.
fn compact(ledger: &Ledger) -> Option<Advice> {
    let ruby = ledger.ruby.as_ref()?;
    let slots = ruby.slots_free + ruby.slots_live;
    let kept = kept_free_slots(|name| ledger.process.variable(name));
    let freed = slots_beyond(kept, ruby.slots_free, slots);
    let freed = freed.min(ruby.slots_free.saturating_sub(ruby.initial_slot_count()));
    let bytes = free_slot_bytes(ledger, freed);
    // Objects that structures of C refer to do not move, nor do the keys of `compare_by_identity`, so nobody knows how many pages get
    // empty.
    is_worth(ledger, bytes).then(|| step(Action::Compact))
}

/// Returns the part of all slots that the GC keeps free. It ignores values that are out of bounds, as `get_envparam_double` does.
fn kept_free_slots<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> f64 {
    let ratio = |(name, default): (&str, f64), least: f64| {
        let value = variable(name).and_then(|value| value.parse::<f64>().ok());
        value.filter(|&it| it > least && it <= 1.0).unwrap_or(default)
    };
    ratio(MAX_FREE_SLOTS, ratio(MIN_FREE_SLOTS, 0.0))
}

/// Returns the free slots of pages without an object that the GC frees. Whether others get empty may depend on the order of objects.
fn empty_slots_beyond(kept: f64, ruby: &RubyAccount) -> u64 {
    let empty = ruby.slots_free as f64 * ruby.slot_bytes_empty as f64;
    let empty = (empty / ruby.slot_bytes_free.max(1) as f64) as u64;
    slots_beyond(kept, ruby.slots_free, ruby.slots_free + ruby.slots_live).min(empty)
}

/// Returns the free slots whose pages the GC frees if they are empty: as many as leave the part `kept` of the others free.
fn slots_beyond(kept: f64, free: u64, slots: u64) -> u64 {
    // free - x = kept * (slots - x)
    let freed = (free as f64 - kept * slots as f64) / (1.0 - kept);
    // It is not a number if the GC keeps all slots.
    if kept < 1.0 { freed.clamp(0.0, free as f64) as u64 } else { 0 }
}

/// The resident bytes of a number of free slots.
fn free_slot_bytes(ledger: &Ledger, slots: u64) -> u64 {
    let all = ledger.ruby.as_ref().map_or(0, |ruby| ruby.slots_free);
    (ledger.causes[Cause::RubyFreeSlots] as f64 * slots as f64 / all.max(1) as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `GC.compact` was advised by the default alone.
    #[test]
    fn free_slots_beyond_the_setting_are_freed() {
        let kept = |least: &'static str, most: &'static str| {
            kept_free_slots(|name| {
                let value = if name == MIN_FREE_SLOTS.0 { least } else { most };
                Some(value).filter(|value| !value.is_empty())
            })
        };
        assert_eq!(kept("", ""), 0.65);
        assert_eq!(kept("", "0.9"), 0.9);
        assert_eq!(kept("", "1"), 1.0);
        for ignored in ["0.2", "0", "1.5", "-1", "0.5x"] {
            assert_eq!(kept("", ignored), 0.65, "{ignored}");
        }
        assert_eq!([kept("0.1", "0.15"), kept("0.5", "0.4"), kept("2", "0.3")], [0.15, 0.65, 0.3]);
        // 650 of 1,000 stay.
        assert_eq!(slots_beyond(0.65, 1_650, 2_000), 1_000);
        assert_eq!([slots_beyond(0.65, 600, 1_000), slots_beyond(1.0, 900, 1_000)], [0, 0]);
    }
}
