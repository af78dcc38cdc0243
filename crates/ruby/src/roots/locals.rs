//! The variables of threads, fibers and Ractors: `Thread#[]`, `Fiber[]`, `Thread#thread_variable_get`, and `Ractor#[]`.
//!
//! Those of Ractors are in a table by the serial numbers of names, which a Ractor's structure refers to (`idkey_local_storage` of
//! `rb_ractor_struct` in ractor_core.h), at the same place in all of them.
//!
//! The first two are in an execution context, behind the pointer to its thread (`rb_execution_context_t` in vm_core.h):
//!
//! - The table of fiber-local variables (`local_storage`) is an `st_table` by IDs in 2.7, then a table by the serial numbers of names. From
//!   4.0 on there are numbers in between, so its place is the first one at which each context has such a table or none, and at
//!   least one has entries.
//! - From 3.2 on, three words are a Hash or `nil`, and the last one is that of `Fiber[]` (`storage`).

use std::collections::HashMap;

use image::Memory;
use linux::Address;

use crate::backtrace::structure;
use crate::body::BodyReader;
use crate::layout::st_table::read_pairs;
use crate::model::data_type::DataType;
use crate::model::named_root::{NamedRoot, RootKind};
use crate::model::slot::SlotType;
use crate::ractors;
use crate::roots::names::MAX_VARIABLES;
use crate::roots::program::Program;
use crate::roots::{id_table, thread_variables};
use crate::word::{word, words};

/// The words behind the pointer to the thread among which the first word of a kind is searched for.
const SEARCHED_WORDS: u64 = 4;
/// The words of a context that are a Hash or `nil`.
const HASH_WORDS: usize = 3;
/// The bytes of a fiber's structure before its context, at most.
const MAX_BEFORE_CONTEXT: u64 = 512;

/// The fibers from which the place of the context is derived.
const MAX_SAMPLES: usize = 64;

/// A table of variables: the names and values.
type Variables = Vec<(String, u64)>;

/// The variables of threads, fibers and Ractors; none of a kind whose place is not found.
pub(crate) fn read(program: &Program<'_>) -> Vec<NamedRoot> {
    let threads = program.space.vm_stacks.iter().map(|stack| (stack.thread, stack.context));
    let (threads, fibers): (Vec<_>, _) = (threads.collect(), fibers(program));
    let mut bodies = BodyReader::new(program.reader.image, program.space);
    let mut in_hash = |slot| pairs(program, &mut bodies, slot);
    let mut found = Vec::new();
    let mut add = |slot: u32, variables: Variables, kind_of_variable: &str| {
        found.extend(variables.into_iter().filter_map(|(name, value)| {
            let (kind, value) = (RootKind::Local, program.object(value)?);
            let name = format!("[{kind_of_variable}{}]", symbol(&name));
            Some(NamedRoot { kind, name, value, class: Some(slot), id: None, file: None })
        }));
    };
    let of_ractors = of_ractors(program);
    for (slot, variables) in tables(program, &threads, &fibers).into_iter().chain(of_ractors) {
        add(slot, variables, "");
    }
    for (slot, hash) in storages(program, &threads, &fibers) {
        add(slot, in_hash(hash), "fiber storage ");
    }
    for (slot, hash) in thread_variables::hashes(program) {
        add(slot, in_hash(hash), "thread variable ");
    }
    found
}

/// The fibers that no thread runs, and their contexts.
fn fibers(program: &Program<'_>) -> Vec<(u32, Address)> {
    let (space, image) = (program.space, program.reader.image);
    let Some(layout) = space.stack_layout else { return Vec::new() };
    let running: HashMap<u64, Address> =
        space.vm_stacks.iter().map(|stack| (stack.structure.0, stack.context)).collect();
    let is_context = |context: Address| {
        // A fiber that has ended has no VM stack.
        let [stack, thread] =
            [0, layout.thread_at as u64].map(|at| image.read_u64(context.offset(at)).unwrap_or(0));
        stack != 0 && running.get(&thread).is_some_and(|other| *other != context)
    };
    let is_fiber = |slot: &u32| space.data_type_of(*slot).is_some_and(DataType::is_fiber);
    let objects = space.data_objects.iter().map(|it| it.0).filter(is_fiber);
    let structure_of = |slot| structure(image, space.slot_address(slot as usize)?);
    let structures: Vec<_> = objects.filter_map(|slot| Some((slot, structure_of(slot)?))).collect();
    let places = (0..MAX_BEFORE_CONTEXT).step_by(8).map(|place| {
        let sample = structures.iter().take(MAX_SAMPLES);
        (sample.filter(|it| is_context(it.1.offset(place))).count(), place)
    });
    // Another word of a few structures may be a pointer to a thread by chance.
    let Some((1.., place)) = places.max() else { return Vec::new() };
    let contexts = structures.iter().map(|&(slot, at)| (slot, at.offset(place)));
    contexts.filter(|it| is_context(it.1)).collect()
}

