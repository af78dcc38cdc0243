use std::ops::Range;

use capture::Address;

use crate::model::content::Content;

/// The words of live slots that may be pointers to malloc'ed memory, in slot order: aligned to 16
/// bytes, into private writable memory outside the heap pages. They include the pointers in the
/// tables of Hashes and in the structures of IOs.
#[derive(Debug, Clone, Default)]
pub struct References {
    slots: Vec<u32>,
    addresses: Vec<Address>,
    contents: Vec<Content>,
}

impl References {
    /// Adds a word of the slot with this index.
    pub fn push(&mut self, slot: u32, to: Address, content: Content) {
        self.slots.push(slot);
        self.addresses.push(to);
        self.contents.push(content);
    }

    /// Adds references of any slots, each behind the references that its slot already has.
    pub(crate) fn merge(&mut self, mut added: Vec<(u32, Address, Content)>) {
        added.sort_by_key(|&(slot, ..)| slot);
        let mut old = self.slots.len();
        let mut end = old + added.len();
        self.slots.resize(end, 0);
        self.addresses.resize(end, Address(0));
        self.contents.resize(end, Content::UNKNOWN);
        // Backwards, so that each is moved once.
        for (slot, to, content) in added.into_iter().rev() {
            while old > 0 && self.slots[old - 1] > slot {
                (old, end) = (old - 1, end - 1);
                self.slots[end] = self.slots[old];
                self.addresses[end] = self.addresses[old];
                self.contents[end] = self.contents[old];
            }
            end -= 1;
            (self.slots[end], self.addresses[end], self.contents[end]) = (slot, to, content);
        }
    }

    /// The index of each slot and a word of it, ascending by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Address)> + '_ {
        self.slots.iter().copied().zip(self.addresses.iter().copied())
    }

    /// The index of each of these slots, a word of it, and the content that the slot has there, ascending by slot.
    pub fn with_contents(
        &self,
        slots: Range<u32>,
    ) -> impl Iterator<Item = (u32, Address, Content)> + '_ {
        let [first, end] =
            [slots.start, slots.end].map(|end| self.slots.partition_point(|&slot| slot < end));
        (first..end).map(|index| (self.slots[index], self.addresses[index], self.contents[index]))
    }

    /// The words of the slot with this index.
    #[must_use]
    pub fn of(&self, slot: u32) -> &[Address] {
        let first = self.slots.partition_point(|&it| it < slot);
        let count = self.slots[first..].iter().take_while(|&&it| it == slot).count();
        &self.addresses[first..first + count]
    }
}
