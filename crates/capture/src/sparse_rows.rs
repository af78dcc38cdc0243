use std::ops::Range;

/// Lists of values, one for each of a known number of rows, of which many are empty. An empty row takes one and a half
/// bits, another one four bytes beside its values.
///
/// Rows are filled in ascending order. There can be up to 2^32 - 1 values.
#[derive(Debug, Clone)]
pub struct SparseRows<T> {
    rows: u32,
    /// For each 64 rows the bits of those that are not empty, and the number of such rows before.
    groups: Vec<(u64, u32)>,
    /// For each row that is not empty the end of its values. They begin at the end of the one before.
    ends: Vec<u32>,
    values: Vec<T>,
}

impl<T> Default for SparseRows<T> {
    fn default() -> Self {
        Self { rows: 0, groups: Vec::new(), ends: Vec::new(), values: Vec::new() }
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

    /// The values of the row that is being filled.
    #[must_use]
    pub fn open_row(&self) -> &[T] {
        &self.values[self.begun()..]
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
        self.values.truncate(self.begun());
    }

    /// Ends the row that is being filled: the next values belong to the next row.
    pub fn end_row(&mut self) {
        let bit = self.rows % 64;
        if bit == 0 {
            self.groups.push((0, self.ends.len() as u32));
        }
        if self.begun() < self.values.len()
            && let Some((bits, _)) = self.groups.last_mut()
        {
            *bits |= 1 << bit;
            self.ends.push(self.values.len() as u32);
        }
        self.rows += 1;
    }

    /// Ends empty rows until `rows` have ended.
    pub fn end_rows(&mut self, rows: u32) {
        while self.rows < rows {
            self.end_row();
        }
    }

    /// Removes the values for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool)
    where
        T: Copy,
    {
        let (mut row, mut rows, mut start, mut kept) = (0, 0, 0, 0);
        for (bits, before) in &mut self.groups {
            *before = rows as u32;
            for bit in (0..64).map(|bit| 1_u64 << bit) {
                if *bits & bit == 0 {
                    continue;
                }
                let end = self.ends[row] as usize;
                row += 1;
                let begun = kept;
                for at in std::mem::replace(&mut start, end)..end {
                    if keep(&self.values[at]) {
                        self.values[kept] = self.values[at];
                        kept += 1;
                    }
                }
                if begun < kept {
                    self.ends[rows] = kept as u32;
                    rows += 1;
                } else {
                    *bits &= !bit;
                }
            }
        }
        self.ends.truncate(rows);
        self.values.truncate(kept);
        self.shrink();
    }

    /// Frees room that was reserved for more values.
    pub fn shrink(&mut self) {
        self.groups.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.values.shrink_to_fit();
    }

    /// The values of a row; none if it has not ended.
    #[inline]
    #[must_use]
    pub fn of(&self, row: u32) -> &[T] {
        self.range_of(row).map_or(&[], |range| &self.values[range])
    }

    /// Returns true if a row has no values.
    #[inline]
    #[must_use]
    pub fn is_empty(&self, row: u32) -> bool {
        self.groups.get(row as usize / 64).is_none_or(|(bits, _)| bits >> (row % 64) & 1 == 0)
    }

    /// The rows that are not empty, ascending, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[T])> + '_ {
        let rows = (0..).zip(&self.groups).flat_map(|(group, &(bits, _))| {
            let bits = (0..64_u32).filter(move |bit| bits >> bit & 1 == 1);
            bits.map(move |bit| group * 64 + bit)
        });
        let mut start = 0;
        rows.zip(&self.ends).map(move |(row, &end)| {
            let range = start..end as usize;
            start = range.end;
            (row, &self.values[range])
        })
    }

    #[inline]
    fn range_of(&self, row: u32) -> Option<Range<usize>> {
        let &(bits, before) = self.groups.get(row as usize / 64)?;
        let bit = 1_u64 << (row % 64);
        if bits & bit == 0 {
            return None;
        }
        let index = before as usize + (bits & (bit - 1)).count_ones() as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(start as usize..self.ends[index] as usize)
    }

    fn begun(&self) -> usize {
        self.ends.last().map_or(0, |&end| end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_are_what_was_pushed(rows in prop::collection::vec(prop::collection::vec(0_u32..9, 0..4), 0..300)) {
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
                prop_assert_eq!(sparse.is_empty(number), row.is_empty());
            }
            prop_assert!(sparse.of(rows.len() as u32 + 64).is_empty());
            let expected: Vec<_> =
                (0..).zip(&rows).filter(|(_, row)| !row.is_empty()).map(|(number, row)| (number, &row[..])).collect();
            prop_assert_eq!(sparse.iter().collect::<Vec<_>>(), expected);
            sparse.retain(|value| value % 3 == 1);
            for (number, row) in (0..).zip(&rows) {
                let kept: Vec<_> = row.iter().copied().filter(|value| value % 3 == 1).collect();
                prop_assert_eq!(sparse.of(number), kept);
            }
        }
    }
}
