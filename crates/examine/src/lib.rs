#![doc = include_str!("../README.md")]
//!
//! - `process` finds the process that a name means, and `source` opens it, a snapshot or a core.
//! - `attempts` chooses a method of capture, and the next one if that fails, `max_pause` its limit. `exclusion` lets one capture run at a time.
//! - `sandbox` gives up rights before an analysis. `isolation` turns a panic into the failure of one process.
//! - `family` accounts for processes that were forked from each other, `watch` observes growth by code, `kept` new objects that stay, `trimming` trims.
//! - `dumps` writes and compares the files of heaps.
//! - `rubies` and `list` have the Ruby processes of this machine.

mod allocator_call;
mod attempts;
mod containers;
mod dumps;
mod error;
mod exclusion;
mod family;
mod interruption;
mod isolation;
mod kept;
mod list;
mod max_pause;
mod name;
mod options;
mod process;
mod progress;
mod rubies;
mod samples;
mod sandbox;
mod source;
mod trimming;
mod watch;

pub use allocator_call::AllocatorCall;
pub use attempts::{no_copy, own_bytes};
pub use containers::Containers;
pub use dumps::{DumpFiles, Dumps, NotDumped};
pub use error::{Error, Purpose, about};
pub use exclusion::{one_at_a_time, wait_if_ending};
pub use family::{FamilyAccount, FamilyMembers};
pub use inferior::{Refusal, TraceFailure};
pub use interruption::handle_signals;
pub use isolation::{defect, isolated, panic_if_requested, set_panic_hook, without_panic};
pub use kept::{KeptLines, KeptRecording, KeptWatch, Sampled};
pub use list::list;
pub use max_pause::{LARGEST as LARGEST_MAX_PAUSE, enough_for as max_pause_for};
pub use name::{ProcessName, SourceName};
pub use options::{CaptureMode, CaptureOptions, Detail};
pub use process::{Id, command, open, ruby, target};
pub use progress::Progress;
pub use rubies::{Intervals, Listed, Rubies};
pub use sampler::NoStacks;
pub use samples::{Samples, read_kept};
pub use sandbox::{Sandbox, SandboxOptions};
pub use source::{SnapshotFile, Source, report_of, report_of_file, snapshot_of, snapshots};
pub use trimming::{causes_of, predict, trim};
pub use watch::{End, GrowthWatch, Note, Watch, Watched};
