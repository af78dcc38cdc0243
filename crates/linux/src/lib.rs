//! What Linux says about processes, and does with them: /proc, control groups, page states, ptrace, perf and BPF.
//!
//! Every text and every number of /proc that a process controls is hostile: no length is trusted, and no name is an error. Reading
//! leaves the process as it is. What stops it ([`Stop`]) releases it, however rbloat ends.
//!
//! This crate knows neither Ruby nor malloc, and reads no memory of a process: the crate `image` does. Only this crate and
//! `inferior` may use `unsafe` and ptrace, and nothing here makes a process run code. `arch/` has the facts about each CPU.

mod address;
mod address_map;
pub mod arch;
mod both;
pub mod bpf;
mod call;
mod clocks;
mod companion;
mod each;
mod error;
mod machine;
mod mapping;
mod obstacle;
mod own_memory;
pub mod page_faults;
mod pagemap;
mod pages;
pub mod proc;
mod stop;
mod sysroot;
mod text;

pub use address::{Address, intersection, length, range_at};
pub use address_map::AddressMap;
pub use both::both;
pub use call::{Argument, SystemCall};
pub use clocks::Clocks;
pub use companion::{Companion, StopSignal};
pub use each::each;
pub use error::Error;
pub use machine::{MIN_PAGE_SIZE, Machine};
pub use mapping::{
    Backing, Mapping, Mappings, is_hugetlb_name, is_named_by_kernel, is_shared_memory,
};
pub use own_memory::return_freed_memory;
pub use pagemap::{PageFrame, PageScope, Pagemap, groups_of_frames, map_counts, page_frames};
pub use pages::{PageRun, PageState, Pages};
pub use proc::{Identity, MappingQuery, ProcessInfo, WantedVariables, check};
pub use stop::{
    BlockedSignals, PATIENCE, PauseFactors, ReadingPriority, RealTimePriority, Stop, Thread,
    ThreadStop, on_a_thread_of_its_own, tracee, unblock_signals,
};
pub use sysroot::{Sysroot, open_behind_proc};
pub use text::{is_control, one_line};
