//! tcmalloc's heap, as gperftools has it (since 2.6).
//!
//! Memory is divided into pages, usually of 8 KiB, and pages into *spans*: a span is one large block, or objects of one size class, or
//! free. A map leads from each page to the structure of its span. Free objects are on a list of their span, in the cache of
//! a thread, or on their way between both (the transfer cache of the central list of their class). No block has a header.
//!
//! The library has no symbols for the structures. The map is found by its contents. A heap is accepted if the allocator's own
//! counts agree: of pages, of free pages, of the objects in use of each span, and of the spans and free objects of each class.

mod central;
mod classes;
mod error;
mod metadata;
mod objects;
mod page_map;
mod span;
mod thread_caches;
mod walk;

pub(crate) use error::Error;
pub(crate) use walk::walk;
