//! The memory of another process at one instant.
//!
//! A *capture* yields an [`Image`]: a [`ProcessState`] (mappings, page states, threads: the kernel's account) and the
//! process's memory, read on demand through [`Memory`]. Walkers of allocators and of Ruby see nothing else, so they
//! work alike on a stopped process ([`freeze`]), a running one ([`look`]), a core file ([`open_core`]), and the
//! synthetic heaps of tests. The crate `inferior` adds images of forked copies.
//!
//! Page states are read before any memory, since reading an absent page would map it in.
//!
//! This crate knows neither Ruby nor malloc.

mod core;
pub mod elf;
mod finding;
mod image;
mod live;
mod memory;
mod page_cache;
mod sparse_rows;

pub use core::{Core, CoreError, CoreFile, open_core, read_core};
pub use finding::{DifferentFile, Finding, MissingFile};
pub use image::{Image, Origin, ProcessState, Source};
pub use live::{
    Copied, Frozen, LiveMemory, StoppedProcess, Target, Thawed, freeze, freeze_target, look,
};
pub use memory::{Memory, Unreadable, Window};
pub use sparse_rows::{SparseRows, insert_each};
