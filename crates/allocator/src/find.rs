//! Finds the C library and the allocator of a process.

use std::fmt;

use image::elf::Module;
use image::{Image, Memory, Unreadable};
use linux::Address;
use linux::arch::RETURN_ADDRESS_BYTES;

use crate::Finding;

/// The C library of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Libc {
    /// The GNU C library.
    Glibc {
        /// The major and minor version ("2.36"), if it could be read.
        version: Option<String>,
    },
    /// musl.
    Musl,
    /// Another C library, or one that is linked into the executable.
    Unknown,
}

impl fmt::Display for Libc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Glibc { version: Some(version) } => write!(f, "glibc {version}"),
            Self::Glibc { version: None } => f.write_str("glibc"),
            Self::Musl => f.write_str("musl"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The allocator that serves malloc in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allocator {
    /// The malloc of the GNU C library.
    Glibc {
        /// The library's major and minor version, if it could be read.
        version: Option<String>,
    },
    /// jemalloc.
    Jemalloc,
    /// tcmalloc.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
    /// The malloc of musl.
    Musl,
    /// Another module that exports malloc, by its file name.
    Other(String),
    /// No module that exports malloc was found, or several were and their order is not known.
    Unknown,
}

impl Allocator {
    /// Returns true for glibc's malloc.
    #[must_use]
    pub fn is_glibc(&self) -> bool {
        matches!(self, Self::Glibc { .. })
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The version is shown with the C library.
            Self::Glibc { .. } => f.write_str("glibc"),
            Self::Jemalloc => f.write_str("jemalloc"),
            Self::Tcmalloc => f.write_str("tcmalloc"),
            Self::Mimalloc => f.write_str("mimalloc"),
            Self::Musl => f.write_str("musl"),
            Self::Other(name) => f.write_str(name),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The C library of `image`, whose modules are `modules`.
#[must_use]
pub fn libc(image: &Image<'_>, modules: &[Module]) -> Libc {
    if let Some(glibc) = glibc_module(modules) {
        return Libc::Glibc { version: read_version(image, glibc).ok().flatten() };
    }
    if modules.iter().any(|module| is_musl(&module.name)) { Libc::Musl } else { Libc::Unknown }
}

/// The allocator that serves malloc in a process, and how it was found.
#[derive(Debug)]
pub struct ServingAllocator<'m> {
    /// The allocator.
    pub allocator: Allocator,
    /// The module that contains it; `None` if none was found.
    pub module: Option<&'m Module>,
    /// The basis of the answer, unless it is the caller's own reference to `malloc`.
    pub finding: Option<Finding>,
}

/// Finds the allocator that serves malloc in `image`. `modules` must be in the order in which the dynamic linker
/// searches them (as [`image::elf::modules`] returns them).
///
/// `caller` is the module whose memory is examined. Its calls of `malloc` lead to the module that the dynamic
/// linker resolved its reference to. If it has no such reference, or the reference is not resolved yet, the first
/// module that exports `malloc` serves it. Other modules may export `malloc` too: libraries opened with
/// RTLD_LOCAL, or later ones. The allocator is recognised by the other symbols that the module exports, so one
/// that is linked into the executable or into libruby is found like a preloaded library.
#[must_use]
pub fn find_allocator<'m>(
    image: &Image<'_>,
    modules: &'m [Module],
    caller: Option<&Module>,
) -> ServingAllocator<'m> {
    let resolved = caller.map(|caller| resolve(image, modules, caller));
    if let Some(Reference::To(module)) = resolved {
        return ServingAllocator {
            allocator: allocator_in(image, module),
            module: Some(module),
            finding: None,
        };
    }
    let exporters: Vec<_> = modules.iter().filter(|it| exports(image, it, MALLOC)).collect();
    let is_ordered = modules.iter().any(|module| module.place.is_some());
    // Up to glibc 2.31 the dynamic linker exports a malloc for its own use.
    let of_programs: Vec<_> = exporters.iter().filter(|it| !it.name.starts_with("ld-2.")).collect();
    let first = match (&of_programs[..], is_ordered) {
        // A core without the files of its libraries has no symbols, only file names.
        ([], _) => glibc_module(modules).or_else(|| modules.iter().find(|it| is_musl(&it.name))),
        ([only], _) => Some(**only),
        (_, true) => exporters.iter().copied().find(|module| module.place.is_some()),
        (_, false) => None,
    };
    let Some(module) = first else {
        let modules: Vec<_> = exporters.iter().map(|module| module.name.clone()).collect();
        let finding = (modules.len() > 1).then_some(Finding::AllocatorUnknown { modules });
        return ServingAllocator { allocator: Allocator::Unknown, module: None, finding };
    };
    let allocator = allocator_in(image, module);
    let finding =
        caller.filter(|_| matches!(resolved, Some(Reference::Unresolved))).map(|caller| {
            Finding::AllocatorAssumed { caller: caller.name.clone(), module: module.name.clone() }
        });
    ServingAllocator { allocator, module: Some(module), finding }
}

