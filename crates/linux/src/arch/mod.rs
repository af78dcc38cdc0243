//! Everything that depends on the CPU.
//!
//! One folder per CPU has two parts. The facts about programs for the CPU are compiled everywhere, since a core may come
//! from another machine: [`Cpu`] is the way to them. Its folder `native` is how rbloat itself runs on the CPU; `target_arch`
//! selects one, which exports the items below. No other code names a CPU or a register.
//!
//! | item | meaning |
//! |---|---|
//! | [`page_size`] | the bytes of a page of the kernel that rbloat runs on |
//! | [`Registers`] | a stopped thread's registers: reading and setting them, and what the ABI keeps in them |
//! | [`CLONE_FUNCTION`], [`copy_stack`] | how a thread creates a process, and the stack of that process, which is to call a function without arguments and end |
//! | [`own_thread_pointer`] | the address of our own `struct pthread` |
//! | [`REGISTERS_BYTES`], [`GENERAL_REGISTERS`], [`PRESERVED_REGISTERS`], [`INSTRUCTION_AT`] | the size of the kernel's `struct pt_regs`, and what is where in it |
//! | [`SIGNAL_FRAME_BYTES`] | the use of the stack by a signal handler |
//! | [`SYSTEM_CALL_RETURN`], [`SYSTEM_CALL_BYTES`] | the instruction that calls the kernel |
//! | [`system_calls`] | numbers of system calls that not every CPU has |
//! | [`AUDIT_ARCH`] | the CPU as seccomp filters see it |
//! | [`LIBRARY_TRIPLET`] | the name of the folder of libraries on Debian |
//!
//! To support another CPU, add a folder, the lines that select it here, and a variant of [`Cpu`].

mod aarch64;
mod x86_64;

use std::ops::Range;

use object::elf;

use crate::Address;

#[cfg(target_arch = "x86_64")]
use x86_64::native::OWN_CPU;
#[cfg(target_arch = "x86_64")]
pub use x86_64::native::*;

#[cfg(target_arch = "aarch64")]
use aarch64::native::OWN_CPU;
#[cfg(target_arch = "aarch64")]
pub use aarch64::native::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this CPU is not supported: it needs a folder in crates/linux/src/arch");

/// The end of a process's addresses. Linux maps nothing behind it, unless a program asks for an address there: 47 bits on
/// x86-64, and 48 on aarch64.
pub const USER_SPACE_END: u64 = 1 << 48;
/// The end of the addresses that a program can ask for: 56 bits on x86-64, and 52 on aarch64.
pub const MAX_USER_SPACE_END: u64 = 1 << 56;
/// Bytes of code that [`Cpu::returned_address`] needs.
pub const RETURN_ADDRESS_BYTES: usize = 12;

/// Returns true for addresses of the kernel's half.
#[must_use]
pub const fn is_of_kernel(at: Address) -> bool {
    at.0 >> 63 != 0
}

/// The CPU that a program runs on, or ran on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cpu {
    /// x86-64.
    X86_64,
    /// aarch64, with the least significant byte first.
    Aarch64,
}

/// The registers of a thread in a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpedRegisters {
    /// The thread pointer, from which thread-local variables are addressed.
    pub thread_pointer: Address,
    /// The stack pointer.
    pub stack_pointer: Address,
    /// The registers that a program computes with, without the stack pointer.
    pub general: Vec<u64>,
}

/// Types of relocations.
#[derive(Debug, Clone, Copy)]
pub struct Relocations {
    /// A copy of a library's variable in the executable.
    pub copy: elf::RelocationType,
    /// The address of a function, for calls.
    pub jump_slot: elf::RelocationType,
    /// The address of a function or variable.
    pub glob_dat: elf::RelocationType,
    /// The offset of a thread-local variable from the thread pointer.
    pub tpoff: elf::RelocationType,
}

/// The CPU that rbloat runs on.
impl Default for Cpu {
    fn default() -> Self {
        Self::OWN
    }
}

impl Cpu {
    const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];
    /// The CPU that rbloat runs on.
    pub const OWN: Self = OWN_CPU;

    /// Returns the CPU in the header of an ELF file of 64 bits with the least significant byte first; `None` if it is another.
    #[must_use]
    pub fn of_elf(machine: elf::Machine) -> Option<Self> {
        Self::ALL.into_iter().find(|cpu| cpu.elf_machine() == machine)
    }

    /// The CPU in the header of an ELF file.
    #[must_use]
    pub const fn elf_machine(self) -> elf::Machine {
        match self {
            Self::X86_64 => elf::EM_X86_64,
            Self::Aarch64 => elf::EM_AARCH64,
        }
    }

    /// Its name for users.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Bytes below the stack pointer that belong to the running function. A signal frame begins below them.
    #[must_use]
    pub const fn red_zone(self) -> u64 {
        match self {
            Self::X86_64 => x86_64::RED_ZONE,
            Self::Aarch64 => aarch64::RED_ZONE,
        }
    }

    /// The types of its relocations.
    #[must_use]
    pub const fn relocations(self) -> Relocations {
        match self {
            Self::X86_64 => x86_64::RELOCATIONS,
            Self::Aarch64 => aarch64::RELOCATIONS,
        }
    }

    /// The distance that a call in compiled code can reach.
    #[must_use]
    pub const fn jit_reach(self) -> u64 {
        match self {
            Self::X86_64 => x86_64::JIT_REACH,
            Self::Aarch64 => aarch64::JIT_REACH,
        }
    }

    /// Returns an address at a fixed offset from every field of the `struct pthread` of the thread with this thread pointer: the same
    /// offset in all threads.
    #[must_use]
    pub const fn descriptor_base(self, thread_pointer: Address) -> Address {
        match self {
            Self::X86_64 => x86_64::descriptor_base(thread_pointer),
            Self::Aarch64 => aarch64::descriptor_base(thread_pointer),
        }
    }

    /// More bytes than a thread's stack has from the address of [`descriptor_base`](Self::descriptor_base) on: glibc puts the structure at its
    /// end.
    #[must_use]
    pub const fn pthread_bytes(self) -> u64 {
        match self {
            Self::X86_64 => x86_64::PTHREAD_BYTES,
            Self::Aarch64 => aarch64::PTHREAD_BYTES,
        }
    }

    /// Returns where the thread-local variables of the thread with this thread pointer are, if they have `bytes` bytes.
    #[must_use]
    pub const fn thread_locals(self, thread_pointer: Address, bytes: u64) -> Range<Address> {
        match self {
            Self::X86_64 => x86_64::thread_locals(thread_pointer, bytes),
            Self::Aarch64 => aarch64::thread_locals(thread_pointer, bytes),
        }
    }

    /// Returns the address of a constant that a function at `address` with this code returns, if it does nothing else.
    #[must_use]
    pub fn returned_address(
        self,
        code: &[u8; RETURN_ADDRESS_BYTES],
        address: Address,
    ) -> Option<Address> {
        match self {
            Self::X86_64 => x86_64::returned_address(code, address),
            Self::Aarch64 => aarch64::returned_address(code, address),
        }
    }

    /// Returns the registers of a thread in the words of `pr_reg` of its NT_PRSTATUS note; `None` if it is too short.
    #[must_use]
    pub fn dumped_registers(self, words: &[u64]) -> Option<DumpedRegisters> {
        match self {
            Self::X86_64 => x86_64::dumped_registers(words),
            Self::Aarch64 => aarch64::dumped_registers(words),
        }
    }
}
