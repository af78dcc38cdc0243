use std::ops::Range;

/// Lists of values, one for each of a known number of rows, of which many are empty. Each row takes two bits. One that is not
/// empty takes a byte more, and eight more if it has 255 values or more.
///
/// Rows are filled in ascending order. There can be up to 2^32 - 1 values.
#[derive(Debug, Clone)]
pub struct SparseRows<T> {
    rows: u32,
    groups: Vec<Group>,
    /// The number of values of each row that is not empty, or [`LONG`].
    lengths: Vec<u8>,
    /// The number of values of the rows that have [`LONG`] or more, by the index of their length.
    long: Vec<(u32, u32)>,
    values: Vec<T>,
    /// The number of values in rows that have ended.
    ended: usize,
}

/// 64 rows.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The rows that are not empty.
    bits: u64,
    /// The number of lengths, and of values, of all rows before.
    lengths: u32,
    values: u32,
}

const GROUP: u32 = 64;
/// The length of a row that is too long for a byte.
const LONG: u8 = u8::MAX;

impl<T> Default for SparseRows<T> {
    fn default() -> Self {
        Self {
            rows: 0,
            groups: Vec::new(),
            lengths: Vec::new(),
            long: Vec::new(),
            values: Vec::new(),
            ended: 0,
        }
    }
}

impl<T> SparseRows<T> {
    /// The number of rows that have ended.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// All values, those of the row that is being filled included.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, to be replaced.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Replaces all values.
    #[must_use]
    pub fn map<U>(self, replace: impl FnMut(T) -> U) -> SparseRows<U> {
        let Self { rows, groups, lengths, long, values, ended } = self;
        let values = values.into_iter().map(replace).collect();
        SparseRows { rows, groups, lengths, long, values, ended }
    }

    /// The values of the row that is being filled.
    #[must_use]
    pub fn open_row(&self) -> &[T] {
        &self.values[self.ended..]
    }

    /// Adds a value to the row that is being filled. Returns false if there is no room for it.
    pub fn push(&mut self, value: T) -> bool {
        let has_room = self.values.len() < u32::MAX as usize;
        if has_room {
            self.values.push(value);
        }
        has_room
    }

    /// Removes the values of the row that is being filled.
    pub fn clear_row(&mut self) {
        self.values.truncate(self.ended);
    }

    /// Ends the row that is being filled: the next values belong to the next row.
    pub fn end_row(&mut self) {
        self.end_row_with(self.values.len() - self.ended);
    }

    fn end_row_with(&mut self, length: usize) {
        let bit = self.rows % GROUP;
        if bit == 0 {
            self.begin_group();
        }
        if length > 0
            && let Some(group) = self.groups.last_mut()
        {
            group.bits |= 1 << bit;
            let short = u8::try_from(length).unwrap_or(LONG);
            if short == LONG {
                self.long.push((self.lengths.len() as u32, length as u32));
            }
            self.lengths.push(short);
            self.ended += length;
        }
        self.rows += 1;
    }

    fn begin_group(&mut self) {
        let (lengths, values) = (self.lengths.len() as u32, self.ended as u32);
        self.groups.push(Group { bits: 0, lengths, values });
    }

    /// Ends rows until `rows` have ended: the row that is being filled, then empty ones.
    pub fn end_rows(&mut self, rows: u32) {
        while self.rows < rows {
            if self.rows.is_multiple_of(GROUP)
                && rows - self.rows >= GROUP
                && self.open_row().is_empty()
            {
                self.begin_group();
                self.rows += GROUP;
            } else {
                self.end_row();
            }
        }
    }

    /// Adds the rows of another table. Its row 0 is our last row whose number is a multiple of 64, and its rows that are ours,
    /// too, are empty.
    pub fn append(&mut self, mut more: Self) {
        let (lengths, values) = (self.lengths.len() as u32, self.ended as u32);
        let shared = self.rows % GROUP;
        if shared > 0
            && let Some(last) = self.groups.last_mut()
            && !more.groups.is_empty()
        {
            last.bits |= more.groups.remove(0).bits;
        }
        let groups = more.groups.into_iter().map(|group| Group {
            bits: group.bits,
            lengths: group.lengths + lengths,
            values: group.values + values,
        });
        self.groups.extend(groups);
        self.long.extend(more.long.into_iter().map(|(index, length)| (index + lengths, length)));
        self.lengths.extend(more.lengths);
        self.values.extend(more.values);
        self.rows += more.rows.saturating_sub(shared);
        self.ended += more.ended;
    }

    /// Adds values at the ends of rows, ascending by row. Returns for each the index of the value before which it was
    /// inserted, for tables with the same indices ([`insert_each`]).
    pub fn insert(&mut self, added: &[(u32, T)]) -> Vec<usize>
    where
        T: Copy,
    {
        self.end_rows(added.last().map_or(0, |last| last.0 + 1));
        let old = std::mem::take(self);
        let mut places = Vec::with_capacity(added.len());
        let mut added_rows = added.iter().peekable();
        let mut end = 0;
        for (row, length) in (0..).zip(old.row_lengths()) {
            end += length;
            let before = places.len();
            while added_rows.next_if(|added| added.0 == row).is_some() {
                places.push(end);
            }
            self.end_row_with(length + places.len() - before);
        }
        self.values = old.values;
        insert_each(&mut self.values, &places, added.iter().map(|added| added.1));
        places
    }

