use image::Unreadable;

/// The reason why nothing is known of tcmalloc's heap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The data of the library could not be read.
    #[error("the heap of tcmalloc cannot be read: {0}")]
    Unreadable(#[from] Unreadable),
    /// Nothing in the library's data is the map of pages.
    #[error(
        "the pages of tcmalloc were not found: the process has never used this library's malloc, or rbloat does not know its \
         layout"
    )]
    NoPages,
    /// The allocator's own counts are not those of its spans.
    #[error(
        "tcmalloc has {spans} spans, but its own counts do not agree with them: a thread was changing them, or rbloat does not \
         know its layout: its memory is in unknown"
    )]
    NoLayout {
        /// The number of spans.
        spans: usize,
    },
}
