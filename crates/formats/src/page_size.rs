//! The size of a page in a document, which documents for pages of 4 KiB leave out.

use linux::MIN_PAGE_SIZE;

/// The size in documents without one.
pub(crate) fn smallest() -> u64 {
    MIN_PAGE_SIZE
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_smallest(bytes: &u64) -> bool {
    *bytes == MIN_PAGE_SIZE
}
