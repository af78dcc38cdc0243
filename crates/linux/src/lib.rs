#![doc = include_str!("../README.md")]

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
pub use clocks::{Clocks, TickSource};
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
