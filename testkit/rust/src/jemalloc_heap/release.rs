//! The layouts of jemalloc's structures by release, for x86-64 with pages of 4 KiB.

use super::PAGE;

/// The number of classes that slabs have, and of all classes.
pub(super) const NBINS: usize = 36;
pub(super) const NSIZES: usize = 232;

/// The releases whose layouts differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JemallocRelease {
    /// Debian 11.
    V5_2_1,
    /// Debian 12 and 13.
    V5_3_0,
    /// Large sizes are multiples of pages.
    V5_3_1,
}

/// The offsets of the members of `arena_s` and `base_s`.
pub(super) struct Members {
    pub(super) internal: u64,
    pub(super) descriptors: u64,
    /// The counts of active, dirty, muzzy and retained pages.
    pub(super) counts: [u64; 4],
    pub(super) decay: [u64; 2],
    /// The count of mapped bytes; behind a pointer since 5.3.
    pub(super) mapped: u64,
    pub(super) number: Option<u64>,
    pub(super) base: u64,
    /// In `base_s`: its blocks, and its counts of bytes allocated, resident and mapped.
    pub(super) blocks: u64,
    pub(super) base_counts: [u64; 3],
}

/// The first bits of the fields in the first word of an extent's structure.
pub(super) struct Bits {
    pub(super) state: u32,
    pub(super) class: u32,
    pub(super) free: u32,
    pub(super) is_head: u32,
}

impl JemallocRelease {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::V5_2_1, Self::V5_3_0, Self::V5_3_1];

    /// The value of mallctl's `version`, which is in the library's read-only data.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::V5_2_1 => "5.2.1-0-gea6b3e973b477b8061e0076bb257dbd7f3faa756",
            Self::V5_3_0 => "5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c",
            Self::V5_3_1 => "5.3.1-0-g81034ce1f1373e37dc865038e1bc8eeecf559ce8",
        }
    }

    /// `sizeof(tsd_s)`, the size of the library's thread-local segment.
    pub(super) fn thread_bytes(self) -> u64 {
        match self {
            Self::V5_2_1 => 0x1848,
            Self::V5_3_0 => 0xa48,
            Self::V5_3_1 => 0x7b8,
        }
    }

    /// `arena_s` and its bins.
    pub(super) fn arena_bytes(self) -> u64 {
        let (arena, bin) = match self {
            Self::V5_2_1 => (29_496, 280),
            Self::V5_3_0 => (78_952, 224),
            Self::V5_3_1 => (80_704, 224),
        };
        arena + bin * NBINS as u64
    }

    /// `base_s`.
    pub(super) fn base_bytes(self) -> u64 {
        self.members().base_counts[2] + 16
    }

    /// `base_block_s`: size, next and the unused part as an extent.
    pub(super) fn base_block_bytes(self) -> u64 {
        16 + 128
    }

    pub(super) fn extent_alignment(self) -> u64 {
        if self == Self::V5_2_1 { 64 } else { 128 }
    }

    /// The usable size of a request that no slab serves.
    pub(super) fn large_bytes(self, bytes: u64) -> u64 {
        if self == Self::V5_3_1 {
            bytes.next_multiple_of(PAGE)
        } else {
            size_of_class(size_class(bytes))
        }
    }

    pub(super) fn members(self) -> Members {
        match self {
            Self::V5_2_1 => Members {
                internal: 104,
                descriptors: 10_192,
                counts: [10_344, 15_424, 20_392, 25_360],
                decay: [25_496, 27_280],
                mapped: 24,
                number: None,
                base: 29_480,
                blocks: 144,
                base_counts: [2008, 2016, 2024],
            },
            Self::V5_3_0 => Members {
                internal: 56,
                descriptors: 10_400,
                counts: [10_656, 20_480, 39_920, 59_360],
                decay: [69_440, 71_224],
                mapped: 72_896,
                number: Some(78_928),
                base: 78_936,
                blocks: 160,
                base_counts: [3880, 3888, 3896],
            },
            Self::V5_3_1 => Members {
                internal: 72,
                descriptors: 11_984,
                counts: [12_296, 22_104, 41_544, 60_984],
                decay: [71_064, 72_848],
                mapped: 74_520,
                number: Some(80_640),
                base: 80_648,
                blocks: 160,
                base_counts: [3896, 3920, 3928],
            },
        }
    }

    pub(super) fn bits(self) -> Bits {
        match self {
            Self::V5_2_1 => Bits { state: 16, class: 18, free: 26, is_head: 42 },
            Self::V5_3_0 | Self::V5_3_1 => Bits { state: 17, class: 20, free: 28, is_head: 44 },
        }
    }

    /// The number of bins in a thread's cache.
    pub(super) fn cache_bins(self) -> usize {
        match self {
            // The 36 small ones are apart from the others.
            Self::V5_2_1 => 36 + 196,
            Self::V5_3_0 => 73,
            Self::V5_3_1 => 41,
        }
    }
}

/// The size of a class: 8, then four between each power of two and the next, in steps of at least 16.
pub(super) fn size_of_class(class: usize) -> u64 {
    match class {
        0 => 8,
        1..=8 => 16 * class as u64,
        _ => {
            let (group, step) = ((class - 9) / 4, (class - 9) % 4 + 1);
            (128 + 32 * step as u64) << group
        }
    }
}

/// The smallest class of at least `bytes`.
pub(super) fn size_class(bytes: u64) -> usize {
    (0..NSIZES).find(|class| size_of_class(*class) >= bytes).expect("it is a size of real memory")
}

/// The size of a slab: the fewest pages that regions fill without a rest.
pub(super) fn slab_bytes(class: usize) -> u64 {
    let bytes = size_of_class(class);
    (1..)
        .map(|pages| pages * PAGE)
        .find(|slab| slab.is_multiple_of(bytes))
        .expect("each class has one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_jemalloc() {
        let first: Vec<u64> = (0..14).map(size_of_class).collect();
        assert_eq!(first, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        assert_eq!(size_of_class(NBINS - 1), 14_336);
        assert_eq!(size_of_class(NBINS), 16_384);
        assert_eq!(size_of_class(NSIZES - 1), 0x7000_0000_0000_0000);
        assert_eq!(size_class(28_672), NBINS + 3);
        assert_eq!((slab_bytes(0), slab_bytes(NBINS - 1)), (4096, 28_672));
    }
}
