//! What the tests of all crates share: real processes to look at, and synthetic memory.
//!
//! The writers of synthetic heaps share no layout with the readers that they test: a wrong layout
//! must not be able to agree with itself.

mod malloc_heap;
mod place;
mod process;
mod synthetic;

pub use malloc_heap::{ChunkUse, GlibcRelease, MallocHeap, MallocTruth, SyntheticChunk};
pub use place::{command, root, ruby};
pub use process::{Target, compile};
pub use synthetic::SyntheticMemory;
