//! Samples of the page faults of a process, by perf_event_open(2).
//!
//! RSS grows by page faults and by nothing else. The kernel counts the minor faults of each thread, and writes a record for
//! every n-th one into a ring of memory that it shares with us: thread, time, address and instruction. Nothing is stopped
//! or written in the process. Threads and processes that it starts later inherit the counter.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::ClockId;

use crate::arch::page_size;
use crate::bpf::StackCopies;
use crate::{Address, Error, RealTimePriority, proc};

/// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_PAGE_FAULTS_MIN` of linux/perf_event.h.
const SOFTWARE: u32 = 1;
const MINOR_FAULTS: u64 = 5;
/// `PERF_SAMPLE_...`: instruction, thread, time, and address. With the period, the kernel would write a record for each
/// fault (`perf_swevent_event` in kernel/events/core.c).
const SAMPLE: u64 = 1 | 2 | 4 | 8;
/// Bits of the flags of `perf_event_attr`.
pub(crate) const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(crate) const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
/// All records end with thread and time (`sample_id_all`).
const TIME_OF_ALL: u64 = 1 << 18;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCK_ID: u64 = 1 << 25;
/// `PERF_FLAG_FD_CLOEXEC`.
pub(crate) const CLOSE_ON_EXEC: u64 = 8;
/// `PERF_EVENT_IOC_SET_OUTPUT`.
const SET_OUTPUT: libc::c_ulong = 0x2405;
/// `PERF_EVENT_IOC_SET_BPF`.
pub(crate) const SET_PROGRAM: libc::c_ulong = 0x4004_2408;
/// Types of records.
const LOST: u32 = 2;
const COMM_RECORD: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const FAULT: u32 = 9;
/// `PERF_RECORD_MISC_COMM_EXEC`.
const EXECUTED: u16 = 1 << 13;
/// Bytes of a ring, a power of two.
const RING_BYTES: u64 = 64 << 10;
/// The time between two looks at a ring if the thread of its counter has ended: waiting returns at once then.
const AFTER_END: Duration = Duration::from_millis(5);
/// Offsets of `data_head` and `data_tail` in the first page of a ring (`perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Attempts to open the counters of all threads while the process starts new ones.
pub(crate) const MAX_LISTS: usize = 5;
/// Bytes of the header of a record: its type, flags, and size.
const HEADER_BYTES: u64 = 8;

/// `perf_event_attr`, up to its fourth published size.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers: u64,
    stack_bytes: u32,
    clock: i32,
}

impl Attributes {
    /// Those of a software event that happens every `period` times.
    pub(crate) fn of_software(config: u64, period: u64, flags: u64) -> Self {
        let size = size_of::<Self>() as u32;
        Self { kind: SOFTWARE, size, config, period, flags, ..Self::default() }
    }
}

/// A record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultRecord {
    /// A thread has faulted as often as the period.
    Fault(Fault),
    /// A process was forked.
    Forked {
        /// Its id.
        pid: i32,
        /// The process that forked it.
        parent: i32,
    },
    /// A thread has ended.
    ThreadEnded {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// A process runs another program.
    Executed {
        /// Its id.
        pid: i32,
    },
    /// Records were lost, because the ring was full.
    Lost(u64),
}

/// A page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The time, by CLOCK_MONOTONIC.
    pub time: Duration,
    /// The address that the thread touched.
    pub address: Address,
    /// The address of the instruction; in the kernel if a system call touched the page.
    pub instruction: Address,
    /// The number of faults of the thread that it stands for: the period at its time.
    pub period: u64,
}

/// The page faults of a process and of the processes that it starts.
pub struct PageFaults {
    rings: Vec<Ring>,
    /// Open counters that write into the rings of others.
    counters: Vec<OwnedFd>,
    /// The number of faults of a thread that each record stands for.
    pub period: u64,
    /// False if faults inside of system calls are not seen.
    pub sees_system_calls: bool,
    /// The program that the kernel runs at each sample.
    copies: Option<StackCopies>,
}

/// The way in which faults are counted.
#[derive(Clone, Copy)]
struct Counting<'a> {
    period: u64,
    sees_system_calls: bool,
    copies: Option<&'a StackCopies>,
}

