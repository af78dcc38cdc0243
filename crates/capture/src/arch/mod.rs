//! Everything that depends on the CPU.
//!
//! One folder per CPU exports the items below under the same names, and `target_arch` selects one; no other code
//! names a CPU or a register. To support another CPU, add a folder and the three lines that select it here.
//!
//! | item | meaning |
//! |---|---|
//! | [`page_size`] | the bytes of a page of the kernel that rbloat runs on |
//! | [`USER_SPACE_END`], [`MAX_USER_SPACE_END`] | the end of a process's addresses |
//! | [`RED_ZONE`], [`SIGNAL_FRAME_BYTES`] | the use of the stack below the stack pointer |
//! | [`Registers`] | a stopped thread's registers: reading and setting them, and what the ABI keeps in them |
//! | [`CLONE_FUNCTION`], [`copy_stack`] | how a thread creates a process, and the stack of that process, which is to call a function without arguments and end |
//! | [`pthread`], [`PTHREAD_BYTES`], [`thread_locals`] | where a thread's `struct pthread` and its thread-local variables are |
//! | [`returned_address`], [`RETURN_ADDRESS_BYTES`] | the address of a constant that a function returns, from its code |
//! | [`own_thread_pointer`], [`REGISTERS_BYTES`] | the address of our own `struct pthread`, and the size of the kernel's `struct pt_regs` |
//! | [`JIT_REACH`] | the distance that a call in compiled code can reach |
//! | [`SYSTEM_CALL_RETURN`], [`SYSTEM_CALL_BYTES`] | the instruction that calls the kernel |
//! | [`system_calls`] | numbers of system calls that not every CPU has |
//! | [`AUDIT_ARCH`] | the CPU as seccomp filters see it |
//! | [`LIBRARY_TRIPLET`] | the name of the folder of libraries on Debian |
//! | [`ELF_MACHINE`], [`MACHINE_NAME`], [`relocations`] | the CPU in ELF files |

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this CPU is not supported: it needs a folder in crates/capture/src/arch");
