//! The same work under each allocator and setting: what was measured ([`Run`]), what that comes to
//! ([`Comparison`]), and which setting to take ([`Recommendation`]).
//!
//! Nothing here starts a process or looks at a clock: whoever ran the work says what came of it. The JSON of a
//! comparison is part of rbloat's stable interface, described in docs/json.md.

mod comparison;
mod load;
mod recommendation;
mod setting;
mod statistics;
mod text;

pub use comparison::{
    Comparison, Failed, Medians, Missing, Question, Run, Sample, SettingPart, Spread,
};
pub use load::{Load, LoadError};
pub use recommendation::{Confidence, Recommendation};
pub use setting::{Environment, Setting};
pub use statistics::{Difference, compare, median};
