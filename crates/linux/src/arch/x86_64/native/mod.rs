//! The calls and instructions by which rbloat stops and reads processes on x86-64.

mod registers;

use super::super::Cpu;
use crate::Address;

pub use registers::Registers;

/// This CPU.
pub(in crate::arch) const OWN_CPU: Cpu = Cpu::X86_64;

/// Bytes of a signal frame, if the kernel does not report its size (AT_MINSIGSTKSZ): with all of AVX-512.
pub const SIGNAL_FRAME_BYTES: u64 = 4096;
/// The instructions `syscall; ret`.
pub const SYSTEM_CALL_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];
/// Bytes of the instruction that calls the kernel.
pub const SYSTEM_CALL_BYTES: u64 = 2;
/// AUDIT_ARCH_X86_64 of linux/audit.h: the CPU as seccomp filters see it.
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// The folder of libraries below /usr/lib on Debian.
pub const LIBRARY_TRIPLET: &str = "x86_64-linux-gnu";
/// Bytes of the registers that the kernel saves (`struct pt_regs`).
pub const REGISTERS_BYTES: i16 = 168;
/// The number of registers among them that a program computes with, from the first on (r15 to rdi).
pub const GENERAL_REGISTERS: i16 = 15;
/// Those of them that a function leaves as they were, by their numbers (r15 to r12, rbp, rbx).
pub const PRESERVED_REGISTERS: std::ops::Range<usize> = 0..6;
/// The offset of the instruction pointer.
pub const INSTRUCTION_AT: i16 = 128;
/// `ARCH_GET_FS` of asm/prctl.h.
const ARCH_GET_FS: i32 = 0x1003;

/// The function of the C library by which a thread creates a process with another stack, if the instruction alone will not do.
pub const CLONE_FUNCTION: Option<&str> = None;

/// Numbers of system calls that newer CPUs lack; `None` there.
pub mod system_calls {
    /// poll(2).
    pub const POLL: Option<i64> = Some(libc::SYS_poll);
    /// select(2).
    pub const SELECT: Option<i64> = Some(libc::SYS_select);
    /// epoll_wait(2).
    pub const EPOLL_WAIT: Option<i64> = Some(libc::SYS_epoll_wait);
    /// pause(2).
    pub const PAUSE: Option<i64> = Some(libc::SYS_pause);
}

/// Returns the bytes of a page of this kernel: all have the same.
#[must_use]
pub const fn page_size() -> u64 {
    4096
}

/// Returns the thread pointer of the calling thread.
#[must_use]
pub fn own_thread_pointer() -> u64 {
    let mut found = 0_u64;
    // SAFETY: the kernel writes the base of FS to the variable.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut found) };
    found
}

/// Returns a stack for a process that a system call made with [`SYSTEM_CALL_RETURN`] creates, and the bytes that
/// must be written there before: the new process calls `function` as soon as it runs.
///
/// `stack_pointer` must be a thread's stack pointer at the start of a function. Memory above it is not changed.
#[must_use]
pub fn copy_stack(stack_pointer: Address, function: Address) -> (Address, [u8; 8]) {
    // `ret` pops the address, and leaves the alignment that a function expects.
    (stack_pointer.before(24), function.0.to_le_bytes())
}