const MALLOC: &str = "malloc";

/// A module's reference to `malloc`.
#[derive(Clone, Copy)]
enum Reference<'m> {
    /// The module defines `malloc` itself, or does not use it.
    Missing,
    /// It leads into no module that defines `malloc`: usually back into the module itself, until the first
    /// call.
    Unresolved,
    /// It leads into this module.
    To(&'m Module),
}

fn resolve<'m>(image: &Image<'_>, modules: &'m [Module], caller: &Module) -> Reference<'m> {
    let references = caller.references(image, MALLOC).unwrap_or_default();
    let serves = |at: &Address| {
        let module = modules.iter().find(|module| module.range.contains(at))?;
        // A reference into the module itself leads to the code that resolves it.
        (module.range != caller.range && exports(image, module, MALLOC)).then_some(module)
    };
    match references.iter().find_map(serves) {
        Some(module) => Reference::To(module),
        None if references.is_empty() => Reference::Missing,
        None => Reference::Unresolved,
    }
}

fn exports(image: &Image<'_>, module: &Module, symbol: &str) -> bool {
    module.symbol(image, symbol).is_ok_and(|found| found.is_some())
}

/// The allocator in `module`, which exports `malloc`.
fn allocator_in(image: &Image<'_>, module: &Module) -> Allocator {
    let exports_any = |symbols: &[&str]| symbols.iter().any(|name| exports(image, module, name));
    if is_glibc(&module.name) {
        Allocator::Glibc { version: read_version(image, module).ok().flatten() }
    } else if is_musl(&module.name) {
        Allocator::Musl
    } else if exports_any(&["mallctl", "mallctlnametomib"]) {
        Allocator::Jemalloc
    } else if exports_any(&["tc_malloc", "MallocExtension_ReleaseFreeMemory"]) {
        Allocator::Tcmalloc
    } else if exports_any(&["mi_malloc"]) {
        Allocator::Mimalloc
    } else {
        Allocator::Other(module.name.clone())
    }
}

/// The GNU C library among `modules`: `libc.so.6`, or `libc-2.31.so`, as it was named up to 2.33.
pub(crate) fn glibc_module(modules: &[Module]) -> Option<&Module> {
    modules.iter().find(|module| is_glibc(&module.name))
}

/// Returns true for the file name of the GNU C library.
#[must_use]
pub fn is_glibc(name: &str) -> bool {
    name == "libc.so.6" || name.starts_with("libc-2.") && name.ends_with(".so")
}

/// Alpine has `ld-musl-x86_64.so.1`; musl itself calls the file `libc.so`, which for glibc is no library.
fn is_musl(name: &str) -> bool {
    name.starts_with("ld-musl-") || name.starts_with("libc.musl-") || name == "libc.so"
}

/// The string that gnu_get_libc_version(3) would return, found by its instructions.
fn read_version(memory: &dyn Memory, glibc: &Module) -> Result<Option<String>, Unreadable> {
    const MAX_LENGTH: usize = 16;

    let Some(function) = glibc.symbol(memory, "gnu_get_libc_version")? else { return Ok(None) };
    let mut code = [0; RETURN_ADDRESS_BYTES];
    memory.read_exact(function.address, &mut code)?;
    let Some(string) = glibc.cpu.returned_address(&code, function.address) else { return Ok(None) };
    let version = String::from_utf8(memory.read_c_string(string, MAX_LENGTH)?).unwrap_or_default();
    let is_version = version.starts_with("2.")
        && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    Ok(is_version.then_some(version))
}

#[cfg(test)]
mod tests;
