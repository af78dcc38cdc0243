//! aarch64.

#[cfg(target_arch = "aarch64")]
pub(super) mod native;

use std::ops::Range;

use object::elf;

use super::{DumpedRegisters, RETURN_ADDRESS_BYTES, Relocations};
use crate::Address;

/// Bytes below the stack pointer that belong to the running function (AAPCS64): none.
pub(super) const RED_ZONE: u64 = 0;

/// The distance that a call (`bl`) can reach.
pub(super) const JIT_REACH: u64 = 1 << 27;

/// Bytes between the thread pointer and the first thread-local variable (`tcbhead_t` of glibc's tls.h).
const CONTROL_BYTES: u64 = 16;
/// More bytes than `struct pthread` has in any release; a multiple of its alignment.
const DESCRIPTOR_BYTES: u64 = 2 << 10;
/// More bytes than a thread's stack has from the address of [`descriptor_base`] on: glibc puts the structure and the thread-local
/// variables at its end.
pub(super) const PTHREAD_BYTES: u64 = DESCRIPTOR_BYTES + CONTROL_BYTES + (8 << 10);

/// Types of relocations.
pub(super) const RELOCATIONS: Relocations = Relocations {
    copy: elf::R_AARCH64_COPY,
    jump_slot: elf::R_AARCH64_JUMP_SLOT,
    glob_dat: elf::R_AARCH64_GLOB_DAT,
    tpoff: elf::R_AARCH64_TLS_TPREL,
};

/// Returns an address from which all words of the `struct pthread` of the thread with this thread pointer have the same
/// distance in all threads.
///
/// The structure ends at the thread pointer, and its size depends on the release, so this is an address before it.
#[must_use]
pub(super) const fn descriptor_base(thread_pointer: Address) -> Address {
    thread_pointer.before(DESCRIPTOR_BYTES)
}

/// Returns where the thread-local variables of the thread with this thread pointer are, if they have `bytes` bytes.
///
/// They begin behind the thread pointer (TLS variant I).
#[must_use]
pub(super) const fn thread_locals(thread_pointer: Address, bytes: u64) -> Range<Address> {
    let start = thread_pointer.offset(CONTROL_BYTES);
    start..start.offset(bytes)
}

/// Returns the address that a function at `address` with this code returns, if it only loads a constant:
/// `adrp x0, page; add x0, x0, #offset`, after a `bti c` in some builds.
#[must_use]
pub(super) fn returned_address(
    code: &[u8; RETURN_ADDRESS_BYTES],
    address: Address,
) -> Option<Address> {
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

/// Returns the registers in `pr_reg` of an NT_PRSTATUS note (`user_pt_regs` of asm/ptrace.h); `None` if it is too short. The
/// thread pointer is in a note of its own (NT_ARM_TLS).
#[must_use]
pub(super) fn dumped_registers(words: &[u64]) -> Option<DumpedRegisters> {
    const GENERAL: usize = 31;
    // The stack pointer, the instruction pointer and PSTATE follow.
    const ALL: usize = GENERAL + 3;
    let words = words.get(..ALL)?;
    Some(DumpedRegisters {
        thread_pointer: Address(0),
        stack_pointer: Address(words[GENERAL]),
        general: words[..GENERAL].to_vec(),
    })
}
