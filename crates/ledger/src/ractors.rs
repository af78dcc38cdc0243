//! The memory of each Ractor that has an object space of its own (from Ruby 4.1 on).

use linux::Pages;
use ruby::{ObjectSpace, Ractor, SlotState};

use crate::ownership::{ObjectGraph, Paths};

/// An object space, and the Ractor that allocates from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RactorAccount {
    /// The Ractor; `None` if none has this space any more: it has ended.
    pub ractor: Option<Ractor>,
    /// The number of its heap pages.
    pub heap_pages: u64,
    /// The resident bytes of these pages.
    pub resident_bytes: u64,
    /// Slots that hold an object, and their bytes, resident or not.
    pub slots_live: u64,
    /// The bytes of these slots.
    pub slot_bytes_live: u64,
    /// Free slots.
    pub slots_free: u64,
    /// The bytes of these slots.
    pub slot_bytes_free: u64,
    /// The objects that nothing retains, and the bytes of their slots; `None` if that is unknown.
    pub garbage: Option<(u64, u64)>,
}

/// The accounts of all object spaces, the main Ractor's first; empty if there is one, or the main Ractor's was not recognized.
pub(crate) fn accounts(
    space: &ObjectSpace,
    pages: &Pages,
    reach: Option<&(ObjectGraph<'_>, Paths)>,
) -> Vec<RactorAccount> {
    let mut accounts = Vec::new();
    if space.ractors.is_empty() {
        return accounts;
    }
    for page in &space.pages {
        let index = page.space as usize;
        if accounts.len() <= index {
            let garbage = reach.map(|_| (0, 0));
            accounts.resize(index + 1, RactorAccount { garbage, ..RactorAccount::default() });
        }
        let account = &mut accounts[index];
        account.heap_pages += 1;
        account.resident_bytes += pages.resident_bytes(&page.range);
        let bytes = u64::from(page.slot_bytes);
        for (number, slot) in page.slots.clone().zip(&space.slots[page.slots.clone()]) {
            if slot.state() == SlotState::Free {
                account.slots_free += 1;
                account.slot_bytes_free += bytes;
            } else if slot.is_live() {
                account.slots_live += 1;
                account.slot_bytes_live += bytes;
                let is_garbage = |(graph, paths): &(ObjectGraph<'_>, Paths)| {
                    paths.root(graph.slot(number as u32)).is_none()
                };
                if let Some(garbage) =
                    account.garbage.as_mut().filter(|_| reach.is_some_and(is_garbage))
                {
                    garbage.0 += 1;
                    garbage.1 += bytes;
                }
            }
        }
    }
    for ractor in &space.ractors {
        if let Some(account) = accounts.get_mut(ractor.space as usize) {
            account.ractor = Some(ractor.clone());
        }
    }
    accounts
}
