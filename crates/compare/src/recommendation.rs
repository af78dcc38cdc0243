//! Which setting to take: a rule that anyone can check by the table.

use ledger::Size;
use serde::{Deserialize, Serialize};

use crate::{Medians, Setting, SettingPart, Spread};

/// A setting must save so much of what is left after the work, in per cent and in bytes, to be worth a change.
const LEAST_SAVING_PERCENT: f64 = 10.0;
const LEAST_SAVING_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// Work may take so much longer, or fewer requests be served, in per cent.
const MOST_SLOWER_PERCENT: f64 = 5.0;
/// Less is no difference: when work ends is seen some 50 ms later, in ms.
const LEAST_SLOWER_MS: f64 = 200.0;
/// The slowest hundredth of requests may take so much longer, in per cent.
const MOST_LATENCY_PERCENT: f64 = 15.0;
/// Among settings that save nearly as much as the best, this part of its saving, the simplest is taken.
const NEARLY: f64 = 0.9;

/// What to set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Recommendation {
    pub setting: String,
    pub how: String,
    pub saves_bytes: f64,
    pub saves_percent: f64,
    pub peak_percent: Option<f64>,
    pub slower_percent: Option<f64>,
    pub confidence: Confidence,
    pub summary: String,
    pub passed_over: Vec<String>,
}

/// How sure a recommendation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// By chance alone it would come out so at most once in twenty times.
    High,
    /// At most once in ten times: three runs of each can tell no more.
    Medium,
    /// Fewer runs than that.
    Low,
}

