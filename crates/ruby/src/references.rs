//! The words of objects that are in use: pointers to malloc'ed memory, and references to others.

use capture::Address;

use crate::contents::Content;
use crate::layouts::{Layouts, Part};
use crate::object::Object;
use crate::territory::{Place, Territory};

/// malloc aligns to this ...
const ALIGNMENT: u64 = 16;
/// ... and slots to this.
const SLOT_ALIGNMENT: u64 = 8;
/// Programs have no memory below: the kernel refuses it (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;

/// What a word of an object may mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Malloc'ed memory: it is aligned as malloc aligns, into private memory that is no heap page.
    Memory(Address, Content),
    /// The hash table of a Hash, which names more memory.
    Table(Address),
    /// The structure of an IO, which names its buffers.
    Io(Address),
    /// The object in this slot: it is the address of its first byte.
    Slot(u32),
}

/// Calls `found` with each word of an object that means something.
pub(crate) fn for_each(
    object: &Object<'_>,
    territory: &Territory<'_>,
    layouts: &mut Layouts<'_>,
    mut found: impl FnMut(Found),
) {
    layouts.parts(object, territory, |part| {
        let word = part.word();
        if word < LOWEST || !word.is_multiple_of(SLOT_ALIGNMENT) {
            return;
        }
        match territory.at(word) {
            Place::Private if word.is_multiple_of(ALIGNMENT) => {
                let at = Address(word);
                match part {
                    Part::Value(_) => {}
                    Part::Word(_) => found(Found::Memory(at, Content::UNKNOWN)),
                    Part::Memory(_, content) => found(Found::Memory(at, content)),
                    Part::Table(_) => found(Found::Table(at)),
                    Part::Io(_) => found(Found::Io(at)),
                }
            }
            Place::HeapPage(page) => {
                if let Some(slot) = territory.slot_on(page, word) {
                    found(Found::Slot(slot));
                }
            }
            Place::Private | Place::Elsewhere => {}
        }
    });
}
