//! The registers of a stopped thread.

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;
use object::elf;

use crate::Address;

/// `svc #0`.
const SVC: u32 = 0xd400_0001;
/// The bits of PSTATE that say that the last instruction was an indirect branch (BTYPE): a guarded page may only be entered
/// at certain instructions then.
const BRANCH_TYPE: u64 = 3 << 10;

/// System calls that start again after a handler with SA_RESTART, whatever their arguments are (ERESTARTSYS).
const RESTARTED_CALLS: [i64; 8] = [
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
];

/// The general registers of a stopped thread.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    own: libc::user_regs_struct,
    /// TPIDR_EL0.
    thread_pointer: u64,
    /// The number of the system call that the thread is in; -1 if in none.
    system_call: i32,
    /// The two instructions before the next one, and that one; zeros if unknown.
    code: [u32; 3],
}

impl Registers {
    /// Reads the registers of the thread `tid`, which the caller traces and which is stopped.
    ///
    /// # Errors
    /// The error of ptrace(2); ESRCH if the thread was killed.
    pub fn read(tid: i32) -> Result<Self, Errno> {
        let own = ptrace::getregs(Pid::from_raw(tid))?;
        let thread_pointer = read_set(tid, elf::NT_ARM_TLS)?;
        let system_call = read_set(tid, elf::NT_ARM_SYSTEM_CALL)?;
        let mut code = [0; 3];
        let start = own.pc.wrapping_sub(8);
        for (at, instruction) in (start..).step_by(4).zip(&mut code) {
            // A thread may stand at an address that is not mapped.
            let word = ptrace::read(Pid::from_raw(tid), (at & !7) as *mut libc::c_void);
            let word = word.unwrap_or(0).cast_unsigned();
            *instruction = (word >> (8 * (at & 4))) as u32;
        }
        Ok(Self { own, thread_pointer, system_call, code })
    }

    /// Sets the registers of the thread `tid`, which the caller traces and which is stopped.
    ///
    /// # Errors
    /// The error of ptrace(2); ESRCH if the thread was killed.
    pub fn write(&self, tid: i32) -> Result<(), Errno> {
        ptrace::setregs(Pid::from_raw(tid), self.own)
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn instruction_pointer(&self) -> Address {
        Address(self.own.pc)
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> Address {
        Address(self.own.sp)
    }

    /// The thread pointer, from which thread-local variables are addressed.
    #[must_use]
    pub fn thread_pointer(&self) -> Address {
        Address(self.thread_pointer)
    }

    /// The registers that a program computes with, without the stack pointer.
    #[must_use]
    pub fn general(&self) -> Vec<u64> {
        self.own.regs.to_vec()
    }

    /// The value that a function or a system call returned.
    #[must_use]
    pub fn return_value(&self) -> u64 {
        self.own.regs[0]
    }

    /// The number of the system call that the thread is in; -1 if in none.
    #[must_use]
    pub fn system_call(&self) -> i64 {
        self.system_call.into()
    }

    /// The number of the system call that the instruction `svc` makes or has made.
    fn requested_call(&self) -> i64 {
        self.own.regs[8].cast_signed()
    }

    /// The system call in which the thread waited when it was stopped, and its first three arguments: it starts again when the
    /// thread goes on, or has returned EINTR. `None` if the thread waited in none.
    ///
    /// Before a stop the kernel sets a thread back to the instruction that calls it, and forgets the call (`do_signal` in
    /// arch/arm64/kernel/signal.c).
    #[must_use]
    pub fn interrupted_call(&self) -> Option<(i64, [u64; 3])> {
        const EINTR: i64 = 4;
        let [_, last, next] = self.code;
        let has_ended = last == SVC && self.return_value().cast_signed() == -EINTR;
        (next == SVC || has_ended).then(|| (self.requested_call(), self.arguments()))
    }

    /// The first, second and third argument of the system call that the thread is in, or of the function that it
    /// is about to run.
    #[must_use]
    pub fn arguments(&self) -> [u64; 3] {
        [self.own.regs[0], self.own.regs[1], self.own.regs[2]]
    }

    /// Returns the registers of a thread that is about to run `function` with these arguments. The return address does
    /// not change: these registers must be a thread's at the start of another function.
    #[must_use]
    pub fn at_call(mut self, function: Address, arguments: [u64; 6]) -> Self {
        self.own.regs[..8].fill(0);
        self.own.regs[..6].copy_from_slice(&arguments);
        self.own.pc = function.0;
        self.own.pstate &= !BRANCH_TYPE;
        self
    }

    /// Like [`at_call`](Self::at_call) on a stack that ends at `stack`; the function returns to address 0. The bytes
    /// must be written at the stack pointer of the result.
    #[must_use]
    pub fn at_outermost_call(
        mut self,
        stack: Address,
        function: Address,
        arguments: [u64; 6],
    ) -> (Self, [u8; 8]) {
        const RETURN_ADDRESS: usize = 30;
        self.own.sp = stack.before(16).align_down(16).0;
        self.own.regs[RETURN_ADDRESS] = 0;
        (self.at_call(function, arguments), [0; 8])
    }

    /// Returns the registers of a thread that makes again the system call in which it waited, as the kernel sets them
    /// after a handler with SA_RESTART; `None` if the kernel would not, or if that cannot be known.
    ///
    /// These are the registers of a thread that is stopped before a signal is delivered. It stands at the instruction that calls
    /// the kernel, and the kernel lets the call end with EINTR if it still stands there. So it is set to the instruction before,
    /// if that would change no register: the kernel has restored all that the call was made with.
    #[must_use]
    pub fn at_restart(mut self) -> Option<Self> {
        let number = self.requested_call();
        let [before, next] = [self.code[1], self.code[2]];
        let restarts = match number {
            libc::SYS_futex => self.own.regs[3] == 0,
            number => RESTARTED_CALLS.contains(&number),
        };
        (next == SVC && restarts && self.has_done(before)).then(|| {
            self.own.pc -= 4;
            self
        })
    }

    /// Returns true if the instruction copies a register or a constant to a register that has this value already. One of
    /// these is before the system calls of C libraries: it loads the number or an argument.
    fn has_done(&self, instruction: u32) -> bool {
        let register = |at: u32| match instruction >> at & 31 {
            31 => 0,
            number => self.own.regs[number as usize],
        };
        let value = match instruction & !(0x1f << 16 | 0x1f) {
            // mov xD, xM and mov wD, wM
            0xaa00_03e0 => register(16),
            0x2a00_03e0 => register(16) & 0xffff_ffff,
            // mov xD, #constant and mov wD, #constant
            _ if instruction & 0x7fe0_0000 == 0x5280_0000 => (instruction >> 5 & 0xffff).into(),
            _ => return false,
        };
        instruction & 31 != 31 && register(0) == value
    }

    /// Returns the registers of a thread that is about to make the system call `number` by the `instruction`, an
    /// address of [`SYSTEM_CALL_RETURN`](super::SYSTEM_CALL_RETURN), and then to return.
    #[must_use]
    pub fn at_system_call(self, instruction: Address, number: i64, arguments: [u64; 6]) -> Self {
        let mut at_call = self.at_call(instruction, arguments);
        at_call.own.regs[8] = number.cast_unsigned();
        at_call
    }
}

/// Reads a set of one register of a stopped thread.
fn read_set<T: Default>(tid: i32, set: elf::NoteType) -> Result<T, Errno> {
    let mut value = T::default();
    let mut place = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of::<T>() };
    // SAFETY: the kernel writes at most `iov_len` bytes to `value`, a number.
    let read = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, set.0 as usize, &raw mut place) };
    Errno::result(read).map(|_| value)
}

