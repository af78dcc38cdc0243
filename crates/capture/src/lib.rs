//! The memory of another process at one instant.
//!
//! A *capture* yields an [`Image`]: a [`ProcessState`] (mappings, page states, threads: the kernel's account) and the
//! process's memory, read on demand through [`Memory`]. Walkers of allocators and of Ruby see nothing else, so they
//! work alike on a stopped process ([`freeze`]), a running one ([`look`]), a core file ([`open_core`]), and the
//! synthetic heaps of tests. The crate `inferior` adds images of forked copies.
//!
//! Page states are read before any memory, since reading an absent page would map it in.
//!
//! This crate knows neither Ruby nor malloc. Only this crate and `inferior` may use `unsafe` and ptrace, and nothing
//! here makes the target run code.

mod address;
mod address_map;
pub mod arch;
mod both;
mod call;
mod core;
mod each;
pub mod elf;
mod error;
mod finding;
mod image;
pub mod live;
mod machine;
mod mapping;
mod memory;
mod own_memory;
mod page_cache;
mod pages;
pub mod proc;
mod sparse_rows;
mod sysroot;
mod text;

pub use address::{Address, intersection, length, range_at};
pub use address_map::AddressMap;
pub use both::both;
pub use call::{Argument, SystemCall};
pub use core::{Core, CoreFile, open_core, read_core};
pub use each::each;
pub use error::Error;
pub use finding::{Finding, Severity};
pub use image::{Image, Origin, ProcessInfo, ProcessState, Source, Thread};
pub use live::{
    Frozen, PATIENCE, PauseFactors, Target, Thawed, check, freeze, freeze_target, look,
};
pub use machine::{MIN_PAGE_SIZE, Machine};
pub use mapping::{Backing, Mapping, Mappings};
pub use memory::{Memory, Unreadable, Window};
pub use own_memory::return_freed_memory;
pub use pages::{PageRun, PageState, Pages};
pub use proc::Identity;
pub use sparse_rows::{SparseRows, insert_each};
pub use sysroot::Sysroot;
pub use text::{is_control, one_line};
