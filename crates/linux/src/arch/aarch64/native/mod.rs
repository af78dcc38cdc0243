//! The calls and instructions by which rbloat stops and reads processes on aarch64.

mod registers;

use std::sync::LazyLock;

use super::super::Cpu;
use crate::Address;

pub use registers::Registers;

/// This CPU.
pub(in crate::arch) const OWN_CPU: Cpu = Cpu::Aarch64;

/// Bytes of a signal frame, if the kernel does not report its size (AT_MINSIGSTKSZ).
pub const SIGNAL_FRAME_BYTES: u64 = 4688;
/// The instructions `svc #0; ret`.
pub const SYSTEM_CALL_RETURN: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// Bytes of the instruction that calls the kernel.
pub const SYSTEM_CALL_BYTES: u64 = 4;
/// AUDIT_ARCH_AARCH64 of linux/audit.h: the CPU as seccomp filters see it.
pub const AUDIT_ARCH: u32 = 0xc000_00b7;
/// The folder of libraries below /usr/lib on Debian.
pub const LIBRARY_TRIPLET: &str = "aarch64-linux-gnu";
/// Bytes of the registers that the kernel shows to its programs (`struct user_pt_regs`).
pub const REGISTERS_BYTES: i16 = 272;
/// The number of registers among them that a program computes with, from the first on (x0 to x30).
pub const GENERAL_REGISTERS: i16 = 31;
/// Those of them that a function leaves as they were, by their numbers (x19 to x29).
pub const PRESERVED_REGISTERS: std::ops::Range<usize> = 19..30;
/// The offset of the instruction pointer.
pub const INSTRUCTION_AT: i16 = 256;
/// The function of the C library by which a thread creates a process with another stack. The return address is in a register,
/// so after the instruction alone the new process would return to where its parent returns.
pub const CLONE_FUNCTION: Option<&str> = Some("clone");

/// Numbers of system calls that newer CPUs lack.
pub mod system_calls {
    /// poll(2).
    pub const POLL: Option<i64> = None;
    /// select(2).
    pub const SELECT: Option<i64> = None;
    /// epoll_wait(2).
    pub const EPOLL_WAIT: Option<i64> = None;
    /// pause(2).
    pub const PAUSE: Option<i64> = None;
}

/// Returns the bytes of a page of this kernel: 4, 16 or 64 KiB, as it was built.
#[must_use]
pub fn page_size() -> u64 {
    static PAGE_SIZE: LazyLock<u64> = LazyLock::new(|| {
        // SAFETY: sysconf takes a number alone.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        bytes.cast_unsigned()
    });
    *PAGE_SIZE
}

/// Returns the thread pointer of the calling thread.
#[must_use]
pub fn own_thread_pointer() -> u64 {
    let found;
    // SAFETY: reads a register that every program may read.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) found, options(nomem, nostack)) };
    found
}

/// Returns a stack for a process that [`CLONE_FUNCTION`] creates, and bytes that may be written there before.
///
/// `stack_pointer` must be a thread's stack pointer at the start of a function. Memory above it is not changed.
#[must_use]
pub fn copy_stack(stack_pointer: Address, _function: Address) -> (Address, [u8; 8]) {
    (stack_pointer.before(64).align_down(16), [0; 8])
}
