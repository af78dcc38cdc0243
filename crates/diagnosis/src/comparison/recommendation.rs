//! The rule by which a setting is recommended. docs/json.md states it; anyone can check it against the table.

use formats::{
    Confidence, Drawback, Medians, PassedOver, Reason, Recommendation, Spread, TriedSetting,
};

use crate::Setting;
use crate::statistics::{FAMILY_ERROR, Method, median};

/// The least saving of memory that justifies a change, in percent and in bytes.
const MIN_SAVING_PERCENT: f64 = 10.0;
const MIN_SAVING_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// The greatest acceptable loss of speed, in percent.
const MAX_SLOWER_PERCENT: f64 = 5.0;
/// Smaller differences of time are not resolved: the end of the work is detected some 50 ms late.
const MIN_SLOWER_MS: f64 = 200.0;
/// The greatest acceptable rise of the 99th percentile of latency, in percent.
const MAX_LATENCY_PERCENT: f64 = 15.0;
/// A simpler setting is preferred if it saves this part of the best saving.
const NEARLY: f64 = 0.9;
/// The greatest probability of a difference by chance alone that allows more than the least confidence.
const MAX_CHANCE: f64 = 0.01;
/// With fewer runs, noise that has two levels is often mistaken for a difference.
const MIN_RUNS_OF_MEDIUM: usize = 3;

/// A setting's figures, and the memory that each of its runs left.
#[derive(Clone, Copy)]
struct Row<'a> {
    medians: &'a Medians,
    left: &'a [f64],
}

/// The reason why a setting is passed over, and the probability that it is wrong.
struct Objection {
    because: Drawback,
    p: f64,
}

/// A setting that saves enough memory at little cost.
struct Candidate<'a> {
    setting: Setting,
    medians: &'a Medians,
    saves_bytes: f64,
    slower_percent: Option<f64>,
    confidence: Confidence,
}

/// Returns the recommendation for `medians`. `left` has the memory that each run of these settings left. The first of
/// `settings` is the baseline.
pub(super) fn recommend(
    settings: &[TriedSetting],
    medians: &[Medians],
    left: &[Vec<f64>],
    has_load: bool,
) -> Recommendation {
    let name = settings.first().map_or("default", |it| &it.setting);
    let mut rows = medians.iter().zip(left).map(|(medians, left)| Row { medians, left });
    let Some(base) = rows.next().filter(|row| row.medians.setting == name) else {
        return keep(name, Confidence::Low, Reason::TooFewRuns, vec![]);
    };
    let others: Vec<Row<'_>> = rows.collect();
    if others.is_empty() {
        return keep(name, Confidence::Low, Reason::OnlyOne, vec![]);
    }
    let compared = others.iter().filter(|row| row.medians.left_bytes().p.is_some()).count();
    if compared == 0 {
        let because = |row: &Row<'_>| PassedOver {
            setting: row.medians.setting.clone(),
            because: Drawback::TooFewRuns,
        };
        let passed_over = others.iter().map(because).collect();
        return keep(name, Confidence::Low, Reason::TooFewRuns, passed_over);
    }
    let mut passed_over = Vec::new();
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    // The baseline is the best only if each of the objections holds.
    let mut objections = Confidence::High;
    for row in others {
        let Some(tried) = settings.iter().find(|it| it.setting == row.medians.setting) else {
            continue;
        };
        match judge(Setting::of(tried), base, row, compared, has_load) {
            Ok(candidate) => candidates.push(candidate),
            Err(Objection { because, p }) => {
                objections = objections.min(confidence(p, base, row, compared));
                passed_over.push(PassedOver { setting: row.medians.setting.clone(), because });
            }
        }
    }
    let best_saving = candidates.iter().map(|it| it.saves_bytes).fold(0.0, f64::max);
    let is_near_best = |it: &Candidate<'_>| it.saves_bytes >= NEARLY * best_saving;
    // Settings are ordered from the simplest on.
    candidates.sort_by(|one, other| one.setting.cmp(&other.setting));
    let Some(best) = candidates.iter().find(|it| is_near_best(it)) else {
        return keep(name, objections, Reason::NoneSaves, passed_over);
    };
    for other in candidates.iter().filter(|it| it.setting != best.setting) {
        let saves_bytes = other.saves_bytes;
        let because = if is_near_best(other) {
            Drawback::LessSimple { saves_bytes }
        } else {
            Drawback::SavesLess { saves_bytes }
        };
        passed_over.push(PassedOver { setting: other.setting.name().into(), because });
    }
    best.recommend(passed_over)
}

/// The recommendation to keep the baseline.
fn keep(
    setting: &str,
    confidence: Confidence,
    reason: Reason,
    passed_over: Vec<PassedOver>,
) -> Recommendation {
    Recommendation {
        setting: setting.into(),
        reason,
        saves_bytes: 0.0,
        saves_percent: 0.0,
        peak_percent: None,
        slower_percent: None,
        confidence,
        passed_over,
    }
}

