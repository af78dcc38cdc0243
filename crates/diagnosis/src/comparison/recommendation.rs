//! The rule by which a setting is recommended. docs/json.md states it; anyone can check it against the table.

use formats::{
    Confidence, Drawback, Medians, PassedOver, Reason, Recommendation, Spread, TriedSetting,
};

use crate::Setting;

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

/// A setting that saves enough memory at little cost.
struct Candidate<'a> {
    setting: Setting,
    medians: &'a Medians,
    saves_bytes: f64,
    slower_percent: Option<f64>,
}

/// Returns the recommendation for `medians`, the first of which is the baseline.
pub(super) fn recommend(
    settings: &[TriedSetting],
    medians: &[Medians],
    has_load: bool,
) -> Recommendation {
    let Some((base, others)) = medians.split_first() else {
        return keep("default", Confidence::Low, Reason::OnlyOne, vec![]);
    };
    let mut passed_over = Vec::new();
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for medians in others {
        let setting = settings.iter().find(|it| it.setting == medians.setting).map(Setting::of);
        match setting.map(|setting| judge(setting, base, medians, has_load)) {
            Some(Ok(candidate)) => candidates.push(candidate),
            Some(Err(because)) => {
                passed_over.push(PassedOver { setting: medians.setting.clone(), because });
            }
            None => {}
        }
    }
    let best_saving = candidates.iter().map(|it| it.saves_bytes).fold(0.0, f64::max);
    let is_near_best = |it: &Candidate<'_>| it.saves_bytes >= NEARLY * best_saving;
    // Settings are ordered from the simplest on.
    candidates.sort_by(|one, other| one.setting.cmp(&other.setting));
    let Some(best) = candidates.iter().find(|it| is_near_best(it)) else {
        let reason = if others.is_empty() { Reason::OnlyOne } else { Reason::NoneSaves };
        let confidence = confidence(base.runs, base.runs);
        return keep(&base.setting, confidence, reason, passed_over);
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
    best.recommend(base, passed_over)
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

/// The confidence in a difference that every run shows. By chance alone, such a difference appears in at most one
/// of 20 comparisons of four runs, and in one of ten comparisons of three.
fn confidence(runs: u32, base_runs: u32) -> Confidence {
    match runs.min(base_runs) {
        0..=2 => Confidence::Low,
        3 => Confidence::Medium,
        _ => Confidence::High,
    }
}

fn judge<'a>(
    setting: Setting,
    base: &Medians,
    medians: &'a Medians,
    has_load: bool,
) -> Result<Candidate<'a>, Drawback> {
    let left = medians.left_bytes();
    let saves_bytes = base.left_bytes().median - left.median;
    let Some(saves_percent) = left.differs_percent.map(|percent| -percent) else {
        return Err(Drawback::Noise);
    };
    if saves_percent < MIN_SAVING_PERCENT || saves_bytes < MIN_SAVING_BYTES {
        return Err(if saves_bytes > 0.0 {
            Drawback::SavesLittle { bytes: saves_bytes, percent: saves_percent }
        } else {
            Drawback::UsesMore { bytes: -saves_bytes }
        });
    }
    let failures = |medians: &Medians| medians.failures.unwrap_or(0);
    if failures(medians) > failures(base) {
        return Err(Drawback::FailedRequests { count: failures(medians) });
    }
    let slower_percent = if has_load {
        let differs = |spread: &Option<Spread>| spread.and_then(|spread| spread.differs_percent);
        if let Some(percent) = differs(&medians.p99_ms)
            && percent > MAX_LATENCY_PERCENT
        {
            return Err(Drawback::SlowerTail { percent });
        }
        differs(&medians.requests_per_second).map(|percent| -percent)
    } else {
        medians.wall_ms.differs_percent
    };
    // A single run says nothing about speed.
    let is_resolved = medians.runs > 1
        && (has_load || medians.wall_ms.median - base.wall_ms.median > MIN_SLOWER_MS);
    match slower_percent {
        Some(percent) if percent > MAX_SLOWER_PERCENT && is_resolved => {
            Err(Drawback::Slower { saves_bytes, percent })
        }
        _ => Ok(Candidate { setting, medians, saves_bytes, slower_percent }),
    }
}

impl Candidate<'_> {
    fn recommend(&self, base: &Medians, passed_over: Vec<PassedOver>) -> Recommendation {
        let left = self.medians.left_bytes();
        Recommendation {
            setting: self.setting.name().into(),
            reason: Reason::Saves,
            saves_bytes: self.saves_bytes,
            saves_percent: left.differs_percent.map_or(0.0, |percent| -percent),
            peak_percent: self.medians.rss_peak_bytes.differs_percent,
            slower_percent: self.slower_percent,
            confidence: confidence(self.medians.runs, base.runs),
            passed_over,
        }
    }
}
