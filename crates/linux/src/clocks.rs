//! Ticks of the processor time of a process's threads.
//!
//! At a tick the kernel runs a program that copies memory of the process into a ring, before the thread goes on. Nothing is written to
//! the process. There are two kinds of ticks:
//!
//! - The kernel's own, some hundred times in each second that a processor works. A program sees those of the process only
//!   (`hrtimer_expire_entry` of include/trace/events/timer.h, by bpf(2)). They come anyway, so they cost the process nothing but the
//!   program, and threads that live for less than the time between two ticks have their part of them.
//! - A clock of each thread (perf_event_open(2)), which runs only while the thread does, for more ticks than the kernel has, and where the
//!   program may not see the kernel's. Each of its ticks is an interrupt of its own. Threads that the process starts later inherit it,
//!   processes do not.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::time::Duration;

use nix::time::{ClockId, clock_getres};

use crate::bpf::{Assembler, Program, Ticking};
use crate::page_faults::{
    Attributes, CLOSE_ON_EXEC, EXCLUDE_HYPERVISOR, INHERIT, MAX_LISTS, SET_PROGRAM,
    raise_file_limit,
};
use crate::{Error, proc};

/// `PERF_COUNT_SW_CPU_CLOCK` of linux/perf_event.h.
const PROCESSOR_CLOCK: u64 = 0;
/// Bits of the flags of `perf_event_attr` that Linux 5.13 has: only threads inherit the clock, and exec ends it.
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
/// What the kernel does at each of its own ticks, and when another timer ends.
const TIMER_ENDS: &CStr = c"hrtimer_expire_entry";
/// The bits of the lower part of the kernel's own numbers of devices (linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// The ticks that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickSource {
    /// The kernel's own: if it has fewer than are wanted, all of them.
    Kernel,
    /// Also clocks of threads, if the kernel has fewer than are wanted, or shows none.
    Any,
}

/// The ticks of a process.
pub struct Clocks {
    program: Program,
    /// Open as long as they tick.
    _clocks: Vec<OwnedFd>,
    are_the_kernels: bool,
}

impl Clocks {
    /// Starts `rate` ticks in a second of the threads' processor time, of these sources. At each tick the kernel runs the program that
    /// `write` adds. It begins as one of [`StackCopies`](crate::bpf::StackCopies) does.
    ///
    /// The kernel's other timers are taken for ticks, too, such as the end of a process's sleep. `timers` is the number of all for
    /// each tick: 1 if it is not known.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses: it needs CAP_BPF, CAP_PERFMON, and Linux 5.13; for its own ticks Linux 5.15.
    pub fn start(
        pid: i32,
        rate: u32,
        timers: f64,
        source: TickSource,
        write: impl Fn(&mut Assembler),
    ) -> Result<Self, Error> {
        let of_kernel = Self::of_kernel(pid, f64::from(rate) / timers, source, &write);
        match (of_kernel, source) {
            (Ok(clocks), _) => Ok(clocks),
            (Err(_), TickSource::Any) => Self::of_threads(pid, rate, write),
            (Err(source), TickSource::Kernel) => Err(Error::Clocks { pid, source }),
        }
    }

