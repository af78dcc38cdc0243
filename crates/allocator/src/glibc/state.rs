use capture::{Address, Memory};

use crate::glibc::layout::{BINS, FASTBINS, HEADER, NONCONTIGUOUS, StateLayout};
use crate::glibc::stretch::Broken;

/// What an arena's `malloc_state` says.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) address: Address,
    pub(crate) is_main: bool,
    pub(crate) locked: bool,
    /// Whether all its memory came from brk so far.
    pub(crate) contiguous: bool,
    pub(crate) top: Address,
    pub(crate) system_bytes: u64,
    /// The heads of its fastbins.
    pub(crate) fastbins: Vec<Address>,
    /// Where its first bin is.
    pub(crate) bins: Address,
    /// fd and bk of its bins.
    pub(crate) bin_links: Vec<(Address, Address)>,
    /// The address behind it, from where its first heap's chunks begin.
    pub(crate) end: Address,
}

impl State {
    pub(crate) fn read(
        memory: &dyn Memory,
        address: Address,
        is_main: bool,
        layout: &StateLayout,
    ) -> Result<Self, Broken> {
        let at = |offset: u64| address.offset(offset);
        let bins = at(layout.bins);
        let mut links = vec![0; BINS as usize * 16];
        memory.read_exact(bins, &mut links)?;
        let links = links.as_chunks::<8>().0.as_chunks::<2>().0.iter();
        let link = |bytes: [u8; 8]| Address(u64::from_le_bytes(bytes));
        let fastbins = match layout.fastbins {
            None => Vec::new(),
            Some(offset) => (0..FASTBINS)
                .map(|index| memory.read_address(at(offset + 8 * index)))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            address,
            is_main,
            locked: memory.read_u32(at(layout.mutex))? != 0,
            contiguous: memory.read_u32(at(layout.flags))? & NONCONTIGUOUS == 0,
            top: memory.read_address(at(layout.top))?,
            system_bytes: memory.read_u64(at(layout.system_mem))?,
            fastbins,
            bins,
            bin_links: links.map(|&[forward, backward]| (link(forward), link(backward))).collect(),
            end: at(layout.bytes),
        })
    }

    /// The address by which chunks name the bin with this index: that of a chunk whose links the
    /// bin would be.
    pub(crate) fn bin_address(&self, index: usize) -> Address {
        self.bins.offset(16 * index as u64).before(HEADER)
    }

    /// Whether it has never obtained memory: then its first bin stands in for its top.
    pub(crate) fn is_empty(&self) -> bool {
        self.top == self.bin_address(0)
    }
}