/// The counter of one thread on one processor, and the ring of that processor.
struct Ring {
    counter: OwnedFd,
    period: u64,
    memory: *mut u8,
}

// SAFETY: the memory is used by one thread at a time, through `&mut self`, and by the kernel.
unsafe impl Send for Ring {}

impl PageFaults {
    /// Begins to sample every `period`-th minor fault of the process `pid`, and of `others` that live.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses: without CAP_PERFMON it depends on
    /// /proc/sys/kernel/perf_event_paranoid.
    pub fn open(pid: i32, others: &[i32], period: u64) -> Result<Self, Error> {
        Self::open_with(pid, others, period, None)
    }

    fn open_with(
        pid: i32,
        others: &[i32],
        period: u64,
        copies: Option<&StackCopies>,
    ) -> Result<Self, Error> {
        raise_file_limit();
        match Self::open_all(pid, others, Counting { period, sees_system_calls: true, copies }) {
            // Faults of one's own programs outside of system calls may be counted without rights.
            Err(Error::Faults { source, .. }) if is_refusal(&source) => {
                Self::open_all(pid, others, Counting { period, sees_system_calls: false, copies })
            }
            result => result,
        }
    }

    fn open_all(pid: i32, others: &[i32], counting: Counting<'_>) -> Result<Self, Error> {
        let failed = |source| Error::Faults { pid, source };
        let list = || -> Result<BTreeSet<i32>, Error> {
            let mut threads: BTreeSet<i32> = proc::thread_ids(pid)?.into_iter().collect();
            threads.extend(others.iter().flat_map(|&it| proc::thread_ids(it).unwrap_or_default()));
            Ok(threads)
        };
        let mut threads = list()?;
        let (mut rings, mut counters) = (Vec::new(), Vec::new());
        for _ in 0..MAX_LISTS {
            (rings, counters) = open_counters(&threads, counting).map_err(failed)?;
            // A thread that was started before its creator had a counter has none.
            let now = list()?;
            if now.is_subset(&threads) {
                break;
            }
            threads = now;
        }
        if rings.is_empty() {
            return Err(Error::NoSuchProcess { pid });
        }
        let Counting { period, sees_system_calls, .. } = counting;
        Ok(Self { rings, counters, period, sees_system_calls, copies: None })
    }

    /// Samples every `period`-th fault from now on. Returns the records that were not read yet.
    ///
    /// The kernel has no way to change the period of the counters that threads inherited, so all are opened anew.
    ///
    /// # Errors
    /// If the kernel refuses. Nothing is sampled then.
    pub fn change_period(
        &mut self,
        pid: i32,
        others: &[i32],
        period: u64,
    ) -> Result<Vec<FaultRecord>, Error> {
        let begin = now();
        match Self::open_with(pid, others, period, self.copies.as_ref()) {
            Ok(new) => {
                let mut old = std::mem::replace(self, new);
                // Later faults have been counted by the new counters.
                let mut records = old.read();
                self.copies = old.copies.take();
                records.retain(|&(time, _)| time < begin);
                Ok(records.into_iter().map(|it| it.1).collect())
            }
            // Its other threads and processes keep their counters.
            Err(Error::NoSuchProcess { .. }) => Ok(Vec::new()),
            // Two counters for each thread may be too many.
            Err(_) => {
                let records = self.read().into_iter().map(|it| it.1).collect();
                self.rings.clear();
                self.counters.clear();
                let copies = self.copies.take();
                *self = Self::open_with(pid, others, period, copies.as_ref())?;
                self.copies = copies;
                Ok(records)
            }
        }
    }

    /// Lets the kernel run a program at each sample of threads that have a counter already, and of all that they start.
    ///
    /// # Errors
    /// As [`Self::change_period`].
    pub fn copy_at_faults(
        &mut self,
        pid: i32,
        others: &[i32],
        copies: StackCopies,
    ) -> Result<Vec<FaultRecord>, Error> {
        self.copies = Some(copies);
        self.change_period(pid, others, self.period)
    }

