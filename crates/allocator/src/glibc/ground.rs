//! The ground that malloc builds on: the mappings that it may have got from the kernel.

use std::ops::Range;

use capture::{Address, Backing, Image, Mapping, PAGE_SIZE, intersection, length};

/// Whether malloc may have got this mapping from the kernel.
pub(crate) fn is_malloc_like(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous()
        && mapping.readable
        && mapping.writable
        && mapping.backing != Backing::Stack
}

/// Whether `range` is not empty and lies in one piece of memory that malloc may have got.
pub(crate) fn lies_in_memory(image: &Image<'_>, range: &Range<Address>) -> bool {
    let around = image.state.mappings.contiguous(range.start, is_malloc_like);
    length(range) > 0 && around.start <= range.start && range.end <= around.end
}

/// The stretches of memory that malloc may have got by mmap(2), ascending; neighbouring mappings
/// are joined, for the kernel splits and joins them as it likes.
pub(crate) fn mmapped_memory(image: &Image<'_>) -> Vec<Range<Address>> {
    let mut stretches: Vec<Range<Address>> = Vec::new();
    let mappings = image.state.mappings.iter();
    let could_be = |mapping: &&Mapping| {
        is_malloc_like(mapping) && mapping.backing != Backing::Heap && !mapping.executable
    };
    for mapping in mappings.filter(could_be) {
        match stretches.last_mut() {
            Some(last) if last.end == mapping.range.start => last.end = mapping.range.end,
            _ => stretches.push(mapping.range.clone()),
        }
    }
    stretches
}

/// The beginnings of the pages within `range` that something was ever written to, ascending; of
/// all its pages where the kernel did not tell their states.
pub(crate) fn touched_pages(
    image: &Image<'_>,
    range: &Range<Address>,
) -> impl Iterator<Item = Address> {
    let runs = match &image.state.pages {
        Some(pages) => pages.runs_in(range).map(|run| intersection(&run.range, range)).collect(),
        None => vec![range.clone()],
    };
    runs.into_iter().flat_map(|run| {
        let first = run.start.align_up(PAGE_SIZE);
        (0..(run.end - first).div_ceil(PAGE_SIZE)).map(move |page| first.offset(page * PAGE_SIZE))
    })
}
