//! Running code in the target so that nothing can go wrong: as if in a signal handler of its own.
//!
//! CRuby has a handler for SIGVTALRM that does nothing, and sends itself that signal to wake threads
//! from system calls. We send it too, stop the thread at the handler's first instruction, and let it run
//! something else instead. The kernel has saved registers, extended state, signal mask and the
//! interrupted call by then, and restores all of it when what we made it run returns, whether we are
//! still there or not:
//!
//! | rbloat dies | the thread |
//! |---|---|
//! | before the handler | runs the handler, which does nothing |
//! | at its first instruction | runs the handler, which does nothing |
//! | after its registers were set | runs what it was made to run, and returns |
//!
//! So at no instant is it left with registers that are not its own.

use std::thread::Builder;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::arch::{self, Registers, SYSTEM_CALL_BYTES, SYSTEM_CALL_RETURN};
use crate::{Address, Error, Image, Memory, PAGE_SIZE, Unreadable, elf};

use super::seccomp::{self, Call};
use super::stop::Stop;
use super::tracee::{Event, Resume, Wait, resume, wait_for_stop};
use super::{proc, safe_point};

/// The signal whose handler we borrow.
pub(crate) const SIGNAL: i32 = libc::SIGVTALRM;
/// How long a thread that was let go on may take to stop again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Signals that are let through before ours, at most, and stops that are none of ours.
const MOST_STOPS: u32 = 256;
/// Where below the stack pointer we may write: what is called needs less, and a frame of another signal
/// that comes on top of it does, too.
const SCRATCH: u64 = 32 << 10;

/// Why nothing was run in the target. Nothing was changed in it, unless a thread was [`Refusal::Lost`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its handler cannot be borrowed.
    #[error("it has no handler for SIGVTALRM, which every CRuby installs when it starts")]
    NoHandler,
    /// No thread waits where it may be interrupted.
    #[error("no thread of it waits where a signal handler may run: it computes")]
    NoSafePoint,
    /// It is stopped, by SIGSTOP or a terminal.
    #[error("it is stopped by a signal (SIGSTOP, SIGTSTP)")]
    Suspended,
    /// Its C library lacks a function.
    #[error("its C library has no {0} that rbloat could call")]
    NoFunction(&'static str),
    /// The limit of its memory leaves no room.
    #[error(
        "the memory limit leaves {} MiB, and a forked copy may need {} MiB",
        .room_bytes >> 20, .needed_bytes.div_ceil(1 << 20)
    )]
    NoRoom {
        /// What is left.
        room_bytes: u64,
        /// What may be needed.
        needed_bytes: u64,
    },
    /// It would stand for too long.
    #[error(
        "it would stand for about {} ms, longer than the {} ms that are allowed",
        .expected.as_millis(), .max_pause.as_millis()
    )]
    Slow {
        /// The pause that was expected.
        expected: Duration,
        /// The longest pause that was allowed.
        max_pause: Duration,
    },
    /// A filter of system calls forbids it, or may do so.
    #[error(
        "it runs under seccomp, whose filter forbids what it would have to call, or cannot be read (that needs CAP_SYS_ADMIN)"
    )]
    Seccomp,
    /// The kernel refused the system call, as it would have refused it to the target itself.
    #[error("the kernel refused it {call}: {}", .errno.desc())]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// It ended or did not stop again, or something else happened that was not foreseen.
    #[error("a thread of it ended or did not stop in time")]
    Lost,
}

/// What of the target's C library is needed to make it call the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    /// The instructions [`SYSTEM_CALL_RETURN`].
    system_call: Address,
    /// `_exit`.
    pub(crate) exit: Address,
}

impl Functions {
    /// Finds them in the target's memory.
    pub(crate) fn find(image: &Image<'_>) -> Result<Self, Refusal> {
        let system_call = function(image, "getpid")
            .and_then(|getpid| find_system_call(image, getpid).ok().flatten())
            .ok_or(Refusal::NoFunction("getpid"))?;
        let exit = function(image, "_exit").ok_or(Refusal::NoFunction("_exit"))?;
        Ok(Self { system_call, exit })
    }

    /// A call of the kernel as a filter sees it when we have it made here.
    pub(crate) fn made(&self, number: i64) -> Call {
        Call { instruction: Some(self.after_call().0), ..Call::any(number) }
    }

    /// The address behind the instruction that calls the kernel.
    fn after_call(&self) -> Address {
        self.system_call.offset(SYSTEM_CALL_BYTES)
    }

    pub(crate) fn addresses(&self) -> [Address; 2] {
        [self.system_call, self.exit]
    }
}

