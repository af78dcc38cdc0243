use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use image::{SparseRows, insert_each};
use linux::{Address, each};

use crate::model::content::Content;
use crate::model::packed_addresses::PackedAddresses;

/// A word that was resolved to nothing.
const NOTHING: u32 = u32::MAX;

/// The words of live slots that may be pointers to malloc'ed memory, in slot order: multiples of 8, addresses in private
/// writable memory outside the heap pages. They include the pointers in the tables of Hashes and in the structures of IOs.
#[derive(Debug, Clone, Default)]
pub struct References {
    /// Those of ascending ranges of slots, which are read at the same time.
    parts: Vec<Part>,
    /// The number of words that there was no room for.
    dropped: u64,
}

/// The words of a range of slots.
#[derive(Debug, Clone, Default)]
struct Part {
    /// The slot of the first row: a multiple of 64, where tables of rows can be joined.
    first: u32,
    /// Packed addresses.
    rows: SparseRows<u32>,
    /// True if contents are kept.
    has_contents: bool,
    /// The contents that slots have there, by the index of the word.
    contents: Vec<Content>,
    addresses: PackedAddresses,
}

impl Part {
    /// The words with these indices, of one slot.
    fn words(
        &self,
        slot: u32,
        indices: Range<usize>,
    ) -> impl Iterator<Item = (u32, Address, Content)> + '_ {
        indices.map(move |index| {
            let address = self.addresses.unpack(self.rows.values()[index]);
            let content = self.contents.get(index).copied().unwrap_or(Content::UNKNOWN);
            (slot, address, content)
        })
    }

    fn iter(&self) -> impl Iterator<Item = (u32, Address, Content)> + '_ {
        let mut end = 0;
        self.rows.iter().flat_map(move |(row, words)| {
            let start = end;
            end += words.len();
            self.words(self.first + row, start..end)
        })
    }

    fn of(&self, slot: u32) -> impl Iterator<Item = (u32, Address, Content)> + '_ {
        let range = slot.checked_sub(self.first).and_then(|row| self.rows.range_of(row));
        self.words(slot, range.unwrap_or_default())
    }
}

impl References {
    /// No references yet; those that follow are of slots from `first` on.
    pub(crate) fn from_slot(first: u32, has_contents: bool) -> Self {
        let part = Part { first: first - first % 64, has_contents, ..Part::default() };
        Self { parts: vec![part], dropped: 0 }
    }

    /// Adds a word of the slot with this index, which is not before the last one.
    pub(crate) fn push(&mut self, slot: u32, to: Address, content: Content) {
        let Some(part) = self.parts.last_mut() else { return };
        part.rows.end_rows(slot - part.first);
        let is_kept = part.addresses.pack(to).is_some_and(|packed| part.rows.push(packed));
        self.dropped += u64::from(!is_kept);
        if is_kept && part.has_contents {
            part.contents.push(content);
        }
    }

    /// Ends a part: adds references of slots that have been read, each behind the references that its slot already has.
    /// Nothing may have been [appended](Self::append).
    #[must_use]
    pub(crate) fn merge(mut self, mut added: Vec<(u32, Address, Content)>) -> Self {
        self.parts.iter_mut().for_each(|part| part.rows.end_row());
        if added.is_empty() {
            return self;
        }
        added.sort_by_key(|&(slot, ..)| slot);
        for Part { first, rows, has_contents, contents, addresses } in &mut self.parts {
            let mut packed = Vec::with_capacity(added.len());
            added.retain(|&(slot, to, _)| {
                let to = addresses.pack(to);
                packed.extend(to.map(|to| (slot - *first, to)));
                self.dropped += u64::from(to.is_none());
                to.is_some()
            });
            let places = rows.insert(&packed);
            if *has_contents {
                insert_each(contents, &places, added.iter().map(|&(.., content)| content));
            }
        }
        self
    }

    /// Adds the references of later slots. Both have been [merged](Self::merge).
    pub(crate) fn append(&mut self, more: Self) {
        self.parts.extend(more.parts);
        self.dropped += more.dropped;
    }

