use formats::{CauseRow, Confidence, Report, Verdict};
use ledger::{Cause, CauseGroup, Ledger, percent};

/// The least size of a cause that a verdict names, in bytes: a fresh Ruby has its parts too.
pub const MIN_BYTES: u64 = 48 << 20;
/// The least share of RSS of a cause that a verdict names, in percent.
pub const MIN_SHARE: f64 = 25.0;

/// Returns true for groups that a verdict may name: overhead explains nothing by itself.
fn is_suspect(group: &CauseGroup) -> bool {
    *group != CauseGroup::Overhead
}

/// Returns the verdict on a ledger: the group of causes with the most bytes if it exceeds [`MIN_BYTES`] and [`MIN_SHARE`],
/// else that the process is healthy.
#[must_use]
pub fn judge(ledger: &Ledger) -> Verdict {
    let bytes_of =
        |group: &CauseGroup| -> u64 { group.causes().map(|cause| ledger.causes[cause]).sum() };
    // The first one of several equal groups.
    let groups = CauseGroup::ALL.into_iter().filter(is_suspect).rev();
    let group = groups.max_by_key(bytes_of).expect("there are groups");
    let bytes = bytes_of(&group);
    let share = percent(bytes, ledger.rss_bytes);
    if bytes < MIN_BYTES || share < MIN_SHARE {
        let confidence = best_confidence(ledger);
        return Verdict { cause: None, rows: vec![], bytes: ledger.rss_bytes, confidence };
    }
    let rows: Vec<Cause> = group.causes().filter(|&cause| ledger.causes[cause] > 0).collect();
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

/// Memory that serves no purpose of the program.
const USELESS: [CauseGroup; 4] = [
    CauseGroup::Unreturned,
    CauseGroup::Fragmented,
    CauseGroup::FreeSlots,
    CauseGroup::NativeUnreachable,
];

/// Returns the largest useless cause if it has [`MIN_SHARE`] of RSS. A process without a verdict that has one is too small for a
/// verdict, and not healthy.
#[must_use]
pub fn useless(report: &Report) -> Option<&CauseRow> {
    let rows = report.causes.iter().filter(|row| USELESS.contains(&row.cause.group()));
    let share = |row: &&CauseRow| percent(row.bytes, report.process.rss_bytes);
    rows.max_by_key(|row| row.bytes).filter(|row| share(row) >= MIN_SHARE)
}
