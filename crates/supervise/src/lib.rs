#![doc = include_str!("../README.md")]

mod error;
mod installed_gem;
mod load;
mod measured_program;
mod orphans;
mod pace;
mod program_tree;
mod recorder;
mod run_plan;
mod signals;

pub use error::Error;
pub use installed_gem::installed_gem;
pub use measured_program::MeasuredProgram;
pub use orphans::Orphans;
pub use pace::{Allowance, Pace, SHARE_OF_CAUSES, SHARE_OF_LIMITS};
pub use recorder::{Journal, Recorder, RecorderOptions, Searches, Watcher, look, unix_ms};
pub use run_plan::{Measured, RunPlan};
pub use signals::{Event, Signals, end_by, exit_status, pass_on, stop_until_continued, terminate};
