use std::ops::Range;

use image::Image;
use linux::Address;

use crate::{Allocator, HeapMap, ServingAllocator, glibc, jemalloc, mimalloc, musl, tcmalloc};

/// The reason why nothing is known of a process's heap.
///
/// Problems that concern only a part of the heap are findings of the [`HeapMap`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No module that exports malloc is loaded.
    #[error("no library that serves malloc was found in the process")]
    NoAllocator,
    /// rbloat cannot read the heap of this allocator.
    #[error("malloc is served by {0}, whose heap rbloat cannot read: its memory is in unknown")]
    Unsupported(Allocator),
    /// The heap of the GNU C library could not be read.
    #[error(transparent)]
    Glibc(#[from] glibc::Error),
    /// The heap of jemalloc could not be read.
    #[error(transparent)]
    Jemalloc(#[from] jemalloc::Error),
    /// The heap of musl could not be read.
    #[error(transparent)]
    Musl(#[from] musl::Error),
    /// The heap of mimalloc could not be read.
    #[error(transparent)]
    Mimalloc(#[from] mimalloc::Error),
    /// The heap of tcmalloc could not be read.
    #[error(transparent)]
    Tcmalloc(#[from] tcmalloc::Error),
}

/// Walks the heap of the allocator that [`find_allocator`](crate::find_allocator) found in `image`. `stacks` are the
/// [`thread_stacks`](crate::thread_stacks): without them, blocks in the thread caches of threads that a forked process does not have
/// count as in use.
///
/// # Errors
/// If nothing can be known of the heap.
pub fn walk(
    image: &Image<'_>,
    found: &ServingAllocator<'_>,
    stacks: &[Range<Address>],
) -> Result<HeapMap, Error> {
    let module = found.module.ok_or(Error::NoAllocator)?;
    let mut heap = match &found.allocator {
        Allocator::Glibc { .. } => glibc::walk(image, module, stacks)?,
        Allocator::Jemalloc => jemalloc::walk(image, module)?,
        Allocator::Musl => musl::walk(image, module)?,
        Allocator::Mimalloc => mimalloc::walk(image, module)?,
        Allocator::Tcmalloc => tcmalloc::walk(image, module)?,
        other => return Err(Error::Unsupported(other.clone())),
    };
    if let Allocator::Glibc { version: Some(version) } = &found.allocator {
        heap.walker = format!("glibc {version}");
    }
    heap.trim_call = found.allocator.trim_call();
    Ok(heap)
}
