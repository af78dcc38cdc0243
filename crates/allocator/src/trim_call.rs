use linux::{Argument, SystemCall};

use crate::Allocator;

/// The function by which an allocator returns memory to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct TrimCall {
    /// The name under which it is exported.
    pub function: &'static str,
    /// Its arguments.
    pub arguments: &'static [Argument<'static>],
    /// The call as a person writes it.
    pub shown: &'static str,
    /// The system calls that it may make.
    pub system_calls: &'static [SystemCall],
}

/// The system calls of functions that return memory, in glibc, jemalloc and tcmalloc.
const SYSTEM_CALLS: [SystemCall; 10] = [
    SystemCall::any(libc::SYS_madvise).with(2, libc::MADV_DONTNEED as u64),
    SystemCall::any(libc::SYS_madvise).with(2, libc::MADV_FREE as u64),
    SystemCall::any(libc::SYS_mprotect).with(2, libc::PROT_NONE as u64),
    SystemCall::any(libc::SYS_mprotect).with(2, (libc::PROT_READ | libc::PROT_WRITE) as u64),
    SystemCall::any(libc::SYS_mmap).with(2, libc::PROT_NONE as u64),
    SystemCall::any(libc::SYS_munmap),
    SystemCall::any(libc::SYS_mremap),
    SystemCall::any(libc::SYS_brk),
    SystemCall::any(libc::SYS_futex).with(1, (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64),
    SystemCall::any(libc::SYS_futex).with(1, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64),
];

/// Arguments of mallctl(3) that purge all arenas (`MALLCTL_ARENAS_ALL` of jemalloc/jemalloc.h).
const PURGE: [Argument<'static>; 5] = {
    let none = Argument::Number(0);
    [Argument::Text(c"arena.4096.purge"), none, none, none, none]
};

impl Allocator {
    /// The call that makes this allocator return memory; `None` if it has no function for that.
    #[must_use]
    pub fn trim_call(&self) -> Option<TrimCall> {
        Some(match self {
            Self::Glibc { .. } => TrimCall {
                function: "malloc_trim",
                arguments: &[Argument::Number(0)],
                shown: "malloc_trim(0)",
                system_calls: &SYSTEM_CALLS,
            },
            Self::Jemalloc => TrimCall {
                function: "mallctl",
                arguments: &PURGE,
                shown: "mallctl(\"arena.4096.purge\")",
                system_calls: &SYSTEM_CALLS,
            },
            Self::Tcmalloc => TrimCall {
                function: "MallocExtension_ReleaseFreeMemory",
                arguments: &[],
                shown: "MallocExtension_ReleaseFreeMemory()",
                system_calls: &SYSTEM_CALLS,
            },
            Self::Mimalloc | Self::Musl | Self::Other(_) | Self::Unknown => return None,
        })
    }
}
