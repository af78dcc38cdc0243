use linux::Address;

/// The bytes of a unit, as a power of two: malloc's blocks are aligned to it, except regions of 8 bytes.
const UNIT_LOG2: u32 = 4;
/// The bits of a packed address that count units. The others are the number of a region of 4 GiB.
const OFFSET_BITS: u32 = 28;
const REGION_LOG2: u32 = UNIT_LOG2 + OFFSET_BITS;
const MAX_REGIONS: usize = 15;
/// The number of this region: the other bits are an index of `in_full`.
const IN_FULL: u32 = MAX_REGIONS as u32;
const OFFSETS: u32 = (1 << OFFSET_BITS) - 1;

/// Packs addresses into four bytes each, since there are millions: multiples of 16 in up to 15 regions of 4 GiB. Others take
/// eight bytes more.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackedAddresses {
    /// The upper bits of the addresses in each region, in the order in which they were met.
    regions: Vec<u64>,
    in_full: Vec<Address>,
}

impl PackedAddresses {
    /// Returns the packed form of an address; `None` if there is no room, after 2^28 that had to be kept in full.
    #[inline]
    pub(crate) fn pack(&mut self, at: Address) -> Option<u32> {
        let upper = at.0 >> REGION_LOG2;
        let offset = (at.0 >> UNIT_LOG2) as u32 & OFFSETS;
        let is_unit = at.is_aligned(1 << UNIT_LOG2);
        match self.regions.iter().position(|&region| region == upper).filter(|_| is_unit) {
            Some(region) => Some((region as u32) << OFFSET_BITS | offset),
            None => self.pack_new(at, upper, offset, is_unit),
        }
    }

    #[cold]
    fn pack_new(&mut self, at: Address, upper: u64, offset: u32, is_unit: bool) -> Option<u32> {
        if is_unit && self.regions.len() < MAX_REGIONS {
            self.regions.push(upper);
            return Some((self.regions.len() as u32 - 1) << OFFSET_BITS | offset);
        }
        let index = u32::try_from(self.in_full.len()).ok().filter(|&index| index <= OFFSETS)?;
        self.in_full.push(at);
        Some(IN_FULL << OFFSET_BITS | index)
    }

    /// Returns the address that was packed.
    #[inline]
    pub(crate) fn unpack(&self, packed: u32) -> Address {
        let (region, offset) = (packed >> OFFSET_BITS, packed & OFFSETS);
        if region == IN_FULL {
            return self.in_full[offset as usize];
        }
        Address(self.regions[region as usize] << REGION_LOG2 | u64::from(offset) << UNIT_LOG2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_survive_packing(
            addresses in prop::collection::vec((0_u64..24, 0_u64..1 << 32), 0..200),
        ) {
            let mut packed = PackedAddresses::default();
            let addresses: Vec<Address> =
                addresses.into_iter().map(|(region, offset)| Address(region << 42 | offset & !7)).collect();
            let codes: Vec<u32> = addresses.iter().map(|&at| packed.pack(at).unwrap()).collect();
            for (at, code) in addresses.into_iter().zip(codes) {
                prop_assert_eq!(packed.unpack(code), at);
            }
            prop_assert!(packed.regions.len() <= MAX_REGIONS);
        }
    }

    #[test]
    fn addresses_of_few_regions_take_four_bytes() {
        let mut packed = PackedAddresses::default();
        for region in 0..15 {
            for offset in (0..1 << 32).step_by(0x0fff_fff0) {
                packed.pack(Address(region << 40 | offset)).unwrap();
            }
        }
        assert!(packed.in_full.is_empty());
    }
}
