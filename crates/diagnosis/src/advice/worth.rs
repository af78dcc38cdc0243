//! When memory is worth a step.

use formats::{Action, Advice};
use ledger::{Ledger, percent};

use crate::verdict::MIN_WASTE_BYTES;

/// The least saving that is worth a step, in bytes, and as a share of RSS in percent. [`MIN_WASTE_BYTES`] are worth one at any
/// share.
const MIN_BYTES: u64 = 16 << 20;
const MIN_SHARE: f64 = 10.0;
/// The least saving by a change of the program, at this share.
const MIN_ROOM_BYTES: u64 = 4 << 20;
/// The least share of RSS for steps that save an unknown part of it, in percent.
const MIN_MAIN_SHARE: f64 = 25.0;

pub(super) fn is_worth(ledger: &Ledger, bytes: u64) -> bool {
    bytes >= MIN_WASTE_BYTES || bytes >= MIN_BYTES && percent(bytes, ledger.rss_bytes) >= MIN_SHARE
}

/// Returns true for room of objects, or equal ones, that a report mentions. A change of the program saves it in small processes, too.
pub(super) fn is_worth_a_change(ledger: &Ledger, bytes: u64) -> bool {
    is_worth(ledger, bytes)
        || bytes >= MIN_ROOM_BYTES && percent(bytes, ledger.rss_bytes) >= MIN_SHARE
}

pub(super) fn is_main(ledger: &Ledger, bytes: u64) -> bool {
    bytes >= MIN_BYTES && percent(bytes, ledger.rss_bytes) >= MIN_MAIN_SHARE
}

/// A step whose savings are unknown.
pub(super) fn step(action: Action) -> Advice {
    Advice { action, saves_bytes: None }
}
