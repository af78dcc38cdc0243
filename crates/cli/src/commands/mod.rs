//! The commands, one file for each. A command turns its arguments into calls of the other crates, and prints.

pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod plot;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod trim;
