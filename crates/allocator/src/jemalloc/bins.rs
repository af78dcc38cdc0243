use crate::jemalloc::layout::{BINS, PAGE, class_bytes};
use crate::module_data::ModuleData;

/// The slabs of a size class (`bin_info_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) region_bytes: u64,
    pub(crate) slab_bytes: u64,
    pub(crate) regions: u64,
}

/// The bytes of a `bin_info_t`.
const BIN_WORDS: usize = 5;
/// The regions of a slab, which its bitmap has room for.
const MAX_REGIONS: u64 = 512;

/// Finds the table of slabs (`bin_infos`) by its contents: one entry for each size class. Settings may change the size of
/// slabs, so the table is read.
pub(crate) fn find(data: &ModuleData) -> Option<Vec<Bin>> {
    data.positions(BINS * BIN_WORDS as u64).find_map(|(_, words)| {
        let entries = words.chunks_exact(BIN_WORDS).take(BINS as usize).zip(0..);
        entries.map(|(entry, class)| Bin::decode(entry, class)).collect()
    })
}

impl Bin {
    fn decode(entry: &[u64], class: u64) -> Option<Self> {
        let &[region_bytes, slab_bytes, counts, ..] = entry else { return None };
        let regions = counts & 0xffff_ffff;
        let fits = region_bytes == class_bytes(class)
            && slab_bytes > 0
            && slab_bytes.is_multiple_of(PAGE)
            && regions <= MAX_REGIONS
            && regions
                .checked_mul(region_bytes)
                .is_some_and(|bytes| 0 < bytes && bytes <= slab_bytes);
        fits.then_some(Self { region_bytes, slab_bytes, regions })
    }
}
