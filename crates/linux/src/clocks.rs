//! Ticks of the processor time of a process's threads, by perf_event_open(2).
//!
//! Each thread has a clock, which runs only while the thread does. At a tick the kernel runs a program that copies memory of the
//! process into a ring, before the thread goes on. Threads that the process starts later inherit the clock, processes do not.
//! Nothing is written to the process.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::bpf::{Assembler, Program};
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

/// The clocks of the threads of a process.
pub struct Clocks {
    program: Program,
    /// Open as long as they tick.
    clocks: Vec<OwnedFd>,
}

impl Clocks {
    /// Starts clocks of all threads, which tick so many times in a second of their processor time. At each tick the kernel runs the
    /// program that `write` adds. It begins as one of [`StackCopies`](crate::bpf::StackCopies) does.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses: it needs CAP_BPF, CAP_PERFMON, and Linux 5.13.
    pub fn start(pid: i32, rate: u32, write: impl FnOnce(&mut Assembler)) -> Result<Self, Error> {
        let failed = |source| Error::Clocks { pid, source };
        raise_file_limit();
        let program = Program::load(0, write).map_err(failed)?;
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
            false => Ok(Self { program, clocks }),
        }
    }

    /// Takes the records of all ticks that have arrived: the time of each by CLOCK_MONOTONIC, and what the program copied.
    pub fn take(&mut self, mut each: impl FnMut(Duration, &[u8])) {
        self.program.take(|time, _, copy| each(time, copy));
    }

    /// The number of clocks that were opened; threads that began later share that of their creator.
    #[must_use]
    pub fn count(&self) -> usize {
        self.clocks.len()
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

    #[test]
    fn threads_that_run_tick_and_also_those_that_begin_later() {
        let word = 0x1234_5678_9abc_def0_u64;
        let pid = std::process::id().cast_signed();
        let mut clocks = match Clocks::start(pid, 1000, |code| write(code, &word)) {
            Ok(clocks) => clocks,
            Err(error) => {
                testkit::skip(&format!("the kernel starts no clocks: {error}"));
                return;
            }
        };
        assert!(clocks.count() > 0);
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
