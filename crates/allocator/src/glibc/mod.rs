//! The heap of the GNU C library's malloc, and the threads of that library.
//!
//! [`walk`] finds the main arena in the data of a stripped C library, follows the list of arenas, and goes
//! through every chunk. The totals equal what malloc_info(3) would print in the process.
//!
//! All memory may be wrong: a thread may have been stopped inside malloc, or a program may have overwritten its heap.
//! If the chunks, lists and counts of an arena do not agree, its chunks are left out with a [`Finding`](crate::Finding), and
//! the other arenas remain.

mod arena;
mod arena_list;
mod bins;
mod error;
mod fastbins;
mod heaps;
mod inconsistency;
mod layout;
mod lists;
mod main_heap;
mod mmapped;
mod parameters;
mod segment;
mod segment_walk;
mod state;
mod tcache;
mod thread_list;
mod totals;
mod trim;
mod walk;

#[cfg(test)]
mod tests;

pub(crate) use error::Error;
pub use heaps::{count_heaps, is_in_heap};
pub use thread_list::ThreadList;
pub(crate) use walk::walk;