    /// Removes the values for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool)
    where
        T: Copy,
    {
        let mut old = std::mem::take(self);
        let mut values = std::mem::take(&mut old.values);
        let (mut kept, mut start) = (0, 0);
        for length in old.row_lengths() {
            let (before, end) = (kept, start + length);
            for at in std::mem::replace(&mut start, end)..end {
                if keep(&values[at]) {
                    values[kept] = values[at];
                    kept += 1;
                }
            }
            self.end_row_with(kept - before);
        }
        values.truncate(kept);
        self.values = values;
        self.shrink();
    }

    /// Frees room that was reserved for more values.
    pub fn shrink(&mut self) {
        self.groups.shrink_to_fit();
        self.lengths.shrink_to_fit();
        self.values.shrink_to_fit();
    }

    /// The values of a row; none if it has not ended.
    #[inline]
    #[must_use]
    pub fn of(&self, row: u32) -> &[T] {
        self.range_of(row).map_or(&[], |range| &self.values[range])
    }

    /// Returns true if a row has ended and is not empty.
    #[inline]
    #[must_use]
    pub fn has(&self, row: u32) -> bool {
        let group = self.groups.get((row / GROUP) as usize);
        group.is_some_and(|group| group.bits >> (row % GROUP) & 1 == 1)
    }

    /// The rows that are not empty, ascending, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[T])> + '_ {
        self.iter_groups(0..self.groups.len())
    }

    /// The rows that are not empty, ascending, with their values: those of the first half and those of the second.
    pub fn halves(&self) -> [impl Iterator<Item = (u32, &[T])> + '_; 2] {
        let (middle, end) = (self.groups.len() / 2, self.groups.len());
        [0..middle, middle..end].map(|groups| self.iter_groups(groups))
    }

    fn iter_groups(&self, groups: Range<usize>) -> impl Iterator<Item = (u32, &[T])> + '_ {
        let first = self.groups.get(groups.start);
        let (first, mut start) =
            first.map_or((0, 0), |it| (it.lengths as usize, it.values as usize));
        let rows = groups.flat_map(move |group| {
            let mut bits = self.groups[group].bits;
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < GROUP).then_some(group as u32 * GROUP + bit)
            })
        });
        let lengths = Lengths { lengths: &self.lengths, long: &self.long };
        (first..).zip(rows).map(move |(index, row)| {
            let range = start..start + lengths.of(index);
            start = range.end;
            (row, &self.values[range])
        })
    }

    /// The number of values of each row.
    fn row_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let lengths = Lengths { lengths: &self.lengths, long: &self.long };
        let mut index = 0;
        (0..self.rows).map(move |row| {
            let bits = self.groups[(row / GROUP) as usize].bits;
            if bits >> (row % GROUP) & 1 == 0 {
                return 0;
            }
            index += 1;
            lengths.of(index - 1)
        })
    }

    /// The indices of a row's values; `None` if it is empty or has not ended.
    #[inline]
    #[must_use]
    pub fn range_of(&self, row: u32) -> Option<Range<usize>> {
        let group = self.groups.get((row / GROUP) as usize)?;
        let bit = 1_u64 << (row % GROUP);
        if group.bits & bit == 0 {
            return None;
        }
        let first = group.lengths as usize;
        let index = first + (group.bits & (bit - 1)).count_ones() as usize;
        let lengths = Lengths { lengths: &self.lengths, long: &self.long };
        let start = group.values as usize + lengths.sum(first..index);
        Some(start..start + lengths.of(index))
    }
}

/// Inserts each of the values before the index in `places`, which are ascending, and as many.
pub fn insert_each<T: Copy>(
    into: &mut Vec<T>,
    places: &[usize],
    values: impl DoubleEndedIterator<Item = T> + Clone,
) {
    let mut old = into.len();
    into.extend(values.clone());
    let mut end = into.len();
    // Backwards, so that each value is moved once.
    for (&place, value) in places.iter().rev().zip(values.rev()) {
        let start = end - (old - place);
        into.copy_within(place..old, start);
        into[start - 1] = value;
        (old, end) = (place, start - 1);
    }
}

/// The lengths of rows that are not empty, by index.
#[derive(Clone, Copy)]
struct Lengths<'a> {
    lengths: &'a [u8],
    long: &'a [(u32, u32)],
}

