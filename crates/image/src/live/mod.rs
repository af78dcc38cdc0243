//! Images of live processes: while they run ([`look`]), and while they are stopped ([`freeze_target`]).
//!
//! A [`Target`] is a process that is examined. [`StoppedProcess`] and [`LiveMemory`] are the parts of which the crate `inferior` makes
//! images of forked copies.

mod copied;
mod frozen;
mod memory;
mod stopped;
mod target;

pub use frozen::{Copied, Frozen, Thawed, freeze, freeze_target};
pub use memory::LiveMemory;
pub use stopped::StoppedProcess;
pub use target::{Target, look};