/// What `read` finds in each context; `None` if it finds nothing in that of a running thread.
fn in_contexts<T>(
    threads: &[(u32, Address)],
    fibers: &[(u32, Address)],
    read: impl Fn(Address) -> Option<T>,
) -> Option<Vec<(u32, T)>> {
    let found = threads.iter().map(|it| Some((it.0, read(it.1)?)));
    let mut found = found.collect::<Option<Vec<(u32, T)>>>()?;
    found.extend(fibers.iter().filter_map(|it| Some((it.0, read(it.1)?))));
    Some(found)
}

/// The fiber-local variables of each context.
fn tables(
    program: &Program<'_>,
    threads: &[(u32, Address)],
    fibers: &[(u32, Address)],
) -> Vec<(u32, Variables)> {
    let image = program.reader.image;
    let table_of =
        |context: Address, at| table(program, image.read_address(context.offset(at)).ok()?);
    let in_place = |at| in_contexts(threads, fibers, |it| table_of(it, at));
    places(program).filter_map(in_place).find(|it| has_variables(it)).unwrap_or_default()
}

/// The variables of each Ractor.
fn of_ractors(program: &Program<'_>) -> Vec<(u32, Variables)> {
    let structures = ractors::structures(program.reader.image, program.space);
    let words = structures.iter().map(|it| it.words.len()).min().unwrap_or_default();
    let in_place = |at: usize| {
        let tables =
            structures.iter().map(|it| Some((it.slot, table(program, Address(it.words[at]))?)));
        tables.collect::<Option<Vec<_>>>()
    };
    (0..words).filter_map(in_place).find(|it| has_variables(it)).unwrap_or_default()
}

/// Returns true if a place has a table with variables.
fn has_variables(tables: &[(u32, Variables)]) -> bool {
    tables.iter().any(|it| !it.1.is_empty())
}

/// The Hash of `Fiber[]` of each context that has one.
fn storages(
    program: &Program<'_>,
    threads: &[(u32, Address)],
    fibers: &[(u32, Address)],
) -> Vec<(u32, u32)> {
    let (space, image) = (program.space, program.reader.image);
    if !space.has_shapes() {
        return Vec::new();
    }
    let is_hash =
        |slot: &u32| space.slots.get(*slot as usize).is_some_and(|it| it.kind() == SlotType::HASH);
    let hash = |word: u64| program.object(word).filter(is_hash);
    let storage = |at: Address| {
        let mut bytes = [0; 8 * HASH_WORDS];
        image.read_exact(at, &mut bytes).ok()?;
        let fits = words(&bytes).all(|word| word == space.nil() || hash(word).is_some());
        fits.then(|| hash(word(&bytes, 8 * (HASH_WORDS - 1))))
    };
    let in_place = |at| in_contexts(threads, fibers, |it| storage(it.offset(at)));
    let found = places(program).find_map(in_place).unwrap_or_default();
    found.into_iter().filter_map(|(slot, hash)| Some((slot, hash?))).collect()
}

/// The offsets in contexts at which a kind of variables is searched for.
fn places(program: &Program<'_>) -> impl Iterator<Item = u64> {
    let layout = program.space.stack_layout.into_iter();
    layout.flat_map(|it| (1..=SEARCHED_WORDS).map(move |word| it.thread_at as u64 + 8 * word))
}

/// The variables in a Hash by symbols; none if another key is in it.
pub(super) fn pairs(program: &Program<'_>, bodies: &mut BodyReader<'_>, hash: u32) -> Variables {
    let pairs = bodies.pairs(hash, MAX_VARIABLES).unwrap_or_default();
    let named =
        |(key, value)| Some((program.names.symbols.name_of_symbol(program.reader, key)?, value));
    let variables = pairs.into_iter().map(named).collect::<Option<Variables>>();
    variables.unwrap_or_default()
}

/// The variables in the table at this address; none if it is 0, and `None` if something else is there.
fn table(program: &Program<'_>, table: Address) -> Option<Variables> {
    let (reader, symbols) = (program.reader, &program.names.symbols);
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
