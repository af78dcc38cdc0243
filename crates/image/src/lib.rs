#![doc = include_str!("../README.md")]

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
