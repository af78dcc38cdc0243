//! The commands, one file for each, with its arguments. A command calls the other crates, and prints what they return.

pub(crate) mod agent;
pub(crate) mod archive;
pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod dump;
pub(crate) mod explain;
mod family;
mod family_diff;
mod kept;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod record;
pub(crate) mod recordings;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod top;
pub(crate) mod trim;
pub(crate) mod who;
pub(crate) mod why;
