use std::ops::Range;

use image::Unreadable;
use linux::{Address, arch};

use crate::ExtentState;
use crate::jemalloc::layout::{DescriptorLayout, MAX_BITMAP_WORDS};
use crate::structures::Structures;

/// jemalloc's record of an extent.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    /// The address of this record.
    pub(crate) at: Address,
    pub(crate) range: Range<Address>,
    /// The number of its pages.
    pub(crate) pages: u64,
    /// The pointer that malloc returned for a large allocation: in the first page, but not always its beginning.
    pub(crate) pointer: Address,
    pub(crate) arena: u16,
    pub(crate) is_slab: bool,
    /// `None` while it changes hands.
    pub(crate) state: Option<ExtentState>,
    /// The index of its size class.
    pub(crate) class: u8,
    pub(crate) free_regions: u16,
}

impl Descriptor {
    /// Reads the descriptor at `at`; `None` if its range cannot be one.
    pub(crate) fn read(
        structures: &mut Structures<'_>,
        layout: DescriptorLayout,
        at: Address,
    ) -> Result<Option<Self>, Unreadable> {
        let page = layout.pages.bytes();
        let bytes: [u8; DescriptorLayout::BYTES] = structures.bytes(at)?;
        let word = |offset: usize| {
            bytes[offset..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
        };
        let bits = word(0);
        let pointer = Address(word(DescriptorLayout::ADDRESS));
        let start = pointer.align_down(page);
        let size = word(DescriptorLayout::SIZE) & !(page - 1);
        let end = start.0.checked_add(size).filter(|end| *end <= arch::USER_SPACE_END);
        let Some(end) = end.filter(|_| start.0 > 0 && size > 0) else { return Ok(None) };
        Ok(Some(Self {
            at,
            range: start..Address(end),
            pages: size / page,
            pointer,
            arena: layout.arena.of(bits) as u16,
            is_slab: layout.is_slab.of(bits) == 1,
            state: match layout.state.of(bits) {
                0 => Some(ExtentState::Active),
                1 => Some(ExtentState::Dirty),
                2 => Some(ExtentState::Muzzy),
                3 => Some(ExtentState::Retained),
                _ => None,
            },
            class: layout.class.of(bits) as u8,
            free_regions: layout.free_regions.of(bits) as u16,
        }))
    }

    /// The bitmap of a slab with this number of regions: a bit is set if the region is free.
    pub(crate) fn bitmap(
        &self,
        structures: &mut Structures<'_>,
        regions: u64,
    ) -> Result<[u64; MAX_BITMAP_WORDS], Unreadable> {
        let start = self.at.offset(DescriptorLayout::BITMAP as u64);
        let mut words = [0; MAX_BITMAP_WORDS];
        // Every bitmap has room for eight words at least.
        let parts = words.chunks_exact_mut(8).take(regions.div_ceil(512) as usize);
        for (part, at) in parts.zip((0..).step_by(64)) {
            let bytes: [u8; 64] = structures.bytes(start.offset(at))?;
            for (word, bytes) in part.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        Ok(words)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state == Some(ExtentState::Active)
    }
}
