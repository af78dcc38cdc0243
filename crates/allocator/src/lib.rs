#![doc = include_str!("../README.md")]

mod blocks;
mod candidate_mappings;
mod find;
mod finding;
mod glibc;
mod heap_map;
mod jemalloc;
mod mimalloc;
mod module_data;
mod musl;
mod structures;
mod tcmalloc;
mod threads;
mod trim_call;
mod walk;

pub use blocks::Blocks;
pub use find::{Allocator, Libc, ServingAllocator, find_allocator, is_glibc, libc};
pub use finding::{ArenaProblem, Finding};
pub use glibc::{ThreadList, count_heaps, is_in_heap};
pub use heap_map::{
    Arena, Block, BlockState, Decay, Extent, ExtentState, Header, HeapMap, Thresholds, Totals,
    Tuning,
};
pub use threads::{thread_locals, thread_stacks};
pub use trim_call::TrimCall;
pub use walk::{Error, walk};
