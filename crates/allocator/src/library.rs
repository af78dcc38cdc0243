//! Which C library and which allocator a process runs with.

use std::fmt;

use capture::elf::Module;
use capture::{Address, Argument, Finding, Image, Memory, Severity, Unreadable};

use crate::jemalloc;

/// The C library of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Libc {
    /// The GNU C library, with its version ("2.36") where that could be read.
    Glibc {
        /// Major and minor version.
        version: Option<String>,
    },
    /// musl.
    Musl,
    /// None that rbloat knows is loaded: another one, or one linked into the executable.
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
    /// That of the GNU C library, which [`crate::glibc::walk`] reads.
    Glibc {
        /// The library's major and minor version, where that could be read.
        version: Option<String>,
    },
    /// jemalloc.
    Jemalloc,
    /// tcmalloc.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
    /// musl's own.
    Musl,
    /// Another module that exports malloc, by its file name.
    Other(String),
    /// Nothing that exports malloc was found.
    Unknown,
}

/// The function by which an allocator gives back to the kernel what it can.
#[derive(Debug, Clone, Copy)]
pub struct TrimCall {
    /// The name under which it is exported.
    pub function: &'static str,
    /// What it is called with.
    pub arguments: &'static [Argument<'static>],
    /// The call as a person writes it.
    pub shown: &'static str,
}

impl Allocator {
    /// Whether [`crate::glibc::walk`] can read it.
    #[must_use]
    pub fn is_glibc(&self) -> bool {
        matches!(self, Self::Glibc { .. })
    }

    /// How it is made to give memory back; `None` where it has no function for that.
    #[must_use]
    pub fn trim_call(&self) -> Option<TrimCall> {
        Some(match self {
            Self::Glibc { .. } => TrimCall {
                function: "malloc_trim",
                arguments: &[Argument::Number(0)],
                shown: "malloc_trim(0)",
            },
            Self::Jemalloc => TrimCall {
                function: jemalloc::FUNCTION,
                arguments: &jemalloc::PURGE,
                shown: "mallctl(\"arena.4096.purge\")",
            },
            Self::Tcmalloc => TrimCall {
                function: "MallocExtension_ReleaseFreeMemory",
                arguments: &[],
                shown: "MallocExtension_ReleaseFreeMemory()",
            },
            Self::Mimalloc | Self::Musl | Self::Other(_) | Self::Unknown => return None,
        })
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The library's version is the C library's to tell.
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
pub struct Found<'m> {
    /// Which it is.
    pub allocator: Allocator,
    /// The module that it is in; `None` where none was found.
    pub module: Option<&'m Module>,
    /// What the answer rests on, where that is not the caller's own reference to `malloc`.
    pub finding: Option<Finding>,
}

/// Finds the allocator that serves malloc in `image`, whose modules are `modules` in the order in which
/// the dynamic linker searches them (as [`capture::elf::modules`] returns them).
///
/// `caller` is the module whose memory is of interest. Its calls of `malloc` go where the dynamic linker
/// resolved its reference to. Where it has no such reference, or it is not resolved yet, the first module
/// that exports `malloc` serves it. Others may export one too: libraries that were opened for
/// themselves alone (RTLD_LOCAL), or come later in the order. What a module exports beside `malloc` tells
/// which allocator it is, so one that is linked into the executable or into libruby is found like a
/// library that is preloaded.
#[must_use]
pub fn find_allocator<'m>(
    image: &Image<'_>,
    modules: &'m [Module],
    caller: Option<&Module>,
) -> Found<'m> {
    let resolved = caller.map(|caller| resolve(image, modules, caller));
    if let Some(Reference::To(module)) = resolved {
        return Found {
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
        // A core without the files of its libraries has no symbols, but the names of the files.
        ([], _) => glibc_module(modules).or_else(|| modules.iter().find(|it| is_musl(&it.name))),
        ([only], _) => Some(**only),
        (_, true) => exporters.iter().copied().find(|module| module.place.is_some()),
        (_, false) => None,
    };
    let Some(module) = first else {
        let names: Vec<_> = exporters.iter().map(|module| module.name.as_str()).collect();
        let finding = (names.len() > 1).then(|| {
            let what = format!(
                "which of {} serves malloc is not known: the dynamic linker's list of modules cannot \
                 be read",
                names.join(", ")
            );
            Finding::general(Severity::Error, what)
        });
        return Found { allocator: Allocator::Unknown, module: None, finding };
    };
    let allocator = allocator_in(image, module);
    let finding = caller.filter(|_| matches!(resolved, Some(Reference::Unresolved))).map(|caller| {
        let what = format!(
            "the reference of {} to malloc is not resolved yet or leads to no known allocator; the \
             allocator is {}, the first module that exports malloc in the dynamic linker's order",
            caller.name, module.name
        );
        Finding::general(Severity::Note, what)
    });
    Found { allocator, module: Some(module), finding }
}

const MALLOC: &str = "malloc";

/// What became of a module's reference to `malloc`.
#[derive(Clone, Copy)]
enum Reference<'m> {
    /// It has none: it defines `malloc` itself, or does not use it.
    Missing,
    /// It leads into no module that defines `malloc`: mostly back into the module itself, until it is
    /// first called.
    Unresolved,
    /// It leads into this module.
    To(&'m Module),
}

fn resolve<'m>(image: &Image<'_>, modules: &'m [Module], caller: &Module) -> Reference<'m> {
    let references = caller.references(image, MALLOC).unwrap_or_default();
    let serves = |at: &Address| {
        let module = modules.iter().find(|module| module.range.contains(at))?;
        // A reference within the module itself leads to the code that resolves it.
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

/// The allocator that `module`, which exports `malloc`, is.
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

/// The GNU C library among `modules`: `libc.so.6`, or `libc-2.31.so` as it was called up to 2.33.
pub(crate) fn glibc_module(modules: &[Module]) -> Option<&Module> {
    modules.iter().find(|module| is_glibc(&module.name))
}

fn is_glibc(name: &str) -> bool {
    name == "libc.so.6" || name.starts_with("libc-2.") && name.ends_with(".so")
}

fn is_musl(name: &str) -> bool {
    name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
}

/// What gnu_get_libc_version(3) would return: where its few instructions say that its string is.
///
/// They are `lea rax, [rip + distance]; ret`, after an `endbr64` where the library was built so.
fn read_version(memory: &dyn Memory, glibc: &Module) -> Result<Option<String>, Unreadable> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const LEA_RAX: [u8; 3] = [0x48, 0x8d, 0x05];
    const LONGEST: usize = 16;

    let Some(function) = glibc.symbol(memory, "gnu_get_libc_version")? else { return Ok(None) };
    let mut start = function.address;
    let mut code = [0; 7];
    memory.read_exact(start, &mut code[..4])?;
    if code[..4] == ENDBR64 {
        start = start.offset(4);
    }
    memory.read_exact(start, &mut code)?;
    let Some(distance) = code.strip_prefix(&LEA_RAX) else { return Ok(None) };
    let distance = i32::from_le_bytes(distance.try_into().expect("seven bytes less three"));
    let string = Address(start.offset(7).0.wrapping_add_signed(distance.into()));
    let version = String::from_utf8(memory.read_c_string(string, LONGEST)?).unwrap_or_default();
    let is_version = version.starts_with("2.")
        && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    Ok(is_version.then_some(version))
}

#[cfg(test)]
mod tests;
