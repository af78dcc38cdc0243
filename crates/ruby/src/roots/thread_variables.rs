//! The Hashes with the variables of threads (`Thread#thread_variable_set`).
//!
//! A thread has one as an instance variable without a name in programs, and a flag from its first variable on (`THREAD_LOCAL_STORAGE_INITIALISED`
//! in thread.c). Up to 3.4, instance variables of threads are in a table of all objects that are neither objects of Ruby's classes nor
//! classes (`generic_iv_tbl_` in variable.c): an `st_table` from objects to blocks, which begin with a number of variables (`struct gen_ivtbl`). From
//! 4.0 on they are in an object of their own.

use image::Memory;
use linux::Address;

use crate::layout::st_table::{DELETED_HASH, StTable};
use crate::model::data_type::DataType;
use crate::model::slot::SlotType;
use crate::roots::program::Program;
use crate::word::word;

/// `FL_USER13`.
const HAS_VARIABLES: u64 = 1 << 25;
/// More variables than a thread has.
const MAX_VARIABLES: u64 = 16;
/// The entries that are read at a time.
const ENTRIES: u64 = 128;

/// The slots of threads that have variables, and of the Hashes with these. A thread with several Hashes in instance variables is left out.
pub(crate) fn hashes(program: &Program<'_>) -> Vec<(u32, u32)> {
    let (space, image) = (program.space, program.reader.image);
    let is_it = |&(slot, at): &(u32, Address)| {
        let is_thread = space.data_type_of(slot).is_some_and(DataType::is_thread);
        is_thread && image.read_u64(at).is_ok_and(|flags| flags & HAS_VARIABLES != 0)
    };
    let objects = space.data_objects.iter().map(|it| it.0);
    let objects = objects.filter_map(|slot| Some((slot, space.slot_address(slot as usize)?)));
    let threads: Vec<(u32, Address)> = objects.filter(is_it).collect();
    if threads.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<(u32, Vec<u32>)> =
        threads.iter().map(|&(slot, _)| (slot, linked(program, slot))).collect();
    if found.iter().all(|(_, hashes)| hashes.is_empty()) {
        let tables = program.memory_of_variables().into_iter();
        found = tables
            .map(|at| in_table(program, at, &threads))
            .find(|it| !it.is_empty())
            .unwrap_or_default();
    }
    let only = |(thread, hashes): (u32, Vec<u32>)| {
        Some((thread, *hashes.first().filter(|_| hashes.len() == 1)?))
    };
    found.into_iter().filter_map(only).collect()
}

fn is_hash(program: &Program<'_>, slot: u32) -> bool {
    program.space.slots.get(slot as usize).is_some_and(|it| it.kind() == SlotType::HASH)
}

/// The Hashes in the object with a thread's instance variables.
fn linked(program: &Program<'_>, thread: u32) -> Vec<u32> {
    let links = &program.space.links;
    let variables = links.of(thread).iter().flat_map(|&it| links.of(it));
    let mut hashes: Vec<u32> = variables.copied().filter(|&slot| is_hash(program, slot)).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

/// The Hashes in the blocks to which the table at `at` leads from threads; none if it is another table.
fn in_table(
    program: &Program<'_>,
    at: Address,
    threads: &[(u32, Address)],
) -> Vec<(u32, Vec<u32>)> {
    let image = program.reader.image;
    let layout = program.space.interpreter.table_layout();
    let mut bytes = vec![0; layout.bytes() as usize];
    let table = image.read_exact(at, &mut bytes).ok().and_then(|()| layout.table(&bytes));
    let Some(table) = table.filter(|it| it.count > 0) else { return Vec::new() };
    let mut found = Vec::new();
    for first in (0..table.bound()).step_by(ENTRIES as usize) {
        let count = ENTRIES.min(table.bound() - first);
        let mut bytes = vec![0; (count * StTable::ENTRY_BYTES) as usize];
        let part = table.entries.offset(first * StTable::ENTRY_BYTES);
        if program.budget.spend(count).is_none() || image.read_exact(part, &mut bytes).is_err() {
            break;
        }
        let entries = bytes.chunks_exact(StTable::ENTRY_BYTES as usize);
        let entries = entries.filter(|it| word(it, 0) != DELETED_HASH);
        let entries: Vec<(u64, u64)> = entries.map(|it| (word(it, 8), word(it, 16))).collect();
        if entries.iter().any(|entry| !is_entry(program, *entry)) {
            break;
        }
        found.extend(threads.iter().filter_map(|&(slot, at)| {
            let block = entries.iter().find(|(key, _)| *key == at.0)?.1;
            Some((slot, in_block(program, Address(block))))
        }));
    }
    found
}

/// Returns true if an entry leads from an object to a block.
fn is_entry(program: &Program<'_>, (key, value): (u64, u64)) -> bool {
    let is_block =
        value != 0 && value.is_multiple_of(8) && program.space.slot_at(Address(value)).is_none();
    is_block && program.object(key).is_some()
}

/// The Hashes in a block with instance variables.
fn in_block(program: &Program<'_>, block: Address) -> Vec<u32> {
    let image = program.reader.image;
    let count = image.read_u64(block).map_or(0, |word| u64::from(word as u32));
    let values =
        (1..=count.min(MAX_VARIABLES)).map_while(|it| image.read_u64(block.offset(8 * it)).ok());
    values
        .filter_map(|value| program.object(value))
        .filter(|&slot| is_hash(program, slot))
        .collect()
}
