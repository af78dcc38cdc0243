//! The registers of a stopped thread.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::Address;

/// Values of the return register while a thread waits in a call that a signal may interrupt: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (linux/errno.h) and EINTR.
const INTERRUPTED: [i64; 5] = [-512, -513, -514, -516, -4];

/// The general registers of a stopped thread.
#[derive(Debug, Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

impl Registers {
    /// Reads the registers of the thread `tid`, which the caller traces and which is stopped.
    ///
    /// # Errors
    /// The error of ptrace(2); ESRCH if the thread was killed.
    pub fn read(tid: i32) -> Result<Self, Errno> {
        ptrace::getregs(Pid::from_raw(tid)).map(Self)
    }

    /// Sets the registers of the thread `tid`, which the caller traces and which is stopped.
    ///
    /// # Errors
    /// The error of ptrace(2); ESRCH if the thread was killed.
    pub fn write(&self, tid: i32) -> Result<(), Errno> {
        ptrace::setregs(Pid::from_raw(tid), self.0)
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn instruction_pointer(&self) -> Address {
        Address(self.0.rip)
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> Address {
        Address(self.0.rsp)
    }

    /// The thread pointer, from which thread-local variables are addressed.
    #[must_use]
    pub fn thread_pointer(&self) -> Address {
        Address(self.0.fs_base)
    }

    /// The registers that a program computes with, without the stack pointer.
    #[must_use]
    pub fn general(&self) -> Vec<u64> {
        let r = &self.0;
        vec![
            r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx,
            r.rdx, r.rsi, r.rdi,
        ]
    }

    /// The value that a function or a system call returned. While a system call waits and may be interrupted, a
    /// negative code of linux/errno.h.
    #[must_use]
    pub fn return_value(&self) -> u64 {
        self.0.rax
    }

    /// The number of the system call that the thread is in; -1 if in none.
    #[must_use]
    pub fn system_call(&self) -> i64 {
        self.0.orig_rax.cast_signed()
    }

    /// The system call in which the thread waited when it was stopped, and its first three arguments: it starts again when the
    /// thread goes on, or has returned EINTR. `None` if the thread waited in none.
    #[must_use]
    pub fn interrupted_call(&self) -> Option<(i64, [u64; 3])> {
        let is_interrupted = INTERRUPTED.contains(&self.return_value().cast_signed());
        (is_interrupted && self.system_call() >= 0).then(|| (self.system_call(), self.arguments()))
    }

    /// The first, second and third argument of the system call that the thread is in, or of the function that it
    /// is about to run.
    #[must_use]
    pub fn arguments(&self) -> [u64; 3] {
        [self.0.rdi, self.0.rsi, self.0.rdx]
    }

    /// Returns the registers of a thread that is about to run `function` with these arguments. The return address does
    /// not change: these registers must be a thread's at the start of another function.
    #[must_use]
    pub fn at_call(self, function: Address, arguments: [u64; 6]) -> Self {
        let [rdi, rsi, rdx, rcx, r8, r9] = arguments;
        // No system call any more, so the kernel does not restart one.
        let (rip, rax, orig_rax) = (function.0, 0, u64::MAX);
        Self(libc::user_regs_struct { rip, rdi, rsi, rdx, rcx, r8, r9, rax, orig_rax, ..self.0 })
    }

    /// Like [`at_call`](Self::at_call) on a stack that ends at `stack`; the function returns to address 0. The bytes
    /// must be written at the stack pointer of the result.
    #[must_use]
    pub fn at_outermost_call(
        self,
        stack: Address,
        function: Address,
        arguments: [u64; 6],
    ) -> (Self, [u8; 8]) {
        let on_stack = libc::user_regs_struct { rsp: stack.before(8).0, ..self.0 };
        (Self(on_stack).at_call(function, arguments), [0; 8])
    }

    /// Returns the registers of a thread that makes again the system call in which it waited, as the kernel sets them
    /// after a handler with SA_RESTART; `None` if the kernel would not (`handle_signal` in arch/x86/kernel/signal.c).
    ///
    /// These are the registers of a thread that is stopped before a signal is delivered.
    #[must_use]
    pub fn at_restart(self) -> Option<Self> {
        const ERESTARTSYS: i64 = -512;
        const ERESTARTNOINTR: i64 = -513;
        let code = self.return_value().cast_signed();
        let restarts = matches!(code, ERESTARTSYS | ERESTARTNOINTR);
        (restarts && self.system_call() >= 0).then(|| {
            let (rax, rip) = (self.0.orig_rax, self.0.rip - super::SYSTEM_CALL_BYTES);
            // In no system call, so that the kernel changes nothing itself.
            Self(libc::user_regs_struct { rax, rip, orig_rax: u64::MAX, ..self.0 })
        })
    }

    /// Returns the registers of a thread that is about to make the system call `number` by the `instruction`, an
    /// address of [`SYSTEM_CALL_RETURN`](super::SYSTEM_CALL_RETURN), and then to return.
    #[must_use]
    pub fn at_system_call(self, instruction: Address, number: i64, arguments: [u64; 6]) -> Self {
        let at_call = self.at_call(instruction, arguments).0;
        // The instruction overwrites rcx, so the kernel takes the fourth argument from r10.
        let r10 = arguments[3];
        Self(libc::user_regs_struct { rax: number.cast_unsigned(), r10, ..at_call })
    }
}

/// Synthetic registers for tests.
impl Registers {
    /// Returns the registers of a thread that waits in the system call `number`, which a signal may interrupt.
    #[must_use]
    pub fn waiting_in(number: i64, arguments: [u64; 3]) -> Self {
        const ERESTARTSYS: i64 = 512;
        let [rdi, rsi, rdx] = arguments;
        // SAFETY: registers are numbers.
        let zeros: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let (rax, orig_rax) = ((-ERESTARTSYS).cast_unsigned(), number.cast_unsigned());
        Self(libc::user_regs_struct { orig_rax, rax, rdi, rsi, rdx, ..zeros })
    }

    /// Returns these registers after the system call returned `value`.
    #[must_use]
    pub fn with_return_value(self, value: u64) -> Self {
        Self(libc::user_regs_struct { rax: value, ..self.0 })
    }
}
