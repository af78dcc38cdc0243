//! The borrowed signal handler: a thread is taken to it, runs something else there, and returns through the kernel.

use std::thread::Builder;
use std::time::{Duration, Instant};

use image::{Memory, Target, Unreadable};
use linux::arch::page_size;
use linux::arch::{self, CLONE_FUNCTION, Registers, SYSTEM_CALL_BYTES, SYSTEM_CALL_RETURN};
use linux::tracee::{Event, Resume, Wait, resume, wait_for_stop};
use linux::{Address, Error, Identity, SystemCall, proc};
use linux::{Pagemap, Stop};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::{Refusal, TraceFailure, safe_point, seccomp};

/// The time to stop one thread, while the others run on, and to take it to its handler.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for a system call that has begun.
const MAX_CALL: Duration = linux::PATIENCE;
/// The time in which a thread that is late should stop, so that it can be detached.
const DETACHING: Duration = Duration::from_millis(20);
/// The maximum number of other signals and stops before the expected one.
const MAX_STOPS: u32 = 256;
/// The value of a system call that the kernel will make again (-ERESTARTNOINTR of linux/errno.h).
const RESTARTED: i64 = -513;
/// The goals of [`BorrowedHandler::take`] and of its system calls.
const TO_HANDLER: &str = "take a thread to its signal handler";
const TO_CALL: &str = "let a thread make a system call";
/// The distance below the stack pointer at which arguments are written: a called function needs less, also with the
/// frame of another signal on top of it.
const SCRATCH: u64 = 32 << 10;

/// The parts of the target's C library that are needed to make it call the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    /// The instructions [`SYSTEM_CALL_RETURN`].
    instruction: Address,
    /// `_exit`.
    pub(crate) exit: Address,
    /// [`CLONE_FUNCTION`], on CPUs that need it.
    clone: Option<Address>,
}

impl Functions {
    /// Finds them in the target's memory.
    pub(crate) fn find(target: &Target) -> Result<Self, Refusal> {
        let image = target.image();
        let libc = target.modules().iter().find(|module| {
            ["libc.so", "libc-", "ld-musl-"].iter().any(|prefix| module.name.starts_with(prefix))
        });
        let exported = |name| {
            let symbol = libc.and_then(|libc| libc.symbol(image, name).ok()?);
            symbol.map(|symbol| symbol.address).ok_or(Refusal::NoFunction(name))
        };
        let instruction = find_system_call(image, exported("getpid")?).ok().flatten();
        let instruction = instruction.ok_or(Refusal::NoFunction("getpid"))?;
        let exit = exported("_exit")?;
        Ok(Self { instruction, exit, clone: CLONE_FUNCTION.map(exported).transpose()? })
    }

    /// Returns the system call `number`, made by [`BorrowedHandler::system_call`], as a seccomp filter sees it.
    pub(crate) fn system_call(&self, number: i64) -> SystemCall {
        SystemCall { instruction: Some(self.after_call()), ..SystemCall::any(number) }
    }

    /// Returns the system call of [`BorrowedHandler::make_process`] with these flags, as a seccomp filter sees it.
    pub(crate) fn clone_call(&self, flags: u64) -> SystemCall {
        let call = match self.clone {
            Some(_) => SystemCall::any(libc::SYS_clone),
            None => self.system_call(libc::SYS_clone),
        };
        let arguments = [Some(flags), None, Some(0), Some(0), Some(0), Some(0)];
        SystemCall { arguments, ..call }
    }

    /// The address after the instruction that calls the kernel.
    fn after_call(&self) -> Address {
        self.instruction.offset(SYSTEM_CALL_BYTES)
    }
}

/// Finds the instructions [`SYSTEM_CALL_RETURN`] in a function that consists of little else.
fn find_system_call(memory: &dyn Memory, function: Address) -> Result<Option<Address>, Unreadable> {
    let mut code = [0; 24];
    memory.read_exact(function, &mut code)?;
    let at = code.windows(SYSTEM_CALL_RETURN.len()).position(|bytes| bytes == SYSTEM_CALL_RETURN);
    Ok(at.map(|at| function.offset(at as u64)))
}

/// A thread of the target that is stopped at the first instruction of its own signal handler.
///
/// The owner of the [`Stop`] releases the thread. It is safe to do so at any time.
pub(crate) struct BorrowedHandler {
    tid: i32,
    registers: Registers,
    deadline: Instant,
}

/// The outcome of a system call that the target was made to make.
pub(crate) enum SystemCallOutcome {
    /// It returned without an error.
    Returned,
    /// It created a process with this id in our namespace; the thread is stopped within clone(2).
    Cloned(i32),
}