/// The address of a function that the target's C library exports.
pub(crate) fn function(image: &Image<'_>, name: &str) -> Option<Address> {
    let modules = elf::modules(image);
    let libc = modules.iter().find(|module| {
        ["libc.so", "libc-", "ld-musl-"].iter().any(|prefix| module.name.starts_with(prefix))
    })?;
    Some(libc.symbol(image, name).ok()??.address)
}

/// The instructions [`SYSTEM_CALL_RETURN`] in a function that consists of little else.
fn find_system_call(memory: &dyn Memory, function: Address) -> Result<Option<Address>, Unreadable> {
    let mut code = [0; 24];
    memory.read_exact(function, &mut code)?;
    let at = code.windows(SYSTEM_CALL_RETURN.len()).position(|bytes| bytes == SYSTEM_CALL_RETURN);
    Ok(at.map(|at| function.offset(at as u64)))
}

/// A thread of the target that stands at the first instruction of its own handler.
///
/// Whoever has it must let the thread go: nothing here does. Each way in which it can be left is safe.
pub(crate) struct Borrowed {
    pid: i32,
    tid: i32,
    registers: Registers,
}

/// What came of a system call that the target was made to make.
pub(crate) enum Called {
    /// It returned without an error.
    Returned,
    /// A new process was made; the thread stands within clone(2). Its id in our namespace.
    Cloned(i32),
}

