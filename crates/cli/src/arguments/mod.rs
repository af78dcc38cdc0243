//! The arguments that several commands share.

mod format;
mod platform;
mod samples;
mod size;
mod source;
mod time;

pub(crate) use format::{check_extension, format_of};
pub(crate) use platform::PlatformName;
pub(crate) use samples::SamplesArguments;
pub(crate) use size::parse_size;
pub(crate) use source::{
    CaptureArguments, ProcessArguments, RetainedArguments, SandboxArguments, SourceArguments,
    WasteArguments,
};
pub(crate) use time::{
    parse_date, parse_long_time, parse_short_time, parse_time, parse_time_or_never,
};