impl BorrowedHandler {
    /// Takes the thread `tid` of `pid`, which must be stopped at a safe point, to the first instruction of its handler of
    /// `signal`.
    ///
    /// With `restarts` the system call in which the thread waits starts again after the handler. The thread must reach the handler, and
    /// then the kernel, before `deadline`.
    ///
    /// `pending` is the signal that is to be delivered to the thread when it continues. It is kept up to date, even if
    /// this fails.
    pub(crate) fn take(
        pid: i32,
        tid: i32,
        signal: i32,
        restarts: bool,
        deadline: Instant,
        pending: &mut i32,
    ) -> Result<Self, Refusal> {
        let before = read_registers(tid)?;
        if safe_point::rank(&before).is_none() {
            return Err(Refusal::NoSafePoint);
        }
        // SAFETY: tgkill takes numbers alone.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
        Errno::result(sent).map_err(|errno| match errno {
            Errno::EPERM => Refusal::NotSignalled,
            errno => Refusal::failed("send a signal to a thread")(errno),
        })?;
        let failed = |why| Refusal::TraceFailed { step: TO_HANDLER, why };
        let mut is_delivered = false;
        for _ in 0..MAX_STOPS {
            let time = time_left(deadline, false, Instant::now());
            match go_on(tid, Resume::Run, time, pending)?
                .ok_or_else(|| failed(TraceFailure::Late))?
            {
                Event::Signal(sent) if sent == signal => {
                    if restarts {
                        restart_after(pid, tid, signal)?;
                    }
                    *pending = signal;
                    // The kernel stops the thread again as soon as its registers are those of the handler. A single step would
                    // do so too, but on aarch64 it outlives a tracer that is killed, and the thread with it dies of SIGTRAP.
                    ptrace::interrupt(Pid::from_raw(tid)).map_err(Refusal::failed(TO_HANDLER))?;
                    is_delivered = true;
                }
                Event::Trap if is_delivered => {
                    let registers = read_registers(tid)?;
                    let has_frame = registers.stack_pointer() < before.stack_pointer()
                        && registers.arguments()[0] == signal as u64;
                    return if has_frame {
                        Ok(Self { tid, registers, deadline })
                    } else {
                        Err(failed(TraceFailure::Elsewhere))
                    };
                }
                Event::Signal(other) => *pending = other,
                Event::GroupStop => return Err(Refusal::Suspended),
                Event::Trap | Event::SystemCall | Event::Cloned => {}
            }
        }
        Err(failed(TraceFailure::Elsewhere))
    }

    pub(crate) fn tid(&self) -> i32 {
        self.tid
    }

    /// Returns an address below all that the thread uses, for the arguments of a function.
    pub(crate) fn scratch(&self) -> Address {
        self.registers.stack_pointer().before(SCRATCH).align_down(page_size())
    }

    /// Makes the thread run `function` when it continues. The function returns into the kernel, which restores the
    /// interrupted state.
    pub(crate) fn set_to_call(
        &self,
        function: Address,
        arguments: [u64; 6],
    ) -> Result<(), Refusal> {
        write_registers(self.tid, self.registers.at_call(function, arguments))
    }