impl Borrowed {
    /// Takes the thread `tid` of `pid`, which must stand at a safe point, to its handler's first
    /// instruction.
    ///
    /// `pending` is the signal that the thread stands before the delivery of; it is kept up to date, also
    /// where this fails.
    pub(crate) fn take(pid: i32, tid: i32, pending: &mut i32) -> Result<Self, Refusal> {
        let before = registers(tid)?;
        if safe_point::rank(&before).is_none() {
            return Err(Refusal::NoSafePoint);
        }
        // SAFETY: tgkill takes numbers alone.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, SIGNAL) };
        Errno::result(sent).map_err(|_| Refusal::Lost)?;
        let mut how = Resume::Run;
        for _ in 0..MOST_STOPS {
            match go_on(tid, how, pending)? {
                Event::Signal(SIGNAL) => {
                    *pending = SIGNAL;
                    how = Resume::Step;
                }
                Event::Signal(libc::SIGTRAP) if matches!(how, Resume::Step) => {
                    let registers = registers(tid)?;
                    let has_frame = registers.stack_pointer() < before.stack_pointer()
                        && registers.arguments()[0] == SIGNAL as u64;
                    return if has_frame {
                        Ok(Self { pid, tid, registers })
                    } else {
                        Err(Refusal::Lost)
                    };
                }
                Event::Signal(other) => {
                    *pending = other;
                    how = Resume::Run;
                }
                Event::JobControl => return Err(Refusal::Suspended),
                Event::Trap | Event::SystemCall | Event::Cloned => how = Resume::Run,
            }
        }
        Err(Refusal::Lost)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn tid(&self) -> i32 {
        self.tid
    }

    /// An address below all that the thread uses, for arguments of what it is made to run.
    pub(crate) fn scratch(&self) -> Address {
        self.registers.stack_pointer().before(SCRATCH).align_down(PAGE_SIZE)
    }

    /// A stack for a process that the thread creates, and what must be written there, so that it calls `function`:
    /// just below the handler's frame, on a page that the frame has touched already. Only a
    /// system call may be made with it: a function would use what is below the frame.
    pub(crate) fn copy_stack(&self, function: Address) -> (Address, [u8; 8]) {
        arch::copy_stack(self.registers.stack_pointer(), function)
    }

    /// Lets the thread run `function` as soon as it goes on; it returns into the kernel, which restores
    /// all that was.
    pub(crate) fn set_to_call(
        &self,
        function: Address,
        arguments: [u64; 6],
    ) -> Result<(), Refusal> {
        set_registers(self.tid, self.registers.at_call(function, arguments))
    }

    /// Makes the thread make the system call `call`, and returns while it stands at its end.
    pub(crate) fn system_call(
        &self,
        functions: &Functions,
        call: (&'static str, i64),
        arguments: [u64; 6],
        pending: &mut i32,
    ) -> Result<Called, Refusal> {
        let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
            | ptrace::Options::PTRACE_O_TRACECLONE
            | ptrace::Options::PTRACE_O_TRACEFORK;
        ptrace::setoptions(Pid::from_raw(self.tid), options).map_err(|_| Refusal::Lost)?;
        let (name, number) = call;
        let at_start = self.registers.at_system_call(functions.system_call, number, arguments);
        set_registers(self.tid, at_start)?;
        let mut entered = false;
        for _ in 0..MOST_STOPS {
            match go_on(self.tid, Resume::ToSystemCall, pending)? {
                Event::SystemCall => {
                    let now = registers(self.tid)?;
                    // Handlers of other signals may run before ours goes on, and call the kernel too.
                    let is_ours = now.instruction_pointer() == functions.after_call()
                        && now.system_call() == number;
                    match now.return_value().cast_signed() {
                        _ if !is_ours => {}
                        _ if !entered => entered = true,
                        error @ -4095..=-1 => {
                            let errno = Errno::from_raw(-error as i32);
                            return Err(Refusal::Kernel { call: name, errno });
                        }
                        _ => return Ok(Called::Returned),
                    }
                }
                Event::Cloned => {
                    let child =
                        ptrace::getevent(Pid::from_raw(self.tid)).map_err(|_| Refusal::Lost)?;
                    return Ok(Called::Cloned(child as i32));
                }
                Event::Signal(signal) => *pending = signal,
                Event::Trap => {}
                Event::JobControl => return Err(Refusal::Suspended),
            }
        }
        Err(Refusal::Lost)
    }
}

/// Takes one thread that waits at a safe point, and may make all of `calls`, to its handler, lets `run` do
/// something with it, and lets it go; the others run on. Tries each such thread once.
///
/// A thread of the target that does not stop in time cannot be let go by its tracer. The kernel lets it
/// go when the tracer ends: so that is a thread of ours that does nothing else.
pub(crate) fn at_a_safe_point<T: Send>(
    pid: i32,
    calls: &[Call],
    run: impl FnOnce(&Borrowed, &mut i32) -> Result<T, Refusal> + Send,
) -> Result<T, Refusal> {
    std::thread::scope(|scope| {
        let tracer = Builder::new().spawn_scoped(scope, || try_each(pid, calls, run));
        let tracer = tracer.map_err(|_| Refusal::Lost)?;
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn try_each<T>(
    pid: i32,
    calls: &[Call],
    run: impl FnOnce(&Borrowed, &mut i32) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let mappings = proc::mappings(pid, false).map_err(|_| Refusal::Lost)?;
    let tids = proc::threads(pid).map_err(|_| Refusal::Lost)?;
    let candidate = |tid| {
        let (rank, stack_pointer) = safe_point::rank_from_afar(pid, tid)?;
        Some((rank, tid, stack_pointer))
    };
    let mut candidates: Vec<_> = tids.into_iter().filter_map(candidate).collect();
    let pagemap = proc::open(pid, "pagemap").map_err(|_| Refusal::Lost)?;
    safe_point::sort(&mut candidates, &pagemap);
    let mut reason = Refusal::NoSafePoint;
    for (_, tid, _) in candidates {
        let mut stop = match Stop::one_thread(pid, tid, PATIENCE) {
            Ok(stop) => stop,
            Err(Error::DoesNotStop { .. }) => {
                reason = Refusal::Lost;
                continue;
            }
            Err(_) => continue,
        };
        let Some((_, standing)) = stop.standing().next() else { continue };
        if standing.by_job_control {
            return Err(Refusal::Suspended);
        }
        if standing.signal != 0 {
            continue;
        }
        if !seccomp::allows(pid, tid, calls) {
            reason = Refusal::Seccomp;
            continue;
        }
        let stack_pointer = registers(tid)?.stack_pointer();
        let mut pending = 0;
        let thread = safe_point::check_handler(pid, tid, &mappings, stack_pointer)
            .and_then(|()| Borrowed::take(pid, tid, &mut pending));
        let done = match thread {
            Ok(thread) => run(&thread, &mut pending),
            Err(refusal) => {
                stop.stands_before(tid, pending);
                reason = refusal;
                continue;
            }
        };
        stop.stands_before(tid, pending);
        return done;
    }
    Err(reason)
}

/// Lets the thread go on with its pending signal, and waits for what happens next.
fn go_on(tid: i32, how: Resume, pending: &mut i32) -> Result<Event, Refusal> {
    resume(tid, how, *pending).map_err(|_| Refusal::Lost)?;
    *pending = 0;
    match wait_for_stop(tid, PATIENCE) {
        Wait::Stopped(event) => Ok(event),
        Wait::Running => {
            // It is not to be left running with us as its tracer, if that can be helped.
            let _ = ptrace::interrupt(Pid::from_raw(tid));
            if let Wait::Stopped(Event::Signal(signal)) = wait_for_stop(tid, PATIENCE) {
                *pending = signal;
            }
            Err(Refusal::Lost)
        }
        Wait::Gone => Err(Refusal::Lost),
    }
}

pub(crate) fn registers(tid: i32) -> Result<Registers, Refusal> {
    Registers::read(tid).map_err(|_| Refusal::Lost)
}

pub(crate) fn set_registers(tid: i32, registers: Registers) -> Result<(), Refusal> {
    registers.write(tid).map_err(|_| Refusal::Lost)
}
