//! Named roots: constants, variables of classes and threads, and global variables, in the program's own words.
//!
//! The place of constants, and the names that belong to IDs, are derived from classes whose constants are known: Object
//! has a constant for each [`Landmark`](crate::interpreter::Landmark), with its name. Roots that fail this check are
//! left out, and a finding reports them.

mod boxes;
mod class_variables;
mod constants;
mod globals;
pub(crate) mod id_table;
mod locals;
mod method_caches;
pub(crate) mod names;
pub(crate) mod program;
pub(crate) mod symbols;
mod thread_variables;
mod virtual_machine;

use std::collections::HashMap;
use std::sync::Arc;

use image::Image;
use linux::Address;

pub use id_table::{ID_TABLE_BYTES, entries_of_id_table};

use crate::finding::Finding;
use crate::layout::class_names::ObjectReader;
use crate::model::content::{Content, Form};
use crate::model::named_root::{NamedRoot, RootKind};
use crate::object_space::ObjectSpace;
use crate::roots::class_variables::VariablePlace;
use crate::roots::program::Program;

/// More than a program has; the rest is left out.
const MAX_ROOTS: usize = 1 << 21;

/// The constants and variables that refer to objects, by kind and name, and findings about parts that could not be
/// read. Numbers, symbols, `nil` and other values that are not objects in slots are left out.
///
/// `image` is the one that `space` was read from, of the same instant. Each root takes some
/// microseconds.
#[must_use]
pub fn named_roots(image: &Image<'_>, space: &ObjectSpace) -> (Vec<NamedRoot>, Vec<Finding>) {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let Some(program) = Program::read(space, reader) else {
        return (Vec::new(), vec![Finding::RootNamesUnknown]);
    };
    let mut findings = Vec::new();
    let variables = VariablePlace::derive(&program);
    if variables.is_none() {
        findings.push(Finding::ClassVariablesUnknown);
    }
    let mut found = Vec::new();
    let mut files = HashMap::new();
    for class in program.classes() {
        if found.len() < MAX_ROOTS {
            add_roots_of(&program, class, variables.as_ref(), &mut files, &mut found);
        }
    }
    if program.budget.is_spent() || found.len() >= MAX_ROOTS {
        findings.push(Finding::RootsLeftOut);
    }
    match globals::read(&program) {
        Some(globals) => found.extend(globals),
        None => findings.push(Finding::GlobalVariablesUnknown),
    }
    found.extend(locals::read(&program));
    found.extend(virtual_machine::read(&program));
    let boxes = boxes::find(&program);
    boxes::name_constants(&program, &boxes, &mut found);
    found.extend(boxes::read(&program, &boxes));
    let symbols = program.object(program.names.symbols.object().0);
    found.extend(symbols.map(|value| NamedRoot {
        kind: RootKind::Table,
        name: "(symbols)".into(),
        value,
        class: None,
        id: None,
        file: None,
    }));
    found.sort_unstable();
    (found, findings)
}

/// The memory of classes of which only a part is in use, with this part: that of their instance variables (3.2 to 3.4), and of their method
/// caches (from 4.0 on). malloc does not clear the rest. Without variables if their place could not be derived. `image` is the one that
/// `space` was read from, of the same instant.
#[must_use]
pub fn memory_of_classes(image: &Image<'_>, space: &ObjectSpace) -> Vec<(Address, Content)> {
    match space.shape_tree {
        Some(shape_tree) if shape_tree.has_memory_of_classes() => {
            variables_of_classes(image, space)
        }
        Some(_) => method_caches::contents(image, space),
        None => Vec::new(),
    }
}

fn variables_of_classes(image: &Image<'_>, space: &ObjectSpace) -> Vec<(Address, Content)> {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let Some(program) = Program::read(space, reader) else { return Vec::new() };
    let place = VariablePlace::derive(&program);
    let rows =
        program.classes().filter_map(|class| place.as_ref()?.row(image, &reader.class(class)?));
    rows.map(|(at, variables)| (at, Content::new(Form::Words, variables))).collect()
}

/// Adds the constants and variables of one class.
fn add_roots_of(
    program: &Program<'_>,
    class: Address,
    variables: Option<&VariablePlace>,
    files: &mut HashMap<u64, Option<Arc<str>>>,
    found: &mut Vec<NamedRoot>,
) {
    if program.budget.is_spent() {
        return;
    }
    let Some(slot) = program.reader.class(class) else { return };
    let constants = program.constants.read(program.reader.image, &slot, &program.budget);
    let mut file_at = |at: u64| {
        let path = || Some(program.names.class_names.text(program.reader, at)?.into());
        files.entry(at).or_insert_with(path).clone()
    };
    let constants = constants.into_iter().filter_map(|constant| {
        let value = program.object(constant.value)?;
        let name = program
            .names
            .symbols
            .name(program.reader, constant.serial)
            .filter(|name| is_constant(name))?;
        let file = file_at(constant.file).map(|file| (file, constant.line));
        Some((value, (RootKind::Constant, name, None, file)))
    });
    let variables = variables.map_or(Vec::new(), |it| it.variables(program, class, &slot));
    let variables = variables.into_iter().filter_map(|(id, value)| {
        let name = |name: String| Some((variable_kind(&name)?, name, Some(id), None));
        Some((program.object(value)?, name(program.names.symbols.name_of_id(program.reader, id)?)?))
    });
    let mut own = None;
    for (value, (kind, name, id, file)) in constants.chain(variables) {
        let own = own.get_or_insert_with(|| program.class_name(class));
        let is_global = kind == RootKind::Constant && own == "Object";
        let name = match kind {
            RootKind::Constant if is_global => name,
            RootKind::Constant => format!("{own}::{name}"),
            RootKind::InstanceVariable => format!("{own}.{name}"),
            _ => format!("{own}{name}"),
        };
        let class = if is_global { None } else { program.object(class.0) };
        found.push(NamedRoot { kind, name, value, class, id, file });
    }
}

/// The kind of a class's variable with this name; `None` for Ruby's hidden ones.
fn variable_kind(name: &str) -> Option<RootKind> {
    match name.as_bytes() {
        [b'@', b'@', ..] => Some(RootKind::ClassVariable),
        [b'@', ..] => Some(RootKind::InstanceVariable),
        _ => None,
    }
}

/// Returns false for Ruby's hidden constants, whose names begin otherwise.
fn is_constant(name: &str) -> bool {
    name.chars().next().is_some_and(char::is_uppercase)
}
