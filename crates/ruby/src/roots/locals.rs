//! The fiber-local variables of threads (`Thread#[]`).
//!
//! An execution context has their table behind the pointer to its thread (`local_storage` of `rb_execution_context_t` in vm_core.h):
//! an `st_table` by IDs in 2.7, then a table by the serial numbers of names. From 4.0 on there are numbers in between, so its
//! place is the first one at which each thread has such a table or none, and at least one has entries.

use image::Memory;
use linux::Address;

use crate::layout::st_table::read_pairs;
use crate::model::named_root::{NamedRoot, RootKind};
use crate::roots::id_table;
use crate::roots::names::MAX_VARIABLES;
use crate::roots::program::Program;

/// The words behind the pointer to the thread among which the table is searched for.
const SEARCHED_WORDS: u64 = 4;

/// A table of variables: the names and values.
type Variables = Vec<(String, u64)>;

/// The variables of the current fibers of all threads; none if their place is not found.
pub(crate) fn read(program: &Program<'_>) -> Vec<NamedRoot> {
    let Some(layout) = program.space.stack_layout else { return Vec::new() };
    let threads = &program.space.vm_stacks;
    let places = (1..=SEARCHED_WORDS).map(|word| layout.thread_at as u64 + 8 * word);
    let tables = places.map(|at| {
        let tables = threads.iter().map(|stack| table(program, stack.context.offset(at)));
        tables.collect::<Option<Vec<Variables>>>()
    });
    let is_place = |tables: &Vec<Variables>| tables.iter().any(|table| !table.is_empty());
    let tables = tables.flatten().find(is_place).unwrap_or_default();
    let mut found = Vec::new();
    for (stack, variables) in threads.iter().zip(tables) {
        found.extend(variables.into_iter().filter_map(|(name, value)| {
            let value = program.object(value)?;
            let name = format!("[{}]", symbol(&name));
            Some(NamedRoot {
                kind: RootKind::Local,
                name,
                value,
                class: Some(stack.thread),
                file: None,
            })
        }));
    }
    found
}

/// The variables in the table to which the word at `at` refers; `None` if it refers to something else.
fn table(program: &Program<'_>, at: Address) -> Option<Variables> {
    let (reader, symbols) = (program.reader, &program.names.symbols);
    let table = reader.image.read_address(at).ok()?;
    if table.0 == 0 {
        return Some(Vec::new());
    }
    let named = id_table::read(reader.image, table, &program.budget).and_then(|pairs| {
        let named = pairs.into_iter().map(|(key, value)| Some((symbols.name(reader, key)?, value)));
        named.collect::<Option<Variables>>()
    });
    named.filter(|pairs| !pairs.is_empty()).or_else(|| {
        let pairs = read_pairs(reader.image, table, MAX_VARIABLES)?;
        let named = |(key, value)| Some((symbols.name_of_id(reader, key)?, value));
        let is_in_use = |pair: &(u64, u64)| pair.0 != 0;
        program.budget.spend(pairs.len() as u64)?;
        pairs.into_iter().filter(is_in_use).map(named).collect::<Option<Variables>>()
    })
}

/// A symbol as programs write it: `:request`, `:"current request"`.
fn symbol(name: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || matches!(it, '_' | '?' | '!');
    if name.chars().all(is_plain) { format!(":{name}") } else { format!(":{name:?}") }
}