    /// Returns what the program copied at this fault, once; `None` if nothing was.
    pub fn copy(&mut self, fault: &Fault) -> Option<Vec<u8>> {
        self.copies.as_mut()?.claim(fault.time, fault.address)
    }

    /// Takes all records out of the rings, in the order of their time.
    fn read(&mut self) -> Vec<(Duration, FaultRecord)> {
        let mut records = Vec::new();
        for ring in &mut self.rings {
            ring.read(&mut records);
        }
        // Each was written before the record of the same fault.
        if let Some(copies) = &mut self.copies {
            copies.read();
        }
        records.sort_by_key(|&(time, _)| time);
        records
    }

    /// Waits up to `time` for records, and returns all that have arrived, in the order of their time.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub fn wait(&mut self, time: Duration) -> io::Result<Vec<FaultRecord>> {
        let timeout = PollTimeout::try_from(time.as_millis()).unwrap_or(PollTimeout::MAX);
        let mut descriptors: Vec<PollFd<'_>> = self
            .rings
            .iter()
            .map(|ring| PollFd::new(ring.counter.as_fd(), PollFlags::POLLIN))
            .collect();
        match poll(&mut descriptors, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // A counter whose thread has ended is always ready.
        let is_over = |it: &PollFd<'_>| it.revents().is_some_and(|it| it == PollFlags::POLLHUP);
        let is_any_over = descriptors.iter().any(is_over);
        let records = self.read();
        if is_any_over && records.is_empty() {
            std::thread::sleep(time.min(AFTER_END));
        }
        Ok(records.into_iter().map(|it| it.1).collect())
    }
}

/// Opens counters of these threads on each processor, and a ring for each processor.
fn open_counters(
    threads: &BTreeSet<i32>,
    counting: Counting<'_>,
) -> io::Result<(Vec<Ring>, Vec<OwnedFd>)> {
    let mut rings: Vec<Ring> = Vec::new();
    let mut counters = Vec::new();
    // SAFETY: sysconf takes a number alone.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    for processor in 0..i32::try_from(processors).unwrap_or(1) {
        let mut first: Option<usize> = None;
        for &tid in threads {
            let counter = match open_counter(tid, processor, counting) {
                // The thread has ended, or the processor is off.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => {
                    continue;
                }
                result => result?,
            };
            if let Some(copies) = counting.copies {
                let program = copies.program().as_raw_fd();
                // SAFETY: both are open. Without the program there are fewer copies.
                unsafe { libc::ioctl(counter.as_raw_fd(), SET_PROGRAM as _, program) };
            }
            match first {
                Some(ring) => {
                    let ring = rings[ring].counter.as_raw_fd();
                    // SAFETY: both are open counters.
                    let set = unsafe { libc::ioctl(counter.as_raw_fd(), SET_OUTPUT as _, ring) };
                    if set != 0 {
                        return Err(io::Error::last_os_error());
                    }
                    counters.push(counter);
                }
                None => {
                    first = Some(rings.len());
                    rings.push(Ring::new(counter, counting.period)?);
                }
            }
        }
    }
    Ok((rings, counters))
}

/// Raises the limit of open files to the highest that is allowed. Observing a process takes a counter for each thread and
/// processor, and a family has many processes.
pub fn raise_file_limit() {
    // SAFETY: the limits are plain data, and outlive the calls.
    unsafe {
        let mut limits: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) == 0 {
            limits.rlim_cur = limits.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits);
        }
    }
}

/// Gives the calling thread real-time priority if the kernel allows that, until the value is dropped: the sooner a stack
/// is read after a fault, the surer is it the stack of the fault.
#[must_use]
pub fn real_time_priority() -> impl Drop {
    RealTimePriority::raise()
}

/// Returns the time by the clock of [`Fault::time`].
#[must_use]
pub fn now() -> Duration {
    proc::time_of(ClockId::CLOCK_MONOTONIC)
}

