//! Making the target call one of its own functions, or its clone.

use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::{Address, Error, Image, elf};

use super::fork::Forked;
use super::memory::LiveMemory;
use super::proc;
use super::seccomp::Call;
use super::touch::{self, Refusal, SIGNAL};
use super::tracee::{Event, Resume, Wait, resume, wait_for_stop};

/// Between two looks whether a function has returned.
const POLL: Duration = Duration::from_micros(500);
/// Between two looks for a thread that may be made to call it.
const BETWEEN_TRIES: Duration = Duration::from_millis(2);
/// How long a clone may take for a function: where another thread held a lock when it was made, nobody
/// ever gives that back in there.
const IN_CLONE: Duration = Duration::from_secs(5);
/// Bytes that all texts of a call may have together.
const MOST_TEXT: usize = 2048;

/// An argument of a function that the target is made to call.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    /// A number.
    Number(u64),
    /// The address of this text, which is written below the thread's stack.
    Text(&'a CStr),
    /// The address of this word, which is written below the thread's stack.
    Word(u64),
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Called {
    /// It returned after this time.
    Returned(Duration),
    /// It had not returned when our patience ended. It goes on by itself.
    StillRuns,
}

/// The address of a function that one of the target's modules exports.
#[must_use]
pub fn find_function(image: &Image<'_>, name: &str) -> Option<Address> {
    elf::modules(image).iter().find_map(|module| Some(module.symbol(image, name).ok()??.address))
}

/// What functions that give memory back may ask of the kernel (glibc's, jemalloc's, tcmalloc's), and the
/// handler's return.
fn calls() -> [Call; 11] {
    let with_third = |number, argument| Call::any(number).with(2, argument);
    let futex =
        |operation| Call::any(libc::SYS_futex).with(1, operation | libc::FUTEX_PRIVATE_FLAG);
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    [
        with_third(libc::SYS_madvise, libc::MADV_DONTNEED),
        with_third(libc::SYS_madvise, libc::MADV_FREE),
        with_third(libc::SYS_mprotect, libc::PROT_NONE),
        with_third(libc::SYS_mprotect, read_write),
        with_third(libc::SYS_mmap, libc::PROT_NONE),
        Call::any(libc::SYS_munmap),
        Call::any(libc::SYS_mremap),
        Call::any(libc::SYS_brk),
        futex(libc::FUTEX_WAIT),
        futex(libc::FUTEX_WAKE),
        Call::any(libc::SYS_rt_sigreturn),
    ]
}

/// Lets one thread of the running process `pid` call `function`, which gives memory back, as if in a signal
/// handler; the others run on. Waits up to `patience` for a thread that may, and up to `most` for the function.
///
/// # Errors
/// Why it was not called; nothing was changed then, unless a thread was [`Refusal::Lost`].
pub fn call(
    pid: i32,
    function: Address,
    arguments: &[Argument<'_>],
    patience: Duration,
    most: Duration,
) -> Result<Called, Refusal> {
    let deadline = Instant::now() + patience;
    let calls = calls();
    let tid = loop {
        let called = touch::at_a_safe_point(pid, &calls, |thread, _| {
            let registers = place(pid, thread.scratch(), arguments)?;
            thread.set_to_call(function, registers)?;
            Ok(thread.tid())
        });
        match called {
            Err(Refusal::NoSafePoint | Refusal::Lost) if Instant::now() < deadline => {
                std::thread::sleep(BETWEEN_TRIES);
            }
            other => break other?,
        }
    };
    // The kernel blocks a signal while its handler runs, so it tells when ours has returned, and the
    // thread need not be stopped for the question.
    let started = Instant::now();
    let runs =
        |tid| proc::signals(pid, tid).is_some_and(|set| set.blocked & 1 << (SIGNAL - 1) != 0);
    while runs(tid) {
        if started.elapsed() >= most {
            return Ok(Called::StillRuns);
        }
        std::thread::sleep(POLL);
    }
    Ok(Called::Returned(started.elapsed()))
}

/// Writes the arguments that are no numbers to `at` on, where nothing is that counts; what the registers
/// are to hold.
fn place(pid: i32, at: Address, arguments: &[Argument<'_>]) -> Result<[u64; 6], Refusal> {
    let mut bytes = Vec::new();
    let mut registers = [0; 6];
    for (register, argument) in registers.iter_mut().zip(arguments) {
        let address = at.offset(bytes.len() as u64).0;
        match argument {
            Argument::Number(number) => *register = *number,
            Argument::Text(text) => {
                bytes.extend(text.to_bytes_with_nul());
                *register = address;
            }
            Argument::Word(word) => {
                bytes.extend(word.to_le_bytes());
                *register = address;
            }
        }
        bytes.resize(bytes.len().next_multiple_of(16), 0);
    }
    if bytes.len() > MOST_TEXT {
        return Err(Refusal::Lost);
    }
    if !bytes.is_empty() {
        write(pid, at, &bytes)?;
    }
    Ok(registers)
}

/// Writes bytes into the target, all or it fails.
pub(crate) fn write(pid: i32, at: Address, bytes: &[u8]) -> Result<(), Refusal> {
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem"));
    memory.and_then(|memory| memory.write_all_at(bytes, at.0)).map_err(|_| Refusal::Lost)
}

impl Forked {
    /// Lets the clone call `function`, whatever that does to its memory: the target's is another by now.
    /// Returns what the function returned, and the words that it left where [`Argument::Word`]s stood.
    ///
    /// `None` where it did not return, as where a lock that it takes was held when the clone was made.
    ///
    /// # Errors
    /// Where the clone was killed by another.
    pub fn call(
        &mut self,
        function: Address,
        arguments: &[Argument<'_>],
    ) -> Result<Option<(u64, Vec<u64>)>, Error> {
        let killed = Error::CloneEnded { pid: self.image().state.process.pid };
        self.count_copied();
        let (pid, scratch) = self.clone_and_stack();
        let words = self.run_in_clone(pid, scratch, function, arguments);
        match words {
            Ok(words) => Ok(words),
            Err(_) => Err(killed),
        }
    }

    fn run_in_clone(
        &self,
        pid: i32,
        stack: Address,
        function: Address,
        arguments: &[Argument<'_>],
    ) -> Result<Option<(u64, Vec<u64>)>, Refusal> {
        // It returns to address 0, where it stops with SIGSEGV, which nobody is told of but us.
        let at = stack.offset(256);
        let places = place(pid, at, arguments)?;
        let (start, bytes) = touch::registers(pid)?.at_outermost_call(stack, function, places);
        write(pid, start.stack_pointer(), &bytes)?;
        touch::set_registers(pid, start)?;
        let deadline = Instant::now() + IN_CLONE;
        loop {
            resume(pid, Resume::Run, 0).map_err(|_| Refusal::Lost)?;
            let left = deadline.saturating_duration_since(Instant::now());
            match wait_for_stop(pid, left) {
                Wait::Stopped(Event::Signal(libc::SIGSEGV)) => break,
                Wait::Stopped(_) if !left.is_zero() => {}
                Wait::Gone => return Err(Refusal::Lost),
                Wait::Running | Wait::Stopped(_) => {
                    let _ = ptrace::interrupt(Pid::from_raw(pid));
                    let _ = wait_for_stop(pid, IN_CLONE);
                    return Ok(None);
                }
            }
        }
        let after = touch::registers(pid)?;
        if after.instruction_pointer() != Address(0) {
            return Ok(None);
        }
        let memory = LiveMemory::open(pid).map_err(|_| Refusal::Lost)?;
        let words = arguments
            .iter()
            .zip(places)
            .filter(|(argument, _)| matches!(argument, Argument::Word(_)));
        let words = words.filter_map(|(_, at)| crate::Memory::read_u64(&memory, Address(at)).ok());
        Ok(Some((after.return_value(), words.collect())))
    }
}
