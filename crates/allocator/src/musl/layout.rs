//! The structures of mallocng (musl, src/malloc/mallocng/meta.h and malloc.c), which have not changed since 1.2.1.

use std::ops::Range;

use linux::Address;

/// The alignment of slots, and the unit of their sizes (`UNIT`).
pub(super) const UNIT: u64 = 16;
/// The bytes before each slot that describe it; they are the last ones of the slot before it (`IB`).
pub(super) const HEADER: u64 = 4;
/// The unit in which a meta counts the pages of a mapping.
pub(super) const MAPPED_UNIT: u64 = 4096;
/// The pages of metas (`struct meta_area`): a check, a pointer to the next one, the number of metas, and the metas.
pub(super) const AREA: u64 = 4096;
pub(super) const AREA_METAS: u64 = 24;
/// The bytes of a meta.
pub(super) const META: u64 = 40;
/// The metas of the largest area.
pub(super) const MAX_METAS: u64 = (AREA - AREA_METAS) / META;

/// The sizes of slots by class, in units.
pub(super) const SIZE_CLASSES: [u16; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];
/// The class of a block with a mapping of its own that no class is large enough for.
pub(super) const NO_CLASS: u64 = 63;

/// The context of the allocator (`struct malloc_context`), as words.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContextLayout {
    /// The words before `init_done`: the secret, and the size of a page where that is not a constant.
    first: usize,
}

impl ContextLayout {
    /// With a constant size of a page (x86), and with a variable one (aarch64).
    pub(super) const ALL: [Self; 2] = [Self { first: 1 }, Self { first: 2 }];

    /// The list of areas.
    pub(super) fn area_head(self) -> usize {
        // init_done and mmap_counter, free_meta_head, avail_meta, three counts.
        self.first + 6
    }

    /// The counts of slots by class.
    pub(super) fn usage(self) -> Range<usize> {
        // area_tail, avail_meta_areas, active[48].
        let start = self.area_head() + 3 + SIZE_CLASSES.len();
        start..start + SIZE_CLASSES.len()
    }
}

/// A group by its meta.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// The address of its meta.
    pub(super) meta: Address,
    /// Its memory, which begins with a header of one unit.
    pub(super) start: Address,
    /// The slots that are not in use, as a mask.
    pub(super) free: u32,
    pub(super) slots: u32,
    /// False for memory that the dynamic linker gave to malloc. Its slots are not counted.
    pub(super) is_counted: bool,
    pub(super) class: u64,
    /// The units of [`MAPPED_UNIT`] of its mapping; 0 if it has none.
    mapped: u64,
}

impl Group {
    /// Reads the meta at this address. `None` if it has no group, or cannot be one.
    pub(super) fn read(meta: Address, bytes: &[u8; META as usize]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let start = Address(word(16));
        if start.0 == 0 {
            return None;
        }
        let masks = word(24);
        let rest = word(32);
        let slots = (rest & 31) as u32 + 1;
        let group = Self {
            meta,
            start,
            free: (masks as u32 | (masks >> 32) as u32) & (u32::MAX >> (32 - slots)),
            slots,
            is_counted: rest >> 5 & 1 == 1,
            class: rest >> 6 & 63,
            mapped: rest >> 12,
        };
        let has_size = group.class < SIZE_CLASSES.len() as u64 || group.mapped > 0;
        let mapped = group.mapped.checked_mul(MAPPED_UNIT)?;
        let fits = start.0.checked_add(mapped.max(group.slots_end())).is_some();
        (start.is_aligned(UNIT) && has_size && fits).then_some(group)
    }

    /// The bytes from one slot to the next (`get_stride`).
    pub(super) fn stride(&self) -> u64 {
        if self.slots == 1 && self.mapped > 0 {
            return self.mapped.saturating_mul(MAPPED_UNIT) - UNIT;
        }
        let units = SIZE_CLASSES.get(self.class as usize).copied().unwrap_or(0);
        UNIT * u64::from(units)
    }

    fn slots_end(&self) -> u64 {
        UNIT.saturating_add(self.stride().saturating_mul(self.slots.into()))
    }

    /// Its memory: its mapping, or its header and slots.
    pub(super) fn range(&self) -> Range<Address> {
        let bytes = if self.mapped > 0 { self.mapped * MAPPED_UNIT } else { self.slots_end() };
        self.start..self.start.offset(bytes)
    }

    pub(super) fn has_mapping(&self) -> bool {
        self.mapped > 0
    }

    /// Returns true for a block with a mapping of its own.
    pub(super) fn is_single(&self) -> bool {
        self.slots == 1 && self.mapped > 0
    }

    pub(super) fn slot(&self, index: u32) -> Address {
        self.start.offset(UNIT + self.stride() * u64::from(index))
    }

    pub(super) fn is_free(&self, index: u32) -> bool {
        self.free >> index & 1 == 1
    }
}

/// The meaning of the bytes before a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotHeader {
    /// The slot's block begins here.
    Block {
        /// The number of the slot in its group.
        index: u32,
        /// True if the block is a group.
        is_group: bool,
    },
    /// The slot's block begins this many bytes later, so that addresses are not used again soon.
    Later(u64),
}

impl SlotHeader {
    /// Reads the header before the beginning of a slot or a block.
    pub(super) fn read(bytes: [u8; HEADER as usize]) -> Self {
        let [_, index, low, high] = bytes;
        match index >> 5 {
            7 => Self::Later(UNIT * u64::from(u16::from_le_bytes([low, high]))),
            kind => Self::Block { index: u32::from(index & 31), is_group: kind == 6 },
        }
    }
}