/// Returns true if the kernel does not allow events, or has none.
#[must_use]
pub fn is_forbidden(error: &io::Error) -> bool {
    is_refusal(error) || error.raw_os_error() == Some(libc::ENOSYS)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

fn open_counter(
    tid: i32,
    processor: i32,
    Counting { period, sees_system_calls, .. }: Counting<'_>,
) -> io::Result<OwnedFd> {
    let scope = if sees_system_calls { 0 } else { EXCLUDE_KERNEL };
    let records = COMM | TASK | TIME_OF_ALL | COMM_EXEC | USE_CLOCK_ID;
    let flags = scope | INHERIT | EXCLUDE_HYPERVISOR | records;
    let attributes = Attributes {
        sample: SAMPLE,
        wakeup_events: 1,
        clock: libc::CLOCK_MONOTONIC,
        ..Attributes::of_software(MINOR_FAULTS, period, flags)
    };
    // SAFETY: the attributes have the layout of linux/perf_event.h, and outlive the call.
    unsafe {
        let counter = libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            tid,
            processor,
            -1,
            CLOSE_ON_EXEC,
        );
        match i32::try_from(counter) {
            Ok(counter) if counter >= 0 => Ok(OwnedFd::from_raw_fd(counter)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Ring {
    fn new(counter: OwnedFd, period: u64) -> io::Result<Self> {
        // SAFETY: a new mapping of the counter's ring, which `drop` removes.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (page_size() + RING_BYTES) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                counter.as_raw_fd(),
                0,
            )
        };
        match memory {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            memory => Ok(Self { counter, period, memory: memory.cast() }),
        }
    }

    /// The number at this offset of the first page, which the kernel changes.
    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives, and the offset is aligned and inside of it.
        unsafe { &*self.memory.add(at).cast::<AtomicU64>() }
    }

    /// Takes all records out of the ring.
    fn read(&mut self, records: &mut Vec<(Duration, FaultRecord)>) {
        let head = self.position(HEAD).load(Ordering::Acquire);
        let mut tail = self.position(TAIL).load(Ordering::Relaxed);
        while head.wrapping_sub(tail) >= HEADER_BYTES {
            let header = self.word(tail);
            let (kind, flags, bytes) = (header as u32, (header >> 32) as u16, header >> 48);
            if !(HEADER_BYTES..=head.wrapping_sub(tail)).contains(&bytes) {
                break;
            }
            let words = [8, 16, 24, 32].map(|at| if at < bytes { self.word(tail + at) } else { 0 });
            // A sample begins with its place and time, other records end with it.
            let time = if kind == FAULT { words[2] } else { self.word(tail + bytes - 8) };
            let time = Duration::from_nanos(time);
            records.extend(record(kind, flags, words, self.period).map(|record| (time, record)));
            tail += bytes;
        }
        self.position(TAIL).store(head, Ordering::Release);
    }

    /// The word at this position of the ring. Records are aligned to 8 bytes.
    fn word(&self, at: u64) -> u64 {
        let offset = page_size() + ((at % RING_BYTES) & !7);
        // SAFETY: the offset lies in the mapped ring, and is aligned.
        unsafe { self.memory.add(offset as usize).cast::<u64>().read_volatile() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which nothing refers any more.
        unsafe { libc::munmap(self.memory.cast(), (page_size() + RING_BYTES) as usize) };
    }
}

/// The record of this type with the words behind its header, by counters with this period.
fn record(kind: u32, flags: u16, words: [u64; 4], period: u64) -> Option<FaultRecord> {
    let pair = |word: u64| ((word as u32).cast_signed(), ((word >> 32) as u32).cast_signed());
    match kind {
        FAULT => {
            let (pid, tid) = pair(words[1]);
            Some(FaultRecord::Fault(Fault {
                pid,
                tid,
                time: Duration::from_nanos(words[2]),
                address: Address(words[3]),
                instruction: Address(words[0]),
                period,
            }))
        }
        LOST => Some(FaultRecord::Lost(words[1])),
        FORK | EXIT => {
            let ((pid, parent), (tid, _)) = (pair(words[0]), pair(words[1]));
            match kind {
                FORK if pid != parent => Some(FaultRecord::Forked { pid, parent }),
                EXIT => Some(FaultRecord::ThreadEnded { pid, tid }),
                _ => None,
            }
        }
        COMM_RECORD if flags & EXECUTED != 0 => {
            Some(FaultRecord::Executed { pid: pair(words[0]).0 })
        }
        _ => None,
    }
}
