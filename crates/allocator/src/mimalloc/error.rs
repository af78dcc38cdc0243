use image::Unreadable;

/// The reason why nothing is known of mimalloc's heap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The data of the library could not be read.
    #[error("the heap of mimalloc cannot be read: {0}")]
    Unreadable(#[from] Unreadable),
    /// There are neither a map of pages nor segments.
    #[error(
        "the pages of mimalloc were not found: the process has never used this library's malloc, or rbloat does not know its \
         layout"
    )]
    NoPages,
    /// No layout of pages agrees with their lists and counts.
    #[error(
        "mimalloc has {pages} pages, but their lists of free blocks and their counts do not agree: it is a build that encodes the \
         lists (secure, debug), or rbloat does not know its layout: its memory is in unknown"
    )]
    NoLayout {
        /// The number of pages.
        pages: usize,
    },
}
