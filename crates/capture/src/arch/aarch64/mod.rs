//! aarch64.

mod registers;

use std::ops::Range;
use std::sync::LazyLock;

use object::elf;

use crate::Address;

pub use registers::Registers;

/// The end of a process's addresses of 48 bits. Linux maps nothing behind it, unless a program asks for an address there.
pub const USER_SPACE_END: u64 = 1 << 48;
/// The end of a process's addresses of 52 bits.
pub const MAX_USER_SPACE_END: u64 = 1 << 52;
/// Bytes below the stack pointer that belong to the running function (AAPCS64): none.
pub const RED_ZONE: u64 = 0;
/// Bytes of a signal frame, if the kernel does not report its size (AT_MINSIGSTKSZ).
pub const SIGNAL_FRAME_BYTES: u64 = 4688;
/// The instructions `svc #0; ret`.
pub const SYSTEM_CALL_RETURN: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// Bytes of the instruction that calls the kernel.
pub const SYSTEM_CALL_BYTES: u64 = 4;
/// AUDIT_ARCH_AARCH64 of linux/audit.h: the CPU as seccomp filters see it.
pub const AUDIT_ARCH: u32 = 0xc000_00b7;
/// The CPU in the header of an ELF file.
pub const ELF_MACHINE: elf::Machine = elf::EM_AARCH64;
/// The CPU's name for users.
pub const MACHINE_NAME: &str = "aarch64";

/// The folder of libraries below /usr/lib on Debian.
pub const LIBRARY_TRIPLET: &str = "aarch64-linux-gnu";
/// The distance that a call (`bl`) can reach.
pub const JIT_REACH: u64 = 1 << 27;
/// Bytes of code that [`returned_address`] needs.
pub const RETURN_ADDRESS_BYTES: usize = 12;

/// Bytes of the registers that the kernel shows to its programs (`struct user_pt_regs`).
pub const REGISTERS_BYTES: i16 = 272;
/// Bytes between the thread pointer and the first thread-local variable (`tcbhead_t` of glibc's tls.h).
const CONTROL_BYTES: u64 = 16;
/// More bytes than `struct pthread` has in any release; a multiple of its alignment.
const DESCRIPTOR_BYTES: u64 = 2 << 10;
/// More bytes than a thread's stack has from the address of [`pthread`] on: glibc puts the structure and the thread-local
/// variables at its end.
pub const PTHREAD_BYTES: u64 = DESCRIPTOR_BYTES + CONTROL_BYTES + (8 << 10);

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

/// Types of relocations.
pub mod relocations {
    use object::elf;

    /// A copy of a library's variable in the executable.
    pub const COPY: elf::RelocationType = elf::R_AARCH64_COPY;
    /// The address of a function, for calls.
    pub const JUMP_SLOT: elf::RelocationType = elf::R_AARCH64_JUMP_SLOT;
    /// The address of a function or variable.
    pub const GLOB_DAT: elf::RelocationType = elf::R_AARCH64_GLOB_DAT;
    /// The offset of a thread-local variable from the thread pointer.
    pub const TPOFF: elf::RelocationType = elf::R_AARCH64_TLS_TPREL;
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

/// Returns an address from which all words of the `struct pthread` of the thread with this thread pointer have the same
/// distance in all threads.
///
/// The structure ends at the thread pointer, and its size depends on the release, so this is an address before it.
#[must_use]
pub fn pthread(thread_pointer: Address) -> Address {
    thread_pointer.before(DESCRIPTOR_BYTES)
}

/// Returns where the thread-local variables of the thread with this thread pointer are, if they have `bytes` bytes.
///
/// They begin behind the thread pointer (TLS variant I).
#[must_use]
pub fn thread_locals(thread_pointer: Address, bytes: u64) -> Range<Address> {
    let start = thread_pointer.offset(CONTROL_BYTES);
    start..start.offset(bytes)
}

/// Returns the address that a function at `address` with this code returns, if it only loads a constant:
/// `adrp x0, page; add x0, x0, #offset`, after a `bti c` in some builds.
#[must_use]
pub fn returned_address(code: &[u8; RETURN_ADDRESS_BYTES], address: Address) -> Option<Address> {
    const BTI_C: u32 = 0xd503_245f;
    let instruction = |index: usize| {
        let bytes = code.get(index * 4..index * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let first = usize::from(instruction(0)? == BTI_C);
    let (adrp, add) = (instruction(first)?, instruction(first + 1)?);
    if adrp & 0x9f00_001f != 0x9000_0000 || add & 0xffc0_03ff != 0x9100_0000 {
        return None;
    }
    // 21 bits with a sign: two low ones, and 19 high ones.
    let pages = (adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3;
    let pages = i64::from((pages << 11).cast_signed() >> 11);
    let page = address.offset(first as u64 * 4).0 & !0xfff;
    Some(Address(page.wrapping_add_signed(pages << 12).wrapping_add(u64::from(add >> 10 & 0xfff))))
}

/// Returns a stack for a process that [`CLONE_FUNCTION`] creates, and bytes that may be written there before.
///
/// `stack_pointer` must be a thread's stack pointer at the start of a function. Memory above it is not changed.
#[must_use]
pub fn copy_stack(stack_pointer: Address, _function: Address) -> (Address, [u8; 8]) {
    (stack_pointer.before(64).align_down(16), [0; 8])
}
