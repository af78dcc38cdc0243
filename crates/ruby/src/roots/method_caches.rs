//! The caches of a class's methods (from 4.0 on): for each method the calls that found it. They are behind a table in the slot of an
//! internal object, and malloc does not clear the room for more.

use image::{Image, Memory};
use linux::Address;

use crate::layout::embedded::STRUCTURE;
use crate::model::content::{Content, Form};
use crate::object_space::ObjectSpace;
use crate::roots::id_table::{self, Budget};

/// The type of the object with the table (vm_method.c).
const TABLE: &str = "VM/cc_table";
/// The words of `rb_class_cc_entries` (vm_callinfo.h) before its caches: their room and number, and the method. And those of a cache.
const HEAD_WORDS: u64 = 2;
const CACHE_WORDS: u64 = 2;
/// More caches than a method has.
const MAX_CACHES: u64 = 1 << 16;

/// The memory of all caches, with the part that is in use. `image` is the one that `space` was read from, of the same instant.
pub(super) fn contents(image: &Image<'_>, space: &ObjectSpace) -> Vec<(Address, Content)> {
    let budget = Budget::new();
    let is_table =
        |slot: &u32| space.data_type_of(*slot).is_some_and(|it| it.name.as_deref() == Some(TABLE));
    let tables = space.data_objects.iter().map(|(slot, _)| slot).filter(is_table);
    let tables = tables.filter_map(|slot| {
        let table = space.slot_address(slot as usize)?.offset(STRUCTURE as u64);
        id_table::read(image, table, &budget)
    });
    let caches = tables.flatten().filter_map(|(_, at)| {
        let numbers = image.read_u64(Address(at)).ok()?;
        let (room, count) = (numbers & u64::from(u32::MAX), numbers >> 32);
        let used = HEAD_WORDS + CACHE_WORDS * count;
        (count <= room && room <= MAX_CACHES)
            .then(|| (Address(at), Content::new(Form::Words, used)))
    });
    caches.collect()
}
