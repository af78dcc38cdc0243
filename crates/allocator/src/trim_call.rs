use capture::Argument;

use crate::{Allocator, jemalloc};

/// The function by which an allocator returns memory to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct TrimCall {
    /// The name under which it is exported.
    pub function: &'static str,
    /// Its arguments.
    pub arguments: &'static [Argument<'static>],
    /// The call as a person writes it.
    pub shown: &'static str,
}

impl Allocator {
    /// The call that makes this allocator return memory; `None` if it has no function for that.
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
