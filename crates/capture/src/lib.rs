//! The bytes of another process at one instant.
//!
//! A *capture* stops the target for a moment and yields an [`Image`]: its [`ProcessState`] (mappings,
//! page states, threads: what the kernel says) and its bytes, read on demand through [`Memory`].
//! Walkers for glibc and Ruby see nothing else, so they work alike on a stopped process, on a core
//! file ([`open_core`]), and on the synthetic heaps of the tests.
//!
//! Page states are read before any memory: reading an absent page would map it in.
//!
//! This crate knows neither Ruby nor malloc. It is the only one that may use `unsafe`, ptrace and
//! /proc.

mod address;
mod address_map;
pub mod arch;
mod core;
pub mod elf;
mod error;
mod finding;
mod image;
mod live;
mod mapping;
mod memory;
mod pages;
mod text;

pub use address::{Address, intersection, length};
pub use address_map::AddressMap;
pub use arch::PAGE_SIZE;
pub use core::{Core, CoreOptions, open_core};
pub use error::Error;
pub use finding::{Finding, Severity};
pub use image::{Image, Origin, Process, ProcessState, Source, Thread};
pub use live::{
    Argument, Called, Ended, ForkPlan, Forked, Frozen, GroupMemory, Member, PATIENCE, PauseFactors,
    Refusal, Rollup, Thawed, Tree, call, check, children, command_line, find_function, fork,
    freeze, group_memory, look, on_a_thread_of_its_own, own_cpu_time, pause_factors, processes,
    processes_by_namespace_pid, rollup, room_bytes, rss_bytes,
};
pub use mapping::{Backing, Mapping, Mappings};
pub use memory::{Memory, Unreadable, Window};
pub use pages::{PageRun, PageState, Pages};
pub use text::is_control;