/// Synthetic registers for tests.
impl Registers {
    /// Returns the registers of a thread that waits in the system call `number`, which a signal may interrupt.
    #[must_use]
    pub fn waiting_in(number: i64, arguments: [u64; 3]) -> Self {
        let own = libc::user_regs_struct { regs: [0; 31], sp: 0, pc: 0, pstate: 0 };
        let mut all = Self { own, thread_pointer: 0, system_call: -1, code: [0; 3] };
        all.own.regs[..3].copy_from_slice(&arguments);
        all.own.regs[8] = number.cast_unsigned();
        Self { code: [0, 0, SVC], ..all }
    }

    /// Returns these registers after the system call returned `value`.
    #[must_use]
    pub fn with_return_value(mut self, value: u64) -> Self {
        self.own.regs[0] = value;
        Self { code: [0, SVC, 0], ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread waits in read(2), and the instruction before the call is `before`.
    fn waiting_after(before: u32) -> Registers {
        let mut waiting = Registers::waiting_in(libc::SYS_read, [3, 0x1000, 7]);
        waiting.own.pc = 0x4_0000;
        waiting.own.regs[20] = 0xffff_0000_0007;
        Registers { code: [0, before, SVC], ..waiting }
    }

    #[test]
    fn a_call_is_made_again_if_the_instruction_before_changes_nothing() {
        let [number, length, half] = [0xd280_07e8, 0xaa14_03e2, 0x2a14_03e2];
        assert_eq!(waiting_after(number).at_restart().unwrap().own.pc, 0x3_fffc, "mov x8, #63");
        assert!(waiting_after(half).at_restart().is_some(), "mov w2, w20");
        assert!(waiting_after(length).at_restart().is_none(), "mov x2, x20: x2 is another");
        assert!(waiting_after(0xd280_07c8).at_restart().is_none(), "mov x8, #62");
        assert!(waiting_after(0xd61f_0200).at_restart().is_none(), "br x16");
        assert!(waiting_after(0xaa1f_03e1).at_restart().is_none(), "mov x1, xzr");
        assert!(waiting_after(0xaa01_03ff).at_restart().is_none(), "mov xzr, x1");
    }
}
