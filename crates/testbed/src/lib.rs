//! What the tests of all crates share: real processes to look at, and synthetic memory.
//!
//! The writers of synthetic heaps share no layout with the readers that they test: a wrong layout
//! must not be able to agree with itself.

mod process;
mod synthetic;

pub use process::{Target, compile};
pub use synthetic::SyntheticMemory;
