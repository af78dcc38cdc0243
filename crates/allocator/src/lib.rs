//! Which allocator serves malloc in a process, and what its memory is used for.
//!
//! [`find_allocator`] answers the first question. [`glibc::walk`] answers the second one for the GNU C library.

pub mod glibc;
pub mod jemalloc;
mod library;

pub use library::{Allocator, Found, Libc, TrimCall, find_allocator, libc};
