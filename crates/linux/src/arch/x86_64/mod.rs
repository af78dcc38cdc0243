//! x86-64.

#[cfg(target_arch = "x86_64")]
pub(super) mod native;

use std::ops::Range;

use object::elf;

use super::{DumpedRegisters, RETURN_ADDRESS_BYTES, Relocations};
use crate::Address;

/// Bytes below the stack pointer that belong to the running function (System V ABI). A signal frame begins below
/// them.
pub(super) const RED_ZONE: u64 = 128;

/// The distance that a call with a 32-bit offset can reach.
pub(super) const JIT_REACH: u64 = 1 << 31;

/// More bytes than a thread's stack has from the address of [`descriptor_base`] on: glibc puts the structure at its end.
pub(super) const PTHREAD_BYTES: u64 = 4 << 10;
/// Types of relocations.
pub(super) const RELOCATIONS: Relocations = Relocations {
    copy: elf::R_X86_64_COPY,
    jump_slot: elf::R_X86_64_JUMP_SLOT,
    glob_dat: elf::R_X86_64_GLOB_DAT,
    tpoff: elf::R_X86_64_TPOFF64,
};

/// Returns the address of the `struct pthread` of the thread with this thread pointer.
///
/// Here it is the thread pointer itself.
#[must_use]
pub(super) const fn descriptor_base(thread_pointer: Address) -> Address {
    thread_pointer
}

/// Returns where the thread-local variables of the thread with this thread pointer are, if they have `bytes` bytes.
///
/// They end at the thread pointer (TLS variant II).
#[must_use]
pub(super) const fn thread_locals(thread_pointer: Address, bytes: u64) -> Range<Address> {
    thread_pointer.before(bytes)..thread_pointer
}

/// Returns the address that a function at `address` with this code returns, if it only loads a constant:
/// `lea rax, [rip + distance]`, after an `endbr64` in some builds.
#[must_use]
pub(super) fn returned_address(
    code: &[u8; RETURN_ADDRESS_BYTES],
    address: Address,
) -> Option<Address> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const LEA_RAX: [u8; 3] = [0x48, 0x8d, 0x05];

    let skipped = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let distance = code[skipped..].strip_prefix(&LEA_RAX)?.first_chunk()?;
    let end = address.offset((skipped + LEA_RAX.len() + distance.len()) as u64);
    Some(Address(end.0.wrapping_add_signed(i32::from_le_bytes(*distance).into())))
}

/// Returns the registers in `pr_reg` of an NT_PRSTATUS note (`user_regs_struct` of sys/user.h); `None` if it is too short.
#[must_use]
pub(super) fn dumped_registers(words: &[u64]) -> Option<DumpedRegisters> {
    const GENERAL: usize = 15;
    const RSP: usize = 19;
    const FS_BASE: usize = 21;
    const ALL: usize = 27;
    let words = words.get(..ALL)?;
    Some(DumpedRegisters {
        thread_pointer: Address(words[FS_BASE]),
        stack_pointer: Address(words[RSP]),
        general: words[..GENERAL].to_vec(),
    })
}