    /// The index of each slot, a word of it, and the content that the slot has there, ascending by slot. Contents are unknown
    /// if they were not kept.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Address, Content)> + '_ {
        self.parts.iter().flat_map(Part::iter)
    }

    /// The words of the slot with this index, and the content that it has there.
    pub fn of(&self, slot: u32) -> impl Iterator<Item = (Address, Content)> + '_ {
        // Parts overlap by less than 64 rows.
        let words = self.parts.iter().flat_map(move |part| part.of(slot));
        words.map(|(_, address, content)| (address, content))
    }

    /// The number of words that there was no room for.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Replaces each word by the number that `resolve` returns for it and its content, which is below 2^32 - 1. Returns the
    /// numbers by slot. Several parts are resolved at the same time.
    #[must_use]
    pub fn resolve(
        mut self,
        resolve: impl Fn(Address, Content) -> Option<u32> + Sync,
    ) -> SparseRows<u32> {
        let parts: Vec<_> = self.parts.iter_mut().map(Mutex::new).collect();
        _ = each(parts.len(), |number| {
            let mut part = parts[number].lock().unwrap_or_else(PoisonError::into_inner);
            let Part { rows, contents, addresses, .. } = &mut **part;
            let contents = contents.iter().chain(std::iter::repeat(&Content::UNKNOWN));
            for (word, &content) in rows.values_mut().iter_mut().zip(contents) {
                *word = resolve(addresses.unpack(*word), content).unwrap_or(NOTHING);
            }
        });
        let mut all = SparseRows::default();
        for mut part in self.parts {
            part.contents = Vec::new();
            if part.rows.values().contains(&NOTHING) {
                part.rows.retain(|&number| number != NOTHING);
            }
            all.end_rows(part.first);
            all.append(part.rows);
        }
        all.shrink();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn half(first: u32, words: &[(u32, u64)], merged: &[(u32, u64)]) -> References {
        let mut half = References::from_slot(first, true);
        let content = |at: u64| Content::new(crate::Form::Words, at);
        for &(slot, at) in words {
            half.push(slot, Address(at * 8), content(at));
        }
        half.merge(merged.iter().map(|&(slot, at)| (slot, Address(at * 8), content(at))).collect())
    }

    proptest! {
        /// A part of the heap may have no references.
        #[test]
        fn references_of_both_halves_are_found(
            words in prop::collection::vec((0_u32..300, 0_u64..1 << 29), 0..200),
            merged in prop::collection::vec((0_u32..300, 0_u64..1 << 29), 0..20),
            cut in 0_u32..300,
        ) {
            let mut words = words;
            words.sort_by_key(|it| it.0);
            let of = |words: &[(u32, u64)], range: Range<u32>| -> Vec<_> {
                words.iter().copied().filter(|it| range.contains(&it.0)).collect()
            };
            let part = |range: Range<u32>| {
                half(range.start, &of(&words, range.clone()), &of(&merged, range))
            };
            let mut all = part(0..cut);
            all.append(part(cut..300));
            let mut expected = [&words[..], &merged[..]].concat();
            expected.sort_by_key(|it| it.0);
            let found: Vec<_> = all.iter().map(|(slot, at, _)| (slot, at.0 / 8)).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert!(all.iter().all(|(_, at, content)| content.used_words() == Some(at.0 / 8)));
            for slot in 0..310 {
                let words: Vec<u64> = all.of(slot).map(|(at, _)| at.0 / 8).collect();
                let expected: Vec<u64> =
                    expected.iter().filter(|it| it.0 == slot).map(|it| it.1).collect();
                prop_assert_eq!(words, expected);
            }
            let number = |at: u64| (!at.is_multiple_of(3)).then_some(at as u32);
            let rows = all.resolve(|at, content| {
                assert_eq!(content.used_words(), Some(at.0 / 8));
                number(at.0 / 8)
            });
            let numbers = expected.iter().filter_map(|&(slot, at)| Some((slot, number(at)?)));
            let numbers: Vec<(u32, u32)> = numbers.collect();
            let found = rows.iter().flat_map(|(slot, row)| row.iter().map(move |&it| (slot, it)));
            prop_assert_eq!(found.collect::<Vec<_>>(), numbers);
        }
    }
}
