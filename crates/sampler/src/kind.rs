use image::Image;
use linux::{Address, Backing};
use ruby::HeapPages;

/// The purpose of memory, as far as its address tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The heap of brk(2), which glibc's main arena extends.
    Heap,
    /// glibc's other arenas.
    Arena,
    /// Ruby's heap pages.
    HeapPages,
    /// Other anonymous memory: large chunks with a mapping of their own, stacks, other allocators.
    Mapping,
    /// Pages of files.
    File,
    /// Memory that is not mapped any more.
    Unknown,
}

impl Kind {
    /// The kind of the memory at `at`. A page was just touched there, so reading near it maps nothing in.
    pub(crate) fn of(image: &Image<'_>, pages: Option<HeapPages>, at: Address) -> Self {
        let Some(mapping) = image.state.mappings.find(at) else { return Self::Unknown };
        // Up to Ruby 2.7 heap pages come from malloc.
        if pages.is_some_and(|pages| pages.has(image, at)) {
            return Self::HeapPages;
        }
        match &mapping.backing {
            Backing::Heap => Self::Heap,
            Backing::File(_) => Self::File,
            Backing::Anonymous if allocator::is_in_heap(image, at) => Self::Arena,
            Backing::Anonymous | Backing::Stack | Backing::Kernel(_) => Self::Mapping,
        }
    }
}
