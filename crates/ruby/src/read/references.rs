//! The references of objects: pointers to malloc'ed memory, and references to other objects.

use linux::Address;

use crate::address_classifier::AddressClassifier;
use crate::layout::object::Object;
use crate::layout::object_layouts::{ObjectLayouts, ObjectWord};
use crate::model::content::Content;
use crate::model::slot::SlotType;

/// The alignment of slots and of malloc'ed memory: jemalloc has regions of 8 bytes.
const ALIGNMENT: u64 = 8;
/// No process has memory below: the kernel refuses it (vm.mmap_min_addr).
const MIN_ADDRESS: u64 = 1 << 16;

/// A reference of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    /// To malloc'ed memory: private, aligned as malloc aligns, and outside the heap pages.
    Memory(Address, Content),
    /// To the `st_table` of a Hash, which has more memory.
    Table(Address),
    /// To the `rb_io_t` of an IO, which has buffers.
    Io(Address),
    /// To the object in this slot.
    Slot(u32),
}

/// Returns the address that a value is as an Integer, as Fiddle.malloc returns it; `None` unless it may be one.
#[must_use]
pub fn address_of_integer(value: u64) -> Option<Address> {
    // Integers are shifted by `RUBY_FIXNUM_FLAG` (include/ruby/internal/special_consts.h).
    let address = value >> 1;
    (value % 2 == 1 && address >= MIN_ADDRESS).then_some(Address(address))
}

/// Calls `found` with each reference of an object. `is_marked` is true if the last collection marked it.
pub(crate) fn for_each(
    object: &Object<'_>,
    is_marked: bool,
    classifier: &AddressClassifier<'_>,
    layouts: &mut ObjectLayouts<'_>,
    mut found: impl FnMut(Reference),
) {
    // Inline caches have copies of constants.
    let is_copy = object.kind == SlotType::IMEMO && !object.is_environment();
    layouts.words_of(object, is_marked, classifier, |meaning| {
        let word = meaning.word();
        if let Some(address) = address_of_integer(word) {
            let may_be = !is_copy && matches!(meaning, ObjectWord::Value(_) | ObjectWord::Any(..));
            if may_be && address.0.is_multiple_of(16) && classifier.is_private(address.0) {
                found(Reference::Memory(address, Content::AT_INTEGER));
            }
            return;
        }
        if word < MIN_ADDRESS || !word.is_multiple_of(ALIGNMENT) {
            return;
        }
        // Most other words are no pointers to memory, and the index of slots is faster than the classifier.
        let is_memory = matches!(meaning, ObjectWord::Memory(..)) && classifier.is_private(word);
        if !is_memory && let Some(slot) = classifier.slot_at(word) {
            found(Reference::Slot(slot));
        } else if is_memory || classifier.is_private(word) {
            let at = Address(word);
            match meaning {
                ObjectWord::Value(_) => {}
                ObjectWord::Any(_, content) | ObjectWord::Memory(_, content) => {
                    found(Reference::Memory(at, content));
                }
                ObjectWord::Table(_) => found(Reference::Table(at)),
                ObjectWord::Io(_) => found(Reference::Io(at)),
            }
        }
    });
}
