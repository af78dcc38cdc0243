//! The order in which the dynamic linker searches the modules of a process, and the variables that it moved from one
//! module to another.
//!
//! For debuggers, the dynamic linker keeps a list of loaded modules (`r_debug`, `link_map` in link.h; the same in glibc
//! and musl): the executable, preloaded libraries, the libraries that all these need, and libraries opened later by
//! dlopen(3).

use linux::Address;

use super::{Module, Relocation};
use crate::{Memory, Unreadable};

/// The end of a bounded walk: more modules than a process has.
const MAX_MODULES: usize = 16 << 10;

/// Sorts `modules` as the dynamic linker searches them, and sets their indices. Modules that it does not list come last,
/// by address.
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

/// Returns the dynamic sections in the list that `executable` names; `None` if it names none, or if the list does not
/// begin with the executable itself.
fn read_list(memory: &dyn Memory, executable: &Module) -> Option<Vec<Address>> {
    let mut entry = memory.read_address(executable.debug?.offset(8)).ok()?;
    let mut list = Vec::new();
    while entry != Address(0) && list.len() < MAX_MODULES {
        // A truncated list still orders the modules before.
        let Ok(dynamic) = memory.read_address(entry.offset(16)) else { break };
        list.push(dynamic);
        let Ok(next) = memory.read_address(entry.offset(24)) else { break };
        entry = next;
    }
    (list.first() == Some(&executable.dynamic)).then_some(list)
}

/// Attributes copied variables to the modules that define them.
///
/// An executable has its own copy of each variable of a library that it names directly, such as
/// `environ` (a COPY relocation). The library uses that copy, and no longer its own variable.
pub(super) fn attribute_copies(memory: &dyn Memory, modules: &mut [Module]) {
    let Some((executable, libraries)) = modules.split_first_mut() else { return };
    if executable.place != Some(0) {
        return;
    }
    let copies =
        executable.relocations(memory, &[executable.cpu.relocations().copy]).unwrap_or_default();
    for copy in copies {
        let Ok((name, bytes)) = executable.symbol_by_index(memory, copy.symbol) else { continue };
        let defines = |module: &&mut Module| {
            module.symbol(memory, &name).is_ok_and(|symbol| symbol.is_some())
        };
        let Some(library) = libraries.iter_mut().find(defines) else { continue };
        library.variables.extend(take(&mut executable.variables, copy, bytes));
    }
}

/// Removes the `bytes` bytes of a copied variable from `variables`, and returns their range; `None` if it is not in
/// there.
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
    /// Returns the addresses to which the dynamic linker resolved this module's calls of the function `name`, and then
    /// those of its pointers to it; empty if the module does not refer to such a function of another module.
    ///
    /// A call that has not been made yet may lead back into the module itself, since the dynamic linker resolves it when
    /// it is first made (lazy binding).
    ///
    /// # Errors
    /// If the symbols or relocations cannot be read.
    pub fn references(&self, memory: &dyn Memory, name: &str) -> Result<Vec<Address>, Unreadable> {
        let symbols = self.undefined_symbols(memory, name)?;
        if symbols.is_empty() {
            return Ok(Vec::new());
        }
        let kinds = self.cpu.relocations();
        let mut slots = self.relocations(memory, &[kinds.jump_slot, kinds.glob_dat])?;
        slots.retain(|relocation| symbols.contains(&relocation.symbol));
        slots.sort_by_key(|relocation| relocation.kind != kinds.jump_slot);
        slots.iter().map(|relocation| memory.read_address(relocation.slot)).collect()
    }
}
