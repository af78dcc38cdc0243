use image::Memory;
use linux::Address;

use crate::glibc::inconsistency::Inconsistency;
use crate::glibc::layout::{BINS, HEADER, NFASTBINS, NONCONTIGUOUS_BIT, StateLayout};

/// The `malloc_state` of an arena.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) address: Address,
    pub(crate) is_main: bool,
    pub(crate) locked: bool,
    /// True if all its memory came from brk so far.
    pub(crate) contiguous: bool,
    pub(crate) top: Address,
    pub(crate) system_bytes: u64,
    /// The heads of its fastbins.
    pub(crate) fastbins: Vec<Address>,
    /// The address of its first bin.
    pub(crate) bins: Address,
    /// fd and bk of its bins.
    pub(crate) bin_links: Vec<(Address, Address)>,
    /// The address behind it, where the chunks of its first heap begin.
    pub(crate) end: Address,
}

impl State {
    pub(crate) fn read(
        memory: &dyn Memory,
        address: Address,
        is_main: bool,
        layout: &StateLayout,
    ) -> Result<Self, Inconsistency> {
        let at = |offset: u64| address.offset(offset);
        let bins = at(layout.bins);
        let mut links = vec![0; BINS as usize * 16];
        memory.read_exact(bins, &mut links)?;
        let links = links.as_chunks::<8>().0.as_chunks::<2>().0.iter();
        let link = |bytes: [u8; 8]| Address(u64::from_le_bytes(bytes));
        let fastbins = match layout.fastbins {
            None => Vec::new(),
            Some(offset) => (0..NFASTBINS)
                .map(|index| memory.read_address(at(offset + 8 * index)))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            address,
            is_main,
            locked: memory.read_u32(at(layout.mutex))? != 0,
            contiguous: memory.read_u32(at(layout.flags))? & NONCONTIGUOUS_BIT == 0,
            top: memory.read_address(at(layout.top))?,
            system_bytes: memory.read_u64(at(layout.system_mem))?,
            fastbins,
            bins,
            bin_links: links.map(|&[fd, bk]| (link(fd), link(bk))).collect(),
            end: at(layout.bytes),
        })
    }

    /// The address by which chunks name the bin with this index: the chunk whose links the bin would be.
    pub(crate) fn bin_address(&self, index: usize) -> Address {
        self.bins.offset(16 * index as u64).before(HEADER)
    }

    /// Returns true if it has never obtained memory: its first bin then stands in for its top.
    pub(crate) fn is_empty(&self) -> bool {
        self.top == self.bin_address(0)
    }
}