    /// Lets the thread make the system call `call` (name and number), and returns when the thread is stopped at its
    /// end.
    pub(crate) fn system_call(
        &self,
        functions: &Functions,
        call: (&'static str, i64),
        arguments: [u64; 6],
        pending: &mut i32,
    ) -> Result<SystemCallOutcome, Refusal> {
        let at_start = self.registers.at_system_call(functions.instruction, call.1, arguments);
        self.run_system_call(at_start, call, pending)
    }

    /// Lets the thread create a process that calls `_exit` as soon as it runs. Returns the process's id in our namespace and
    /// its stack. The thread is stopped within clone(2).
    ///
    /// The stack is just below the handler's frame, on a page that the frame has touched already. The thread needs no stack for
    /// this call.
    pub(crate) fn make_process(
        &self,
        functions: &Functions,
        flags: u64,
        pending: &mut i32,
    ) -> Result<(i32, Address), Refusal> {
        let (stack, bytes) = arch::copy_stack(self.registers.stack_pointer(), functions.exit);
        write_words(self.tid, stack, &[bytes])?;
        let call = ("clone", libc::SYS_clone);
        let at_start = match functions.clone {
            Some(clone) => {
                self.registers.at_call(clone, [functions.exit.0, stack.0, flags, 0, 0, 0])
            }
            None => {
                let arguments = [flags, stack.0, 0, 0, 0, 0];
                self.registers.at_system_call(functions.instruction, call.1, arguments)
            }
        };
        match self.run_system_call(at_start, call, pending)? {
            SystemCallOutcome::Cloned(child) => Ok((child, stack)),
            SystemCallOutcome::Returned => {
                Err(Refusal::TraceFailed { step: TO_CALL, why: TraceFailure::Elsewhere })
            }
        }
    }

    /// Lets the thread go on with the registers `at_start`, which lead to the system call `call`.
    fn run_system_call(
        &self,
        at_start: Registers,
        (name, number): (&'static str, i64),
        pending: &mut i32,
    ) -> Result<SystemCallOutcome, Refusal> {
        let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
            | ptrace::Options::PTRACE_O_TRACECLONE
            | ptrace::Options::PTRACE_O_TRACEFORK;
        ptrace::setoptions(Pid::from_raw(self.tid), options).map_err(Refusal::failed(TO_CALL))?;
        write_registers(self.tid, at_start)?;
        let mut entered = false;
        for _ in 0..MAX_STOPS {
            let time = time_left(self.deadline, entered, Instant::now());
            let event = go_on(self.tid, Resume::ToSystemCall, time, pending)?;
            let late = match entered {
                true => TraceFailure::Kernel(Errno::ETIMEDOUT),
                false => TraceFailure::Late,
            };
            match event.ok_or(Refusal::TraceFailed { step: TO_CALL, why: late })? {
                Event::SystemCall => {
                    let now = read_registers(self.tid)?;
                    // Handlers of other signals may run before on the same stack, and call the kernel too.
                    let is_ours = now.stack_pointer() == self.registers.stack_pointer()
                        && now.system_call() == number;
                    match now.return_value().cast_signed() {
                        _ if !is_ours => {}
                        _ if !entered => entered = true,
                        // A signal is pending. The kernel makes the call again after the signal's handler.
                        RESTARTED => entered = false,
                        error @ -4095..=-1 => {
                            let errno = Errno::from_raw(-error as i32);
                            return Err(Refusal::Kernel { call: name, errno });
                        }
                        _ => return Ok(SystemCallOutcome::Returned),
                    }
                }
                Event::Cloned => {
                    let child = ptrace::getevent(Pid::from_raw(self.tid))
                        .map_err(Refusal::failed("read the id of the copy"))?;
                    return Ok(SystemCallOutcome::Cloned(child as i32));
                }
                Event::Signal(signal) => *pending = signal,
                Event::Trap => {}
                Event::GroupStop => return Err(Refusal::Suspended),
            }
        }
        Err(Refusal::TraceFailed { step: TO_CALL, why: TraceFailure::Elsewhere })
    }
}

/// Returns the time that a resumed thread has until it must stop again.
///
/// A system call that has begun, such as clone(2), cannot be interrupted. To give up would not make the pause shorter, but would waste
/// it. So its end is awaited beyond the deadline.
fn time_left(deadline: Instant, is_in_call: bool, now: Instant) -> Duration {
    if is_in_call { MAX_CALL } else { deadline.saturating_duration_since(now) }
}

/// Lets the system call in which the thread waits start again after the handler of `signal`, so that the thread does not
/// notice the signal. But the handler of another signal must be able to end the call.
fn restart_after(pid: i32, tid: i32, signal: i32) -> Result<(), Refusal> {
    let is_alone =
        || proc::signal_sets(pid, tid).is_some_and(|sets| !sets.is_another_pending(signal));
    match read_registers(tid)?.at_restart() {
        Some(again) if is_alone() => write_registers(tid, again),
        _ => Ok(()),
    }
}

/// Takes one thread of `program` that is at a safe point, and may make all of `system_calls`, to its handler of `signal`,
/// hands it to `run`, and releases it; the other threads run on. Tries each such thread once.
///
/// A thread of the target that does not stop in time cannot be detached by its tracer. The kernel detaches it when the
/// tracer ends, so the tracer is a thread of ours that does nothing else.
///
/// With `restarts` the thread's system call starts again afterwards. That is for calls that take milliseconds: a signal
/// that arrives meanwhile does not end the system call either.
pub(crate) fn at_a_safe_point<T: Send>(
    program: &Identity,
    signal: i32,
    restarts: bool,
    system_calls: &[SystemCall],
    run: impl FnOnce(&BorrowedHandler, &mut i32) -> Result<T, Refusal> + Send,
) -> Result<T, Refusal> {
    std::thread::scope(|scope| {
        let tracer = Builder::new()
            .spawn_scoped(scope, || try_each(program, signal, restarts, system_calls, run));
        let tracer = tracer.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
            Refusal::failed("start a thread of its own")(errno)
        })?;
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Fails unless `program` still runs in its process.
pub(crate) fn check_runs(program: &Identity) -> Result<(), Refusal> {
    program.verify().map_err(|error| match error {
        Error::Ended { .. } | Error::NoSuchProcess { .. } => Refusal::OtherProgram,
        error => Refusal::capture_failed("identify the program")(error),
    })
}

fn try_each<T>(
    program: &Identity,
    signal: i32,
    restarts: bool,
    system_calls: &[SystemCall],
    run: impl FnOnce(&BorrowedHandler, &mut i32) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let pid = program.pid();
    let failed = Refusal::capture_failed;
    let mappings =
        proc::mappings(pid, false).map_err(failed("read the mappings of the process"))?;
    let tids = proc::threads(pid).map_err(failed("list the threads of the process"))?;
    let candidate = |tid| {
        let (rank, stack_pointer) = safe_point::rank_running(pid, tid)?;
        Some((rank, tid, stack_pointer))
    };
    let mut candidates: Vec<_> = tids.into_iter().filter_map(candidate).collect();
    let pagemap = Pagemap::open(pid).map_err(failed("read the page states of the process"))?;
    safe_point::sort(&mut candidates, &pagemap);
    let mut reason = Refusal::NoSafePoint;
    for (_, tid, _) in candidates {
        let mut stop = match Stop::one_thread(pid, tid, PATIENCE) {
            Ok(stop) => stop,
            // It stays seized until this thread of ours ends. If another one made an exec now, that would wait for us to notice its
            // end, and seizing the next thread would wait for the exec.
            Err(error @ Error::DoesNotStop { .. }) => {
                return Err(failed("stop a thread of the process")(error));
            }
            Err(error) => {
                reason = failed("stop a thread of the process")(error);
                continue;
            }
        };
        let Some((_, state)) = stop.stopped().next() else { continue };
        // Another thread can make an exec at any time, but that ends this one.
        check_runs(program)?;
        if state.group_stop {
            return Err(Refusal::Suspended);
        }
        if state.signal != 0 {
            continue;
        }
        if !seccomp::allows(pid, tid, system_calls) {
            reason = Refusal::Seccomp;
            continue;
        }
        let stack_pointer = read_registers(tid)?.stack_pointer();
        let mut pending = 0;
        let thread = safe_point::check_handler(pid, tid, signal, &mappings, stack_pointer)
            .and_then(|()| {
                let deadline = Instant::now() + PATIENCE;
                BorrowedHandler::take(pid, tid, signal, restarts, deadline, &mut pending)
            });
        let done = match thread {
            Ok(thread) => run(&thread, &mut pending),
            Err(refusal) => {
                stop.set_pending_signal(tid, pending);
                reason = refusal;
                continue;
            }
        };
        stop.set_pending_signal(tid, pending);
        return done;
    }
    Err(reason)
}

/// Resumes the thread with its pending signal, and waits for the next event; `None` if there is none in this time.
fn go_on(
    tid: i32,
    how: Resume,
    time: Duration,
    pending: &mut i32,
) -> Result<Option<Event>, Refusal> {
    let failed = Refusal::failed("resume a thread");
    resume(tid, how, *pending).map_err(&failed)?;
    *pending = 0;
    match wait_for_stop(tid, time) {
        Wait::Stopped(event) => Ok(Some(event)),
        Wait::Running => {
            // If possible, the thread is stopped, so that it can be detached.
            let _ = ptrace::interrupt(Pid::from_raw(tid));
            if let Wait::Stopped(Event::Signal(signal)) = wait_for_stop(tid, DETACHING) {
                *pending = signal;
            }
            Ok(None)
        }
        Wait::Gone => Err(failed(Errno::ESRCH)),
    }
}

pub(crate) fn read_registers(tid: i32) -> Result<Registers, Refusal> {
    Registers::read(tid).map_err(Refusal::failed("read the registers of a thread"))
}

pub(crate) fn write_registers(tid: i32, registers: Registers) -> Result<(), Refusal> {
    registers.write(tid).map_err(Refusal::failed("set the registers of a thread"))
}

/// Writes words into the memory of a thread that this thread traces and that is stopped.
///
/// By ptrace(2): to open the memory of another user's process for writing takes CAP_DAC_OVERRIDE, the right to write all files.
pub(crate) fn write_words(tid: i32, at: Address, words: &[[u8; 8]]) -> Result<(), Refusal> {
    for (number, word) in (0..).zip(words) {
        let at = at.offset(number * size_of::<u64>() as u64).0;
        let word = libc::c_long::from_ne_bytes(*word);
        ptrace::write(Pid::from_raw(tid), at as ptrace::AddressType, word)
            .map_err(Refusal::failed("write to the stack of a thread"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy that took longer than a second was given up, and made again three times.
    #[test]
    fn a_system_call_that_has_begun_may_exceed_the_deadline_and_all_else_may_not() {
        let now = Instant::now();
        let later = now + Duration::from_millis(50);
        assert_eq!(time_left(later, false, now), Duration::from_millis(50));
        assert_eq!(time_left(now, false, later), Duration::ZERO);
        for (deadline, now) in [(now, later), (later, now)] {
            assert_eq!(time_left(deadline, true, now), MAX_CALL);
        }
    }
}
