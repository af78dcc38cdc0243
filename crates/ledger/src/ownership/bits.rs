/// A set of small numbers, with one bit for each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// An empty set of numbers below `count`. Numbers beyond the next multiple of 64 are never in it.
    pub(crate) fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds `number`, and returns true if it was not in the set before.
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let Some(word) = self.0.get_mut(number as usize / 64) else { return false };
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes `number`.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(word) = self.0.get_mut(number as usize / 64) {
            *word &= !(1 << (number % 64));
        }
    }
}

/// A set of small numbers that also numbers its members, ascending.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranks(Vec<(u64, u32)>);

impl Ranks {
    /// The members of `bits` with their ranks.
    pub(crate) fn new(bits: Bits) -> Self {
        let mut count = 0;
        let with_rank = |word: u64| {
            let before = count;
            count += word.count_ones();
            (word, before)
        };
        Self(bits.0.into_iter().map(with_rank).collect())
    }

    /// The number of members.
    pub(crate) fn len(&self) -> usize {
        self.0.last().map_or(0, |(word, before)| (before + word.count_ones()) as usize)
    }

    /// The number of members below `number`; `None` if that is no member.
    #[inline]
    pub(crate) fn of(&self, number: u32) -> Option<u32> {
        let &(word, before) = self.0.get(number as usize / 64)?;
        let bit = 1_u64 << (number % 64);
        (word & bit != 0).then(|| before + (word & (bit - 1)).count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_numbered_in_their_order() {
        let members = [0, 5, 63, 64, 190, 191];
        let mut bits = Bits::new(200);
        members.iter().for_each(|&member| assert!(bits.insert(member)));
        let ranks = Ranks::new(bits);
        let expected = |number| members.iter().position(|&it| it == number).map(|it| it as u32);
        assert!((0..400).all(|number| ranks.of(number) == expected(number)));
        assert_eq!((ranks.len(), Ranks::default().len()), (6, 0));
    }
}
