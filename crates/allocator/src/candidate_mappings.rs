//! The mappings that malloc may have obtained from the kernel.

use std::ops::Range;

use image::Image;
use linux::{Address, Backing, Mapping, length};

/// Returns true if malloc may have obtained this mapping.
pub(crate) fn is_candidate(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous()
        && mapping.readable
        && mapping.writable
        && mapping.backing != Backing::Stack
}

/// Returns true if `range` is not empty and lies in contiguous memory that malloc may have obtained.
pub(crate) fn lies_in_memory(image: &Image<'_>, range: &Range<Address>) -> bool {
    let around = image.state.mappings.contiguous(range.start, is_candidate);
    length(range) > 0 && around.start <= range.start && range.end <= around.end
}

/// The memory that malloc may have obtained by mmap(2), ascending. Adjacent mappings are joined, since the
/// kernel splits and joins them as it likes.
pub(crate) fn mmapped_memory(image: &Image<'_>) -> Vec<Range<Address>> {
    let mut memory: Vec<Range<Address>> = Vec::new();
    let could_be = |mapping: &&Mapping| {
        is_candidate(mapping) && mapping.backing != Backing::Heap && !mapping.executable
    };
    for mapping in image.state.mappings.iter().filter(could_be) {
        match memory.last_mut() {
            Some(last) if last.end == mapping.range.start => last.end = mapping.range.end,
            _ => memory.push(mapping.range.clone()),
        }
    }
    memory
}

/// The addresses of the pages within `range` that were ever written to, ascending; of all pages if their
/// states are not known.
pub(crate) fn touched_pages(
    image: &Image<'_>,
    range: &Range<Address>,
) -> impl Iterator<Item = Address> {
    let runs = match &image.state.pages {
        Some(pages) => pages.parts_in(range).collect(),
        None => vec![range.clone()],
    };
    let page_size = image.page_size();
    runs.into_iter().flat_map(move |run| {
        let first = run.start.align_up(page_size);
        (0..(run.end - first).div_ceil(page_size)).map(move |page| first.offset(page * page_size))
    })
}
