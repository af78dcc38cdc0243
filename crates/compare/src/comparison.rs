use serde::{Deserialize, Serialize};

use crate::statistics::{Difference, compare, median};
use crate::{Load, Recommendation};

/// What `rbloat compare` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/json.md describes the fields, once for all readers")]
pub struct Comparison {
    pub schema: u32,
    pub command: Vec<String>,
    pub load: Option<String>,
    pub settle_seconds: f64,
    pub settings: Vec<SettingPart>,
    pub missing: Vec<Missing>,
    pub failed: Vec<Failed>,
    pub runs: Vec<Run>,
    pub medians: Vec<Medians>,
    pub recommendation: Recommendation,
}

/// A setting that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct SettingPart {
    pub setting: String,
    pub environment: Vec<(String, String)>,
}

/// A setting that could not be tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Missing {
    pub setting: String,
    pub needs: String,
}

/// A run that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Failed {
    pub setting: String,
    pub number: u32,
    pub why: String,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The load on it, a line of shell, if there was one.
    pub load: Option<String>,
    /// How long what is left was given to settle, in seconds.
    pub settle_seconds: f64,
}

/// One run of the work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Run {
    pub setting: String,
    pub number: u32,
    pub rss_peak_bytes: u64,
    pub rss_end_bytes: u64,
    pub rss_settled_bytes: Option<u64>,
    pub wall_ms: f64,
    pub user_ms: f64,
    pub system_ms: f64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub load: Option<Load>,
    pub samples: Vec<Sample>,
}

/// RSS at some time of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Sample {
    pub ms: f64,
    pub rss_bytes: u64,
}

/// The runs of one setting together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Medians {
    pub setting: String,
    pub runs: u32,
    pub rss_peak_bytes: Spread,
    pub rss_end_bytes: Spread,
    pub rss_settled_bytes: Option<Spread>,
    pub wall_ms: Spread,
    pub user_ms: Spread,
    pub system_ms: Spread,
    pub minor_faults: Spread,
    pub requests_per_second: Option<Spread>,
    pub failures: Option<u64>,
    pub p50_ms: Option<Spread>,
    pub p99_ms: Option<Spread>,
    pub max_ms: Option<Spread>,
}

/// A median, the least and the most of what was measured; and how that lies to the default's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "see Comparison")]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// `None` within the noise, or of the default itself: else how much more or less than the default's
    /// median, in per cent.
    pub differs_percent: Option<f64>,
}

impl Comparison {
    /// What so many runs come to. The first setting of all is what the others are held against.
    #[must_use]
    pub fn new(
        question: Question,
        settings: Vec<SettingPart>,
        missing: Vec<Missing>,
        runs: Vec<Run>,
        failed: Vec<Failed>,
    ) -> Self {
        let Question { command, load, settle_seconds } = question;
        let of =
            |setting: &str| runs.iter().filter(|run| run.setting == setting).collect::<Vec<_>>();
        let base = settings.first().map(|it| of(&it.setting)).unwrap_or_default();
        let medians: Vec<_> = settings
            .iter()
            .map(|it| (it.setting.clone(), of(&it.setting)))
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(setting, runs)| Medians::new(setting, &runs, &base))
            .collect();
        let recommendation = Recommendation::of(&settings, &medians, load.is_some());
        Self {
            schema: 1,
            command,
            load,
            settle_seconds,
            settings,
            missing,
            failed,
            runs,
            medians,
            recommendation,
        }
    }

    /// The comparison as JSON, one object, with a line's end.
    #[must_use]
    pub fn render_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self)
            .expect("a comparison has string keys and finite numbers");
        json.push('\n');
        json
    }
}

impl Medians {
    fn new(setting: String, runs: &[&Run], base: &[&Run]) -> Self {
        let is_base = base.first().is_some_and(|base| base.setting == setting);
        let spread = |of: &dyn Fn(&Run) -> Option<f64>| {
            let values: Option<Vec<f64>> = runs.iter().map(|run| of(run)).collect();
            let base: Option<Vec<f64>> = base.iter().map(|run| of(run)).collect();
            Spread::new(&values?, if is_base { None } else { base.as_deref() })
        };
        let number = |of: fn(&Run) -> f64| {
            spread(&|run| Some(of(run))).expect("there is a run, and each has the number")
        };
        let of_load = |of: fn(&Load) -> Option<f64>| spread(&|run| of(run.load.as_ref()?));
        Self {
            runs: runs.len() as u32,
            rss_peak_bytes: number(|run| run.rss_peak_bytes as f64),
            rss_end_bytes: number(|run| run.rss_end_bytes as f64),
            rss_settled_bytes: spread(&|run| run.rss_settled_bytes.map(|bytes| bytes as f64)),
            wall_ms: number(|run| run.wall_ms),
            user_ms: number(|run| run.user_ms),
            system_ms: number(|run| run.system_ms),
            minor_faults: number(|run| run.minor_faults as f64),
            requests_per_second: of_load(|load| load.requests_per_second),
            failures: runs.iter().map(|run| Some(run.load?.failures)).sum(),
            p50_ms: of_load(|load| load.p50_ms),
            p99_ms: of_load(|load| load.p99_ms),
            max_ms: of_load(|load| load.max_ms),
            setting,
        }
    }

    /// What is left when the work is done: after the time to settle, or at the end of a work that ended.
    #[must_use]
    pub fn left_bytes(&self) -> &Spread {
        self.rss_settled_bytes.as_ref().unwrap_or(&self.rss_end_bytes)
    }
}

impl Spread {
    fn new(values: &[f64], base: Option<&[f64]>) -> Option<Self> {
        let middle = median(values)?;
        let differs_percent = base.and_then(|base| match compare(base, values) {
            Difference::Noise => None,
            _ => median(base).filter(|&base| base > 0.0).map(|base| (middle / base - 1.0) * 100.0),
        });
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { median: middle, min, max, differs_percent })
    }
}
