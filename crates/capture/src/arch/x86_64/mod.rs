//! x86-64.

mod registers;

use std::ops::Range;

use object::elf;

use crate::Address;

pub use registers::Registers;

/// The end of a process's addresses with four-level page tables. Linux maps nothing behind it, unless a
/// program asks for an address there.
pub const USER_SPACE_END: u64 = 1 << 47;
/// The end of a process's addresses with five-level page tables.
pub const MAX_USER_SPACE_END: u64 = 1 << 56;
/// Bytes below the stack pointer that belong to the running function (System V ABI). A signal frame begins below
/// them.
pub const RED_ZONE: u64 = 128;
/// Bytes of a signal frame, if the kernel does not report its size (AT_MINSIGSTKSZ): with all of AVX-512.
pub const SIGNAL_FRAME_BYTES: u64 = 4096;
/// The instructions `syscall; ret`.
pub const SYSTEM_CALL_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];
/// Bytes of the instruction that calls the kernel.
pub const SYSTEM_CALL_BYTES: u64 = 2;
/// AUDIT_ARCH_X86_64 of linux/audit.h: the CPU as seccomp filters see it.
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// The CPU in the header of an ELF file.
pub const ELF_MACHINE: elf::Machine = elf::EM_X86_64;
/// The CPU's name for users.
pub const MACHINE_NAME: &str = "x86-64";

/// The folder of libraries below /usr/lib on Debian.
pub const LIBRARY_TRIPLET: &str = "x86_64-linux-gnu";
/// The distance that a call with a 32-bit offset can reach.
pub const JIT_REACH: u64 = 1 << 31;
/// Bytes of code that [`returned_address`] needs.
pub const RETURN_ADDRESS_BYTES: usize = 11;

/// Bytes of the registers that the kernel saves (`struct pt_regs`).
pub const REGISTERS_BYTES: i16 = 168;
/// More bytes than a thread's stack has from the address of [`pthread`] on: glibc puts the structure at its end.
pub const PTHREAD_BYTES: u64 = 4 << 10;
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

/// Types of relocations.
pub mod relocations {
    use object::elf;

    /// A copy of a library's variable in the executable.
    pub const COPY: elf::RelocationType = elf::R_X86_64_COPY;
    /// The address of a function, for calls.
    pub const JUMP_SLOT: elf::RelocationType = elf::R_X86_64_JUMP_SLOT;
    /// The address of a function or variable.
    pub const GLOB_DAT: elf::RelocationType = elf::R_X86_64_GLOB_DAT;
    /// The offset of a thread-local variable from the thread pointer.
    pub const TPOFF: elf::RelocationType = elf::R_X86_64_TPOFF64;
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

/// Returns the address of the `struct pthread` of the thread with this thread pointer.
///
/// Here it is the thread pointer itself.
#[must_use]
pub fn pthread(thread_pointer: Address) -> Address {
    thread_pointer
}

/// Returns where the thread-local variables of the thread with this thread pointer are, if they have `bytes` bytes.
///
/// They end at the thread pointer (TLS variant II).
#[must_use]
pub fn thread_locals(thread_pointer: Address, bytes: u64) -> Range<Address> {
    thread_pointer.before(bytes)..thread_pointer
}

/// Returns the address that a function at `address` with this code returns, if it only loads a constant:
/// `lea rax, [rip + distance]`, after an `endbr64` in some builds.
#[must_use]
pub fn returned_address(code: &[u8; RETURN_ADDRESS_BYTES], address: Address) -> Option<Address> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const LEA_RAX: [u8; 3] = [0x48, 0x8d, 0x05];

    let skipped = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let distance = code[skipped..].strip_prefix(&LEA_RAX)?.first_chunk()?;
    let end = address.offset((skipped + LEA_RAX.len() + distance.len()) as u64);
    Some(Address(end.0.wrapping_add_signed(i32::from_le_bytes(*distance).into())))
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
