use std::ops::Range;

use capture::Address;

use crate::model::content::Content;

/// The words of live slots that may be pointers to malloc'ed memory, in slot order: multiples of 8, addresses in private
/// writable memory outside the heap pages. They include the pointers in the tables of Hashes and in the structures of IOs.
#[derive(Debug, Clone, Default)]
pub struct References {
    /// Those of ascending ranges of slots: halves of the heap are read at the same time.
    parts: Vec<Part>,
}

/// A word has the same index in each column.
#[derive(Debug, Clone, Default)]
struct Part {
    slots: Vec<u32>,
    addresses: Vec<Address>,
    contents: Vec<Content>,
}

impl References {
    /// Adds the references of later slots.
    pub(crate) fn append(&mut self, more: Self) {
        self.parts.extend(more.parts);
        self.parts.retain(|part| !part.slots.is_empty());
    }

    /// Adds a word of the slot with this index, which is not before the last one.
    pub(crate) fn push(&mut self, slot: u32, to: Address, content: Content) {
        let part = self.last();
        part.slots.push(slot);
        part.addresses.push(to);
        part.contents.push(content);
    }

    /// Adds references of slots that have been read, each behind the references that its slot already has. Nothing may
    /// have been [appended](Self::append).
    pub(crate) fn merge(&mut self, mut added: Vec<(u32, Address, Content)>) {
        added.sort_by_key(|&(slot, ..)| slot);
        let Part { slots, addresses, contents } = self.last();
        let mut old = slots.len();
        let mut end = old + added.len();
        slots.resize(end, 0);
        addresses.resize(end, Address(0));
        contents.resize(end, Content::UNKNOWN);
        // Backwards, so that each is moved once.
        for (slot, to, content) in added.into_iter().rev() {
            while old > 0 && slots[old - 1] > slot {
                (old, end) = (old - 1, end - 1);
                slots[end] = slots[old];
                addresses[end] = addresses[old];
                contents[end] = contents[old];
            }
            end -= 1;
            (slots[end], addresses[end], contents[end]) = (slot, to, content);
        }
    }

    fn last(&mut self) -> &mut Part {
        if self.parts.is_empty() {
            self.parts.push(Part::default());
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// The slot before which about half of the references are.
    #[must_use]
    pub fn middle(&self) -> u32 {
        let half = self.parts.iter().map(|part| part.slots.len()).sum::<usize>() / 2;
        self.parts.iter().flat_map(|part| &part.slots).nth(half).copied().unwrap_or_default()
    }

    /// The index of each slot and a word of it, ascending by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Address)> + '_ {
        self.parts
            .iter()
            .flat_map(|part| part.slots.iter().copied().zip(part.addresses.iter().copied()))
    }

    /// The index of each of these slots, a word of it, and the content that the slot has there, ascending by slot.
    pub fn with_contents(
        &self,
        slots: Range<u32>,
    ) -> impl Iterator<Item = (u32, Address, Content)> + '_ {
        self.parts.iter().flat_map(move |part| {
            let [first, end] =
                [slots.start, slots.end].map(|end| part.slots.partition_point(|&slot| slot < end));
            (first..end)
                .map(|index| (part.slots[index], part.addresses[index], part.contents[index]))
        })
    }

    /// The words of the slot with this index.
    #[must_use]
    pub fn of(&self, slot: u32) -> &[Address] {
        let is_before = |part: &Part| part.slots.last().is_none_or(|&last| last < slot);
        let Some(part) = self.parts.get(self.parts.partition_point(is_before)) else { return &[] };
        let first = part.slots.partition_point(|&it| it < slot);
        let count = part.slots[first..].iter().take_while(|&&it| it == slot).count();
        &part.addresses[first..first + count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A half of the heap may have no references.
    #[test]
    fn references_of_both_halves_are_found() {
        let half = |slots: &[u32]| {
            let mut half = References::default();
            for &slot in slots {
                half.push(slot, Address(u64::from(slot) * 8), Content::UNKNOWN);
            }
            half.merge(Vec::new());
            half
        };
        for (first, second) in
            [(&[1, 1, 4][..], &[][..]), (&[], &[7, 9]), (&[1, 4], &[7, 7, 9]), (&[], &[])]
        {
            let mut all = half(first);
            all.append(half(second));
            for slot in 0..12 {
                let count = first.iter().chain(second).filter(|&&it| it == slot).count();
                assert_eq!(all.of(slot), vec![Address(u64::from(slot) * 8); count], "{slot}");
            }
            assert_eq!(all.iter().count(), first.len() + second.len());
            assert_eq!(
                all.with_contents(2..8).count(),
                all.iter().filter(|it| (2..8).contains(&it.0)).count()
            );
        }
    }
}
