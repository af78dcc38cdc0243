//! Shared by the tests of all crates: real processes to examine, and synthetic memory.
//!
//! The writers of synthetic heaps share no layout with the readers that they test. Otherwise a wrong layout would agree
//! with itself.

mod browser;
mod container;
mod control_group;
mod core_file;
mod elf_module;
mod jemalloc_heap;
mod malloc_heap;
mod object_space;
mod place;
mod process;
mod profile;
mod server;
mod skip;
mod synthetic;

pub use browser::Browser;
pub use container::Container;
pub use control_group::ControlGroup;
pub use core_file::{CoreWriter, SyntheticCore};
pub use elf_module::ElfModule;
pub use jemalloc_heap::{
    JemallocHeap, JemallocPart, JemallocRelease, JemallocTruth, PagesUse, RegionUse,
    SyntheticArena, SyntheticExtent, SyntheticRegion,
};
pub use malloc_heap::{ChunkUse, GlibcRelease, MallocHeap, MallocTruth, SyntheticChunk};
pub use object_space::{Held, RubyHeap, RubyRelease, RubyTruth, Shift, Word};
pub use place::{
    captures, command, has_free_memory, jemalloc, jemalloc_archive, mimalloc, outside, preload,
    root, ruby, scenario, tcmalloc,
};
pub use process::{Target, compile, wait_until_asleep};
pub use profile::{Profile, ProfileStack};
pub use server::Server;
pub use skip::{cases, is_nightly, skip};
pub use synthetic::SyntheticMemory;
