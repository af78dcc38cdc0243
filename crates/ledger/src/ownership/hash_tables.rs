//! Hash tables of libraries and of the interpreter: memory that looks like one, and the values of its entries.

use allocator::HeapMap;
use image::elf::Module;
use image::{Image, Memory};
use linux::Address;
use ruby::{Content, StTable};

use crate::ownership::address_index::{AddressIndex, Referent};
use crate::ownership::reader::Heads;

/// A value in a hash table whose key is an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyedValue {
    /// The slot of the key.
    pub(crate) key: u32,
    /// The node with the entry.
    pub(crate) table: u32,
    /// The value.
    pub(crate) value: Keyed,
}

/// The value of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keyed {
    /// The object in this slot.
    Slot(u32),
    /// This block.
    Block(u32),
}

/// The value of an entry in the table at the node `table`; `None` unless its key is an object, or a block that begins with
/// a reference to one, and its value is another object, or a block.
pub(crate) fn keyed_value(
    image: &Image<'_>,
    addresses: &AddressIndex<'_>,
    table: u32,
    key: u64,
    value: u64,
) -> Option<KeyedValue> {
    let value = match addresses.at(Address(value)) {
        Referent::Slot(slot) => Keyed::Slot(slot),
        Referent::Block { number, is_start: true } => Keyed::Block(number),
        _ => return None,
    };
    let key = match addresses.at(Address(key)) {
        Referent::Block { is_start: true, .. } => {
            addresses.at(image.read_address(Address(key)).ok()?)
        }
        object => object,
    };
    let Referent::Slot(key) = key else { return None };
    if value == Keyed::Slot(key) {
        return None;
    }
    Some(KeyedValue { key, table, value })
}

/// Hash tables that were recognised.
pub(crate) struct HashTables {
    /// The content of each block.
    pub(crate) contents: Vec<(u32, Content)>,
    /// The blocks with the bins and the entries of a table, in both orders, ascending.
    pub(crate) parts: Vec<(u32, u32)>,
}

/// The content of the blocks of these tables, unless it is known from objects, and the blocks that are parts of the same
/// table. Memory counts as a hash table only if it points to a library's constants and to blocks of the right sizes.
pub(crate) fn recognized(
    heads: &[Heads],
    heap: &HeapMap,
    modules: &[Module],
    addresses: &AddressIndex<'_>,
    contents: &[Content],
) -> HashTables {
    let block_at = |at: Address| match addresses.at(at) {
        Referent::Block { number, is_start: true } => Some(number),
        _ => None,
    };
    let (mut found, mut parts) = (Vec::new(), Vec::new());
    for table in heads.iter().flat_map(|it| &it.tables) {
        let after = modules.partition_point(|it| it.range.start <= table.functions);
        let is_constant = after > 0 && modules[after - 1].range.contains(&table.functions);
        let is_all_there = is_constant && table.memory().all(|(at, _)| block_at(at).is_some());
        let Some(entries) = block_at(table.entries).filter(|_| is_all_there) else { continue };
        if heap.usable_bytes(entries) < table.capacity * StTable::ENTRY_BYTES {
            continue;
        }
        let blocks: Vec<_> =
            table.memory().filter_map(|(at, content)| Some((block_at(at)?, content))).collect();
        if let [(one, _), (other, _)] = blocks[..] {
            parts.extend([(one, other), (other, one)]);
        }
        found.extend(blocks);
    }
    for part in heads.iter().flat_map(|it| &it.parts) {
        // Another structure may look like this one, but then the memory behind it has another size.
        let fits = |block: &u32| heap.fits(part.bytes, heap.usable_bytes(*block));
        found.extend(block_at(part.at).filter(fits).map(|block| (block, part.content)));
    }
    parts.sort_unstable();
    parts.dedup();
    found.retain(|&(index, _)| contents[index as usize] == Content::UNKNOWN);
    found.sort_unstable_by_key(|&(index, _)| index);
    found.dedup_by_key(|&mut (index, _)| index);
    HashTables { contents: found, parts }
}
