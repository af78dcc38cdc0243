//! glibc's malloc of another process: arenas, heaps, chunks, bins and tcaches as plain data,
//! walked out of an image.

mod malloc;

pub use malloc::{Arena, Chunk, ChunkState, Malloc, Region, Totals};
