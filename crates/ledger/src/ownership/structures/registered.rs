//! Objects that C code registered by the addresses of words that refer to them.

use image::elf::Module;
use linux::Address;
use ruby::{MAX_SPECIAL, RegisteredAddress};

use crate::ownership::address_index::Referent;
use crate::ownership::bits::Bits;

use super::Finder;

impl Finder<'_> {
    /// The entries of the list of registered addresses, and the slots to which the words at these addresses refer, without those of
    /// variables, which are roots of their own. The object space refers to the list, and from 3.4 on the structure of the VM.
    pub(super) fn registered(&self, modules: &[Module]) -> (Vec<u32>, Vec<u32>) {
        // Words that lead to no list must not make the search endless.
        let mut steps = 2 * self.heap.block_count();
        let words = self.words_of_vm().into_iter().chain(self.words_of_collector()).flatten();
        let mut lists = words.filter_map(|word| self.registered_from(word, modules, &mut steps));
        lists.next().unwrap_or_default()
    }

    /// The list that begins at `first`; `None` if it is another one. Extensions and the interpreter register variables before any other
    /// words, so each list has some.
    fn registered_from(
        &self,
        first: u64,
        modules: &[Module],
        steps: &mut usize,
    ) -> Option<(Vec<u32>, Vec<u32>)> {
        let is_variable =
            |at| modules.iter().flat_map(|it| &it.writable).any(|range| range.contains(&at));
        let (mut entries, mut slots) = (Vec::new(), Vec::new());
        let (mut known, mut has_variable) = (None, false);
        let mut next = first;
        while next != 0 {
            *steps = steps.checked_sub(1)?;
            let number = self.addresses.block_at(Address(next))?;
            if !self.heap.fits(RegisteredAddress::BYTES, self.heap.usable_bytes(number)) {
                return None;
            }
            let words = self.words(Address(next), RegisteredAddress::BYTES);
            let entry = RegisteredAddress::from_words(words.try_into().ok()?)?;
            if !self.is_writable(entry.address) {
                return None;
            }
            let known = known.get_or_insert_with(|| Bits::new(self.heap.block_count()));
            if !known.insert(number) {
                return None;
            }
            entries.push(number);
            let is_variable = is_variable(entry.address);
            has_variable |= is_variable;
            let value = self.words(entry.address, 8).first().copied().filter(|_| !is_variable);
            if let Some(value) = value.filter(|&it| it > MAX_SPECIAL)
                && let Referent::Slot(slot) = self.addresses.at(Address(value))
            {
                slots.push(slot);
            }
            next = entry.next.0;
        }
        has_variable.then_some((entries, slots))
    }

    fn is_writable(&self, at: Address) -> bool {
        let is_object = matches!(self.addresses.at(at), Referent::Slot(_));
        let mapping = self.image.state.mappings.find(at);
        !is_object && mapping.is_some_and(|mapping| mapping.writable)
    }
}
