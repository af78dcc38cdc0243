use image::Unreadable;
use linux::Address;

/// The reason why nothing is known of jemalloc's heap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The data of the library, or the tree of extents, could not be read.
    #[error("the heap of {jemalloc} cannot be read: {source}")]
    Unreadable {
        /// jemalloc and its version.
        jemalloc: String,
        /// The memory that could not be read.
        #[source]
        source: Unreadable,
    },
    /// Nothing in the library's data is the root of a tree of extents.
    #[error(
        "the extents of {jemalloc} were not found: the process has never used this library's malloc, \
         or rbloat does not know its layout"
    )]
    NoTree {
        /// jemalloc and its version.
        jemalloc: String,
    },
    /// Parts of the tree overlap.
    #[error("the tree of extents of {jemalloc} is damaged at {at}")]
    Damaged {
        /// jemalloc and its version.
        jemalloc: String,
        /// The part that overlaps another one.
        at: Address,
    },
    /// No known layout of an arena fits.
    #[error(
        "{jemalloc} has {extents} extents, but its arenas do not have the layout of a release that rbloat \
         knows (5.2.1, 5.3.0, 5.3.1), so the extents cannot be checked: its memory is in unknown"
    )]
    NoArenas {
        /// jemalloc and its version.
        jemalloc: String,
        /// The number of extents.
        extents: usize,
    },
    /// The sizes of the regions of slabs were not found.
    #[error("the size classes of {jemalloc} were not found in its data: its memory is in unknown")]
    NoBins {
        /// jemalloc and its version.
        jemalloc: String,
    },
}