    /// The kernel's ticks, or a random part of them.
    ///
    /// # Errors
    /// If it has fewer and others may be used instead, or refuses: the types of its structures must be known (Linux 5.15 with BTF).
    fn of_kernel(
        pid: i32,
        rate: f64,
        source: TickSource,
        write: impl FnOnce(&mut Assembler),
    ) -> io::Result<Self> {
        let resolution = |clock| io::Result::Ok(Duration::from(clock_getres(clock)?).as_secs_f64());
        // The coarse clock goes on at each tick. The other one is only as coarse if ticks are no timers.
        let each = resolution(ClockId::CLOCK_MONOTONIC_COARSE)?;
        let part = match source {
            TickSource::Kernel => (rate * each).min(1.0),
            TickSource::Any => rate * each,
        };
        if part > 1.0 || resolution(ClockId::CLOCK_MONOTONIC)? >= each {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid"))?;
        let device = namespace.st_dev();
        let device = u64::from(libc::major(device)) << MINOR_BITS | u64::from(libc::minor(device));
        let pid = proc::own_pid(pid).map_err(io::Error::other)?;
        let ticking = Ticking { pid, namespace: (device, namespace.st_ino()), part };
        let program = Program::at_ticks(ticking, write)?;
        let clock = program.attach(TIMER_ENDS)?;
        Ok(Self { program, _clocks: vec![clock], are_the_kernels: true })
    }

    /// Clocks of all threads.
    fn of_threads(pid: i32, rate: u32, write: impl FnOnce(&mut Assembler)) -> Result<Self, Error> {
        let failed = |source| Error::Clocks { pid, source };
        raise_file_limit();
        let program = Program::at_events(false, write).map_err(failed)?;
        let period = Duration::from_secs(1) / rate.max(1);
        let mut threads = BTreeSet::new();
        let mut clocks = Vec::new();
        for _ in 0..MAX_LISTS {
            let before = clocks.len();
            // A thread that was started before its creator had a clock has none.
            for tid in proc::thread_ids(pid)? {
                if threads.insert(tid) {
                    clocks.extend(clock(tid, period, &program).map_err(failed)?);
                }
            }
            if clocks.len() == before {
                break;
            }
        }
        match clocks.is_empty() {
            true => Err(Error::NoSuchProcess { pid }),
            false => Ok(Self { program, _clocks: clocks, are_the_kernels: false }),
        }
    }

    /// Returns true for the kernel's own ticks.
    #[must_use]
    pub fn are_the_kernels(&self) -> bool {
        self.are_the_kernels
    }

    /// Takes the records of all ticks that have arrived: the time of each by CLOCK_MONOTONIC, and what the program copied.
    pub fn take(&mut self, mut each: impl FnMut(Duration, &[u8])) {
        self.program.take(|time, _, copy| each(time, copy));
    }
}

/// The clock of a thread; `None` if that has ended.
fn clock(tid: i32, period: Duration, program: &Program) -> io::Result<Option<OwnedFd>> {
    let flags = INHERIT | INHERIT_THREAD | REMOVE_ON_EXEC | EXCLUDE_HYPERVISOR;
    let attributes = Attributes::of_software(PROCESSOR_CLOCK, period.as_nanos() as u64, flags);
    // SAFETY: the attributes have the layout of linux/perf_event.h, and outlive the call.
    let opened = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, tid, -1, -1, CLOSE_ON_EXEC)
    };
    let clock = match i32::try_from(opened) {
        // SAFETY: the kernel has just opened it, and nothing else owns it.
        Ok(clock) if clock >= 0 => unsafe { OwnedFd::from_raw_fd(clock) },
        _ => {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
        }
    };
    let program = program.descriptor().as_raw_fd();
    // SAFETY: both are open.
    match unsafe { libc::ioctl(clock.as_raw_fd(), SET_PROGRAM as _, program) } {
        0 => Ok(Some(clock)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::Address;
    use crate::arch::{INSTRUCTION_AT, is_of_kernel, own_thread_pointer};
    use crate::bpf::Register::{R1, R2, R3, R9};
    use crate::bpf::{POINTER, RECORD, RECORD_HEADER};

    /// A program that copies the instruction pointer, a word at a fixed address, and the thread's descriptor.
    fn write(code: &mut Assembler, word: &u64) {
        code.begin_record(64);
        code.load_context(R1, INSTRUCTION_AT);
        code.store(RECORD, RECORD_HEADER, R1);
        code.copy(R1, RECORD);
        code.add_number(R1, i32::from(RECORD_HEADER) + 8);
        code.set(R2, 8);
        code.set_word(R3, std::ptr::from_ref(word) as u64);
        code.copy_memory(R1, R2, R3);
        code.store(RECORD, RECORD_HEADER + 16, POINTER);
        code.set(R9, i32::from(RECORD_HEADER) + 24);
        code.end_record(R9);
    }

    /// The two kinds of ticks, if the kernel has them.
    fn kinds(pid: i32, word: &u64) -> Vec<Clocks> {
        let of_threads = Clocks::of_threads(pid, 1000, |code| write(code, word));
        let of_kernel = Clocks::of_kernel(pid, 100.0, TickSource::Kernel, |code| write(code, word));
        if let Err(error) = &of_threads {
            testkit::skip(&format!("the kernel starts no clocks: {error}"));
        }
        if let Err(error) = &of_kernel {
            testkit::skip(&format!("the kernel shows none of its ticks: {error}"));
        }
        of_threads.ok().into_iter().chain(of_kernel).collect()
    }

    #[test]
    fn threads_that_run_tick_and_also_those_that_begin_later() {
        let word = 0x1234_5678_9abc_def0_u64;
        let pid = std::process::id().cast_signed();
        for mut clocks in kinds(pid, &word) {
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let own = own_thread_pointer();
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::black_box(own);
                    }
                    own
                });
                let mut pointers = Vec::new();
                let begin = Instant::now();
                while pointers.iter().filter(|&it| *it != own_thread_pointer()).count() < 20 {
                    clocks.take(|time, copy| {
                        let word_at =
                            |at: usize| u64::from_le_bytes(copy[at..at + 8].try_into().unwrap());
                        assert!(!time.is_zero() && copy.len() == 24);
                        assert_eq!(word_at(8), word);
                        assert!(
                            word_at(0) != 0
                                && (is_of_kernel(Address(word_at(0))) || word_at(0) >> 48 == 0)
                        );
                        pointers.push(word_at(16));
                    });
                    assert!(begin.elapsed() < Duration::from_secs(300), "no ticks");
                }
                is_over.store(true, Ordering::Relaxed);
                let own = thread.join().unwrap();
                assert!(pointers.contains(&own));
            });
        }
    }

    /// The kernel's ticks are those of all processes.
    #[test]
    fn the_ticks_of_other_processes_are_not_seen() {
        let word = 0_u64;
        let mut shell = std::process::Command::new("sh");
        let mut other = shell.args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = other.id().cast_signed();
        let clocks = Clocks::of_kernel(pid, 100.0, TickSource::Any, |code| write(code, &word));
        let pointers = clocks.map(|mut clocks| {
            let (mut pointers, begin) = (Vec::new(), Instant::now());
            // This thread uses a processor, too.
            while pointers.len() < 20 && begin.elapsed() < Duration::from_secs(300) {
                clocks.take(|_, copy| {
                    pointers.push(u64::from_le_bytes(copy[16..24].try_into().unwrap()));
                });
            }
            pointers
        });
        other.kill().unwrap();
        other.wait().unwrap();
        match pointers {
            Ok(all) => assert!(all.len() >= 20 && !all.contains(&own_thread_pointer())),
            Err(error) => testkit::skip(&format!("the kernel shows none of its ticks: {error}")),
        }
    }
}
