//! What rbloat says of a process: the JSON model, which is its stable interface, and its text.

mod canvas;
mod diff;
mod map;
mod model;
mod snapshot;
mod text;
mod trim;

pub use canvas::{Anchor, Canvas, Letters};
pub use diff::{
    ArenaChange, CauseChange, ClassChange, Diff, DiffKind, DiffVerdict, OwnerChange, Point, Series,
};
pub use map::{PALETTE, escape};
pub use model::{
    AdvicePart, AllocatorStatistics, Arena, Capture, CaptureMethod, CauseRow, Class, FindingPart,
    KeptBy, Malloc, Owner, Process, Report, Ruby, SCHEMA, VerdictPart,
};
pub use snapshot::{FORMAT, Snapshot, SnapshotError};
pub use text::{ListedProcess, TextOptions, render_processes};
pub use trim::{Expectation, Outcome, Sample, TrimReport, Watch};