/// The confidence in a statement that is wrong by chance alone with probability `p`, one of `compared`.
fn confidence(p: f64, base: Row<'_>, row: Row<'_>, compared: usize) -> Confidence {
    let (runs, base_runs) = (row.left.len(), base.left.len());
    match Method::choose(base_runs, runs, compared) {
        Some(Method::Ranks) if p <= MAX_CHANCE => Confidence::High,
        Some(Method::Ranks) if p <= FAMILY_ERROR => Confidence::Medium,
        Some(Method::Welch) if p <= MAX_CHANCE && runs.min(base_runs) >= MIN_RUNS_OF_MEDIUM => {
            Confidence::Medium
        }
        _ => Confidence::Low,
    }
}

/// The probability that a setting which seems to save too little saves enough. Every setting must pass, so that this
/// needs no correction for their number.
fn p_of_enough(base: Row<'_>, row: Row<'_>, compared: usize) -> f64 {
    let (Some(base_left), Some(left)) = (median(base.left), median(row.left)) else { return 1.0 };
    let enough = (base_left * MIN_SAVING_PERCENT / 100.0).max(MIN_SAVING_BYTES);
    if base_left <= enough {
        return 0.0;
    }
    let factor = 1.0 - enough / base_left;
    let target: Vec<f64> = base.left.iter().map(|bytes| bytes * factor).collect();
    match Method::choose(target.len(), row.left.len(), compared) {
        Some(method) if left > base_left - enough => method.p(&target, row.left),
        _ => 1.0,
    }
}

fn judge<'a>(
    setting: Setting,
    base: Row<'_>,
    row: Row<'a>,
    compared: usize,
    has_load: bool,
) -> Result<Candidate<'a>, Objection> {
    let (base_medians, medians) = (base.medians, row.medians);
    let left = medians.left_bytes();
    let saves_bytes = base_medians.left_bytes().median - left.median;
    let Some(p) = left.p else {
        return Err(Objection { because: Drawback::TooFewRuns, p: 1.0 });
    };
    let saves_percent = left.differs_percent.map(|percent| -percent);
    let too_little = match saves_percent {
        None => Some(Drawback::Noise),
        Some(percent) if percent >= MIN_SAVING_PERCENT && saves_bytes >= MIN_SAVING_BYTES => None,
        Some(percent) if saves_bytes > 0.0 => {
            Some(Drawback::SavesLittle { bytes: saves_bytes, percent })
        }
        Some(_) => Some(Drawback::UsesMore { bytes: -saves_bytes }),
    };
    if let Some(because) = too_little {
        return Err(Objection { because, p: p_of_enough(base, row, compared) });
    }
    let failures = |medians: &Medians| medians.failures.unwrap_or(0);
    if failures(medians) > failures(base_medians) {
        // It is not known whether the setting makes requests fail.
        let because = Drawback::FailedRequests { count: failures(medians) };
        return Err(Objection { because, p: 1.0 });
    }
    if has_load
        && let Some(Spread { differs_percent: Some(percent), p: Some(p), .. }) = medians.p99_ms
        && percent > MAX_LATENCY_PERCENT
    {
        return Err(Objection { because: Drawback::SlowerTail { percent }, p });
    }
    let speed = if has_load { medians.requests_per_second } else { Some(medians.wall_ms) };
    let differs_percent = speed.and_then(|it| it.differs_percent);
    let slower_percent =
        if has_load { differs_percent.map(|percent| -percent) } else { differs_percent };
    let slower_ms = medians.wall_ms.median - base_medians.wall_ms.median;
    match slower_percent {
        Some(percent)
            if percent > MAX_SLOWER_PERCENT && (has_load || slower_ms > MIN_SLOWER_MS) =>
        {
            let p = speed.and_then(|it| it.p).unwrap_or(1.0);
            Err(Objection { because: Drawback::Slower { saves_bytes, percent }, p })
        }
        _ => {
            let confidence = confidence(p, base, row, compared);
            Ok(Candidate { setting, medians, saves_bytes, slower_percent, confidence })
        }
    }
}

impl Candidate<'_> {
    fn recommend(&self, passed_over: Vec<PassedOver>) -> Recommendation {
        let left = self.medians.left_bytes();
        Recommendation {
            setting: self.setting.name().into(),
            reason: Reason::Saves,
            saves_bytes: self.saves_bytes,
            saves_percent: left.differs_percent.map_or(0.0, |percent| -percent),
            peak_percent: self.medians.rss_peak_bytes.differs_percent,
            slower_percent: self.slower_percent,
            confidence: self.confidence,
            passed_over,
        }
    }
}
