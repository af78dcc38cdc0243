//! A process tree over time: what a recorder writes down of it, line by line, and what follows from that.
//!
//! A [`Recording`] is a file of [`Line`]s, which [`Line::to_json`] makes one by one and
//! [`Recording::from_bytes`] reads. Everything here is a pure function of what was read: no clock, no files.

mod csv;
mod model;
mod pace;
mod plot;
mod recording;
mod series;
mod stable;
mod text;

pub use csv::{CSV_HEAD, csv_line};
pub use model::{
    Causes, End, Failure, Gone, Group, Line, Process, ProcessSample, SCHEMA, Sample, Start,
};
pub use pace::Pace;
pub use plot::Plot;
pub use recording::{Recording, RecordingError};
pub use series::{Basis, Series};
pub use stable::{Confidence, Early, Shape, Slope, StablePoint, Teeth};
pub use text::{duration, minute, sparkline, top_causes};
