use std::ops::Range;

use linux::Address;

use crate::{Block, BlockState};

/// Blocks, ascending by address. Six bytes each, since there are millions: most end where the next one begins, so their
/// sizes need no room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The lower part of the address in units of [`Block::MIN_BYTES`] (44 bits), the state (3 bits), and [`Blocks::APART`].
    packed: Vec<[u8; BYTES]>,
    /// The upper parts of addresses, ascending, each with the number of the first block that has it: one or two.
    uppers: Vec<(usize, u64)>,
    /// The sizes of the blocks that do not end where the next one begins: their numbers, ascending, and bytes.
    apart: Vec<(usize, u64)>,
    /// The size of the last block.
    last_bytes: u64,
}

const BYTES: usize = 6;

impl Blocks {
    const ADDRESS_BITS: u32 = 44;
    const STATE_BITS: u32 = 3;
    /// The block does not end where the next one begins.
    const APART: u64 = 1 << (Self::ADDRESS_BITS + Self::STATE_BITS);

    /// The number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Returns true if there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The block with this number.
    #[inline]
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Block> {
        Some(self.block(number, self.word_and_address(number)?, self.word_and_address(number + 1)))
    }

    /// The blocks with these numbers, which is faster than to [get](Self::get) each.
    pub fn range(&self, numbers: Range<usize>) -> impl Iterator<Item = (usize, Block)> + '_ {
        let mut next = self.word_and_address(numbers.start);
        numbers.map_while(move |number| {
            let own = next?;
            next = self.word_and_address(number + 1);
            Some((number, self.block(number, own, next)))
        })
    }

    /// The block with this number, word and address. `next` are those of the next block.
    #[inline]
    fn block(
        &self,
        number: usize,
        (word, address): (u64, Address),
        next: Option<(u64, Address)>,
    ) -> Block {
        let bytes = match next {
            _ if word & Self::APART != 0 => self.bytes_apart(number),
            Some((_, next)) => next - address,
            None => self.last_bytes,
        };
        let state = (word >> Self::ADDRESS_BITS & ((1 << Self::STATE_BITS) - 1)) as usize;
        Block::new(address, bytes, BlockState::ALL[state])
    }

    #[cold]
    fn bytes_apart(&self, number: usize) -> u64 {
        let found = self.apart.binary_search_by_key(&number, |(number, _)| *number);
        found.map_or(0, |found| self.apart[found].1)
    }

    /// The last block.
    #[must_use]
    pub fn last(&self) -> Option<Block> {
        self.get(self.len().checked_sub(1)?)
    }

    /// The number of the block that begins at `at`.
    #[must_use]
    pub fn at(&self, at: Address) -> Option<usize> {
        let number = self.count_to(at).checked_sub(1)?;
        (self.address_of(number) == Some(at)).then_some(number)
    }

    /// The address of the block with this number.
    #[inline]
    #[must_use]
    pub fn address_of(&self, number: usize) -> Option<Address> {
        self.word_and_address(number).map(|it| it.1)
    }

    /// All blocks, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Block> + '_ {
        (0..self.len()).filter_map(|number| self.get(number))
    }

    /// The number of blocks that begin at `at` or below.
    #[must_use]
    pub fn count_to(&self, at: Address) -> usize {
        let (wanted, lower) = Self::split(at);
        let index = self.uppers.partition_point(|&(_, upper)| upper < wanted);
        let first_of =
            |index: usize| self.uppers.get(index).map_or(self.len(), |&(first, _)| first);
        let (first, end) = match self.uppers.get(index) {
            Some(&(first, upper)) if upper == wanted => (first, first_of(index + 1)),
            _ => (first_of(index), first_of(index)),
        };
        // What is left of the last unit does not count.
        first + self.packed[first..end].partition_point(|it| Self::lower(unpacked(it)) <= lower)
    }

    /// The number of the last block that begins at `at` or below, among the `count` blocks from `first` on.
    #[inline]
    #[must_use]
    pub fn last_to(&self, at: Address, first: usize, count: usize) -> Option<usize> {
        let (upper, lower) = Self::split(at);
        let found = match self.uppers[..] {
            // Nearly always.
            [(_, only)] if only == upper => {
                let blocks = self.packed.get(first..)?.iter().take(count);
                blocks.take_while(|it| Self::lower(unpacked(it)) <= lower).count()
            }
            _ => {
                let addresses = (first..self.len()).map_while(|number| self.address_of(number));
                addresses.take(count).take_while(|address| *address <= at).count()
            }
        };
        found.checked_sub(1).map(|last| first + last)
    }

    /// Adds a block behind all others.
    pub fn push(&mut self, block: Block) {
        if let Some(last) = self.packed.len().checked_sub(1) {
            let word = unpacked(&self.packed[last]);
            let end = Self::join(self.upper(last), word).offset(self.last_bytes);
            if end != block.address {
                self.packed[last] = packed(word | Self::APART);
                self.apart.push((last, self.last_bytes));
            }
        }
        let (upper, lower) = Self::split(block.address);
        if self.uppers.last().is_none_or(|&(_, last)| last != upper) {
            self.uppers.push((self.len(), upper));
        }
        self.packed.push(packed(lower | (block.state() as u64) << Self::ADDRESS_BITS));
        self.last_bytes = block.bytes();
    }

    /// Adds blocks of `bytes` bytes each, a multiple of [`Block::MIN_BYTES`], from `start` on, behind all others.
    pub(crate) fn push_row(
        &mut self,
        start: Address,
        bytes: u64,
        mut states: impl Iterator<Item = BlockState>,
    ) {
        let Some(first) = states.next() else { return };
        self.push(Block::new(start, bytes, first));
        for (index, state) in (1..).zip(states) {
            self.push(Block::new(start.offset(index * bytes), bytes, state));
        }
    }

    /// Changes the state of the block with this number.
    pub fn set_state(&mut self, number: usize, state: BlockState) {
        let Some(word) = self.word(number) else { return };
        let states = ((1 << Self::STATE_BITS) - 1) << Self::ADDRESS_BITS;
        self.packed[number] = packed(word & !states | (state as u64) << Self::ADDRESS_BITS);
    }

    /// Changes the state of the last block.
    pub(crate) fn set_last_state(&mut self, state: BlockState) {
        if let Some(last) = self.len().checked_sub(1) {
            self.set_state(last, state);
        }
    }

    /// Removes all blocks but the first `count`.
    pub fn truncate(&mut self, count: usize) {
        let Some(last) = count.checked_sub(1).filter(|_| count < self.len()) else {
            if count == 0 {
                *self = Self::default();
            }
            return;
        };
        self.last_bytes = self.get(last).map_or(0, Block::bytes);
        self.packed.truncate(count);
        self.uppers.retain(|&(first, _)| first < count);
        self.apart.truncate(self.apart.partition_point(|(number, _)| *number < last));
        if let Some(word) = self.word(last) {
            self.packed[last] = packed(word & !Self::APART);
        }
    }

    /// Adds blocks behind all others.
    pub(crate) fn append(&mut self, more: Self) {
        let Some(first) = more.get(0) else { return };
        let before = self.len();
        self.push(first);
        self.packed.pop();
        self.packed.extend_from_slice(&more.packed);
        self.uppers.extend(more.uppers.iter().skip(1).map(|&(first, it)| (before + first, it)));
        self.apart.extend(more.apart.into_iter().map(|(number, bytes)| (before + number, bytes)));
        self.last_bytes = more.last_bytes;
    }

    /// Makes room for exactly this many more blocks.
    pub(crate) fn reserve_exact(&mut self, more: usize) {
        self.packed.reserve_exact(more);
    }

    #[inline]
    fn word(&self, number: usize) -> Option<u64> {
        self.packed.get(number).map(unpacked)
    }

    #[inline]
    fn word_and_address(&self, number: usize) -> Option<(u64, Address)> {
        self.word(number).map(|word| (word, Self::join(self.upper(number), word)))
    }

    /// The upper part of the address of the block with this number.
    #[inline]
    fn upper(&self, number: usize) -> u64 {
        match self.uppers[..] {
            [(_, upper)] => upper,
            ref all => all.iter().rfind(|(first, _)| *first <= number).map_or(0, |it| it.1),
        }
    }

    /// The upper part of an address, and the lower one in units.
    fn split(at: Address) -> (u64, u64) {
        let units = at.0 / Block::MIN_BYTES;
        (units >> Self::ADDRESS_BITS, units & ((1 << Self::ADDRESS_BITS) - 1))
    }

    #[inline]
    fn lower(word: u64) -> u64 {
        word & ((1 << Self::ADDRESS_BITS) - 1)
    }

    #[inline]
    fn join(upper: u64, word: u64) -> Address {
        Address((upper << Self::ADDRESS_BITS | Self::lower(word)) * Block::MIN_BYTES)
    }
}

