//! Calls of functions, in the target or in its forked copy.

use std::time::{Duration, Instant};

use image::LiveMemory;
use image::Memory;
use linux::tracee::{Event, Resume, Wait, resume, wait_for_stop};
use linux::{Address, Argument, Identity, SystemCall, proc};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::handler::{at_a_safe_point, check_runs, read_registers, write_registers, write_words};
use crate::{Error, ForkedCopy, Refusal};

/// The time between two checks if a function has returned.
const POLL: Duration = Duration::from_micros(500);
/// The time between tries to find a thread at a safe point.
const BETWEEN_TRIES: Duration = Duration::from_millis(2);
/// The time that a forked copy may take for a function. If another thread held a lock at the fork, no thread of the
/// copy ever releases it.
const MAX_TIME_IN_COPY: Duration = Duration::from_secs(5);
/// The maximum number of bytes of all texts and words of a call.
const MAX_ARGUMENT_BYTES: usize = 2048;

/// A function of the target, and the arguments to call it with.
#[derive(Debug, Clone, Copy)]
pub struct FunctionCall<'a> {
    /// The address of the function.
    pub function: Address,
    /// The arguments, at most 6. Texts and words are written below the thread's stack.
    pub arguments: &'a [Argument<'a>],
    /// The system calls that the function may make, so that a process whose seccomp filter forbids one is left
    /// alone. Unused in a forked copy.
    pub system_calls: &'a [SystemCall],
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// It returned this time after the thread was released.
    Returned(Duration),
    /// It did not return within the maximum time. It continues by itself.
    StillRunning,
}

/// Lets one thread of `program`, which runs, call a function, as if in a handler of `signal`; the others run on.
/// Waits up to `patience` for a thread at a safe point, and up to `max_time` for the function to return.
///
/// The target's own handler of `signal` must do nothing. The function must be one that may be called wherever a thread
/// waits.
///
/// # Errors
/// The reason why it was not called. The target is unchanged, except perhaps for [`Refusal::TraceFailed`].
pub fn call(
    program: &Identity,
    signal: i32,
    call: FunctionCall<'_>,
    patience: Duration,
    max_time: Duration,
) -> Result<CallOutcome, Refusal> {
    let deadline = Instant::now() + patience;
    let mut system_calls = call.system_calls.to_vec();
    // The return from the handler.
    system_calls.push(SystemCall::any(libc::SYS_rt_sigreturn));
    let (tid, started) = loop {
        let called = at_a_safe_point(program, signal, false, &system_calls, |thread, _| {
            let arguments = write_arguments(thread.tid(), thread.scratch(), call.arguments)?;
            thread.set_to_call(call.function, arguments)?;
            // The thread is released next. By the time we run again, the call may be over.
            Ok((thread.tid(), Instant::now()))
        });
        match called {
            Err(refusal) if refusal.is_transient() && Instant::now() < deadline => {
                check_runs(program)?;
                std::thread::sleep(BETWEEN_TRIES);
            }
            other => break other?,
        }
    };
    // The kernel blocks a signal while its handler runs, so /proc shows when the function has returned, and the thread
    // need not be stopped again.
    let pid = program.pid();
    while proc::signal_sets(pid, tid).is_some_and(|signals| signals.blocks(signal)) {
        if started.elapsed() >= max_time {
            return Ok(CallOutcome::StillRunning);
        }
        std::thread::sleep(POLL);
    }
    Ok(CallOutcome::Returned(started.elapsed()))
}

/// Writes texts and words from `at` on, which must be unused memory. Returns the values of the argument registers.
fn write_arguments(tid: i32, at: Address, arguments: &[Argument<'_>]) -> Result<[u64; 6], Refusal> {
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
    if bytes.len() > MAX_ARGUMENT_BYTES {
        return Err(Refusal::failed("write so many arguments")(Errno::E2BIG));
    }
    if !bytes.is_empty() {
        write_words(tid, at, bytes.as_chunks().0)?;
    }
    Ok(registers)
}

impl ForkedCopy {
    /// Lets the copy call a function. The target is not affected. Returns the function's value, and the words
    /// at [`Argument::Word`]s after the call; `None` if it did not return in time, as when a lock that it takes was
    /// held at the fork.
    ///
    /// # Errors
    /// If the copy was killed.
    pub fn call(&mut self, call: FunctionCall<'_>) -> Result<Option<(u64, Vec<u64>)>, Error> {
        // The call changes memory, which would be counted as copied for the target.
        self.count_copied();
        let (pid, stack) = self.pid_and_stack();
        run_in_copy(pid, stack, call).map_err(|refusal| self.not_run(refusal))
    }
}

fn run_in_copy(
    pid: i32,
    stack: Address,
    call: FunctionCall<'_>,
) -> Result<Option<(u64, Vec<u64>)>, Refusal> {
    let arguments = write_arguments(pid, stack.offset(256), call.arguments)?;
    // It returns to address 0, where it stops with SIGSEGV, which only its tracer notices.
    let (start, bytes) = read_registers(pid)?.at_outermost_call(stack, call.function, arguments);
    write_words(pid, start.stack_pointer(), &[bytes])?;
    write_registers(pid, start)?;
    let deadline = Instant::now() + MAX_TIME_IN_COPY;
    let failed = Refusal::failed("resume the copy");
    loop {
        resume(pid, Resume::Run, 0).map_err(&failed)?;
        let left = deadline.saturating_duration_since(Instant::now());
        match wait_for_stop(pid, left) {
            Wait::Stopped(Event::Signal(libc::SIGSEGV)) => break,
            Wait::Stopped(_) if !left.is_zero() => {}
            Wait::Gone => return Err(failed(Errno::ESRCH)),
            Wait::Running | Wait::Stopped(_) => {
                let _ = ptrace::interrupt(Pid::from_raw(pid));
                let _ = wait_for_stop(pid, MAX_TIME_IN_COPY);
                return Ok(None);
            }
        }
    }
    let after = read_registers(pid)?;
    if after.instruction_pointer() != Address(0) {
        return Ok(None);
    }
    let memory =
        LiveMemory::open(pid).map_err(Refusal::capture_failed("open the memory of the copy"))?;
    let words = call
        .arguments
        .iter()
        .zip(arguments)
        .filter(|(argument, _)| matches!(argument, Argument::Word(_)))
        .filter_map(|(_, at)| memory.read_u64(Address(at)).ok());
    Ok(Some((after.return_value(), words.collect())))
}
