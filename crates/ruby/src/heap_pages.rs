//! Heap pages of processes that run.

use capture::{Address, Image, Memory};

use crate::layout::page_descriptor::MAX_START;
use crate::object_space::ObjectSpace;
use crate::read::PAGE_SIZES_LOG2;
use crate::word::words;

/// The bytes of a page's descriptor that are searched for the page.
const DESCRIPTOR_BYTES: usize = 128;

/// Recognizes the heap pages of a process that runs.
#[derive(Debug, Clone, Copy)]
pub struct HeapPages {
    page_bytes: u64,
}

impl HeapPages {
    /// Derives the size of pages; `None` if there are no pages.
    #[must_use]
    pub fn derive(space: &ObjectSpace) -> Option<Self> {
        let mut sizes = PAGE_SIZES_LOG2.map(|log2| 1 << log2);
        let page_bytes = sizes.find(|&bytes| {
            space.pages.iter().all(|page| {
                page.range.start.align_down(bytes) == page.range.end.before(1).align_down(bytes)
            })
        })?;
        (!space.pages.is_empty()).then_some(Self { page_bytes })
    }

    /// Returns true if `at` lies in a heap page: the page refers to its descriptor, and that to the page or its first slot.
    #[must_use]
    pub fn has(self, image: &Image<'_>, at: Address) -> bool {
        let page = at.align_down(self.page_bytes);
        let Ok(descriptor) = image.read_address(page) else { return false };
        let mut bytes = [0; DESCRIPTOR_BYTES];
        descriptor.0 != 0
            && descriptor.is_aligned(8)
            && image.read_exact(descriptor, &mut bytes).is_ok()
            && words(&bytes).any(|word| (page.0..=page.0 + MAX_START).contains(&word))
    }
}
