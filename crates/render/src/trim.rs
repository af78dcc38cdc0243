//! A trim as text.

use formats::{FamilyTrim, TrimConclusion, TrimExpectation, TrimReport, TrimWatch, WatchPoint};
use ledger::{Count, Size, percent};

use crate::report::severity;
use crate::words;

/// Returns the prediction of a trim in one line.
#[must_use]
pub fn trim_prediction(report: &TrimReport) -> String {
    let TrimExpectation { rss_bytes, returned_bytes, deferred_bytes } = &report.expected;
    let Some(returned) = returned_bytes else {
        return format!("calling {}; its effect cannot be predicted\n", report.function);
    };
    let deferred = match deferred_bytes {
        0 => String::new(),
        bytes => {
            format!("; the kernel frees {} of it only when it splits huge pages", kibibytes(*bytes))
        }
    };
    format!(
        "expected: RSS {} → {} (-{}) by {}{deferred}\n",
        kibibytes(*rss_bytes),
        kibibytes(rss_bytes.saturating_sub(*returned)),
        kibibytes(*returned),
        report.function,
    )
}

/// Returns the outcome of a trim in one line, and nothing for a dry run.
#[must_use]
pub fn trim_outcome(report: &TrimReport) -> String {
    let Some(outcome) = &report.outcome else { return String::new() };
    let (before, after) = (outcome.rss_bytes_before, outcome.rss_bytes_after);
    let sign = if after > before { "+" } else { "-" };
    let change = format!("{sign}{}", Size(after.abs_diff(before)));
    let of_prediction = match report.expected.returned_bytes {
        Some(expected) if expected > 0 => {
            format!(", {:.0} % of the prediction", percent(outcome.returned_bytes(), expected))
        }
        _ => String::new(),
    };
    let time = match outcome.returned {
        true if outcome.call_ms < 10.0 => format!("in {:.1} ms", outcome.call_ms),
        true => format!("in {:.0} ms", outcome.call_ms),
        false => {
            format!("not finished after {:.0} ms; the call continues by itself", outcome.call_ms)
        }
    };
    format!(
        "RSS {} → {} ({change}{of_prediction}) {time}; other threads kept running\n",
        Size(before),
        Size(after)
    )
}

/// Returns the trim of a member of a family in some lines.
#[must_use]
pub fn trim_of_member(report: &TrimReport) -> String {
    let TrimReport { pid, command, .. } = report;
    format!("{pid}  {command}\n{}{}\n", trim_prediction(report), trim_outcome(report))
}

/// Returns the trim of a family: its memory, and the problems.
#[must_use]
pub fn family_trim(report: &FamilyTrim) -> String {
    let findings = report.findings.iter();
    let line = |it| format!("{}: {}\n", severity(it), words::finding(it));
    let findings: String = findings.map(line).collect();
    format!("{}\n{findings}", family_trim_summary(report))
}

/// Returns the trim of a family in one sentence. Pages that members share are free only when the last one has returned them.
#[must_use]
pub fn family_trim_summary(report: &FamilyTrim) -> String {
    let FamilyTrim { members, expected_private_bytes: expected, pss_bytes_before: before, .. } =
        report;
    let number = crate::family::processes(members.len() as u64);
    match (report.pss_bytes_after, expected) {
        (None, None) => {
            format!("{number} with {} (PSS): the effect cannot be predicted", Size(*before))
        }
        (None, Some(expected)) => format!(
            "{number} with {} (PSS): a trim of all should return at least {}, the private part",
            Size(*before),
            Size(*expected)
        ),
        (Some(after), _) => {
            let sign = if after > *before { "+" } else { "-" };
            let change = Size(after.abs_diff(*before));
            format!("{number}: PSS {} → {} ({sign}{change})", Size(*before), Size(after))
        }
    }
}

/// Returns a trim in one sentence.
#[must_use]
pub fn trim_summary(report: &TrimReport) -> String {
    let line = match report.outcome {
        Some(_) => trim_outcome(report),
        None => trim_prediction(report),
    };
    line.trim_end().into()
}

/// Returns the development of RSS after a trim in some lines, and nothing if it was not watched.
#[must_use]
pub fn trim_watch(report: &TrimReport) -> String {
    let Some(watch) = &report.watch else { return String::new() };
    let mut text = String::new();
    for sample in shown(&watch.samples) {
        text += &format!("after {:>3.0} s: RSS {}\n", sample.seconds, Size(sample.rss_bytes));
    }
    let returned = report.outcome.as_ref().map_or(0, |outcome| outcome.returned_bytes());
    text + &conclusion(watch, returned) + "\n"
}

fn conclusion(watch: &TrimWatch, returned_bytes: u64) -> String {
    let came_back = watch.came_back_bytes;
    let first = format!(
        "{} of {} came back in {:.0} s ({:.0} %, {}/s).",
        Size(came_back),
        Size(returned_bytes),
        watch.seconds,
        percent(came_back, returned_bytes),
        Size((came_back as f64 / watch.seconds.max(0.001)) as u64)
    );
    let then = match watch.conclusion {
        TrimConclusion::Lasts => return format!("{first} The trim lasts so far."),
        TrimConclusion::Burst => {
            "A burst came and went, so a trim helps until the next one. An allocator that returns pages by itself \
             (jemalloc), or a trim after each burst, helps for longer."
        }
        TrimConclusion::Spread => {
            "The memory is spread over many arenas. Try fewer (MALLOC_ARENA_MAX=2, needs a restart), and compare with \
             this figure."
        }
        TrimConclusion::InUse => {
            "Most of it is in use: the program needs this memory, and no allocator changes that."
        }
    };
    format!(
        "{first} {} are free again in whole pages, and {} are free but pinned, in {} arenas. {then}",
        Size(watch.unreturned_bytes),
        Size(watch.pinned_bytes),
        watch.arenas
    )
}

/// The samples that are shown: those at times that double, and the last.
fn shown(samples: &[WatchPoint]) -> Vec<&WatchPoint> {
    let mut next = 0.0;
    let mut shown = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        if sample.seconds >= next || index + 1 == samples.len() {
            shown.push(sample);
            next = (sample.seconds * 1.9).max(0.9);
        }
    }
    shown
}

fn kibibytes(bytes: u64) -> String {
    format!("{} KiB", Count(bytes / 1024))
}
