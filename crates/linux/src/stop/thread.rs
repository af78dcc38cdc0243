use std::ops::Range;

use crate::Address;
use crate::arch::{Cpu, Registers};

/// A thread of the target at the instant of the capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// The thread id.
    pub tid: i32,
    /// The CPU whose registers these are.
    pub cpu: Cpu,
    /// The thread pointer, from which thread-local variables are addressed.
    pub thread_pointer: Address,
    /// The stack pointer.
    pub stack_pointer: Address,
    /// The other general registers, in no particular order: each may hold the only pointer to a chunk.
    pub registers: Vec<u64>,
}

impl Thread {
    /// Creates the thread `tid` with these registers.
    #[must_use]
    pub fn new(tid: i32, registers: &Registers) -> Self {
        Self {
            tid,
            cpu: Cpu::OWN,
            thread_pointer: registers.thread_pointer(),
            stack_pointer: registers.stack_pointer(),
            registers: registers.general(),
        }
    }

    /// An address at a fixed offset from every field of the C library's descriptor of the thread (`struct pthread`).
    #[must_use]
    pub fn descriptor_base(&self) -> Address {
        self.cpu.descriptor_base(self.thread_pointer)
    }

    /// The memory of the thread's variables, if they have `bytes` bytes.
    #[must_use]
    pub fn locals(&self, bytes: u64) -> Range<Address> {
        self.cpu.thread_locals(self.thread_pointer, bytes)
    }

    /// The lowest address of the thread's stack that may be in use: the end of the red zone.
    #[must_use]
    pub fn stack_floor(&self) -> Address {
        self.stack_pointer.before(self.cpu.red_zone())
    }
}
