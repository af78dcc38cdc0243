//! The order in which the dynamic linker searches the modules of a process, and the variables that
//! it moved from one module to another.
//!
//! The dynamic linker keeps a list of what it has loaded for debuggers (`r_debug`, `link_map` in
//! link.h; glibc and musl have the same). The executable is first, then follow preloaded libraries,
//! the libraries that all these need, and those that were opened by dlopen(3) later.

use super::{Module, Relocation};
use crate::arch::relocations;
use crate::{Address, Memory, Unreadable};

/// More modules than a process has: the end of a bounded walk.
const MAX_MODULES: usize = 16 << 10;

/// Sorts `modules` as the dynamic linker searches them, and notes for each its place. Modules that
/// it does not list come last, by address.
pub(super) fn sort(memory: &dyn Memory, modules: &mut [Module]) {
    modules.sort_by_key(|module| module.range.start);
    let order = modules.iter().find_map(|executable| read_list(memory, executable));
    for (place, dynamic) in order.iter().flatten().enumerate() {
        let listed = modules.iter_mut().find(|module| module.dynamic == *dynamic);
        if let Some(module) = listed {
            module.place.get_or_insert(place);
        }
    }
    modules.sort_by_key(|module| module.place.unwrap_or(usize::MAX));
}

/// The dynamic sections in the list that `executable` names; `None` where it names none, or one that
/// does not begin with itself.
fn read_list(memory: &dyn Memory, executable: &Module) -> Option<Vec<Address>> {
    let mut entry = memory.read_address(executable.debug?.offset(8)).ok()?;
    let mut list = Vec::new();
    while entry != Address(0) && list.len() < MAX_MODULES {
        // A list that breaks off still orders what comes before.
        let Ok(dynamic) = memory.read_address(entry.offset(16)) else { break };
        list.push(dynamic);
        let Ok(next) = memory.read_address(entry.offset(24)) else { break };
        entry = next;
    }
    (list.first() == Some(&executable.dynamic)).then_some(list)
}

/// Gives variables to the modules that define them.
///
/// An executable has its own copy of each variable of a library that it names directly, such as
/// `environ` (a COPY relocation). The library uses that copy, and no longer its own variable.
pub(super) fn attribute_copies(memory: &dyn Memory, modules: &mut [Module]) {
    let Some((executable, libraries)) = modules.split_first_mut() else { return };
    if executable.place != Some(0) {
        return;
    }
    let copies = executable.relocations(memory, &[relocations::COPY]).unwrap_or_default();
    for copy in copies {
        let Ok((name, bytes)) = executable.symbol_by_index(memory, copy.symbol) else { continue };
        let defines = |module: &&mut Module| {
            module.symbol(memory, &name).is_ok_and(|symbol| symbol.is_some())
        };
        let Some(library) = libraries.iter_mut().find(defines) else { continue };
        library.variables.extend(take(&mut executable.variables, copy, bytes));
    }
}

/// Cuts the `bytes` bytes of a copied variable out of `variables`; `None` where they are not there.
fn take(
    variables: &mut Vec<std::ops::Range<Address>>,
    copy: Relocation,
    bytes: u64,
) -> Option<std::ops::Range<Address>> {
    let copied = copy.slot..copy.slot.offset(bytes);
    let index = variables.iter().position(|range| {
        copied.start < copied.end && range.start <= copied.start && copied.end <= range.end
    })?;
    let whole = variables[index].clone();
    let rest = [whole.start..copied.start, copied.end..whole.end];
    variables.splice(index..=index, rest.into_iter().filter(|part| part.start < part.end));
    Some(copied)
}

impl Module {
    /// The addresses to which the dynamic linker resolved this module's calls of the function `name`,
    /// and its pointers to it, in this order; empty where it refers to no such function of another
    /// module.
    ///
    /// A call that has not been made yet may lead back into the module itself: it is resolved when it
    /// is first made (lazy binding).
    pub fn references(&self, memory: &dyn Memory, name: &str) -> Result<Vec<Address>, Unreadable> {
        let symbols = self.undefined_symbols(memory, name)?;
        if symbols.is_empty() {
            return Ok(Vec::new());
        }
        let kinds = [relocations::JUMP_SLOT, relocations::GLOB_DAT];
        let mut slots = self.relocations(memory, &kinds)?;
        slots.retain(|relocation| symbols.contains(&relocation.symbol));
        slots.sort_by_key(|relocation| relocation.kind != relocations::JUMP_SLOT);
        slots.iter().map(|relocation| memory.read_address(relocation.slot)).collect()
    }
}
