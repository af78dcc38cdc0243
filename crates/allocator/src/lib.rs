//! Finds the allocator that serves malloc in a process, and reads its heap.
//!
//! [`find_allocator`] finds it. [`walk`] reads the heap into a [`HeapMap`], which has the same form for every
//! allocator. Each allocator has a module of its own: adding one takes a module and a line in [`walk`].
//!
//! ```no_run
//! let frozen = image::freeze(4242, linux::PATIENCE)?;
//! let modules = image::elf::modules(frozen.image());
//! let found = allocator::find_allocator(frozen.image(), &modules, None);
//! let stacks = allocator::thread_stacks(frozen.image(), &modules);
//! let heap = allocator::walk(frozen.image(), &found, &stacks)?;
//! println!("{} bytes are in use", heap.totals.in_use_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod candidate_mappings;
mod find;
mod finding;
mod glibc;
mod heap_map;
mod jemalloc;
mod module_data;
mod musl;
mod structures;
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
