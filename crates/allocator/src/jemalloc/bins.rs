use crate::jemalloc::layout::{OwnPages, class_bytes};
use crate::module_data::ModuleData;

/// The slabs of a size class (`bin_info_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) region_bytes: u64,
    pub(crate) slab_bytes: u64,
    pub(crate) regions: u64,
}

/// Finds the table of slabs (`bin_infos`) by its contents: one entry for each size class. Settings may change the size of
/// slabs, so the table is read.
pub(crate) fn find(data: &ModuleData, pages: OwnPages) -> Option<Vec<Bin>> {
    let (bins, size) = (pages.bins(), pages.bin_words());
    data.positions(bins * size as u64).find_map(|(_, words)| {
        let entries = words.chunks_exact(size).take(bins as usize).zip(0..);
        entries.map(|(entry, class)| Bin::decode(entry, class, pages)).collect()
    })
}

impl Bin {
    fn decode(entry: &[u64], class: u64, pages: OwnPages) -> Option<Self> {
        let &[region_bytes, slab_bytes, counts, ..] = entry else { return None };
        let regions = counts & 0xffff_ffff;
        let fits = region_bytes == class_bytes(class)
            && slab_bytes > 0
            && slab_bytes.is_multiple_of(pages.bytes())
            && regions <= pages.max_regions()
            && regions
                .checked_mul(region_bytes)
                .is_some_and(|bytes| 0 < bytes && bytes <= slab_bytes);
        fits.then_some(Self { region_bytes, slab_bytes, regions })
    }
}
