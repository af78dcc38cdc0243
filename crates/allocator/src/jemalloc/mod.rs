//! jemalloc's heap.
//!
//! [`walk`] finds the radix tree that maps pages to extents in the data of a stripped library, reads the descriptors of
//! all extents and the bitmaps of slabs, and marks the regions in thread caches. Regions themselves are not read, so
//! a walk reads some 2 % of the memory.
//!
//! No layout is trusted: the tree is found by its contents, and each arena's own counts of active, dirty, muzzy and
//! retained pages must equal the pages of its extents. Otherwise the arena is left out with a [`Finding`](crate::Finding).

mod arena;
mod bins;
mod descriptor;
mod error;
mod layout;
mod thread_caches;
mod tree;
mod version;
mod walk;

pub(crate) use error::Error;
pub(crate) use walk::walk;
