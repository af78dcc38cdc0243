use image::Memory;
use linux::Address;

use crate::model::named_root::{NamedRoot, RootKind};
use crate::roots::id_table::{self, Budget};
use crate::roots::program::Program;
use crate::word::word;

/// Every Ruby has more global variables than these.
const MIN_GLOBALS: usize = 20;
/// The offsets of members of `struct rb_global_variable` in variable.c: the value or a pointer to it,
/// and the function that reads it.
const DATA: usize = 8;
const GETTER: usize = 16;

/// The global variables that refer to objects; `None` if their table was not found.
pub(crate) fn read(program: &Program<'_>) -> Option<Vec<NamedRoot>> {
    let image = program.reader.image;
    let interpreter = &program.space.interpreter;
    let table = program.memory_of_variables().into_iter().find_map(|at| table(program, at))?;
    let found = table.into_iter().filter_map(|(name, variable)| {
        let mut members = [0; 24];
        image.read_exact(variable, &mut members).ok()?;
        let data = word(&members, DATA);
        // Variables of the program have their value here, variables of C code a pointer to it.
        let value = program.object(data).or_else(|| {
            let is_pointer =
                Some(word(&members, GETTER)) == interpreter.global_getter.map(|it| it.0);
            let value = image.read_u64(Address(data)).ok().filter(|_| is_pointer)?;
            program.object(value)
        })?;
        Some(root(name, value))
    });
    let mut found: Vec<_> = found.collect();
    for &(at, name) in &interpreter.stream_variables {
        let value = image.read_u64(at).ok().and_then(|value| program.object(value));
        if let Some(value) = value.filter(|_| found.iter().all(|it| it.name != name)) {
            found.push(root(name.to_owned(), value));
        }
    }
    Some(found)
}

fn root(name: String, value: u32) -> NamedRoot {
    NamedRoot { kind: RootKind::GlobalVariable, name, value, class: None, file: None }
}

/// The names and variables in the table at `at`; `None` if it is not the table of global variables.
/// Each of its entries points to its variable and repeats its key as an ID (`struct rb_global_entry` in
/// internal/variable.h), and all names begin with a dollar.
fn table(program: &Program<'_>, at: Address) -> Option<Vec<(String, Address)>> {
    let entries = id_table::read(program.reader.image, at, &Budget::new())?;
    if entries.len() < MIN_GLOBALS {
        return None;
    }
    let mut found = Vec::with_capacity(entries.len());
    for (serial, entry) in entries {
        let mut members = [0; 16];
        program.reader.image.read_exact(Address(entry), &mut members).ok()?;
        let name = program.names.symbols.name_of_id(program.reader, word(&members, 8))?;
        if !name.starts_with('$')
            || program.names.symbols.name(program.reader, serial).as_ref() != Some(&name)
        {
            return None;
        }
        found.push((name, Address(word(&members, 0))));
    }
    Some(found)
}
