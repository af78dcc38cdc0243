//! A heap page, as the derivation of all of them yields it.

use capture::Address;

/// A heap page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) descriptor: Address,
    pub(crate) base: Address,
    pub(crate) first_slot: Address,
    pub(crate) slot_bytes: u32,
    pub(crate) slot_count: u32,
    /// The slots of all pages before it.
    pub(crate) slots_before: u32,
}