impl Confidence {
    /// Of settings that differ in every run.
    fn of(runs: u32, base_runs: u32) -> Self {
        match runs.min(base_runs) {
            0..=2 => Self::Low,
            3 => Self::Medium,
            _ => Self::High,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// A setting that saves enough, without costing too much.
struct Candidate<'a> {
    setting: Setting,
    medians: &'a Medians,
    saves_bytes: f64,
    slower_percent: Option<f64>,
}

impl Recommendation {
    /// The recommendation by the medians, the first of which are what the others are held against.
    pub(crate) fn of(settings: &[SettingPart], medians: &[Medians], has_load: bool) -> Self {
        let Some((base, others)) = medians.split_first() else {
            return Self::stay(None, "nothing was measured".into(), vec![]);
        };
        let mut passed_over = Vec::new();
        let mut candidates: Vec<Candidate<'_>> = Vec::new();
        for medians in others {
            match judge(settings, base, medians, has_load) {
                Ok(candidate) => candidates.push(candidate),
                Err(reason) => passed_over.push(format!("{}: {reason}", medians.setting)),
            }
        }
        let most = candidates.iter().map(|it| it.saves_bytes).fold(0.0, f64::max);
        // In the order of settings: the simplest comes first.
        candidates.sort_by(|one, other| one.setting.cmp(&other.setting));
        let Some(best) = candidates.iter().find(|it| it.saves_bytes >= NEARLY * most) else {
            let reason = if others.is_empty() {
                "no other setting was tried".to_owned()
            } else {
                "no setting saves 10 % of what is left, and costs little".to_owned()
            };
            return Self::stay(Some(base), reason, passed_over);
        };
        for other in candidates.iter().filter(|it| it.setting != best.setting) {
            passed_over.push(format!(
                "{}: saves {}, {} than {}",
                other.setting.name(),
                Size(other.saves_bytes as u64),
                if other.saves_bytes >= NEARLY * most { "hardly more" } else { "less" },
                best.setting.name()
            ));
        }
        best.recommend(base, passed_over)
    }

    fn stay(base: Option<&Medians>, reason: String, passed_over: Vec<String>) -> Self {
        let setting = base.map_or("default", |base| base.setting.as_str());
        Self {
            setting: setting.to_owned(),
            how: Setting::Default.how(),
            saves_bytes: 0.0,
            saves_percent: 0.0,
            peak_percent: None,
            slower_percent: None,
            confidence: base.map_or(Confidence::Low, |base| Confidence::of(base.runs, base.runs)),
            summary: format!("Leave it as it is: {reason}."),
            passed_over,
        }
    }
}

/// Whether a setting saves enough and costs little; otherwise why not, in words.
fn judge<'a>(
    settings: &[SettingPart],
    base: &Medians,
    medians: &'a Medians,
    has_load: bool,
) -> Result<Candidate<'a>, String> {
    let setting = settings.iter().find(|part| part.setting == medians.setting).map(Setting::of);
    let setting = setting.ok_or_else(|| "is none of the settings".to_owned())?;
    let left = medians.left_bytes();
    let saves_bytes = base.left_bytes().median - left.median;
    let saves_percent = left.differs_percent.map_or(0.0, |percent| -percent);
    if left.differs_percent.is_none() {
        return Err("what is left differs within the noise only".into());
    }
    if saves_percent < LEAST_SAVING_PERCENT || saves_bytes < LEAST_SAVING_BYTES {
        return Err(if saves_bytes > 0.0 {
            format!("saves {} only ({saves_percent:.0} %)", Size(saves_bytes as u64))
        } else {
            format!("leaves {} more", Size(-saves_bytes as u64))
        });
    }
    if medians.failures.unwrap_or(0) > base.failures.unwrap_or(0) {
        return Err(format!("{} requests failed", medians.failures.unwrap_or(0)));
    }
    let slower_percent = if has_load {
        let differs = |spread: &Option<Spread>| spread.and_then(|spread| spread.differs_percent);
        if let Some(percent) = differs(&medians.p99_ms)
            && percent > MOST_LATENCY_PERCENT
        {
            return Err(format!("the slowest hundredth of requests takes {percent:.0} % longer"));
        }
        differs(&medians.requests_per_second).map(|percent| -percent)
    } else {
        medians.wall_ms.differs_percent
    };
    // One run tells nothing of speed, nor does what is shorter than its end can be seen.
    let is_told = medians.runs > 1
        && (has_load || medians.wall_ms.median - base.wall_ms.median > LEAST_SLOWER_MS);
    match slower_percent {
        Some(percent) if percent > MOST_SLOWER_PERCENT && is_told => {
            Err(format!("saves {}, but is {percent:.0} % slower", Size(saves_bytes as u64)))
        }
        _ => Ok(Candidate { setting, medians, saves_bytes, slower_percent }),
    }
}

impl Candidate<'_> {
    fn recommend(&self, base: &Medians, passed_over: Vec<String>) -> Recommendation {
        let left = self.medians.left_bytes();
        let saves_percent = left.differs_percent.map_or(0.0, |percent| -percent);
        let peak_percent = self.medians.rss_peak_bytes.differs_percent;
        let confidence = Confidence::of(self.medians.runs, base.runs);
        let speed = match self.slower_percent {
            None => "as fast as before, within the noise".to_owned(),
            Some(percent) if percent > 0.0 => format!("{percent:.0} % slower"),
            Some(percent) => format!("{:.0} % faster", -percent),
        };
        let peak = match peak_percent {
            None => "the peak stays as it is".to_owned(),
            Some(percent) if percent > 0.0 => format!("the peak is {percent:.0} % higher"),
            Some(percent) => format!("the peak is {:.0} % lower", -percent),
        };
        Recommendation {
            setting: self.setting.name().into(),
            how: self.setting.how(),
            saves_bytes: self.saves_bytes,
            saves_percent,
            peak_percent,
            slower_percent: self.slower_percent,
            confidence,
            summary: format!(
                "Take {}: {}. It leaves {} instead of {} ({saves_percent:.0} % less); {peak}; {speed}.",
                self.setting.name(),
                self.setting.how(),
                Size(left.median as u64),
                Size(base.left_bytes().median as u64),
            ),
            passed_over,
        }
    }
}
