//! One run of a comparison.

use std::time::{Duration, Instant};

use formats::Run;

use crate::Error;
use crate::load::parse_load;
use crate::measured_program::{LoadOutcome, MeasuredProgram, ResourceUsage, WatchEnd};
use crate::signals::Signals;

/// The longest wait for a server to become idle before its load begins.
const BOOT: Duration = Duration::from_secs(60);
/// The longest wait for a command without a load to finish its work.
const WORK: Duration = Duration::from_secs(24 * 3600);

/// The way to measure a program that was started under a setting.
pub struct RunPlan<'a> {
    /// The name of the setting.
    pub setting: &'a str,
    /// The number of the run under this setting.
    pub number: u32,
    /// A shell command that puts load on the program.
    pub load: Option<&'a str>,
    /// The time between the end of the work and the last measurement.
    pub settle: Duration,
    /// Trims the processes of the program after the work. Returns true if there was one to trim.
    pub trim: Option<&'a dyn Fn(&MeasuredProgram<'_>) -> bool>,
}

/// The outcome of a run.
pub enum Measured {
    /// Its figures.
    Run(Box<Run>),
    /// The reason why it has none.
    Failed(String),
    /// A signal ended it.
    Interrupted,
}

impl RunPlan<'_> {
    /// Measures a program until its work is done and the memory has settled, and ends it.
    ///
    /// # Errors
    /// If signals cannot be received, or a load cannot be started.
    pub fn measure(
        &self,
        mut program: MeasuredProgram<'_>,
        signals: &Signals,
    ) -> Result<Measured, Error> {
        let boot = if self.load.is_some() { BOOT } else { WORK };
        let until = program.watch(boot, true, signals)?;
        let done = match until {
            WatchEnd::Idle(since) => since,
            _ => Instant::now(),
        };
        let mut load = None;
        let mut wall = program.since_start(done);
        let mut before = program.usage();
        if let Some(line) = self.load
            && matches!(until, WatchEnd::Idle(_) | WatchEnd::Over)
        {
            match program.put_load(line, signals)? {
                LoadOutcome::Interrupted => return Ok(Measured::Interrupted),
                LoadOutcome::Failed(why) => return Ok(Measured::Failed(why)),
                LoadOutcome::Done(took, printed) => match parse_load(&printed) {
                    Ok(measured) => (load, wall) = (Some(measured), took),
                    Err(error) => return Ok(Measured::Failed(error.to_string())),
                },
            }
        } else {
            before = ResourceUsage::default();
        }
        if until == WatchEnd::Interrupted {
            return Ok(Measured::Interrupted);
        }
        if let Some(why) = program.failure() {
            return Ok(Measured::Failed(why));
        }
        if until == WatchEnd::Ended && self.load.is_some() {
            return Ok(Measured::Failed(
                "the command ended before the load began: it must keep running, or leave a daemon"
                    .into(),
            ));
        }
        let used = program.usage();
        let rss_end_bytes = program.rss_bytes();
        let peak = program.samples.iter().map(|sample| sample.rss_bytes).max().unwrap_or(0);
        let mut rss_settled_bytes = None;
        if until != WatchEnd::Ended {
            if self.trim.is_some_and(|trim| !trim(&program)) {
                let why = "cannot trim: the command has no Ruby process whose allocator can return memory";
                return Ok(Measured::Failed(why.into()));
            }
            match program.watch(self.settle, false, signals)? {
                WatchEnd::Interrupted => return Ok(Measured::Interrupted),
                WatchEnd::Ended => {}
                WatchEnd::Idle(_) | WatchEnd::Over => rss_settled_bytes = Some(program.rss_bytes()),
            }
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Measured::Run(Box::new(Run {
            setting: self.setting.into(),
            number: self.number,
            rss_peak_bytes: peak.max(rss_end_bytes),
            rss_end_bytes,
            rss_settled_bytes,
            wall_ms: ms(wall),
            user_ms: ms(used.user.saturating_sub(before.user)),
            system_ms: ms(used.system.saturating_sub(before.system)),
            minor_faults: used.minor_faults.saturating_sub(before.minor_faults),
            major_faults: used.major_faults.saturating_sub(before.major_faults),
            load,
            samples: std::mem::take(&mut program.samples),
        })))
    }
}
