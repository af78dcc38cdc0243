//! glibc's malloc of another process: arenas, heaps, chunks, bins and tcaches as plain data,
//! walked out of an image.
//!
//! [`walk`] finds the main arena in the data of a stripped C library, follows it to all the others,
//! and goes through every chunk. What comes out, [`Malloc`], is a table of chunks with what each
//! is used for, and equals what malloc_info(3) would print within the process. [`find_allocator`] tells
//! beforehand whether glibc serves malloc there at all, and how the one that does gives memory back.
//!
//! Everything that is read may be wrong: a thread may have been stopped within malloc, a program
//! may have written over its heap. An arena whose chunks, lists and counts do not agree is left
//! out with a [`capture::Finding`], and the others stand.
//!
//! ```no_run
//! let frozen = capture::freeze(4242, capture::PATIENCE)?;
//! let malloc = glibc::walk(frozen.image())?;
//! println!("{} bytes are in use", malloc.totals().in_use_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod bins;
mod error;
mod fastbins;
mod find;
mod ground;
mod heaps;
mod layout;
mod lists;
mod main_heap;
mod malloc;
mod mmapped;
mod piece;
mod state;
mod stretch;
mod tcache;
mod trim;
mod walk;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use heaps::count_heaps;
pub use malloc::{Arena, Chunk, ChunkState, Malloc, Region, Settings, Totals};
pub use walk::{walk, walk_library};