#[inline]
fn unpacked(packed: &[u8; BYTES]) -> u64 {
    let [a, b, c, d, e, f] = *packed;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn packed(word: u64) -> [u8; BYTES] {
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    [a, b, c, d, e, f]
}

impl Extend<Block> for Blocks {
    fn extend<I: IntoIterator<Item = Block>>(&mut self, blocks: I) {
        blocks.into_iter().for_each(|block| self.push(block));
    }
}

impl FromIterator<Block> for Blocks {
    fn from_iter<I: IntoIterator<Item = Block>>(blocks: I) -> Self {
        let mut all = Self::default();
        all.extend(blocks);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Gaps between blocks, and blocks that overlap the next one, as in a damaged heap.
        #[test]
        fn blocks_are_what_was_pushed(
            parts in prop::collection::vec((0_u64..3, 1_u64..40, 0_usize..7, 0_u64..2), 1..60),
            first in prop_oneof![0_u64..1 << 43, (1_u64 << 44) - 200..(1 << 44) + 200, 0_u64..1 << 49],
            kept in 0_usize..60, changed in 0_usize..60,
        ) {
            let mut at = first * 8;
            let mut expected = Vec::new();
            for (gap, units, state, overlap) in parts {
                expected.push(Block::new(Address(at), (units + overlap) * 8, BlockState::ALL[state]));
                at += (units + gap) * 8;
            }
            let mut blocks: Blocks = expected.iter().copied().collect();
            prop_assert_eq!(blocks.iter().collect::<Vec<_>>(), &expected[..]);
            let part = expected.iter().copied().enumerate().take(changed).skip(kept);
            prop_assert!(blocks.range(kept..changed).eq(part));
            if let Some(block) = expected.get_mut(changed) {
                *block = block.in_state(BlockState::Tcache);
            }
            blocks.set_state(changed, BlockState::Tcache);
            let mut row = blocks.clone();
            let states = (0..kept as u64 % 5).map(|index| BlockState::ALL[index as usize]);
            row.push_row(Address(at), 48, states.clone());
            let blocks_of_row =
                states.zip(0..).map(|(state, index)| Block::new(Address(at + 48 * index), 48, state));
            prop_assert_eq!(row, expected.iter().copied().chain(blocks_of_row).collect::<Blocks>());
            let below = expected.partition_point(|block| block.address <= Address(first * 8 + 100));
            prop_assert_eq!(blocks.count_to(Address(first * 8 + 100)), below);
            let near = expected.iter().enumerate().skip(kept).take(changed);
            let near = near.take_while(|(_, block)| block.address <= Address(first * 8 + 300));
            let last = near.last().map(|(number, _)| number);
            prop_assert_eq!(blocks.last_to(Address(first * 8 + 300), kept, changed), last);
            for cut in [0, kept.min(expected.len())] {
                let part = |blocks: &[Block]| blocks.iter().copied().collect::<Blocks>();
                let mut joined = part(&expected[..cut]);
                joined.append(part(&expected[cut..]));
                prop_assert_eq!(&joined, &blocks);
            }
            blocks.truncate(kept);
            expected.truncate(kept);
            prop_assert_eq!(blocks.iter().collect::<Vec<_>>(), &expected[..]);
            let more = Block::new(Address(at), 64, BlockState::Free);
            blocks.push(more);
            expected.push(more);
            prop_assert_eq!(blocks.iter().collect::<Vec<_>>(), &expected[..]);
            prop_assert_eq!(blocks.get(blocks.len()), None);
        }
    }
}
