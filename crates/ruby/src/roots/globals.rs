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
/// The function for compaction (from 3.0 on); up to 2.7, the list of hooks (`trace_var`) is in its place.
const COMPACTOR: u64 = 40;
/// The offsets in a hook (`struct trace_var`) of its function, of the value for that, a Proc or a String, and of the next hook.
const HOOK_FUNCTION: usize = 8;
const HOOK_DATA: usize = 16;
const HOOK_NEXT: usize = 24;

/// The global variables that refer to objects; `None` if their table was not found.
pub(crate) fn read(program: &Program<'_>) -> Option<Vec<NamedRoot>> {
    let image = program.reader.image;
    let interpreter = &program.space.interpreter;
    let table = program.memory_of_variables().into_iter().find_map(|at| table(program, at))?;
    let mut found = hooks(program, &table);
    let values = table.into_iter().filter_map(|(name, id, variable)| {
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
        Some(NamedRoot { id: Some(id), ..root(name, value) })
    });
    found.extend(values);
    for &(at, name) in &interpreter.stream_variables {
        let value = image.read_u64(at).ok().and_then(|value| program.object(value));
        if let Some(value) = value.filter(|_| found.iter().all(|it| it.name != name)) {
            found.push(root(name.to_owned(), value));
        }
    }
    Some(found)
}

/// The objects that hooks of these variables retain.
fn hooks(program: &Program<'_>, variables: &[(String, u64, Address)]) -> Vec<NamedRoot> {
    let image = program.reader.image;
    let is_code = |at: u64| program.space.interpreter.range.contains(&Address(at));
    let in_place = |at: u64| variables.iter().map(move |it| image.read_u64(it.2.offset(at)));
    let has_compactor = in_place(COMPACTOR).all(|word| word.is_ok_and(is_code));
    let lists = in_place(if has_compactor { COMPACTOR + 8 } else { COMPACTOR });
    let mut found = Vec::new();
    for list in lists {
        let (mut at, mut hook) = (Address(list.unwrap_or(0)), [0; HOOK_NEXT + 8]);
        while at.0 != 0
            && at.is_aligned(8)
            && program.budget.spend(1).is_some()
            && image.read_exact(at, &mut hook).is_ok()
            && is_code(word(&hook, HOOK_FUNCTION))
        {
            let value = program.object(word(&hook, HOOK_DATA));
            let name = "(trace_var)".to_owned();
            let root = |value| NamedRoot { kind: RootKind::Hook, ..root(name, value) };
            found.extend(value.map(root));
            at = Address(word(&hook, HOOK_NEXT));
        }
    }
    found
}

fn root(name: String, value: u32) -> NamedRoot {
    NamedRoot { kind: RootKind::GlobalVariable, name, value, class: None, id: None, file: None }
}

/// The names, their IDs, and variables in the table at `at`; `None` if it is not the table of global variables.
/// Each of its entries points to its variable and repeats its key as an ID (`struct rb_global_entry` in
/// internal/variable.h), and all names begin with a dollar.
fn table(program: &Program<'_>, at: Address) -> Option<Vec<(String, u64, Address)>> {
    let entries = id_table::read(program.reader.image, at, &Budget::new())?;
    if entries.len() < MIN_GLOBALS {
        return None;
    }
    let mut found = Vec::with_capacity(entries.len());
    for (serial, entry) in entries {
        let mut members = [0; 16];
        program.reader.image.read_exact(Address(entry), &mut members).ok()?;
        let id = word(&members, 8);
        let name = program.names.symbols.name_of_id(program.reader, id)?;
        if !name.starts_with('$')
            || program.names.symbols.name(program.reader, serial).as_ref() != Some(&name)
        {
            return None;
        }
        found.push((name, id, Address(word(&members, 0))));
    }
    Some(found)
}
