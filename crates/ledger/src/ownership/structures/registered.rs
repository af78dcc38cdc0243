//! Objects that C code registered by the addresses of words that refer to them.

use image::elf::Module;
use linux::Address;
use ruby::{MAX_SPECIAL, RegisteredAddress, RegisteredAddresses};

use crate::ownership::address_index::Referent;
use crate::ownership::bits::Bits;

use super::Finder;

/// Registered addresses.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    /// The blocks with the addresses.
    pub(crate) entries: Vec<u32>,
    /// The slots to which the words there refer, without those of variables, which are roots of their own.
    pub(crate) slots: Vec<u32>,
    /// Extensions and the interpreter register variables before any other words, so all lists have some.
    has_variable: bool,
}

impl Finder<'_> {
    /// The addresses in a list, to which the object space refers, and from 3.4 on the structure of the VM, or in an array (from 4.1 on).
    pub(super) fn registered(&self, modules: &[Module]) -> Registered {
        // Words that lead to no list must not make the search endless.
        let mut steps = 2 * self.heap.block_count();
        let structures: Vec<_> =
            self.words_of_vm().into_iter().chain(self.words_of_collector()).collect();
        let words = structures.iter().flatten();
        let mut lists = words.filter_map(|word| self.registered_from(*word, modules, &mut steps));
        if let Some(found) = lists.next() {
            return found;
        }
        let mut words = structures.iter().flat_map(|it| it.windows(RegisteredAddresses::WORDS));
        let array = words.find_map(|words| self.registered_in_array(words, modules, &mut steps));
        array.unwrap_or_default()
    }

    /// The list that begins at `first`; `None` if it is another one.
    fn registered_from(
        &self,
        first: u64,
        modules: &[Module],
        steps: &mut usize,
    ) -> Option<Registered> {
        let (mut found, mut known) = (Registered::default(), None);
        let mut next = first;
        while next != 0 {
            *steps = steps.checked_sub(1)?;
            let number = self.addresses.block_at(Address(next))?;
            if !self.heap.fits(RegisteredAddress::BYTES, self.heap.usable_bytes(number)) {
                return None;
            }
            let words = self.words(Address(next), RegisteredAddress::BYTES);
            let entry = RegisteredAddress::from_words(words.try_into().ok()?)?;
            self.take_registered(entry.address, modules, &mut found)?;
            let known = known.get_or_insert_with(|| Bits::new(self.heap.block_count()));
            if !known.insert(number) {
                return None;
            }
            found.entries.push(number);
            next = entry.next.0;
        }
        Some(found).filter(|it| it.has_variable)
    }

    fn registered_in_array(
        &self,
        words: &[u64],
        modules: &[Module],
        steps: &mut usize,
    ) -> Option<Registered> {
        let array = RegisteredAddresses::from_words(words.try_into().ok()?)?;
        let number = self.addresses.block_at(array.first)?;
        if array.room * 8 > self.heap.usable_bytes(number) {
            return None;
        }
        *steps = steps.checked_sub(array.count as usize)?;
        let mut found = Registered { entries: vec![number], ..Registered::default() };
        let mut are_all = true;
        self.each_word(&(array.first..array.first.offset(array.count * 8)), |word| {
            let address = Some(Address(word)).filter(|_| are_all && word.is_multiple_of(8));
            are_all =
                address.and_then(|it| self.take_registered(it, modules, &mut found)).is_some();
        });
        Some(found).filter(|it| are_all && it.has_variable)
    }

    /// Takes the object to which the word at an address refers; `None` if no program can write there.
    fn take_registered(
        &self,
        address: Address,
        modules: &[Module],
        found: &mut Registered,
    ) -> Option<()> {
        let mapping = self.image.state.mappings.find(address);
        let is_object = matches!(self.addresses.at(address), Referent::Slot(_));
        mapping.filter(|mapping| mapping.writable && !is_object)?;
        if modules.iter().flat_map(|it| &it.writable).any(|range| range.contains(&address)) {
            found.has_variable = true;
            return Some(());
        }
        let value = self.words(address, 8).first().copied().filter(|&it| it > MAX_SPECIAL);
        if let Some(Referent::Slot(slot)) = value.map(|it| self.addresses.at(Address(it))) {
            found.slots.push(slot);
        }
        Some(())
    }
}
