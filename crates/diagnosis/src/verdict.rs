use formats::{Confidence, Verdict};
use ledger::{Cause, Ledger, percent};

/// The least size of a cause that a verdict names, in bytes: a fresh Ruby has its parts too.
pub const MIN_BYTES: u64 = 48 << 20;
/// The least share of RSS of a cause that a verdict names, in percent.
pub const MIN_SHARE: f64 = 25.0;

/// The candidates for a verdict: groups of causes that mean the same to a user.
const SUSPECTS: [&[Cause]; 14] = [
    &[Cause::MallocUnreturned],
    &[Cause::MallocFragmented],
    &[Cause::MallocTop, Cause::MallocCached],
    &[Cause::RubyLiveSlots, Cause::RubyMalloc],
    &[Cause::RubyFreeSlots],
    &[Cause::StackThreads, Cause::StackFibers],
    &[Cause::FilePrivate, Cause::FileShared],
    &[Cause::NativeHeld],
    &[Cause::NativeUnreachable],
    &[Cause::NativeGlobal],
    &[Cause::RubyVm],
    &[Cause::MallocInUse],
    &[Cause::RubyJit],
    &[Cause::Unknown],
];

/// Returns the verdict on a ledger: the suspect with the most bytes if it exceeds [`MIN_BYTES`] and [`MIN_SHARE`],
/// else that the process is healthy.
#[must_use]
pub fn judge(ledger: &Ledger) -> Verdict {
    // The first one of several equal suspects.
    let suspect = SUSPECTS.iter().rev().max_by_key(|causes| ledger.sum(causes));
    let causes = suspect.expect("there are suspects");
    let bytes = ledger.sum(causes);
    let share = percent(bytes, ledger.rss_bytes);
    if bytes < MIN_BYTES || share < MIN_SHARE {
        let confidence = best_confidence(ledger);
        return Verdict { cause: None, rows: vec![], bytes: ledger.rss_bytes, confidence };
    }
    let rows: Vec<Cause> =
        causes.iter().copied().filter(|&cause| ledger.causes[cause] > 0).collect();
    let cause = rows.iter().rev().copied().max_by_key(|&cause| ledger.causes[cause]);
    let confidence = match best_confidence(ledger) {
        // It is certain that these bytes are in use, but not who uses them.
        Confidence::High if cause == Some(Cause::MallocInUse) || share < 50.0 => Confidence::Medium,
        best => best,
    };
    Verdict { cause, rows, bytes, confidence }
}

/// The highest confidence that a verdict on this ledger can have.
fn best_confidence(ledger: &Ledger) -> Confidence {
    let is_unread = ledger.malloc.is_none() || ledger.ruby.is_none();
    let unknown = percent(ledger.causes[Cause::Unknown], ledger.rss_bytes);
    match ledger.is_estimated {
        _ if is_unread || unknown > MIN_SHARE => Confidence::Low,
        true => Confidence::Medium,
        false => Confidence::High,
    }
}
