use image::Unreadable;

/// The reason why nothing is known of musl's heap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The data of the library, or a page of metas, could not be read.
    #[error("the heap of musl cannot be read: {0}")]
    Unreadable(#[from] Unreadable),
    /// Nothing in the library's data is the context of the allocator.
    #[error(
        "the heap of musl was not found: the process has never used malloc, or has a musl before 1.2.1, whose heap rbloat \
         cannot read"
    )]
    NoContext,
}