impl Lengths<'_> {
    #[inline]
    fn of(self, index: usize) -> usize {
        match self.lengths[index] {
            LONG => self.long(index),
            length => length.into(),
        }
    }

    /// The sum of less than 64 lengths.
    #[inline]
    fn sum(self, range: Range<usize>) -> usize {
        // Eight lengths at a time, as the bytes of a word. Pairs of them are added to four sums, which fit into 16 bits.
        const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
        let (words, rest) = self.lengths[range.clone()].as_chunks::<8>();
        // Mostly other lengths follow.
        let rest = match self.lengths[range.end - rest.len()..].first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word) & !(u64::MAX << (8 * rest.len())),
            None => rest.iter().rev().fold(0, |word, &length| word << 8 | u64::from(length)),
        };
        let (mut sums, mut has_long) = (0, false);
        for word in words.iter().copied().map(u64::from_le_bytes).chain([rest]) {
            sums += (word & EVEN) + (word >> 8 & EVEN);
            has_long |= has_long_byte(word);
        }
        if has_long {
            return range.map(|index| self.of(index)).sum();
        }
        (sums & 0xffff) as usize
            + (sums >> 16 & 0xffff) as usize
            + (sums >> 32 & 0xffff) as usize
            + (sums >> 48) as usize
    }

    #[cold]
    fn long(self, index: usize) -> usize {
        let found = self.long.binary_search_by_key(&(index as u32), |long| long.0);
        found.map_or(0, |found| self.long[found].1 as usize)
    }
}

/// Returns true if a byte of `word` is [`LONG`].
fn has_long_byte(word: u64) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    const ONES: u64 = 0x0101_0101_0101_0101;
    // The addition carries into the high bit of a byte whose other bits are ones, and no further.
    ((word & !HIGH) + ONES) & word & HIGH != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Mostly short rows, and some that are too long for a byte.
    fn row() -> impl Strategy<Value = Vec<u32>> {
        prop_oneof![
            20 => prop::collection::vec(0_u32..9, 0..4),
            4 => prop::collection::vec(0_u32..9, 0..255),
            1 => prop::collection::vec(0_u32..9, 253..600),
        ]
    }

    proptest! {
        #[test]
        fn rows_are_what_was_pushed(
            rows in prop::collection::vec(row(), 0..300),
            mut more in prop::collection::vec(0_u32..300, 0..30),
        ) {
            more.sort_unstable();
            let mut sparse = SparseRows::default();
            for row in &rows {
                sparse.push(7);
                sparse.clear_row();
                row.iter().for_each(|&value| assert!(sparse.push(value)));
                prop_assert_eq!(sparse.open_row(), row);
                sparse.end_row();
            }
            sparse.end_rows(rows.len() as u32 + 5);
            sparse.shrink();
            prop_assert_eq!(sparse.rows() as usize, rows.len() + 5);
            for (number, row) in (0..).zip(&rows) {
                prop_assert_eq!(sparse.of(number), row);
                prop_assert_eq!(sparse.has(number), !row.is_empty());
            }
            prop_assert!(sparse.of(rows.len() as u32 + 64).is_empty());
            prop_assert!(!sparse.has(rows.len() as u32 + 64));
            let expected: Vec<_> =
                (0..).zip(&rows).filter(|(_, row)| !row.is_empty()).map(|(number, row)| (number, &row[..])).collect();
            prop_assert_eq!(sparse.iter().collect::<Vec<_>>(), &expected[..]);
            let halves = sparse.halves().into_iter().flatten();
            prop_assert_eq!(halves.collect::<Vec<_>>(), &expected[..]);
            let cut = rows.len() * 2 / 3;
            let part = |rows: &[Vec<u32>], empty: usize| {
                let mut part = SparseRows::default();
                part.end_rows(empty as u32);
                for row in rows {
                    row.iter().for_each(|&value| assert!(part.push(value)));
                    part.end_row();
                }
                part
            };
            let mut joined = part(&rows[..cut], 0);
            joined.append(part(&rows[cut..], cut % 64));
            prop_assert_eq!(joined.rows() as usize, rows.len());
            prop_assert_eq!(joined.iter().collect::<Vec<_>>(), expected);
            for (number, row) in (0..).zip(&rows) {
                prop_assert_eq!(joined.of(number), row);
            }
            let mut doubled = sparse.clone().map(|value| u64::from(value) * 2);
            doubled.values_mut().iter_mut().for_each(|value| *value += 1);
            for (number, row) in (0..).zip(&rows) {
                let expected: Vec<u64> = row.iter().map(|&value| u64::from(value) * 2 + 1).collect();
                prop_assert_eq!(doubled.of(number), expected);
            }
            let mut with_more = sparse.clone();
            let added: Vec<(u32, u32)> = more.into_iter().map(|row| (row, 90 + row)).collect();
            with_more.insert(&added);
            for (number, row) in (0..).zip(&rows) {
                let of_row = added.iter().filter(|added| added.0 == number).map(|added| added.1);
                let expected: Vec<u32> = row.iter().copied().chain(of_row).collect();
                prop_assert_eq!(with_more.of(number), expected);
            }
            sparse.retain(|value| value % 3 == 1);
            let lengths = sparse.iter().map(|(_, row)| row.len());
            prop_assert_eq!(lengths.sum::<usize>(), sparse.values().len());
            for (number, row) in (0..).zip(&rows) {
                let kept: Vec<_> = row.iter().copied().filter(|value| value % 3 == 1).collect();
                prop_assert_eq!(sparse.of(number), kept);
            }
        }
    }
}
